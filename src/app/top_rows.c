/* Rows of the operator's API as a sample has them. They come as JSON from a pod, and as the same JSON from the databases. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/terminal.h"
#include "app/top.h"
#include "base/clock.h"
#include "base/json.h"

/* ---- members; all are optional ---- */

static const char *text_of(struct top_sample *sample, const struct json_value *row, struct str name)
{
    return terminal_text(json_get_text(row, name, &sample->arena), &sample->arena);
}

static double number_of(const struct json_value *row, struct str name, double missing)
{
    struct json_value value;
    char text[64];
    if (!json_get(row, name, &value) || !value.raw.len || !strchr("-0123456789", value.raw.ptr[0]))
        return missing;
    str_copy(text, sizeof text, value.raw);
    return strtod(text, NULL);
}

static int64_t count_of(const struct json_value *row, struct str name, int64_t missing)
{
    return (int64_t)number_of(row, name, (double)missing);
}

static bool is_true(const struct json_value *row, struct str name)
{
    struct json_value value;
    return json_get(row, name, &value) && str_eq(value.raw, STR("true"));
}

static bool get_object(const struct json_value *row, struct str name, struct json_value *object)
{
    return json_get(row, name, object) && object->raw.len && object->raw.ptr[0] == '{';
}

/* ["a","b"] as a,b */
static const char *list_of(struct top_sample *sample, const struct json_value *row, struct str name)
{
    struct json_value list, one;
    struct json_iter it;
    struct buf out = {0};
    if (json_get(row, name, &list) && list.raw.len && list.raw.ptr[0] == '[') {
        json_iter_init(&it, &list);
        while (json_iter_next(&it, NULL, &one)) {
            if (buf_len(&out))
                buf_put_char(&out, ',');
            if (one.raw.len && one.raw.ptr[0] == '"')
                terminal_put(&out, json_str_decode(one.raw, &sample->arena));
        }
    }
    const char *text = arena_str(&sample->arena, buf_str(&out)).ptr;
    buf_deinit(&out);
    return text;
}

/* ---- rows ---- */

static void read_pod(struct top_sample *sample, const struct json_value *row)
{
    if (sample->pod_count == TOP_PODS_MAX)
        return;
    const char *id = text_of(sample, row, STR("pod_id"));
    for (size_t i = 0; i < sample->pod_count; i++)
        if (strcmp(sample->pods[i].id, id) == 0)
            return; /* it reports itself in several databases */
    sample->pods[sample->pod_count++] = (struct top_pod){
        .id = id,
        .state = text_of(sample, row, STR("state")),
        .roles = list_of(sample, row, STR("roles")),
        .version = text_of(sample, row, STR("version")),
        .reads = number_of(row, STR("reads_per_second"), 0),
        .writes = number_of(row, STR("writes_per_second"), 0),
        .memory_used = number_of(row, STR("memory_used_bytes"), 0),
        .memory_limit = number_of(row, STR("memory_limit_bytes"), 0),
        .connections = count_of(row, STR("connections"), 0),
        .streams = count_of(row, STR("streams"), 0),
        .is_ready = is_true(row, STR("ready")),
    };
}

static void read_dictionary(struct top_sample *sample, const struct json_value *row)
{
    struct json_value pods, pod;
    struct json_iter it;
    if (sample->dictionary_count == TOP_DICTIONARIES_MAX)
        return;
    const char *error = text_of(sample, row, STR("last_error"));
    struct top_dictionary *dictionary = &sample->dictionaries[sample->dictionary_count++];
    *dictionary = (struct top_dictionary){
        .name = arena_printf(&sample->arena, "%s/%s", text_of(sample, row, STR("tenant_id")),
                             text_of(sample, row, STR("dict_code")))
                    .ptr,
        .database = text_of(sample, row, STR("database")),
        .version = count_of(row, STR("version"), 0),
        .items = count_of(row, STR("items"), -1),
        .bytes = count_of(row, STR("bytes"), -1),
        .freshness_ms = number_of(row, STR("freshness_ms"), -1),
        .changes = -1,
        .last_error = *error ? error : NULL,
    };
    if (!json_get(row, STR("pods"), &pods) || !pods.raw.len || pods.raw.ptr[0] != '[')
        return;
    json_iter_init(&it, &pods);
    for (; json_iter_next(&it, NULL, &pod) && pod.raw.ptr[0] == '{'; dictionary->pods++)
        dictionary->behind += count_of(&pod, STR("version"), 0) < dictionary->version;
}

static void read_lag(struct top_sample *sample, const struct json_value *row)
{
    const char *topic = text_of(sample, row, STR("topic")), *group = text_of(sample, row, STR("group"));
    int64_t lag = count_of(row, STR("lag"), 0);
    if (lag <= 0)
        return;
    for (size_t i = 0; i < sample->lag_count; i++)
        if (strcmp(sample->lags[i].topic, topic) == 0 && strcmp(sample->lags[i].group, group) == 0) {
            sample->lags[i].lag += lag; /* of another partition */
            return;
        }
    if (sample->lag_count < TOP_LAGS_MAX)
        sample->lags[sample->lag_count++] =
            (struct top_lag){topic, group, text_of(sample, row, STR("engine")), lag};
}

