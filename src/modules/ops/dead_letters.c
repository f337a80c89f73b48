/* /v1/ops/dead-letters: all dead letter stores, their letters, and what an operator decides about them. A store is a topic's ".dlq",
 * a table of a module, or an outbox with its failed events; the API calls it a source. */
#include "modules/ops/dead_letters.h"

enum { LIST_MS = 400, ENGINE_MS = 5000, PAYLOAD_MAX = 65536 };

/* ---- dead letter stores ---- */

bool ops_dead_letter_store(struct http_request *request, struct dead_letter_store *letter_store)
{
    struct ops *ops = request->context;
    struct error error = {0};
    struct str name;
    enum status status = http_request_param(request, "source", &name, &error);
    if (status == STATUS_OK && !kernel_dead_letter_store(kernel_config_first(ops->kernel), ops->modules, name,
                                                         request->arena, letter_store))
        status = error_set(&error, STATUS_NOT_FOUND, "there is no source of dead letters of this name");
    if (status != STATUS_OK)
        http_send_error(request, &error);
    return status == STATUS_OK;
}

enum ops_place ops_dead_place(const struct dead_letter_store *letter_store)
{
    if (letter_store->kind == DEAD_OF_OUTBOX)
        return letter_store->module->keeps_store ? OPS_STORE : OPS_DATABASES;
    if (letter_store->kind == DEAD_OF_TOPIC && letter_store->topic.engine == KERNEL_ON_POSTGRES)
        return OPS_ANYWHERE;
    return letter_store->kind == DEAD_OF_TOPIC && letter_store->topic.engine == KERNEL_ON_KAFKA
               ? OPS_DATABASES
               : OPS_STORE;
}

/* The databases of a letter store; those of Kafka share one that has the decisions: the first. */
enum status ops_dead_asks(const struct ops_sites *sites, const struct dead_letter_store *letter_store,
                          struct str only, struct ops_ask *asks, size_t *count, struct error *error)
{
    enum status status = ops_asks_init(sites, ops_dead_place(letter_store), STR_NONE, asks, count, error);
    if (status == STATUS_OK && letter_store->kind == DEAD_OF_TOPIC &&
        letter_store->topic.engine == KERNEL_ON_KAFKA && *count > 1)
        *count = 1;
    size_t kept = 0;
    for (size_t i = 0; i < *count; i++)
        if (!only.ptr || str_eq(only, str_from(asks[i].site->name)))
            asks[kept++] = asks[i];
    *count = kept;
    if (status == STATUS_OK && kept == 0 && only.ptr)
        status = error_set_field(error, STATUS_BAD_REQUEST, "database",
                                 "there is no database of this name that has this source");
    return status;
}

enum status ops_dead_open(struct ops *ops, const struct dead_letter_store *letter_store, struct db_conn *conn,
                          int64_t deadline_ns, struct dead_place *place, struct error *error)
{
    *place = (struct dead_place){
        .conn = conn, .topic = &letter_store->topic, .name = letter_store->name, .deadline_ns = deadline_ns};
    return kernel_dead_open(kernel_config_first(ops->kernel), ops->modules, letter_store->topic.engine, conn,
                            deadline_ns, &place->dead, error);
}

/* The same with the time of a list; an engine has more than a database. */
static enum status open_to_read(struct ops *ops, const struct dead_letter_store *letter_store,
                                struct db_conn *conn, const struct ops_ask *ask, struct dead_place *place,
                                struct error *error)
{
    bool is_database = letter_store->topic.engine == KERNEL_ON_POSTGRES;
    return ops_dead_open(ops, letter_store, conn,
                         is_database ? ask->deadline_ns : clock_deadline_ms(ENGINE_MS), place, error);
}

/* ---- one letter as JSON ---- */

static void put_base64(struct buf *out, struct str bytes)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    buf_put_char(out, '"');
    for (size_t i = 0; i < bytes.len; i += 3) {
        size_t left = bytes.len - i;
        uint32_t word = (uint32_t)(unsigned char)bytes.ptr[i] << 16;
        word |= left > 1 ? (uint32_t)(unsigned char)bytes.ptr[i + 1] << 8 : 0;
        word |= left > 2 ? (uint32_t)(unsigned char)bytes.ptr[i + 2] : 0;
        buf_put_char(out, digits[word >> 18]);
        buf_put_char(out, digits[word >> 12 & 63]);
        buf_put_char(out, left > 1 ? digits[word >> 6 & 63] : '=');
        buf_put_char(out, left > 2 ? digits[word & 63] : '=');
    }
    buf_put_char(out, '"');
}

static void put_text_or_null(struct buf *out, const char *name, struct str text)
{
    json_put_member_str_or_null(out, name, text.ptr && str_is_text(text) ? text : STR_NONE);
}

