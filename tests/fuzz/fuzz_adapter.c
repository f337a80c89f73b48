/* Any bytes as a message of an external topic: refused by name, or an update that can be written and read again as the
 * same. The first byte picks the source; then key, header and payload, with a NUL between them. */
#include <stdlib.h>

#include "modules/refdata/adapter/adapter.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SOURCES = 3 };

static const struct refdata_limits limits = {
    .items_max = 16, .key_bytes_max = 32, .payload_bytes_max = 512, .depth_max = 12};

static void check(bool holds)
{
    if (!holds)
        abort();
}

static struct refdata_from_settings field(const char *pointer)
{
    return (struct refdata_from_settings){.field = str_from(pointer), .field_place = {1, 1}};
}

static struct refdata_from_settings fixed(const char *text)
{
    return (struct refdata_from_settings){.fixed = str_from(text), .fixed_place = {1, 1}};
}

static struct refdata_from_settings header(void)
{
    return (struct refdata_from_settings){.header = STR("h"), .header_place = {1, 1}};
}

static struct refdata_source_settings plain(void)
{
    return (struct refdata_source_settings){.topic = STR("t"), .group = STR("g")};
}

static struct refdata_source_settings captured(void)
{
    static struct str upserts[] = {{"c", 1}, {"u", 1}}, deletes[] = {{"d", 1}};
    struct refdata_source_settings settings = plain();
    settings.mapping_place = (struct setting_place){1, 1};
    settings.id_form = REFDATA_ID_ANY;
    settings.tombstones = REFDATA_TOMBSTONES_DELETE;
    settings.from[REFDATA_PART_TENANT] = fixed("acme");
    settings.from[REFDATA_PART_DICT_CODE] = fixed("C");
    settings.from[REFDATA_PART_EVENT_ID] = field("/id");
    settings.from[REFDATA_PART_EVENT_TYPE] = fixed("DELTA");
    settings.from[REFDATA_PART_SOURCE_REVISION] = header();
    settings.from[REFDATA_PART_OCCURRED_AT] = field("/ts");
    settings.from[REFDATA_PART_ITEMS] = field("");
    settings.from[REFDATA_PART_KEY] = field("/after/k");
    settings.from[REFDATA_PART_OP] = field("/op");
    settings.from[REFDATA_PART_PAYLOAD] = field("/after");
    settings.words[REFDATA_WORD_UPSERT] = (struct setting_strings){upserts, 2};
    settings.words[REFDATA_WORD_DELETE] = (struct setting_strings){deletes, 1};
    return settings;
}

static struct refdata_source_settings keyed(void)
{
    struct refdata_source_settings settings = plain();
    settings.mapping_place = (struct setting_place){1, 1};
    settings.from[REFDATA_PART_TENANT] = header();
    settings.from[REFDATA_PART_DICT_CODE] = field("/a/0/d~1~0");
    settings.from[REFDATA_PART_ITEMS] = field("/a/1");
    settings.from[REFDATA_PART_KEY] = (struct refdata_from_settings){.message_key = true};
    settings.from[REFDATA_PART_PAYLOAD] = field("");
    return settings;
}

static struct str take(struct str *rest)
{
    const char *nul = rest->len ? memchr(rest->ptr, '\0', rest->len) : NULL;
    size_t len = nul ? (size_t)(nul - rest->ptr) : rest->len;
    struct str part = str_of(rest->ptr, len);
    *rest = nul ? str_of(nul + 1, rest->len - len - 1) : STR_NONE;
    return part;
}

static void check_update(const struct refdata_update *update, struct arena *arena)
{
    struct refdata_update again;
    struct json_value body;
    struct error error;
    struct str code;
    struct buf out = {0};
    check(update->source == REFDATA_KAFKA && str_is_name(update->tenant) && str_is_name(update->dict_code));
    refdata_update_put(&out, update);
    check(refdata_update_open(buf_str(&out), &limits, &body, &code, arena, &error) == STATUS_OK);
    check(refdata_update_read(&body, REFDATA_FROM_BUS, STR_NONE, &limits, arena, &again, &error) ==
          STATUS_OK);
    check(strcmp(again.event_id, update->event_id) == 0 && str_eq(again.tenant, update->tenant));
    check(again.item_count == update->item_count && again.occurred_at_us == update->occurred_at_us);
    buf_deinit(&out);
}

/* Twice, since a message that comes again must be the same update. */
static void translate(const struct refdata_adapter_source *source, const struct bus_message *message,
                      struct arena *arena)
{
    struct refdata_update update, second;
    struct error error = {0};
    enum status status = refdata_translate(source, message, &limits, arena, &update, &error);
    check(refdata_translate(source, message, &limits, arena, &second, &error) == status);
    if (status != STATUS_OK) {
        check(status == error.status && error.message[0] &&
              (status == STATUS_BAD_REQUEST || status == STATUS_PAYLOAD_TOO_LARGE));
        return;
    }
    check_update(&update, arena);
    check(strcmp(update.event_id, second.event_id) == 0 && update.occurred_at_us == second.occurred_at_us &&
          update.content.low == second.content.low && update.content.high == second.content.high);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct refdata_source_settings (*const settings[SOURCES])(void) = {plain, captured, keyed};
    struct refdata_adapter_source source;
    struct error error;
    struct arena arena = ARENA(4096);
    if (size == 0)
        return 0;
    struct str rest = str_of((const char *)data + 1, size - 1);
    struct refdata_source_settings own = settings[data[0] % SOURCES]();
    struct bus_header headers[] = {{STR("h"), STR_NONE}};
    struct bus_message message = {.topic = STR("t"),
                                  .offset = 7,
                                  .created_us = 1772193600123456,
                                  .headers = headers,
                                  .header_count = 1};
    message.key = take(&rest);
    headers[0].value = take(&rest);
    message.payload = rest;
    check(refdata_source_init(&source, &own, 0, NULL, &arena, &error) == STATUS_OK);
    translate(&source, &message, &arena);
    arena_deinit(&arena);
    return 0;
}