void top_add_count(int64_t *sum, int64_t count)
{
    if (count >= 0)
        *sum = (*sum < 0 ? 0 : *sum) + count;
}

static void read_outbox(struct top_sample *sample, const struct json_value *row)
{
    struct json_value pending;
    int64_t age = count_of(row, STR("oldest_pending_age_seconds"), 0);
    bool is_object = get_object(row, STR("pending"), &pending);
    top_add_count(&sample->outbox_pending,
                  is_object ? count_of(&pending, STR("count"), 0) : count_of(row, STR("pending"), 0));
    top_add_count(&sample->outbox_in_flight, count_of(row, STR("in_flight"), 0));
    top_add_count(&sample->outbox_failed, count_of(row, STR("failed"), 0));
    sample->oldest_event_s = age > sample->oldest_event_s ? age : sample->oldest_event_s;
}

static void read_overview(struct top_sample *sample, const struct json_value *row)
{
    struct json_value part, inner;
    if (get_object(row, STR("updates"), &part)) {
        if (get_object(&part, STR("pending"), &inner)) {
            sample->updates_pending = count_of(&inner, STR("count"), -1);
            sample->has_more_updates = is_true(&inner, STR("more"));
        }
        sample->oldest_update_s = count_of(&part, STR("oldest_pending_age_seconds"), 0);
    }
    if (get_object(row, STR("outboxes"), &part))
        read_outbox(sample, &part);
    if (get_object(row, STR("dead_letters"), &part))
        sample->dead_letters = count_of(&part, STR("count"), -1);
    if (get_object(row, STR("freshness_ms"), &part)) {
        sample->freshness_p50_ms = number_of(&part, STR("p50"), -1);
        sample->freshness_p99_ms = number_of(&part, STR("p99"), -1);
    }
}

static void read_unavailable(struct top_sample *sample, const struct json_value *row)
{
    top_warn(sample, "database %s: %s", text_of(sample, row, STR("database")),
             text_of(sample, row, STR("error")));
}

void top_rows_read(struct top_sample *sample, const char *list, struct str json)
{
    static const struct {
        const char *list;
        void (*read)(struct top_sample *sample, const struct json_value *row);
    } readers[] = {{"pods", read_pod},          {"dictionaries", read_dictionary},
                   {"lag", read_lag},           {"outboxes", read_outbox},
                   {"overview", read_overview}, {"unavailable", read_unavailable}};
    struct json_value value, row;
    struct json_iter it;
    if (json_parse_stored(json, JSON_DEPTH_LIMIT, &value, NULL) != STATUS_OK)
        return;
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) {
        if (strcmp(readers[i].list, list) != 0)
            continue;
        if (value.raw.ptr[0] != '[' && value.raw.ptr[0] != '{')
            return;
        if (value.raw.ptr[0] == '{') {
            readers[i].read(sample, &value);
            continue;
        }
        json_iter_init(&it, &value);
        while (json_iter_next(&it, NULL, &row) && row.raw.ptr[0] == '{')
            readers[i].read(sample, &row);
    }
}

void top_warn(struct top_sample *sample, const char *format, ...)
{
    char text[256];
    va_list arguments;
    if (sample->warning_count == TOP_WARNINGS_MAX)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const char *safe = terminal_text(str_utf8_cut(str_from(text), sizeof text), &sample->arena);
    for (size_t i = 0; i < sample->warning_count; i++)
        if (strcmp(sample->warnings[i], safe) == 0)
            return;
    sample->warnings[sample->warning_count++] = safe;
}

/* ---- order ---- */

static int by_state(const void *a, const void *b)
{
    const struct top_pod *x = a, *y = b;
    int order = strcmp(y->state, x->state); /* up, stopped, gone */
    return order ? order : strcmp(x->id, y->id);
}

/* Those that change most, then the largest. */
static int by_changes(const void *a, const void *b)
{
    const struct top_dictionary *x = a, *y = b;
    if (x->changes > y->changes || x->changes < y->changes)
        return x->changes > y->changes ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int by_lag(const void *a, const void *b)
{
    const struct top_lag *x = a, *y = b;
    return x->lag == y->lag ? strcmp(x->topic, y->topic) : x->lag > y->lag ? -1 : 1;
}

static double changes_since(const struct top_sample *before, const struct top_dictionary *now, int64_t at_ns)
{
    double seconds = before ? (double)(at_ns - before->at_ns) / (double)CLOCK_NS_PER_S : 0;
    for (size_t i = 0; seconds > 0 && i < before->dictionary_count; i++) {
        const struct top_dictionary *then = &before->dictionaries[i];
        if (strcmp(then->name, now->name) == 0 && strcmp(then->database, now->database) == 0)
            return now->version > then->version ? (double)(now->version - then->version) / seconds : 0;
    }
    return -1;
}

void top_rows_finish(struct top_sample *sample, const struct top_sample *before)
{
    for (size_t i = 0; i < sample->dictionary_count; i++)
        sample->dictionaries[i].changes = changes_since(before, &sample->dictionaries[i], sample->at_ns);
    qsort(sample->pods, sample->pod_count, sizeof *sample->pods, by_state);
    qsort(sample->dictionaries, sample->dictionary_count, sizeof *sample->dictionaries, by_changes);
    qsort(sample->lags, sample->lag_count, sizeof *sample->lags, by_lag);
}
