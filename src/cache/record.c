/* One item as the bytes that are sent. The key is found inside the body; only where JSON escapes it does a
 * plain copy stand behind. A short body is hashed when its hash is asked for, which costs less than the
 * memory to keep it. */
#include "cache/internal.h"

#include "base/json.h"

#define BODY_HEAD "{\"key\":"
#define BODY_MIDDLE ",\"payload\":"
#define BODY_HEAD_LEN (sizeof(BODY_HEAD) - 1)
#define BODY_MIDDLE_LEN (sizeof(BODY_MIDDLE) - 1)

static size_t unrounded_size(uint32_t body_len, size_t key_len, unsigned flags)
{
    size_t size = sizeof(struct cache_record) + body_len;

    if (flags & RECORD_LARGE)
        size += RECORD_EXTRA_LARGE;
    if (flags & RECORD_ESCAPED)
        size += RECORD_EXTRA_ESCAPED + key_len;
    return size;
}

static size_t rounded_up(size_t size)
{
    return (size + RECORD_ALIGN - 1) & ~(size_t)(RECORD_ALIGN - 1);
}

struct record_shape cache_record_shape(struct str key, struct str payload)
{
    struct record_shape shape = {.quoted_len = json_string_size(key)};

    shape.body_len = (uint32_t)(BODY_HEAD_LEN + shape.quoted_len + BODY_MIDDLE_LEN + payload.len + 1);
    if (shape.body_len > RECORD_LARGE_BYTES)
        shape.flags |= RECORD_LARGE;
    if (shape.quoted_len != key.len + 2)
        shape.flags |= RECORD_ESCAPED;
    shape.size = rounded_up(unrounded_size(shape.body_len, key.len, shape.flags));
    return shape;
}

static void replace_all(char *at, size_t len, char from, char to)
{
    char *end = at + len;

    while (at < end && (at = memchr(at, from, (size_t)(end - at))))
        *at++ = to;
}

static char *put(char *at, const void *bytes, size_t len)
{
    memcpy(at, bytes, len);
    return at + len;
}

/* Line breaks can only stand between tokens of valid JSON, where a space means the same. */
static char *put_payload(char *at, struct str payload)
{
    char *end = put(at, payload.ptr, payload.len);

    replace_all(at, payload.len, '\n', ' ');
    replace_all(at, payload.len, '\r', ' ');
    return end;
}

static char *put_quoted(char *at, struct str key, size_t quoted_len)
{
    struct buf out = {.data = at, .capacity = quoted_len}; /* exactly filled, so never grown */

    if (quoted_len != key.len + 2) {
        json_put_string(&out, key);
        return at + quoted_len;
    }
    *at++ = '"';
    at = put(at, key.ptr, key.len);
    *at++ = '"';
    return at;
}

static void put_body(char *at, const struct record_shape *shape, struct str key, struct str payload)
{
    at = put(at, BODY_HEAD, BODY_HEAD_LEN);
    at = put_quoted(at, key, shape->quoted_len);
    at = put(at, BODY_MIDDLE, BODY_MIDDLE_LEN);
    at = put_payload(at, payload);
    *at++ = '}';
    if (shape->flags & RECORD_ESCAPED)
        put(at, key.ptr, key.len);
}

/* Where ESCAPED keeps the length of the key's JSON form. */
static char *quoted_len_at(const struct cache_record *record)
{
    return (char *)record_body(record) - RECORD_EXTRA_ESCAPED;
}

static char *large_at(const struct cache_record *record)
{
    return (char *)(record + 1);
}

static void keep_hashes(struct cache_record *record)
{
    uint64_t tag = hash_content(cache_record_body(record));
    struct hash128 digest = hash_item(record_key(record), cache_record_payload(record));

    put(put(large_at(record), &tag, sizeof(tag)), &digest, sizeof(digest));
}

void cache_record_write(struct cache_record *record, const struct record_shape *shape, struct str key,
                        struct str payload)
{
    uint32_t quoted_len = (uint32_t)shape->quoted_len;

    record->body_len = shape->body_len;
    record->key_len = (uint16_t)key.len;
    record->flags = shape->flags;
    if (shape->flags & RECORD_ESCAPED)
        memcpy(quoted_len_at(record), &quoted_len, sizeof(quoted_len));
    put_body((char *)record_body(record), shape, key, payload);
    if (shape->flags & RECORD_LARGE)
        keep_hashes(record);
}

size_t cache_record_size(const struct cache_record *record)
{
    return rounded_up(unrounded_size(record->body_len, record->key_len, record->flags));
}

struct str cache_record_body(const struct cache_record *record)
{
    return str_of(record_body(record), record->body_len);
}

struct str cache_record_key(const struct cache_record *record)
{
    return record_key(record);
}

struct str cache_record_payload(const struct cache_record *record)
{
    uint32_t quoted_len = (uint32_t)record->key_len + 2;
    size_t at;

    if (record->flags & RECORD_ESCAPED)
        memcpy(&quoted_len, quoted_len_at(record), sizeof(quoted_len));
    at = BODY_HEAD_LEN + quoted_len + BODY_MIDDLE_LEN;
    return str_of(record_body(record) + at, record->body_len - at - 1);
}

uint64_t cache_record_tag(const struct cache_record *record)
{
    uint64_t tag;

    if (!(record->flags & RECORD_LARGE))
        return hash_content(cache_record_body(record));
    memcpy(&tag, large_at(record), sizeof(tag));
    return tag;
}

struct hash128 cache_record_digest(const struct cache_record *record)
{
    struct hash128 digest;

    if (!(record->flags & RECORD_LARGE))
        return hash_item(record_key(record), cache_record_payload(record));
    memcpy(&digest, large_at(record) + sizeof(uint64_t), sizeof(digest));
    return digest;
}
