/* Headers of the three events: whose they are, what they answer, how new and for whom. A header that is there is right, or
 * the message is no event: one that hides from whom it is to be hidden must not be guessed at. */
#include "base/json.h"
#include "hydration/event.h"

enum header { CORRELATION_ID, TENANT_ID, SUB, VERSION, MODE, FIELDS, VISIBILITY, TRACEPARENT, WAIT, HEADERS };

static const char *const names[HEADERS] = {
    [CORRELATION_ID] = "correlation_id",
    [TENANT_ID] = "tenant_id",
    [SUB] = "sub",
    [VERSION] = "version",
    [MODE] = "hydration_mode",
    [FIELDS] = "fields",
    [VISIBILITY] = "visibility",
    [TRACEPARENT] = "traceparent",
    [WAIT] = "wait_timeout_ms",
};
_Static_assert(HEADERS == HYDRATION_EVENT_HEADERS_MAX, "room for each once");

static enum status refuse(struct error *error, const char *field, const char *why)
{
    return error_set_field(error, STATUS_BAD_REQUEST, field, "header %s: %s", field, why);
}

/* ---- fields ---- */

enum status hydration_fields_read(const struct json_value *value, struct arena *arena,
                                  struct hydration_cover *cover, struct error *error)
{
    struct str fields[HYDRATION_FIELDS_MAX], *kept;
    struct json_value field;
    struct json_iter it;
    unsigned count = 0;

    if (value->type != JSON_ARRAY)
        return error_set_field(error, STATUS_BAD_REQUEST, "fields", "fields: is no list");
    json_iter_init(&it, value);
    while (json_iter_next(&it, NULL, &field)) {
        if (count == HYDRATION_FIELDS_MAX)
            return error_set_field(error, STATUS_BAD_REQUEST, "fields", "fields: are too many");
        if (field.type == JSON_STRING)
            fields[count] = json_str_decode(field.raw, arena);
        if (field.type != JSON_STRING || !hydration_is_text(fields[count], HYDRATION_FIELD_BYTES_MAX))
            return error_set_field(error, STATUS_BAD_REQUEST, "fields", "fields: one is no name");
        count++;
    }
    count = hydration_fields_sort(fields, count);
    kept = arena_alloc(arena, sizeof fields);
    memcpy(kept, fields, count * sizeof fields[0]);
    cover->fields = kept;
    cover->field_count = count;
    return STATUS_OK;
}

void hydration_fields_put(const struct hydration_cover *cover, struct buf *out)
{
    buf_put_char(out, '[');
    for (unsigned i = 0; i < cover->field_count; i++) {
        if (i > 0)
            buf_put_char(out, ',');
        json_put_string(out, cover->fields[i]);
    }
    buf_put_char(out, ']');
}

/* ---- reading ---- */

static enum status sort_headers(const struct bus_header *headers, unsigned count, struct str values[HEADERS],
                                struct error *error)
{
    for (unsigned i = 0; i < count; i++)
        for (int at = 0; at < HEADERS; at++) {
            if (!str_eq(headers[i].name, str_from(names[at])))
                continue;
            if (values[at].ptr)
                return refuse(error, names[at], "comes twice");
            values[at] = headers[i].value.ptr ? headers[i].value : STR("");
        }
    return STATUS_OK;
}

static enum status read_cover(struct str mode, struct str fields, struct arena *arena,
                              struct hydration_event *event, struct error *error)
{
    struct json_value list;
    if (event->kind == HYDRATION_EVENT_UNKNOWN || mode.len == 0)
        return STATUS_OK;
    for (int at = 0; hydration_mode_names[at]; at++)
        if (str_eq(mode, str_from(hydration_mode_names[at]))) {
            event->cover.mode = (enum hydration_mode)at;
            event->has_cover = true;
        }
    if (!event->has_cover)
        return refuse(error, "hydration_mode", "is none of its words");
    if (event->cover.mode != HYDRATION_PARTIAL || fields.len == 0)
        return STATUS_OK;
    if (json_parse(fields, 1, &list, error) != STATUS_OK)
        return refuse(error, "fields", "is no list of JSON");
    return hydration_fields_read(&list, arena, &event->cover, error);
}

