/* How far a long stream has come, on standard error: only where that is a terminal which does not show the
 * stream. */
#ifndef FRESHET_APP_PROGRESS_H
#define FRESHET_APP_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

struct progress {
    bool shown;
    uint64_t items, bytes;
    int64_t began_ns, drawn_ns;
};

void progress_start(struct progress *progress, bool wanted);
void progress_add(struct progress *progress, struct str bytes); /* of NDJSON: a line is an item */
void progress_end(struct progress *progress);

#endif
