/* Borrowed byte slices, and a few text helpers. A slice owns nothing and need not end in
 * NUL. */
#ifndef FRESHET_BASE_STR_H
#define FRESHET_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct str {
    const char *ptr;
    size_t len;
};

#define STR(literal) ((struct str){(literal), sizeof(literal) - 1})
#define STR_NONE ((struct str){NULL, 0})
#define STR_ARG(s) (int)(s).len, (s).ptr /* for "%.*s" */

static inline struct str str_from(const char *z)
{
    return (struct str){z, z ? strlen(z) : 0};
}

static inline struct str str_of(const char *ptr, size_t len)
{
    return (struct str){ptr, len};
}

static inline bool str_eq(struct str a, struct str b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

/* All but the first `count` bytes, of which there must be as many. */
static inline struct str str_skip(struct str s, size_t count)
{
    return (struct str){s.ptr + count, s.len - count};
}

/* These write into memory that the caller has measured, and return the place after what they wrote. */
static inline char *str_put(char *at, struct str s)
{
    if (s.len > 0)
        memcpy(at, s.ptr, s.len);
    return at + s.len;
}

#define STR_U64_BYTES 20
static inline char *str_put_u64(char *at, uint64_t number) /* decimal, at most STR_U64_BYTES */
{
    char *end = at + 1;

    for (uint64_t rest = number; rest >= 10; rest /= 10)
        end++;
    at = end;
    do
        *--at = (char)('0' + number % 10);
    while (number /= 10);
    return end;
}

/* A NUL-terminated copy at *at, which moves past it: for texts of one allocation, len + 1 bytes each. */
static inline struct str str_pack(char **at, struct str s)
{
    struct str copy = {*at, s.len};

    *at = str_put(*at, s);
    *(*at)++ = '\0';
    return copy;
}

/* Into out[room], NUL-terminated; what does not fit is cut off between two characters. */
void str_copy(char *out, size_t room, struct str s);

/* For interfaces that take NULL for "not set"; `s` is NUL-terminated. */
static inline const char *str_or_null(struct str s)
{
    return s.len ? s.ptr : NULL;
}

bool str_eq_nocase(struct str a, struct str b); /* ASCII only */
bool str_starts_with(struct str s, struct str prefix);
bool str_ends_with(struct str s, struct str suffix);
int str_compare(struct str a, struct str b);      /* bytewise; a prefix sorts first */
size_t str_sort(struct str *texts, size_t count); /* bytewise, without duplicates: how many are left */
struct str str_trim(struct str s);                /* SP and HTAB at both ends */
char *str_dup(struct str s);                      /* heap, NUL-terminated; never NULL (memory.h) */

/* Takes the part before `separator` off *rest (all of it when there is none). False once *rest is spent. */
bool str_split(struct str *rest, char separator, struct str *part);
/* All parts at once: how many there are, of which the first `max` are in `parts`. An empty text is one empty part. */
size_t str_split_all(struct str text, char separator, struct str *parts, size_t max);

/* Whole-string decimal numbers; false on anything else (sign, space, overflow, empty). */
bool str_to_u64(struct str s, uint64_t *value);
bool str_to_i64(struct str s, int64_t *value); /* a leading '-' is allowed */

bool str_is_utf8(struct str s); /* strict: no surrogates, no overlong forms, at most U+10FFFF */
bool str_is_text(struct str s); /* UTF-8 without U+0000: what PostgreSQL's text can hold */
/* Length of the strict UTF-8 character `s` begins with; 0 when it begins with none. */
size_t str_utf8_char(struct str s);
struct str str_utf8_cut(struct str s, size_t len_max); /* the longest prefix that splits no character */
bool str_is_name(struct str s); /* [A-Za-z0-9._-]{1,64}: tenants and dictionaries (C6) */

#endif