static enum status read_version(struct str text, struct hydration_event *event, struct error *error)
{
    if (text.len > 0 && (!str_to_i64(text, &event->version) || event->version < 0))
        return refuse(error, "version", "is no number of 0 or more");
    return STATUS_OK;
}

static enum status read_wait(struct str text, struct hydration_event *event, struct error *error)
{
    int64_t wait_ms = 0;
    if (event->kind != HYDRATION_EVENT_UNKNOWN || text.len == 0)
        return STATUS_OK;
    if (!str_to_i64(text, &wait_ms) || wait_ms < 1)
        return refuse(error, "wait_timeout_ms", "is not a number of 1 or more");
    event->wait_ms = wait_ms < HYDRATION_WAIT_MS_MAX ? wait_ms : HYDRATION_WAIT_MS_MAX;
    return STATUS_OK;
}

enum status hydration_headers_read(const struct bus_header *headers, unsigned count, struct arena *arena,
                                   struct hydration_event *event, struct error *error)
{
    struct str values[HEADERS] = {{0}};
    struct trace trace;
    enum status status = sort_headers(headers, count, values, error);
    if (status != STATUS_OK)
        return status;
    event->tenant = values[TENANT_ID];
    event->subject = values[SUB];
    event->correlation_id = values[CORRELATION_ID];
    if (!str_is_name(event->tenant))
        return refuse(error, "tenant_id", "is no tenant's name");
    if (event->subject.len && !hydration_is_text(event->subject, HYDRATION_SUBJECT_BYTES_MAX))
        return refuse(error, "sub", "is too long or has control characters");
    if (event->correlation_id.len &&
        !hydration_is_text(event->correlation_id, HYDRATION_CORRELATION_BYTES_MAX))
        return refuse(error, "correlation_id", "is too long or has control characters");
    if (values[VISIBILITY].len && !str_eq(values[VISIBILITY], STR("caller")))
        return refuse(error, "visibility", "can only be caller");
    event->is_private = values[VISIBILITY].len > 0 && event->kind != HYDRATION_EVENT_UNKNOWN;
    if (trace_parse(values[TRACEPARENT], &trace))
        event->traceparent = values[TRACEPARENT];
    status = read_version(values[VERSION], event, error);
    if (event->kind == HYDRATION_EVENT_UNKNOWN)
        event->version = 0; /* a question is of no version, whoever says so */
    if (status == STATUS_OK)
        status = read_wait(values[WAIT], event, error);
    if (status == STATUS_OK)
        status = read_cover(values[MODE], values[FIELDS], arena, event, error);
    return status;
}

/* ---- writing ---- */

struct put {
    struct bus_header *headers;
    unsigned count;
};

static void put(struct put *to, enum header header, struct str value)
{
    if (value.len)
        to->headers[to->count++] = (struct bus_header){str_from(names[header]), value};
}

static void put_cover(struct put *to, const struct hydration_cover *cover, struct arena *arena)
{
    struct buf list;
    put(to, MODE, str_from(hydration_mode_names[cover->mode]));
    if (cover->mode != HYDRATION_PARTIAL)
        return;
    buf_init(&list);
    hydration_fields_put(cover, &list);
    put(to, FIELDS, arena_str(arena, buf_str(&list)));
    buf_deinit(&list);
}

unsigned hydration_headers_put(const struct hydration_event *event, struct arena *arena,
                               struct bus_header headers[HYDRATION_EVENT_HEADERS_MAX])
{
    struct put to = {headers, 0};
    bool is_answer = event->kind != HYDRATION_EVENT_UNKNOWN;
    put(&to, CORRELATION_ID, event->correlation_id);
    put(&to, TENANT_ID, event->tenant);
    put(&to, SUB, event->subject);
    if (is_answer)
        put(&to, VERSION, arena_printf(arena, "%lld", (long long)event->version));
    if (is_answer && event->has_cover)
        put_cover(&to, &event->cover, arena);
    if (event->is_private)
        put(&to, VISIBILITY, STR("caller"));
    put(&to, TRACEPARENT, event->traceparent);
    if (!is_answer && event->wait_ms > 0)
        put(&to, WAIT, arena_printf(arena, "%lld", (long long)event->wait_ms));
    return to.count;
}