static void put_optional(struct buf *out, const char *name, struct str text)
{
    if (text.ptr)
        json_put_member_str(out, name, text);
}

static void put_item(struct buf *out, const struct dead_letter_store *letter_store, const char *database,
                     const struct dead_item *item)
{
    const struct bus_message *letter = item->letter;
    char text[CLOCK_RFC3339_BYTES];
    json_put_open(out, NULL, '{');
    json_put_member_str(out, "database", str_from(database));
    json_put_key(out, STR("id"));
    buf_printf(out, "\"%u-%lld\"", letter->partition, (long long)letter->offset);
    json_put_member_str(out, "topic", str_from(letter_store->topic.topic));
    json_put_member_i64(out, "partition", letter->partition);
    json_put_member_i64(out, "offset", letter->offset);
    put_text_or_null(out, "key", letter->key);
    if (letter->key.ptr && !str_is_text(letter->key)) {
        json_put_key(out, STR("key_base64"));
        put_base64(out, letter->key);
    }
    put_text_or_null(out, "reason", bus_message_header(letter, STR(BUS_HEADER_DEAD_REASON)));
    json_put_member_str(out, "at", str_of(text, clock_rfc3339(letter->created_us, text)));
    json_put_member_str(out, "state", str_from(dead_state_name(item->state)));
    put_optional(out, "event_id", bus_message_header(letter, STR(BUS_HEADER_EVENT_ID)));
    put_optional(out, "tenant_id", dead_item_tenant(&letter_store->topic, letter));
    put_optional(out, "decided_by", item->decided_by);
    put_optional(out, "decided_at", item->decided_at);
    put_optional(out, "decided_reason", item->decided_why);
    json_put_member_i64(out, "bytes", (int64_t)item->bytes);
    buf_put_char(out, '}');
}

/* The same with payload and headers; of several headers of one name the first. */
static void put_whole(struct buf *out, const struct dead_letter_store *letter_store, const char *database,
                      const struct dead_item *item)
{
    const struct bus_message *letter = item->letter;
    struct str payload = letter->payload;
    put_item(out, letter_store, database, item);
    out->end--; /* its brace */
    /* a text that was cut in the middle of a character is still one */
    if (item->bytes > payload.len && str_is_text(str_utf8_cut(payload, payload.len)))
        payload = str_utf8_cut(payload, payload.len);
    json_put_key(out, STR("payload"));
    bool is_text = str_is_text(payload);
    if (is_text)
        json_put_string(out, payload);
    else
        put_base64(out, payload);
    if (!is_text)
        json_put_member_str(out, "payload_encoding", STR("base64"));
    if (item->bytes > payload.len)
        buf_put_str(out, STR(",\"payload_truncated\":true"));
    json_put_open(out, "headers", '{');
    for (unsigned i = 0; i < letter->header_count; i++) {
        bool is_first = true;
        for (unsigned before = 0; before < i; before++)
            is_first &= !str_eq(letter->headers[before].name, letter->headers[i].name);
        if (is_first && str_is_text(letter->headers[i].name) && str_is_text(letter->headers[i].value)) {
            json_put_key(out, letter->headers[i].name);
            json_put_string(out, letter->headers[i].value);
        }
    }
    buf_put_str(out, STR("}}"));
}

/* ---- a page of a topic: one database after the other ---- */

struct dead_page {
    struct ops *ops;
    const struct dead_letter_store *letter_store;
    struct dead_scan scan;
    struct buf items, cursor;
};

static enum status scan_topic(struct ops_ask *ask, struct db_conn *conn, struct error *error)
{
    struct dead_page *page = ask->context;
    struct dead_scan *scan = &page->scan;
    enum status status = open_to_read(page->ops, page->letter_store, conn, ask, &scan->place, error);
    if (status == STATUS_OK)
        status = kernel_dead_scan(scan, error);
    for (size_t i = 0; i < scan->count && status == STATUS_OK; i++)
        put_item(&page->items, page->letter_store, ask->site->name, &scan->items[i]);
    bus_dead_close(scan->place.dead);
    return status;
}

/* The cursor: "database|positions", or "database|" where the page ended before it. In hexadecimal digits, as all of them. */
static void put_cursor(struct buf *out, const char *database, const struct dead_position *positions,
                       size_t count)
{
    struct buf text = {0};
    buf_printf(&text, "%s|", database);
    dead_positions_put(&text, positions, count);
    ops_put_hex(out, buf_str(&text));
    buf_deinit(&text);
}

static bool read_cursor(struct str text, struct arena *arena, struct str *database, struct dead_scan *scan)
{
    size_t len = text.len / 2;
    uint8_t *bytes = arena_alloc(arena, len + 1);
    struct str rest = {(const char *)bytes, len};
    return text.len % 2 == 0 && hex_get(text.ptr, bytes, len) && memchr(bytes, '|', len) &&
           str_split(&rest, '|', database) && database->len > 0 &&
           (rest.len == 0 || dead_positions_read(rest, arena, &scan->positions, &scan->position_count));
}

