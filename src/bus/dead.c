/* Dead letters for operators: what is the same for all engines. */
#include "bus/dead.h"

#define DEAD_PREFIX "dlq-"

enum {
    LISTED_TEXT_MAX = 1024,   /* of a key or header in a list without payloads */
    LISTED_BYTES_MAX = 8192,  /* of all headers there; those about its death are kept past it */
    LISTED_HEADERS_MAX = 256, /* of these */
};

const char *bus_dead_engine(const struct bus_dead *dead)
{
    return dead->driver->engine;
}

void bus_dead_close(struct bus_dead *dead)
{
    if (dead)
        dead->driver->close(dead);
}

enum status bus_dead_look(struct bus_dead *dead, const char *topic, const char *group, struct arena *arena,
                          struct bus_dead_range **ranges, size_t *count, int64_t deadline_ns,
                          struct error *error)
{
    *ranges = NULL;
    *count = 0;
    return dead->driver->look(dead, topic, group, arena, ranges, count, deadline_ns, error);
}

enum status bus_dead_read(struct bus_dead *dead, const struct bus_dead_query *query, struct arena *arena,
                          struct bus_dead_letter **letters, size_t *count, int64_t deadline_ns,
                          struct error *error)
{
    struct bus_dead_list list = {.arena = arena, .query = query};
    enum status status = STATUS_OK;
    if (query->span_count > 0)
        status = dead->driver->read(dead, query, &list, deadline_ns, error);
    *letters = list.letters;
    *count = status == STATUS_OK ? list.count : 0;
    return status;
}

enum status bus_dead_lock(struct bus_dead *dead, struct str topic, int64_t deadline_ns, struct error *error)
{
    return dead->driver->lock ? dead->driver->lock(dead, topic, deadline_ns, error) : STATUS_OK;
}

enum status bus_dead_publish(struct bus_dead *dead, struct bus_message *messages, size_t count,
                             int64_t deadline_ns, struct error *error)
{
    return count ? dead->driver->publish(dead, messages, count, deadline_ns, error) : STATUS_OK;
}

void bus_dead_wake(struct bus_dead *dead, struct str topic, int64_t deadline_ns)
{
    if (dead->driver->wake)
        dead->driver->wake(dead, topic, deadline_ns);
}

/* ---- for drivers ---- */

/* For a list: a sender's long keys and headers are cut, many are left out. */
static struct bus_message copy_listed(const struct bus_message *from, struct arena *arena)
{
    unsigned most = from->header_count < LISTED_HEADERS_MAX ? from->header_count : LISTED_HEADERS_MAX;
    struct bus_message copy = *from;
    struct bus_header *headers = arena_alloc(arena, (most + 1) * sizeof *headers);
    size_t bytes = 0;
    copy.headers = headers;
    copy.header_count = 0;
    for (unsigned i = 0; i < from->header_count && copy.header_count < most; i++) {
        struct str name = str_utf8_cut(from->headers[i].name, LISTED_TEXT_MAX),
                   value = str_utf8_cut(from->headers[i].value, LISTED_TEXT_MAX);
        if (bytes + name.len + value.len > LISTED_BYTES_MAX && !str_starts_with(name, STR(DEAD_PREFIX)))
            continue;
        bytes += name.len + value.len;
        headers[copy.header_count++] = (struct bus_header){arena_str(arena, name), arena_str(arena, value)};
    }
    if (from->key.ptr)
        copy.key = arena_str(arena, str_utf8_cut(from->key, LISTED_TEXT_MAX));
    copy.payload = STR("");
    return copy;
}

static struct bus_message copy_message(const struct bus_message *from, size_t payload_max,
                                       struct arena *arena)
{
    struct bus_message copy = *from;
    struct bus_header *headers = arena_alloc(arena, (from->header_count + 1) * sizeof *headers);
    for (unsigned i = 0; i < from->header_count; i++)
        headers[i] = (struct bus_header){arena_str(arena, from->headers[i].name),
                                         arena_str(arena, from->headers[i].value)};
    copy.headers = headers;
    if (from->key.ptr)
        copy.key = arena_str(arena, from->key);
    copy.payload.len = from->payload.len < payload_max ? from->payload.len : payload_max;
    copy.payload = arena_str(arena, copy.payload.len ? copy.payload : STR(""));
    return copy;
}

bool bus_dead_list_add(struct bus_dead_list *list, const struct bus_message *message, size_t bytes)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 64;
        struct bus_dead_letter *letters = arena_alloc(list->arena, capacity * sizeof *letters);
        if (list->count)
            memcpy(letters, list->letters, list->count * sizeof *letters);
        list->letters = letters;
        list->capacity = capacity;
    }
    struct bus_dead_letter *letter = &list->letters[list->count++];
    letter->message = list->query->payload_max ? copy_message(message, list->query->payload_max, list->arena)
                                               : copy_listed(message, list->arena);
    letter->bytes = bytes;
    list->bytes += letter->message.payload.len;
    return list->bytes < list->query->bytes_max;
}

/* ---- the message before it died ---- */

bool bus_dead_original(const struct bus_message *letter, struct str topic, struct arena *arena,
                       struct bus_message *message)
{
    struct bus_header *headers = arena_alloc(arena, (letter->header_count + 1) * sizeof *headers);
    struct str partition = bus_message_header(letter, STR(BUS_HEADER_DEAD_PARTITION));
    int64_t number = 0;
    unsigned count = 0;
    for (unsigned i = 0; i < letter->header_count; i++)
        if (!str_starts_with(letter->headers[i].name, STR(DEAD_PREFIX)))
            headers[count++] = letter->headers[i];
    *message = (struct bus_message){.topic = topic,
                                    .key = letter->key,
                                    .payload = letter->payload,
                                    .headers = headers,
                                    .header_count = count};
    if (str_to_i64(partition, &number) && number >= 0 && number < INT32_MAX)
        message->partition = (unsigned)number;
    return count > 0 || letter->payload.len > 0;
}

unsigned bus_dead_partition(const struct bus_message *message, unsigned partitions)
{
    return message->key.ptr ? bus_partition_of(message->key, partitions) : message->partition % partitions;
}
