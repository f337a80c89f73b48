/* One item as the bytes that are sent. The key is found inside the body; only where JSON escapes it does a
 * plain copy follow. A short body is hashed when its hash is asked for, which costs less than the
 * memory to keep it. */
#include "cache/internal.h"

#include "base/json.h"

#define BODY_HEAD "{\"key\":"
#define BODY_MIDDLE ",\"payload\":"
#define BODY_HEAD_LEN (sizeof(BODY_HEAD) - 1)
#define BODY_MIDDLE_LEN (sizeof(BODY_MIDDLE) - 1)

static size_t size_of(uint32_t body_len, size_t key_len, unsigned flags)
{
    size_t size = sizeof(struct cache_record) + body_len;

    if (flags & RECORD_LARGE)
        size += RECORD_EXTRA_LARGE;
    if (flags & RECORD_ESCAPED)
        size += RECORD_EXTRA_ESCAPED + key_len;
    return size;
}

struct record_shape cache_record_shape(struct str key, struct str payload)
{
    struct record_shape shape = {.quoted_len = json_string_size(key)};

    shape.body_len = (uint32_t)(BODY_HEAD_LEN + shape.quoted_len + BODY_MIDDLE_LEN + payload.len + 1);
    if (shape.body_len > RECORD_LARGE_BYTES)
        shape.flags |= RECORD_LARGE;
    if (shape.quoted_len != key.len + 2)
        shape.flags |= RECORD_ESCAPED;
    shape.size = size_of(shape.body_len, key.len, shape.flags);
    return shape;
}

/* Where LARGE keeps them, after the body's length. */
static char *tag_at(const struct cache_record *record)
{
    return (char *)(record + 1) + sizeof(uint32_t);
}

static char *digest_at(const struct cache_record *record)
{
    return tag_at(record) + sizeof(uint64_t);
}

/* Where ESCAPED keeps the length of the key's JSON form. */
static char *quoted_len_at(const struct cache_record *record)
{
    return (char *)record_body(record) - RECORD_EXTRA_ESCAPED;
}

static void replace_all(char *at, const char *end, char from, char to)
{
    while (at < end && (at = memchr(at, from, (size_t)(end - at))))
        *at++ = to;
}

void cache_record_write(struct cache_record *record, const struct record_shape *shape, struct str key,
                        struct str payload)
{
    *record = (struct cache_record){
        .short_len = (uint16_t)shape->body_len,
        .key_len_flags = (uint16_t)(key.len | shape->flags),
    };
    if (shape->flags & RECORD_LARGE)
        memcpy(record + 1, &shape->body_len, sizeof(shape->body_len));
    char *at = str_put((char *)record_body(record), STR(BODY_HEAD)), *text;
    if (shape->flags & RECORD_ESCAPED) {
        uint32_t quoted_len = (uint32_t)shape->quoted_len;
        struct buf out = {.data = at, .capacity = quoted_len}; /* exactly filled, so never grown */
        memcpy(quoted_len_at(record), &quoted_len, sizeof(quoted_len));
        json_put_string(&out, key);
        at += quoted_len;
    } else {
        *at++ = '"';
        at = str_put(at, key);
        *at++ = '"';
    }
    text = str_put(at, STR(BODY_MIDDLE));
    at = str_put(text, payload);
    /* Line breaks can only stand between tokens of valid JSON, where a space means the same. */
    replace_all(text, at, '\n', ' ');
    replace_all(text, at, '\r', ' ');
    *at++ = '}';
    if (shape->flags & RECORD_ESCAPED)
        str_put(at, key);
    if (shape->flags & RECORD_LARGE) {
        uint64_t tag = hash_content(cache_record_body(record));
        struct hash128 digest = hash_item(record_key(record), cache_record_payload(record));
        memcpy(tag_at(record), &tag, sizeof(tag));
        memcpy(digest_at(record), &digest, sizeof(digest));
    }
}

size_t cache_record_size(const struct cache_record *record)
{
    return size_of(record_body_len(record), record_key_len(record), record->key_len_flags);
}

struct str cache_record_body(const struct cache_record *record)
{
    return str_of(record_body(record), record_body_len(record));
}

struct str cache_record_key(const struct cache_record *record)
{
    return record_key(record);
}

struct str cache_record_payload(const struct cache_record *record)
{
    uint32_t quoted_len = (uint32_t)record_key_len(record) + 2;
    size_t at;

    if (record_is(record, RECORD_ESCAPED))
        memcpy(&quoted_len, quoted_len_at(record), sizeof(quoted_len));
    at = BODY_HEAD_LEN + quoted_len + BODY_MIDDLE_LEN;
    return str_of(record_body(record) + at, record_body_len(record) - at - 1);
}

uint64_t cache_record_tag(const struct cache_record *record)
{
    uint64_t tag;

    if (!record_is(record, RECORD_LARGE))
        return hash_content(cache_record_body(record));
    memcpy(&tag, tag_at(record), sizeof(tag));
    return tag;
}

struct hash128 cache_record_digest(const struct cache_record *record)
{
    struct hash128 digest;

    if (!record_is(record, RECORD_LARGE))
        return hash_item(record_key(record), cache_record_payload(record));
    memcpy(&digest, digest_at(record), sizeof(digest));
    return digest;
}