static enum status read_time(const struct http_request *request, const char *name, int64_t *us,
                             struct error *error)
{
    struct str text;
    bool found = false;
    enum status status = http_request_query(request, str_from(name), &found, &text, error);
    if (status == STATUS_OK && found && !clock_rfc3339_parse(text, us))
        status = error_set_field(error, STATUS_BAD_REQUEST, name, "%s must be a time as 2026-01-31T12:00:00Z",
                                 name);
    return status;
}

static enum status read_state(const struct http_request *request, enum dead_state *state, struct error *error)
{
    struct str text;
    bool found = false;
    enum status status = http_request_query(request, STR("state"), &found, &text, error);
    if (status != STATUS_OK || !found)
        return status;
    for (*state = DEAD_OPEN; *state < DEAD_ANY; ++*state)
        if (str_eq(text, str_from(dead_state_name(*state))))
            return STATUS_OK;
    return error_set_field(error, STATUS_BAD_REQUEST, "state",
                           "state must be one of: open, requeued, discarded");
}

static enum status read_page(const struct http_request *request, struct dead_scan *scan, struct str *only,
                             struct str *begin, struct error *error)
{
    static const char *const names[] = {"state",  "reason", "from",     "to", "limit",
                                        "cursor", "tenant", "database", NULL};
    struct str cursor;
    bool found = false, has_cursor = false;
    int64_t limit = OPS_LIMIT;
    enum status status = http_request_query_only(request, names, error);
    if (status == STATUS_OK)
        status = ops_tenant_read(request, STR_NONE, &scan->filter.tenant, error);
    if (status == STATUS_OK)
        status = read_state(request, &scan->filter.state, error);
    if (status == STATUS_OK)
        status = http_request_query(request, STR("reason"), &found, &scan->filter.reason, error);
    if (status == STATUS_OK)
        status = read_time(request, "from", &scan->filter.from_us, error);
    if (status == STATUS_OK)
        status = read_time(request, "to", &scan->filter.to_us, error);
    if (status == STATUS_OK)
        status = http_request_query_i64(request, "limit", 1, OPS_LIMIT_MAX, &limit, error);
    scan->limit = (size_t)limit;
    if (status == STATUS_OK)
        status = http_request_query(request, STR("database"), &found, only, error);
    if (!found)
        *only = STR_NONE;
    if (status == STATUS_OK)
        status = http_request_query(request, STR("cursor"), &has_cursor, &cursor, error);
    if (status == STATUS_OK && has_cursor && !read_cursor(cursor, request->arena, begin, scan))
        status = error_set_field(error, STATUS_BAD_REQUEST, "cursor", "cursor is not one of this list");
    return status;
}

/* Scans one database after the other until the page is full, or its time is over. */
static void fill_page(struct dead_page *page, struct ops_ask *asks, size_t count, struct str begin)
{
    struct dead_scan *scan = &page->scan;
    size_t left = scan->limit, at = 0;
    while (begin.ptr && at < count && !str_eq(begin, str_from(asks[at].site->name)))
        at++;
    for (; at < count; at++) {
        scan->limit = left;
        if (left > 0)
            ops_ask_all(page->ops, &asks[at], 1, scan_topic, page);
        bool is_scanned = left > 0 && asks[at].status == STATUS_OK;
        left -= is_scanned ? scan->count : 0;
        if (!is_scanned && left > 0) { /* it failed, and is shown as unavailable */
            scan->positions = NULL;
            scan->position_count = 0;
            continue;
        }
        if (!is_scanned || !scan->is_complete) {
            put_cursor(&page->cursor, asks[at].site->name, is_scanned ? scan->positions : NULL,
                       is_scanned ? scan->position_count : 0);
            return;
        }
        scan->positions = NULL;
        scan->position_count = 0;
    }
}

static void send_topic(struct http_request *request, const struct dead_letter_store *letter_store)
{
    struct ops *ops = request->context;
    struct ops_sites *sites = ops_sites_hold(ops);
    struct ops_ask *asks = arena_zalloc(request->arena, (sites->count + 1) * sizeof *asks);
    struct dead_page page = {.ops = ops, .letter_store = letter_store};
    struct error error = {0};
    struct str only = STR_NONE, begin = STR_NONE;
    size_t count = 0;
    page.scan.arena = request->arena;
    page.scan.until_ns = clock_deadline_ms(LIST_MS);
    enum status status = read_page(request, &page.scan, &only, &begin, &error);
    if (status == STATUS_OK)
        status = ops_dead_asks(sites, letter_store, only, asks, &count, &error);
    if (status == STATUS_OK) {
        fill_page(&page, asks, count, begin);
        ops_send_items(request, &page.items, &page.cursor, asks, count);
    } else {
        http_send_error(request, &error);
    }
    buf_deinit(&page.items);
    buf_deinit(&page.cursor);
    ops_sites_unref(sites);
}

