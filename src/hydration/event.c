/* Reads and writes the three events as messages: a JSON payload as in api/schemas, and headers. Both are read strictly, since their
 * content is stored and passed on: a wrong header makes the message invalid. Unknown members of a payload are ignored: a later
 * version may have them. */
#include "hydration/event.h"

#include "base/json.h"
#include "hydration/inside.h"

const char *const hydration_topics[HYDRATION_KINDS] = {
    [HYDRATION_EVENT_UNKNOWN] = "entity.unknown",
    [HYDRATION_EVENT_UPDATED] = "entity.updated",
    [HYDRATION_EVENT_NOT_FOUND] = "entity.not-found",
};

const char *const hydration_mode_names[] = {
    [HYDRATION_EXISTENCE] = "existence",
    [HYDRATION_PARTIAL] = "partial",
    [HYDRATION_FULL] = "full",
    NULL,
};

static const char *const reason_names[] = {
    [HYDRATION_ABSENT] = "deleted_or_never_existed",
    [HYDRATION_INACCESSIBLE] = "inaccessible",
    NULL,
};

enum header { CORRELATION_ID, TENANT_ID, SUB, VERSION, MODE, FIELDS, VISIBILITY, TRACEPARENT, WAIT, HEADERS };

static const char *const header_names[HEADERS] = {
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

/* ---- reading ---- */

static enum status refuse_header(struct error *error, const char *name, const char *why)
{
    return error_set_field(error, STATUS_BAD_REQUEST, name, "header %s: %s", name, why);
}

static enum status refuse_member(struct error *error, const char *field, const char *why)
{
    return error_set_field(error, STATUS_BAD_REQUEST, field, "%s: %s", field, why);
}

_Static_assert(HYDRATION_FIELD_BYTES_MAX == 128, "a message of read_fields() has this number");

static enum status read_fields(const struct json_value *value, struct arena *arena,
                               struct hydration_cover *cover, struct error *error)
{
    struct str *fields = arena_alloc(arena, HYDRATION_FIELDS_MAX * sizeof *fields);
    struct json_value field;
    struct json_iter it;
    unsigned count = 0;

    if (value->type != JSON_ARRAY)
        return refuse_member(error, "fields", "is not an array");
    for (json_iter_init(&it, value); json_iter_next(&it, NULL, &field); count++) {
        if (count == HYDRATION_FIELDS_MAX)
            return refuse_member(error, "fields", "has too many names");
        if (field.type == JSON_STRING)
            fields[count] = json_str_decode(field.raw, arena);
        if (field.type != JSON_STRING || !hydration_is_text(fields[count], HYDRATION_FIELD_BYTES_MAX))
            return refuse_member(
                error, "fields",
                "has an element that is not a text of 1 to 128 bytes without control characters");
    }
    cover->fields = fields;
    cover->field_count = (unsigned)str_sort(fields, count);
    return STATUS_OK;
}

static enum status read_header_cover(struct str mode, struct str fields, struct arena *arena,
                                     struct hydration_event *event, struct error *error)
{
    struct json_value list;
    for (int at = 0; hydration_mode_names[at]; at++)
        if (str_eq(mode, str_from(hydration_mode_names[at]))) {
            event->cover.mode = (enum hydration_mode)at;
            event->has_cover = true;
        }
    if (!event->has_cover)
        return refuse_header(error, "hydration_mode", "is not one of the allowed values");
    if (event->cover.mode != HYDRATION_PARTIAL || fields.len == 0)
        return STATUS_OK;
    if (json_parse(fields, 1, &list, error) != STATUS_OK)
        return refuse_header(error, "fields", "is not a JSON array");
    return read_fields(&list, arena, &event->cover, error);
}

static enum status read_headers(const struct bus_header *headers, unsigned count, struct arena *arena,
                                struct hydration_event *event, struct error *error)
{
    bool is_question = event->kind == HYDRATION_EVENT_UNKNOWN;
    struct str values[HEADERS] = {{0}};
    struct trace trace;

    for (unsigned i = 0; i < count; i++)
        for (int at = 0; at < HEADERS; at++) {
            if (!str_eq(headers[i].name, str_from(header_names[at])))
                continue;
            if (values[at].ptr)
                return refuse_header(error, header_names[at], "is given twice");
            values[at] = headers[i].value.ptr ? headers[i].value : STR("");
        }
    event->tenant = values[TENANT_ID];
    event->caller = values[SUB];
    event->correlation_id = values[CORRELATION_ID];
    event->is_private = values[VISIBILITY].len > 0 && !is_question;
    if (trace_parse(values[TRACEPARENT], &trace))
        event->traceparent = values[TRACEPARENT];
    if (!str_is_name(event->tenant))
        return refuse_header(error, "tenant_id", "is not a tenant name");
    if (event->caller.len && !hydration_is_text(event->caller, HYDRATION_CALLER_BYTES_MAX))
        return refuse_header(error, "sub", "is too long or has control characters");
    if (event->correlation_id.len &&
        !hydration_is_text(event->correlation_id, HYDRATION_CORRELATION_BYTES_MAX))
        return refuse_header(error, "correlation_id", "is too long or has control characters");
    if (values[VISIBILITY].len && !str_eq(values[VISIBILITY], STR("caller")))
        return refuse_header(error, "visibility", "must be \"caller\"");
    if (values[VERSION].len && (!str_to_i64(values[VERSION], &event->version) || event->version < 0))
        return refuse_header(error, "version", "is not a number of 0 or more");
    if (!is_question)
        return values[MODE].len ? read_header_cover(values[MODE], values[FIELDS], arena, event, error)
                                : STATUS_OK;
    event->version = 0; /* questions have none */
    if (values[WAIT].len && (!str_to_i64(values[WAIT], &event->wait_ms) || event->wait_ms < 1))
        return refuse_header(error, "wait_timeout_ms", "is not a number of 1 or more");
    if (event->wait_ms > HYDRATION_WAIT_MS_MAX)
        event->wait_ms = HYDRATION_WAIT_MS_MAX;
    return STATUS_OK;
}

static enum status read_text(const struct json_value *payload, const char *name, size_t bytes_max,
                             struct arena *arena, struct str *text, struct error *error)
{
    struct json_value value;
    if (!json_get(payload, str_from(name), &value))
        return refuse_member(error, name, "is missing");
    if (value.type != JSON_STRING)
        return refuse_member(error, name, "is not a string");
    *text = json_str_decode(value.raw, arena);
    if (!hydration_is_text(*text, bytes_max))
        return refuse_member(error, name, "is empty, too long or has control characters");
    return STATUS_OK;
}

static enum status read_word(const struct json_value *payload, const char *name, const char *const *words,
                             int *at, struct error *error)
{
    struct json_value value;
    if (!json_get(payload, str_from(name), &value))
        return refuse_member(error, name, "is missing");
    for (*at = 0; words[*at] && value.type == JSON_STRING; ++*at)
        if (json_str_eq(value.raw, str_from(words[*at])))
            return STATUS_OK;
    return refuse_member(error, name, "is not one of the allowed values");
}

/* The members that one kind of event has and the others do not. `fields` must be valid with any mode; only with partial it has a
 * meaning. Members of `data` are read by name, so a duplicate name is refused. */
static enum status read_content(const struct json_value *payload, struct arena *arena,
                                struct hydration_event *event, struct error *error)
{
    struct json_value value;
    int word = 0;
    enum status status;

    switch (event->kind) {
    case HYDRATION_EVENT_UNKNOWN:
        status = read_word(payload, "hydration_mode", hydration_mode_names, &word, error);
        if (status == STATUS_OK && json_get(payload, STR("fields"), &value))
            status = read_fields(&value, arena, &event->cover, error);
        event->cover.mode = (enum hydration_mode)word;
        event->has_cover = true;
        if (event->cover.mode != HYDRATION_PARTIAL)
            event->cover.field_count = 0;
        return status;
    case HYDRATION_EVENT_UPDATED:
        if (!json_get(payload, STR("data"), &value))
            return refuse_member(error, "data", "is missing");
        if (value.type != JSON_OBJECT)
            return refuse_member(error, "data", "is not an object");
        if (value.raw.len > HYDRATION_DATA_BYTES_MAX)
            return refuse_member(error, "data", "is too large");
        if (json_has_duplicates(&value, arena))
            return refuse_member(error, "data", "has a duplicate member");
        event->data = value.raw;
        return STATUS_OK;
    default:
        status = read_word(payload, "reason", reason_names, &word, error);
        event->reason = (enum hydration_reason)word;
        event->is_private |= event->reason == HYDRATION_INACCESSIBLE;
        return status;
    }
}

enum status hydration_event_read(enum hydration_kind kind, struct str payload,
                                 const struct bus_header *headers, unsigned header_count, struct arena *arena,
                                 struct hydration_event *event, struct error *error)
{
    const char *module = kind == HYDRATION_EVENT_UNKNOWN ? "requester_module" : "source_module";
    struct json_value body;

    *event = (struct hydration_event){.kind = kind};
    if (json_parse_stored(payload, JSON_DEPTH_LIMIT, &body, error) != STATUS_OK)
        return error_set(error, STATUS_BAD_REQUEST, "the payload is not JSON");
    if (body.type != JSON_OBJECT)
        return error_set(error, STATUS_BAD_REQUEST, "the payload is not a JSON object");
    if (json_has_duplicates(&body, arena))
        return error_set(error, STATUS_BAD_REQUEST, "the payload has a duplicate member");
    if (json_has_nul_escape(body.raw)) /* PostgreSQL cannot store it as text */
        return error_set(error, STATUS_BAD_REQUEST, "the payload contains \\u0000");
    enum status status = read_headers(headers, header_count, arena, event, error);
    if (status == STATUS_OK)
        status = read_text(&body, "entity_type", HYDRATION_TYPE_BYTES_MAX, arena, &event->entity_type, error);
    if (status == STATUS_OK && !hydration_is_type(event->entity_type))
        status = refuse_member(error, "entity_type", "is not of a-z, 0-9 and _, the first a letter");
    if (status == STATUS_OK)
        status = read_text(&body, "entity_id", HYDRATION_ID_BYTES_MAX, arena, &event->entity_id, error);
    if (status == STATUS_OK)
        status = read_text(&body, module, HYDRATION_MODULE_BYTES_MAX, arena, &event->module, error);
    return status == STATUS_OK ? read_content(&body, arena, event, error) : status;
}

/* ---- writing ---- */

static void put_fields(const struct hydration_cover *cover, struct buf *out)
{
    buf_put_char(out, '[');
    for (unsigned i = 0; i < cover->field_count; i++) {
        if (i > 0)
            buf_put_char(out, ',');
        json_put_string(out, cover->fields[i]);
    }
    buf_put_char(out, ']');
}

static unsigned put_headers(const struct hydration_event *event, struct arena *arena,
                            struct bus_header headers[HYDRATION_EVENT_HEADERS_MAX])
{
    bool is_answer = event->kind != HYDRATION_EVENT_UNKNOWN, has_cover = is_answer && event->has_cover;
    struct buf fields = {0};
    unsigned count = 0;

    if (has_cover && event->cover.mode == HYDRATION_PARTIAL)
        put_fields(&event->cover, &fields);
    const struct str values[HEADERS] = {
        [CORRELATION_ID] = event->correlation_id,
        [TENANT_ID] = event->tenant,
        [SUB] = event->caller,
        [VERSION] = is_answer ? arena_printf(arena, "%lld", (long long)event->version) : STR_NONE,
        [MODE] = has_cover ? str_from(hydration_mode_names[event->cover.mode]) : STR_NONE,
        [FIELDS] = arena_str(arena, buf_str(&fields)),
        [VISIBILITY] = event->is_private ? STR("caller") : STR_NONE,
        [TRACEPARENT] = event->traceparent,
        [WAIT] = !is_answer && event->wait_ms > 0 ? arena_printf(arena, "%lld", (long long)event->wait_ms)
                                                  : STR_NONE,
    };
    for (int i = 0; i < HEADERS; i++)
        if (values[i].len)
            headers[count++] = (struct bus_header){str_from(header_names[i]), values[i]};
    buf_deinit(&fields);
    return count;
}

unsigned hydration_event_put(const struct hydration_event *event, struct arena *arena, struct buf *out,
                             struct bus_header headers[HYDRATION_EVENT_HEADERS_MAX])
{
    bool is_question = event->kind == HYDRATION_EVENT_UNKNOWN;
    buf_put_char(out, '{');
    json_put_member_str(out, "entity_type", event->entity_type);
    json_put_member_str(out, "entity_id", event->entity_id);
    json_put_member_str(out, is_question ? "requester_module" : "source_module", event->module);
    if (is_question)
        json_put_member_str(out, "hydration_mode", str_from(hydration_mode_names[event->cover.mode]));
    if (is_question && event->cover.mode == HYDRATION_PARTIAL) {
        json_put_key(out, STR("fields"));
        put_fields(&event->cover, out);
    }
    if (event->kind == HYDRATION_EVENT_UPDATED)
        json_put_member_raw(out, "data", event->data);
    if (event->kind == HYDRATION_EVENT_NOT_FOUND)
        json_put_member_str(out, "reason", str_from(reason_names[event->reason]));
    buf_put_char(out, '}');
    return put_headers(event, arena, headers);
}
