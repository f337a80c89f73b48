/* Secrets in files: passwords that Kubernetes mounts, or that an agent writes. A caller reads its file whenever it logs in, never
 * earlier, so that a rotated password is used by the next connection. Any thread; the file is small and local. */
#ifndef FRESHET_BASE_SECRET_H
#define FRESHET_BASE_SECRET_H

#include "base/status.h"

enum { SECRET_BYTES_MAX = 4096 };

struct secret {
    char text[SECRET_BYTES_MAX + 1]; /* ends in a NUL */
};

/* The content of the file without one newline at its end. CONFIG: it cannot be read, is empty, too long, or holds a NUL byte;
 * the message names the file and never its content. Then the text is empty. */
enum status secret_read(struct secret *secret, const char *path, struct error *error) MUST_CHECK;
void secret_wipe(struct secret *secret);

#endif