void ops_get_dead_letters(struct http_request *request)
{
    struct dead_letter_store letter_store;
    enum dead_state state = DEAD_OPEN;
    struct error error = {0};
    if (!ops_dead_letter_store(request, &letter_store))
        return;
    if (letter_store.kind == DEAD_OF_TOPIC) {
        send_topic(request, &letter_store);
        return;
    }
    if (read_state(request, &state, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    const struct ops_view *views[KERNEL_DEAD_VIEWS];
    size_t count = 0;
    if (letter_store.kind == DEAD_OF_OUTBOX)
        views[count++] = kernel_outbox_dead(letter_store.outbox, state == DEAD_DISCARDED, request->arena);
    for (; letter_store.kind == DEAD_OF_TABLE && letter_store.table->lists[state][count]; count++)
        views[count] = letter_store.table->lists[state][count];
    ops_send_walk(request, views, count);
}

/* ---- one letter ---- */

struct dead_one {
    struct ops *ops;
    const struct dead_letter_store *letter_store;
    struct dead_position id;
    struct dead_filter filter;
    struct arena *arena;
    struct buf body; /* empty: it was not found */
};

static enum status get_one(struct ops_ask *ask, struct db_conn *conn, struct error *error)
{
    struct dead_one *one = ask->context;
    struct dead_place place;
    struct dead_item *items;
    size_t count = 0;
    enum status status = open_to_read(one->ops, one->letter_store, conn, ask, &place, error);
    if (status == STATUS_OK)
        status = kernel_dead_get(&place, &one->filter, &one->id, 1, PAYLOAD_MAX, one->arena, &items, &count,
                                 error);
    if (status == STATUS_OK && count == 1)
        put_whole(&one->body, one->letter_store, ask->site->name, &items[0]);
    bus_dead_close(place.dead);
    return status;
}

static enum status find_one(struct http_request *request, struct dead_one *one, struct ops_sites *sites,
                            struct error *error)
{
    static const char *const names[] = {"tenant", "database", NULL};
    struct ops_ask *asks = arena_zalloc(request->arena, (sites->count + 1) * sizeof *asks);
    struct str id, only;
    bool found = false;
    size_t count = 0;
    enum status status = http_request_query_only(request, names, error), failure = STATUS_OK;
    if (status == STATUS_OK)
        status = http_request_param(request, "id", &id, error);
    if (status == STATUS_OK && !dead_id_read(id, &one->id))
        status =
            error_set_field(error, STATUS_BAD_REQUEST, "id", "id must be as 3-120: partition and offset");
    if (status == STATUS_OK)
        status = ops_tenant_read(request, STR_NONE, &one->filter.tenant, error);
    if (status == STATUS_OK)
        status = http_request_query(request, STR("database"), &found, &only, error);
    if (status == STATUS_OK)
        status = ops_dead_asks(sites, one->letter_store, found ? only : STR_NONE, asks, &count, error);
    for (size_t i = 0; status == STATUS_OK && i < count && !buf_len(&one->body); i++) {
        ops_ask_all(one->ops, &asks[i], 1, get_one, one);
        if (asks[i].status != STATUS_OK) {
            failure = asks[i].status;
            *error = asks[i].error;
        }
    }
    if (status == STATUS_OK && !buf_len(&one->body))
        status = failure != STATUS_OK ? failure
                                      : error_set(error, STATUS_NOT_FOUND, "there is no such dead letter");
    return status;
}

void ops_get_dead_letter(struct http_request *request)
{
    struct dead_letter_store letter_store;
    if (!ops_dead_letter_store(request, &letter_store))
        return;
    if (letter_store.kind != DEAD_OF_TOPIC) {
        ops_send_view(request, letter_store.kind == DEAD_OF_TABLE
                                   ? letter_store.table->one
                                   : kernel_outbox_dead_one(letter_store.outbox, request->arena));
        return;
    }
    struct dead_one one = {.ops = request->context,
                           .letter_store = &letter_store,
                           .filter = {.state = DEAD_ANY},
                           .arena = request->arena};
    struct ops_sites *sites = ops_sites_hold(one.ops);
    struct error error = {0};
    if (find_one(request, &one, sites, &error) == STATUS_OK)
        http_send(request, &(struct http_response){.status = 200, .body = buf_str(&one.body)});
    else
        http_send_error(request, &error);
    buf_deinit(&one.body);
    ops_sites_unref(sites);
}
