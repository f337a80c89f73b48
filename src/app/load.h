/* load's own layout: what its files share. load.c reads the call and sees it through, load_file.c turns a file
 * into items, load_csv.c a record of CSV into one, load_chunks.c items into chunks, load_send.c sends them.
 *
 *     file ─ items ─ chunks ─ first pass: counted and hashed, nothing is sent
 *                           ─ second pass: the same chunks, under ids made of those hashes ─ several in flight */
#ifndef FRESHET_APP_LOAD_H
#define FRESHET_APP_LOAD_H

#include <stdio.h>

#include "app/progress.h"
#include "app/updates.h"
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

/* `path` "-" is standard input, which is copied where it can't be read twice. Close it in either case. */
enum status load_file_open(struct load_file *file, const char *path, struct error *error) MUST_CHECK;
void load_file_close(struct load_file *file);
enum status load_file_rewind(struct load_file *file, struct error *error) MUST_CHECK;
/* Appends the next item to `out` as {"key":…,"payload":…}; *has_item is false at the end. An error names the line. */
enum status load_file_next(struct load_file *file, struct buf *out, bool *has_item,
                           struct error *error) MUST_CHECK;
/* One line without its end; false at the end of the file. */
bool load_file_line(struct load_file *file, struct str *line);
/* Says what is wrong with the line at hand, or `line`. */
enum status load_file_wrong(const struct load_file *file, uint64_t line, struct error *error,
                            const char *what) MUST_CHECK;
void load_file_put_item(struct buf *out, struct str key_json, struct str payload_json);
const char *load_key_mistake(struct str key); /* NULL = it is one */

/* ---- load_csv.c: RFC 4180, the first record names the columns ---- */
enum status load_csv_header(struct load_file *file, struct error *error) MUST_CHECK;
enum status load_csv_next(struct load_file *file, struct buf *out, bool *has_item,
                          struct error *error) MUST_CHECK;

/* ---- load_chunks.c ---- */
struct load_plan { /* what the first pass found */
    struct str tenant, code;
    const char *revision; /* a number; NULL = none */
    size_t chunk_items, chunk_bytes;
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
/* The second pass: the same chunks again, each held against its hash. on_chunk returns false to end it: CANCELLED. */
enum status load_plan_walk(const struct load_plan *plan, struct load_file *file,
                           bool (*on_chunk)(void *context, const struct load_chunk *chunk), void *context,
                           struct error *error) MUST_CHECK;

/* ---- load_send.c ---- */
struct load_sending {
    const struct pod_call *call;
    const struct load_plan *plan;
    struct load_file *file;
    int64_t patience_ms;
    bool is_resumed; /* asks whether a chunk is there before it sends it */
    struct progress *progress;
    uint64_t skipped_count; /* chunks that were there */
};
/* Sends what is missing. An error's field is the answer's code. */
enum status load_send(struct load_sending *sending, struct error *error) MUST_CHECK;

#endif
