/* One pass over the bytes, with what is open on a stack: a nested value costs no more than a flat one.
 *
 *     object = H('{', sum of H(name, value))      the sum knows no order
 *     array  = H('[', H(… H(H(0, first), second) …))
 *     scalar = H('"' or 'v', its bytes) */
#include "modules/refdata/content.h"

struct walk {
    const char *p, *end;
    struct refdata_content_level *levels;
    size_t depth;
    struct hash128 value; /* the last one that was finished */
};

struct str refdata_hash_bytes(struct hash128 hash, char out[REFDATA_HASH_BYTES])
{
    for (unsigned i = 0; i < 8; i++) {
        out[i] = (char)(hash.low >> (8 * i));
        out[8 + i] = (char)(hash.high >> (8 * i));
    }
    return str_of(out, REFDATA_HASH_BYTES);
}

static void add(struct walk *walk, struct hash128 value)
{
    char value_bytes[REFDATA_HASH_BYTES], sum_bytes[REFDATA_HASH_BYTES];
    walk->value = value;
    if (walk->depth == 0)
        return;
    struct refdata_content_level *level = &walk->levels[walk->depth - 1];
    struct str value_text = refdata_hash_bytes(value, value_bytes);
    if (level->is_object) {
        hash128_add(&level->sum, hash_item(level->name, value_text));
        level->name = STR_NONE;
    } else {
        level->sum = hash_item(refdata_hash_bytes(level->sum, sum_bytes), value_text);
    }
}

static void open_container(struct walk *walk, bool is_object)
{
    walk->levels[walk->depth++] = (struct refdata_content_level){.is_object = is_object};
}

static void close_container(struct walk *walk)
{
    char bytes[REFDATA_HASH_BYTES];
    const struct refdata_content_level *level = &walk->levels[--walk->depth];
    struct str kind = level->is_object ? STR("{") : STR("[");
    add(walk, hash_item(kind, refdata_hash_bytes(level->sum, bytes)));
}

/* From the opening quote on; what is between the quotes. */
static struct str take_string(struct walk *walk)
{
    const char *start = ++walk->p;
    while (walk->p < walk->end && *walk->p != '"')
        walk->p += *walk->p == '\\' ? 2 : 1;
    struct str inside = str_of(start, (size_t)(walk->p - start));
    walk->p++;
    return inside;
}

static bool is_delimiter(char c)
{
    return c == ',' || c == ':' || c == '}' || c == ']' || c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static struct str take_word(struct walk *walk)
{
    const char *start = walk->p;
    while (walk->p < walk->end && !is_delimiter(*walk->p))
        walk->p++;
    return str_of(start, (size_t)(walk->p - start));
}

static void take_text(struct walk *walk)
{
    struct refdata_content_level *level = walk->depth ? &walk->levels[walk->depth - 1] : NULL;
    struct str text = take_string(walk);
    if (level && level->is_object && !level->name.ptr)
        level->name = text;
    else
        add(walk, hash_item(STR("\""), text));
}

struct hash128 refdata_content_hash(struct str raw, struct refdata_content_level *levels)
{
    struct walk walk = {.p = raw.ptr, .end = raw.ptr + raw.len, .levels = levels};
    while (walk.p < walk.end) {
        char c = *walk.p;
        if (c == '{' || c == '[') {
            open_container(&walk, c == '{');
            walk.p++;
        } else if (c == '}' || c == ']') {
            close_container(&walk);
            walk.p++;
        } else if (c == '"') {
            take_text(&walk);
        } else if (is_delimiter(c)) {
            walk.p++;
        } else {
            add(&walk, hash_item(STR("v"), take_word(&walk)));
        }
    }
    return walk.value;
}
