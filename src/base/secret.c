/* Reads a secret out of a file, without copies of it left in memory that is freed. */
#include "base/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* Bytes read, at most SECRET_BYTES_MAX + 1; -1: errno. */
static ssize_t read_text(struct secret *secret, const char *path)
{
    size_t len = 0;
    ssize_t got = 1;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO without a writer must not hold us */

    if (fd < 0)
        return -1;
    while (got != 0 && len < sizeof secret->text) {
        got = read(fd, secret->text + len, sizeof secret->text - len);
        if (got < 0 && errno != EINTR)
            break;
        len += got > 0 ? (size_t)got : 0;
    }
    int failed_errno = errno;
    close(fd);
    errno = failed_errno;
    return got < 0 ? -1 : (ssize_t)len;
}

enum status secret_read(struct secret *secret, const char *path, struct error *error)
{
    const char *reason = NULL;
    ssize_t len = read_text(secret, path);

    if (len < 0)
        reason = strerror(errno);
    else if ((size_t)len > SECRET_BYTES_MAX)
        reason = "it is longer than 4096 bytes";
    else if (memchr(secret->text, '\0', (size_t)len))
        reason = "it holds a NUL byte";
    if (!reason) {
        bool has_newline = len > 0 && secret->text[len - 1] == '\n';
        len -= has_newline;
        if (has_newline && len > 0 && secret->text[len - 1] == '\r')
            len--;
        secret->text[len] = '\0';
        if (len > 0)
            return STATUS_OK;
        reason = "it is empty";
    }
    secret_wipe(secret);
    return error_set(error, STATUS_CONFIG, "the secret in %s cannot be read: %s", path, reason);
}

void secret_wipe(struct secret *secret)
{
    explicit_bzero(secret, sizeof *secret);
}
