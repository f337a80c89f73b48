/* Borrowed byte slices, and the few text helpers everybody needs. A slice owns nothing and need not end in
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

bool str_eq_nocase(struct str a, struct str b); /* ASCII only */
bool str_starts_with(struct str s, struct str prefix);
bool str_ends_with(struct str s, struct str suffix);
int str_compare(struct str a, struct str b); /* bytewise; a prefix sorts first */
struct str str_trim(struct str s);           /* SP and HTAB at both ends */
char *str_dup(struct str s);                 /* heap, NUL-terminated; never NULL (memory.h) */

/* Takes the part before `separator` off *rest (all of it when there is none). False once *rest is spent. */
bool str_split(struct str *rest, char separator, struct str *part);

/* Whole-string decimal numbers; false on anything else (sign, space, overflow, empty). */
bool str_to_u64(struct str s, uint64_t *value);
bool str_to_i64(struct str s, int64_t *value); /* a leading '-' is allowed */

bool str_is_utf8(struct str s); /* strict: no surrogates, no overlong forms, at most U+10FFFF */
/* Length of the strict UTF-8 character `s` begins with; 0 when it begins with none. */
size_t str_utf8_char(struct str s);
struct str str_utf8_cut(struct str s, size_t len_max); /* the longest prefix that splits no character */
bool str_is_name(struct str s); /* [A-Za-z0-9._-]{1,64}: tenants and dictionaries (C6) */

#endif
