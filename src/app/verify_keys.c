/* The keys that differ: the pod's stream beside the database's snapshot. Both are in bytewise key order, so they are walked in
 * step and only the current line of the stream is kept. */
#include "app/verify.h"

#include <stdio.h>

#include "app/terminal.h"
#include "base/json.h"

enum { KEYS_SHOWN_MAX = 20 };

struct key_walk {
    struct cache_cursor cursor;
    const struct cache_record *record; /* the database's next; NULL = no more */
    struct arena arena;
    uint64_t differing_count;
    bool is_strange; /* a line was not an item */
};

static void report_key(struct key_walk *walk, struct str key, const char *what)
{
    if (walk->differing_count++ >= KEYS_SHOWN_MAX)
        return;
    struct buf text = {0}, shown = {0};
    json_put_string(&text, key);
    terminal_put(&shown, buf_str(&text));
    printf("    %.*s %s\n", STR_ARG(buf_str(&shown)), what);
    buf_deinit(&text), buf_deinit(&shown);
}

static void report_only_in_database(struct key_walk *walk)
{
    report_key(walk, cache_record_key(walk->record), "is only in the database");
    walk->record = cache_cursor_next(&walk->cursor);
}

static bool compare_line(void *context, struct str line)
{
    struct key_walk *walk = context;
    struct json_value item, key;
    if (walk->record && str_eq(line, cache_record_body(walk->record))) {
        walk->record = cache_cursor_next(&walk->cursor);
        return true;
    }
    if (json_parse_stored(line, JSON_DEPTH_LIMIT, &item, NULL) != STATUS_OK ||
        !json_get_string(&item, STR("key"), &key)) {
        walk->is_strange = true;
        return false;
    }
    struct str name = json_str_decode(key.raw, &walk->arena);
    while (walk->record && str_compare(cache_record_key(walk->record), name) < 0)
        report_only_in_database(walk);
    if (walk->record && str_eq(cache_record_key(walk->record), name)) {
        report_key(walk, name, "has another payload");
        walk->record = cache_cursor_next(&walk->cursor);
    } else {
        report_key(walk, name, "is only in the pod");
    }
    arena_reset(&walk->arena);
    return true;
}

enum status verify_keys_print(struct cache_snapshot *snapshot, const struct pod_call *call,
                              struct error *error)
{
    struct key_walk walk = {0};
    struct pod_lines lines = {.take_line = compare_line, .context = &walk};
    struct buf body;
    struct pod_call all = *call;
    cache_cursor_init(&walk.cursor, snapshot, STR_NONE);
    walk.record = cache_cursor_next(&walk.cursor);
    walk.arena = ARENA(2048);
    all.rest = STR("/all");
    all.accept = "application/x-ndjson";
    all.on_body = pod_take_lines;
    all.context = &lines;
    enum status status = pod_get(&all, &body, error);
    if (walk.is_strange)
        error_set(error, STATUS_BAD_REQUEST, CLIENT_STRANGE_ANSWER);
    while (status == STATUS_OK && walk.record)
        report_only_in_database(&walk);
    if (status == STATUS_OK && walk.differing_count > KEYS_SHOWN_MAX)
        printf("    and %llu more\n", (unsigned long long)walk.differing_count - KEYS_SHOWN_MAX);
    else if (status == STATUS_OK && walk.differing_count == 0)
        printf("    no key differs any more\n");
    buf_deinit(&body);
    buf_deinit(&lines.line);
    arena_deinit(&walk.arena);
    return status;
}
