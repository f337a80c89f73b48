/* JSON: a strict scanner that keeps slices of the bytes that came, and a writer.
 *
 * The scanner checks RFC 8259, UTF-8, depth and lone surrogates, and builds no tree: a value stays the
 * bytes it was, so that 0.1 stays 0.1 and an integer past 2^63 is not refused. It holds no memory; slices
 * point into the input.
 *
 * Limits also hold for what a value becomes (C6). PostgreSQL's jsonb prints numbers without an exponent: the 8
 * bytes of 1e131071 become 131072 digits. json_parse() therefore bounds the digits of each number and of all
 * numbers together. */
#ifndef FRESHET_BASE_JSON_H
#define FRESHET_BASE_JSON_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"

#define JSON_DEPTH_MAX 64     /* default of C6 */
#define JSON_DEPTH_LIMIT 1024 /* the deepest that can be configured; a scalar is 0 deep, [] is 1 */

#define JSON_NUMBER_DIGITS_MAX 1000 /* of one number, printed without an exponent: every double has fewer */
#define JSON_GROWTH_BYTES_MAX \
    (8u << 20) /* of a text by all its numbers; or its own length, if that is more */

enum json_type { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

/* One validated value: `raw` is its bytes without surrounding white space (a string keeps its quotes). */
struct json_value {
    enum json_type type;
    struct str raw;
};

/* Validates the whole of `text` as one JSON value, at most `depth_max` deep. On failure *error names what
 * and at which byte offset; of a number that is too long, in which member (error->field, "items[3].payload").
 * `text` may have white space around. */
enum status json_parse(struct str text, unsigned depth_max, struct json_value *value,
                       struct error *error) MUST_CHECK;
/* The same without the limits on digits: for texts that are stored already, or whose numbers are not stored. */
enum status json_parse_stored(struct str text, unsigned depth_max, struct json_value *value,
                              struct error *error) MUST_CHECK;

/* At least as many bytes as a validated value takes with every number printed without an exponent; white space
 * stays what it is. */
size_t json_printed_size(struct str raw);
/* No value that json_parse() accepts grows by more than this factor. */
#define JSON_GROWTH_FACTOR_MAX 256

/* The value whose validated bytes are `raw`, not empty: for bytes kept since they were parsed. */
struct json_value json_value_of(struct str raw);

/* Walks the members of a validated object or the elements of a validated array, in order.
 *
 *     struct json_iter it;
 *     json_iter_init(&it, &object);
 *     while (json_iter_next(&it, &name, &member)) ...
 *
 * `name` (which may be NULL) is the raw string with its quotes, escapes kept: compare it with
 * json_str_eq(). In an array it is empty. Anything but a container has no members. */
struct json_iter {
    struct str rest;
    bool is_object;
};
void json_iter_init(struct json_iter *it, const struct json_value *container);
bool json_iter_next(struct json_iter *it, struct str *name, struct json_value *value);

/* The member called `name`; the last one wins where it is repeated, unless json_has_duplicates() was asked
 * first. */
bool json_get(const struct json_value *object, struct str name, struct json_value *value);
bool json_get_string(const struct json_value *object, struct str name, struct json_value *value);
bool json_get_i64(const struct json_value *object, struct str name, int64_t *number); /* of json_to_i64() */
struct str json_get_text(const struct json_value *object, struct str name,
                         struct arena *arena); /* decoded; STR_NONE when it is not a string */
bool json_has_duplicates(const struct json_value *object, struct arena *arena);
/* The same, and *name is the first that comes again, unescaped: of the input or of `arena`. */
bool json_find_duplicate(const struct json_value *object, struct arena *arena, struct str *name);

bool json_str_eq(struct str raw_string, struct str text); /* does this JSON string mean `text`? */
/* The meaning of a JSON string: a slice of the input when it has no escapes, else a copy in `arena`. */
struct str json_str_decode(struct str raw_string, struct arena *arena);
/* Does it hold the escape of U+0000, which PostgreSQL's text cannot? Any validated value, at any depth. */
bool json_has_nul_escape(struct str raw);
bool json_to_i64(const struct json_value *value, int64_t *out);   /* integers only: 1.0 and 1e3 are false */
bool json_to_double(const struct json_value *value, double *out); /* false where it would be infinite */

/* Writer: appends to a buffer. Commas are the caller's concern except through the json_put_* member
 * helpers, which put one where the last byte is neither '{', '[' nor ':'. */
void json_put_string(struct buf *out, struct str text); /* quoted and escaped; invalid UTF-8 becomes U+FFFD */
void json_put_i64(struct buf *out, int64_t number);
void json_put_key(struct buf *out, struct str name); /* [,]"name": */
/* [,]["name":] and the bracket, { or [: begins an object or array as a member, or as an element where `name` is NULL. */
void json_put_open(struct buf *out, const char *name, char bracket);
void json_put_member_str(struct buf *out, const char *name, struct str text);
void json_put_member_str_or_null(struct buf *out, const char *name, struct str text); /* null: ptr NULL */
void json_put_member_i64(struct buf *out, const char *name, int64_t number);
void json_put_member_bool(struct buf *out, const char *name, bool value);
void json_put_member_raw(struct buf *out, const char *name, struct str json);
size_t json_string_size(struct str text); /* bytes json_put_string() would write */

#endif
