/* Which keys differ: the pod's stream beside the database's snapshot. Both are in bytewise key order, so that
 * they are walked in step and nothing of the stream is kept but the line at hand. */
#include <stdio.h>

#include "app/verify.h"
#include "base/json.h"

enum { KEYS_SHOWN_MAX = 20 };

struct walk {
    struct cache_cursor cursor;
    const struct cache_record *record; /* the database's next; NULL = no more */
    struct buf line;                   /* not whole yet */
    struct arena arena;
    uint64_t differing_count;
    bool is_strange; /* a line was not an item */
};

static void report(struct walk *walk, struct str key, const char *what)
{
    if (walk->differing_count++ >= KEYS_SHOWN_MAX)
        return;
    struct buf text;
    buf_init(&text);
    json_put_string(&text, key);
    printf("    %.*s %s\n", STR_ARG(buf_str(&text)), what);
    buf_deinit(&text);
}

static void report_only_in_database(struct walk *walk)
{
    report(walk, cache_record_key(walk->record), "is only in the database");
    walk->record = cache_cursor_next(&walk->cursor);
}

static bool take_line(struct walk *walk, struct str line)
{
    struct json_value item, key;
    if (walk->record && str_eq(line, cache_record_body(walk->record))) {
        walk->record = cache_cursor_next(&walk->cursor);
        return true;
    }
    if (json_parse_stored(line, JSON_DEPTH_LIMIT, &item, NULL) != STATUS_OK ||
        !json_get(&item, STR("key"), &key) || key.type != JSON_STRING) {
        walk->is_strange = true;
        return false;
    }
    struct str name = json_str_decode(key.raw, &walk->arena);
    while (walk->record && str_compare(cache_record_key(walk->record), name) < 0)
        report_only_in_database(walk);
    if (walk->record && str_eq(cache_record_key(walk->record), name)) {
        report(walk, name, "has another payload");
        walk->record = cache_cursor_next(&walk->cursor);
    } else {
        report(walk, name, "is only in the pod");
    }
    arena_reset(&walk->arena);
    return true;
}

static bool take_bytes(void *context, struct str bytes)
{
    struct walk *walk = context;
    while (bytes.len) {
        const char *end = memchr(bytes.ptr, '\n', bytes.len);
        size_t len = end ? (size_t)(end - bytes.ptr) : bytes.len;
        buf_put(&walk->line, bytes.ptr, len);
        if (!end)
            break;
        bool taken = take_line(walk, buf_str(&walk->line));
        buf_clear(&walk->line);
        if (!taken)
            return false;
        bytes = str_of(end + 1, bytes.len - len - 1);
    }
    return true;
}

static void print_rest(struct walk *walk)
{
    while (walk->record)
        report_only_in_database(walk);
    if (walk->differing_count > KEYS_SHOWN_MAX)
        printf("    and %llu more\n", (unsigned long long)walk->differing_count - KEYS_SHOWN_MAX);
    else if (walk->differing_count == 0)
        printf("    none of its keys differs by now\n");
}

enum status verify_keys_print(const struct verify_pair *pair, const struct pod_call *call,
                              struct error *error)
{
    struct walk walk = {0};
    struct buf body;
    struct pod_call all = *call;
    cache_cursor_init(&walk.cursor, pair->loaded.snapshot, STR_NONE);
    walk.record = cache_cursor_next(&walk.cursor);
    buf_init(&walk.line);
    arena_init(&walk.arena, 2048);
    all.rest = STR("/all");
    all.accept = "application/x-ndjson";
    all.on_body = take_bytes;
    all.context = &walk;
    enum status status = pod_get(&all, &body, error);
    if (walk.is_strange)
        error_set(error, STATUS_BAD_REQUEST, "the answer is not one of freshet's");
    if (status == STATUS_OK)
        print_rest(&walk);
    buf_deinit(&body), buf_deinit(&walk.line);
    arena_deinit(&walk.arena);
    return status;
}
