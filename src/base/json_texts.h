/* A request's body as a table of texts: one JSON object whose members of those names are strings within limits. What is
 * wrong is refused by the member's name (C6), in the order of the body for unknown members and duplicates, then of the table.
 *
 * Texts that cannot be stored are refused here, so that no statement is: U+0000 at any depth, also in what is kept unread. */
#ifndef FRESHET_BASE_JSON_TEXTS_H
#define FRESHET_BASE_JSON_TEXTS_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"

struct json_text {
    const char *name;              /* NULL ends a table */
    unsigned chars_min, chars_max; /* in characters, not bytes */
    bool is_optional;              /* may be absent or null: its text is then STR_NONE */
    bool is_reserved;              /* must be absent: the server sets it */
    bool
        is_plain; /* no control characters, and not of white space alone: it goes into paths, headers and logs */
};

#define JSON_TEXTS_MAX 16

/* texts[i] is what rows[i] means, unescaped: a slice of `body`, or a copy in `arena`. Members beyond the table go to `others`
 * as they came, name and value, with a comma before each (`,"size":1.50`); NULL: they are refused. BAD_REQUEST. */
enum status json_texts_read(struct str body, const struct json_text *rows, struct str *texts,
                            struct buf *others, struct arena *arena, struct error *error) MUST_CHECK;

#endif
