/* Any bytes as an event of hydration: refused by name, or an event whose parts are what they should be and that is read again
 * as the same once it is written. The first byte picks the kind; then headers, each a line NAME:VALUE, an empty line, and the
 * payload. */
#include <stdlib.h>

#include "hydration/event.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool holds)
{
    if (!holds)
        abort();
}

static unsigned take_headers(struct str *rest, struct bus_header headers[BUS_HEADERS_MAX])
{
    struct str line, name;
    unsigned count = 0;
    while (str_split(rest, '\n', &line) && line.len > 0)
        if (count < BUS_HEADERS_MAX && str_split(&line, ':', &name))
            headers[count++] = (struct bus_header){name, line};
    return count;
}

static void check_fields(const struct hydration_cover *cover)
{
    check(cover->field_count <= HYDRATION_FIELDS_MAX);
    check(cover->mode == HYDRATION_PARTIAL || cover->field_count == 0);
    for (unsigned i = 0; i < cover->field_count; i++) {
        check(hydration_is_text(cover->fields[i], HYDRATION_FIELD_BYTES_MAX));
        check(i == 0 || str_compare(cover->fields[i - 1], cover->fields[i]) < 0);
    }
}

static void check_event(const struct hydration_event *event)
{
    bool is_updated = event->kind == HYDRATION_EVENT_UPDATED;
    check(str_is_name(event->tenant) && hydration_is_type(event->entity_type));
    check(hydration_is_text(event->entity_id, HYDRATION_ID_BYTES_MAX));
    check(hydration_is_text(event->module, HYDRATION_MODULE_BYTES_MAX));
    check(event->version >= 0 && event->caller.len <= HYDRATION_CALLER_BYTES_MAX);
    check(is_updated == (event->data.len > 0) && !json_has_nul_escape(event->data));
    check(event->reason == HYDRATION_ABSENT || event->is_private);
    check_fields(&event->cover);
}

static void check_cut(const struct hydration_event *event)
{
    struct hydration_cover cover = event->cover;
    struct json_value value;
    struct buf cut = {0};
    hydration_cover_cut(&cover, event->data, &cut);
    check(json_parse_stored(buf_str(&cut), JSON_DEPTH_LIMIT, &value, NULL) == STATUS_OK);
    check(value.type == JSON_OBJECT && buf_len(&cut) <= event->data.len);
    buf_deinit(&cut);
}

static void check_again(const struct hydration_event *event, struct arena *arena)
{
    struct bus_header headers[HYDRATION_EVENT_HEADERS_MAX];
    struct hydration_event again;
    struct error error;
    struct buf out = {0};
    unsigned count = hydration_event_put(event, arena, &out, headers);
    check(hydration_event_read(event->kind, buf_str(&out), headers, count, arena, &again, &error) ==
          STATUS_OK);
    check(str_eq(event->entity_id, again.entity_id) && str_eq(event->data, again.data));
    check(str_eq(event->caller, again.caller) && event->is_private == again.is_private);
    check(event->version == again.version && event->has_cover == again.has_cover);
    check(hydration_cover_includes(&event->cover, &again.cover) &&
          hydration_cover_includes(&again.cover, &event->cover));
    buf_deinit(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bus_header headers[BUS_HEADERS_MAX];
    struct hydration_event event;
    struct error error = {0};
    struct arena arena = ARENA(4096);
    if (size == 0)
        return 0;
    struct str rest = str_of((const char *)data + 1, size - 1);
    unsigned count = take_headers(&rest, headers);
    enum status status = hydration_event_read((enum hydration_kind)(data[0] % HYDRATION_KINDS), rest, headers,
                                              count, &arena, &event, &error);
    if (status == STATUS_OK) {
        check_event(&event);
        if (event.data.len)
            check_cut(&event);
        check_again(&event, &arena);
    } else {
        check(status == STATUS_BAD_REQUEST && error.status == status && error.message[0]);
    }
    arena_deinit(&arena);
    return 0;
}
