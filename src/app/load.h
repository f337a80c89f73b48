/* A file of items, for `freshet load`: NDJSON or CSV, read line by line, as often as wanted. */
#ifndef FRESHET_APP_LOAD_H
#define FRESHET_APP_LOAD_H

#include <stdio.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/status.h"

enum load_format { LOAD_NDJSON, LOAD_CSV };

struct load_file {
    const char *name;
    FILE *stream;
    off_t start; /* can be read again from here */
    enum load_format format;
    const char *key_column; /* of CSV; NULL = the first */
    uint64_t line_number;   /* of the last line read, from 1 */
    uint64_t item_line;     /* where the last item began */
    char *line;             /* of getline() */
    size_t line_capacity;
    struct buf record;   /* of CSV: may span lines */
    struct str *columns; /* of CSV: the header's names, in `names` */
    size_t column_count, key_index;
    struct arena names, arena; /* `arena`: of the current item */
};

/* `path` "-" is standard input, which is copied where it cannot be read twice. Close it in either case. */
enum status load_file_open(struct load_file *file, const char *path, struct error *error) MUST_CHECK;
void load_file_close(struct load_file *file);
enum status load_file_rewind(struct load_file *file, struct error *error) MUST_CHECK;
/* Appends the next item to `out` as {"key":…,"payload":…}; *has_item is false at the end. An error names the line. */
enum status load_file_next(struct load_file *file, struct buf *out, bool *has_item,
                           struct error *error) MUST_CHECK;

#endif
