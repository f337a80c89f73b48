/* What the files of `freshet load` share: load.c is the command and sends, load_file.c turns a file into items,
 * load_chunks.c items into chunks.
 *
 *     file ─ items ─ chunks ─ first pass: counted and hashed, nothing is sent
 *                           ─ second pass: the same chunks, with ids made of those hashes ─ several in flight */
#ifndef FRESHET_APP_LOAD_H
#define FRESHET_APP_LOAD_H

#include <stdio.h>

#include "app/updates.h"
#include "base/arena.h"
#include "base/hash.h"

/* ---- load_file.c ---- */
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
    struct arena names, arena; /* `arena`: of the item at hand */
};

/* `path` "-" is standard input, which is copied where it cannot be read twice. Close it in either case. */
enum status load_file_open(struct load_file *file, const char *path, struct error *error) MUST_CHECK;
void load_file_close(struct load_file *file);
enum status load_file_rewind(struct load_file *file, struct error *error) MUST_CHECK;
/* Appends the next item to `out` as {"key":…,"payload":…}; *has_item is false at the end. An error names the line. */
enum status load_file_next(struct load_file *file, struct buf *out, bool *has_item,
                           struct error *error) MUST_CHECK;

/* ---- load_chunks.c ---- */
struct load_plan { /* the result of the first pass */
    struct str tenant, code;
    int64_t revision; /* INT64_MIN = none */
    int64_t chunk_items, chunk_bytes;
    uint64_t item_count, byte_count;
    struct hash128 content;
    struct hash128 *hashes; /* of each chunk's items */
    size_t chunk_count, capacity;
    char snapshot_id[UUID_TEXT_BYTES];
};

struct load_chunk {
    size_t index;     /* from 0 */
    struct str items; /* {…},{…} */
    size_t item_count;
};

/* The first pass. */
enum status load_plan_make(struct load_plan *plan, struct load_file *file, struct error *error) MUST_CHECK;
void load_plan_deinit(struct load_plan *plan);
/* The ids of the `generation`th time that this very content is loaded. */
void load_plan_identify(struct load_plan *plan, uint64_t generation);
void load_plan_event_id(const struct load_plan *plan, size_t index, char out[UUID_TEXT_BYTES]);
void load_chunk_put(struct buf *out, const struct load_plan *plan, const struct load_chunk *chunk);
/* The second pass: the same chunks again, each compared with its hash. on_chunk returns false to end it: CANCELLED. */
enum status load_plan_walk(const struct load_plan *plan, struct load_file *file,
                           bool (*on_chunk)(void *context, const struct load_chunk *chunk), void *context,
                           struct error *error) MUST_CHECK;

#endif
