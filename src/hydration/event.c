/* Payloads of the three events: read strictly, since what is read is kept and handed on, and written exactly as the seed
 * (§7) has them. Members that the contract does not name are let through: they are a later version's. */
#include "hydration/event.h"

#include "base/json.h"

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

const char *const hydration_reason_names[] = {
    [HYDRATION_ABSENT] = "deleted_or_never_existed",
    [HYDRATION_INACCESSIBLE] = "inaccessible",
    NULL,
};

/* ---- reading ---- */

static enum status refuse(struct error *error, const char *field, const char *why)
{
    return error_set_field(error, STATUS_BAD_REQUEST, field, "%s: %s", field, why);
}

static enum status read_text(const struct json_value *payload, const char *name, size_t bytes_max,
                             struct arena *arena, struct str *text, struct error *error)
{
    struct json_value value;
    if (!json_get(payload, str_from(name), &value))
        return refuse(error, name, "is missing");
    if (value.type != JSON_STRING)
        return refuse(error, name, "is no string");
    *text = json_str_decode(value.raw, arena);
    if (!hydration_is_text(*text, bytes_max))
        return refuse(error, name, "is empty, too long or has control characters");
    return STATUS_OK;
}

static enum status read_word(const struct json_value *payload, const char *name, const char *const *words,
                             int *at, struct error *error)
{
    struct json_value value;
    if (!json_get(payload, str_from(name), &value))
        return refuse(error, name, "is missing");
    for (*at = 0; words[*at] && value.type == JSON_STRING; ++*at)
        if (json_str_eq(value.raw, str_from(words[*at])))
            return STATUS_OK;
    return refuse(error, name, "is none of its words");
}

/* Fields beside another mode than partial mean nothing, but are what they should be. */
static enum status read_question(const struct json_value *payload, struct arena *arena,
                                 struct hydration_event *event, struct error *error)
{
    struct json_value fields;
    int mode;
    enum status status = read_word(payload, "hydration_mode", hydration_mode_names, &mode, error);
    if (status == STATUS_OK && json_get(payload, STR("fields"), &fields))
        status = hydration_fields_read(&fields, arena, &event->cover, error);
    if (status != STATUS_OK)
        return status;
    event->cover.mode = (enum hydration_mode)mode;
    event->has_cover = true;
    if (event->cover.mode != HYDRATION_PARTIAL)
        event->cover.field_count = 0;
    return STATUS_OK;
}

/* Data is cut, merged into answers and looked into by name: a name that stands twice would be two truths. */
static enum status read_data(const struct json_value *payload, struct arena *arena,
                             struct hydration_event *event, struct error *error)
{
    struct json_value data;
    if (!json_get(payload, STR("data"), &data))
        return refuse(error, "data", "is missing");
    if (data.type != JSON_OBJECT)
        return refuse(error, "data", "is no object");
    if (data.raw.len > HYDRATION_DATA_BYTES_MAX)
        return refuse(error, "data", "is too large");
    if (json_has_duplicates(&data, arena))
        return refuse(error, "data", "has a member twice");
    event->data = data.raw;
    return STATUS_OK;
}

static enum status read_reason(const struct json_value *payload, struct hydration_event *event,
                               struct error *error)
{
    int reason;
    enum status status = read_word(payload, "reason", hydration_reason_names, &reason, error);
    if (status != STATUS_OK)
        return status;
    event->reason = (enum hydration_reason)reason;
    event->is_private |= event->reason == HYDRATION_INACCESSIBLE;
    return STATUS_OK;
}

static enum status read_names(const struct json_value *payload, struct arena *arena,
                              struct hydration_event *event, struct error *error)
{
    const char *module = event->kind == HYDRATION_EVENT_UNKNOWN ? "requester_module" : "source_module";
    enum status status =
        read_text(payload, "entity_type", HYDRATION_TYPE_BYTES_MAX, arena, &event->entity_type, error);
    if (status == STATUS_OK && !hydration_is_type(event->entity_type))
        status = refuse(error, "entity_type", "is not of a-z, 0-9 and _, the first a letter");
    if (status == STATUS_OK)
        status = read_text(payload, "entity_id", HYDRATION_ID_BYTES_MAX, arena, &event->entity_id, error);
    if (status == STATUS_OK)
        status = read_text(payload, module, HYDRATION_MODULE_BYTES_MAX, arena, &event->module, error);
    return status;
}

static enum status open_payload(struct str text, struct arena *arena, struct json_value *payload,
                                struct error *error)
{
    if (json_parse_stored(text, JSON_DEPTH_LIMIT, payload, error) != STATUS_OK)
        return error_set(error, STATUS_BAD_REQUEST, "the payload is no JSON");
    if (payload->type != JSON_OBJECT)
        return error_set(error, STATUS_BAD_REQUEST, "the payload is no JSON object");
    if (json_has_duplicates(payload, arena))
        return error_set(error, STATUS_BAD_REQUEST, "the payload has a member twice");
    if (json_has_nul_escape(payload->raw)) /* PostgreSQL has no text that could keep it */
        return error_set(error, STATUS_BAD_REQUEST, "the payload holds \\u0000");
    return STATUS_OK;
}

enum status hydration_event_read(enum hydration_kind kind, struct str payload,
                                 const struct bus_header *headers, unsigned header_count, struct arena *arena,
                                 struct hydration_event *event, struct error *error)
{
    struct json_value body;
    *event = (struct hydration_event){.kind = kind};
    enum status status = open_payload(payload, arena, &body, error);
    if (status == STATUS_OK)
        status = hydration_headers_read(headers, header_count, arena, event, error);
    if (status == STATUS_OK)
        status = read_names(&body, arena, event, error);
    if (status != STATUS_OK)
        return status;
    switch (kind) {
    case HYDRATION_EVENT_UNKNOWN: return read_question(&body, arena, event, error);
    case HYDRATION_EVENT_UPDATED: return read_data(&body, arena, event, error);
    default: return read_reason(&body, event, error);
    }
}

/* ---- writing ---- */

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
        hydration_fields_put(&event->cover, out);
    }
    if (event->kind == HYDRATION_EVENT_UPDATED)
        json_put_member_raw(out, "data", event->data);
    if (event->kind == HYDRATION_EVENT_NOT_FOUND)
        json_put_member_str(out, "reason", str_from(hydration_reason_names[event->reason]));
    buf_put_char(out, '}');
    return hydration_headers_put(event, arena, headers);
}

/* ---- keeping ---- */

void hydration_event_copy(const struct hydration_event *from, struct arena *arena, struct hydration_event *to)
{
    *to = *from;
    struct str *const texts[] = {&to->tenant,    &to->subject, &to->correlation_id, &to->entity_type,
                                 &to->entity_id, &to->module,  &to->data,           &to->traceparent};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        *texts[i] = arena_str(arena, *texts[i]);
    struct str *fields = arena_alloc(arena, (from->cover.field_count + 1) * sizeof fields[0]);
    for (unsigned i = 0; i < from->cover.field_count; i++)
        fields[i] = arena_str(arena, from->cover.fields[i]);
    to->cover.fields = fields;
}
