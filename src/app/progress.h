/* How far something long has come, on standard error: only where that is a terminal, and one which does not
 * show the stream itself. */
#ifndef FRESHET_APP_PROGRESS_H
#define FRESHET_APP_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

struct progress {
    bool shown;
    uint64_t items, bytes;
    uint64_t items_total; /* 0 = nobody knows */
    int64_t began_ns, drawn_ns;
};

void progress_start(struct progress *progress, bool wanted);
void progress_add(struct progress *progress, struct str bytes); /* of NDJSON: a line is an item */
/* The same with a known end, for what does not go to standard output. */
void progress_start_of(struct progress *progress, uint64_t items_total);
void progress_count(struct progress *progress, uint64_t items, uint64_t bytes);
void progress_end(struct progress *progress);

#endif
