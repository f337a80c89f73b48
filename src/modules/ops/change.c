/* Changes by operators: the body of a POST, and the transaction that holds the change and its row of the audit. */
#include "base/clock.h"
#include "base/json.h"
#include "modules/ops/ops.h"

/* What a body holds is written into the audit, whose pages must stay small. */
enum { REASON_CHARS_MAX = 500, IDS_MAX = 1000, ID_BYTES_MAX = 64, TEXT_BYTES_MAX = 4096 };

static enum status refuse_member(struct error *error, const char *field, const char *expected)
{
    return error_set_field(error, STATUS_BAD_REQUEST, field, "%s must be %s", field, expected);
}

static enum status read_ids(const struct json_value *value, struct ops_change *change, struct error *error)
{
    struct json_iter it;
    struct json_value id;
    size_t count = 0;
    if (value->type != JSON_ARRAY)
        return refuse_member(error, "ids", "an array of 1 to 1000 ids");
    json_iter_init(&it, value);
    while (json_iter_next(&it, NULL, &id)) {
        if ((id.type != JSON_STRING && id.type != JSON_NUMBER) || id.raw.len > ID_BYTES_MAX)
            return refuse_member(error, "ids", "an array of texts or numbers of at most 64 bytes");
        count++;
    }
    if (count == 0 || count > IDS_MAX)
        return refuse_member(error, "ids", "an array of 1 to 1000 ids");
    change->ids = *value;
    change->has_ids = true;
    return STATUS_OK;
}

static enum status read_text(const struct json_value *value, const char *name, struct arena *arena,
                             struct str *text, struct error *error)
{
    if (value->type != JSON_STRING || json_has_nul_escape(value->raw))
        return refuse_member(error, name, "a text");
    *text = json_str_decode(value->raw, arena);
    return text->len <= TEXT_BYTES_MAX ? STATUS_OK
                                       : refuse_member(error, name, "a text of at most 4096 bytes");
}

static enum status read_member(struct str name, const struct json_value *value, struct arena *arena,
                               struct ops_change *change, struct error *error)
{
    if (json_str_eq(name, STR("ids")))
        return read_ids(value, change, error);
    if (json_str_eq(name, STR("filter"))) {
        change->filter = *value;
        change->has_filter = true;
        return value->type == JSON_OBJECT ? STATUS_OK : refuse_member(error, "filter", "an object");
    }
    if (json_str_eq(name, STR("dry_run"))) {
        change->is_dry_run = str_eq(value->raw, STR("true"));
        return value->type == JSON_BOOL ? STATUS_OK : refuse_member(error, "dry_run", "true or false");
    }
    if (json_str_eq(name, STR("reason")))
        return read_text(value, "reason", arena, &change->reason, error);
    if (json_str_eq(name, STR("database")))
        return read_text(value, "database", arena, &change->database, error);
    for (struct ops_text *text = change->texts; text && text->name; text++)
        if (json_str_eq(name, str_from(text->name)))
            return read_text(value, text->name, arena, &text->value, error);
    return error_set_field(error, STATUS_BAD_REQUEST, "body", "the body has an unknown member: %.*s",
                           STR_ARG(name));
}

static enum status check_change(const struct ops_change *change, struct error *error)
{
    size_t chars = 0;
    for (size_t i = 0; i < change->reason.len; i++)
        chars += ((unsigned char)change->reason.ptr[i] & 0xc0) != 0x80; /* a character's first byte */
    for (const struct ops_text *text = change->texts; text && text->name; text++)
        if (!text->value.len)
            return refuse_member(error, text->name, "a text, and is required");
    if (chars < 1 || chars > REASON_CHARS_MAX)
        return refuse_member(error, "reason", "a text of 1 to 500 characters");
    if (change->texts ? change->has_ids || change->has_filter : change->has_ids == change->has_filter)
        return error_set_field(error, STATUS_BAD_REQUEST, change->texts ? "body" : "ids",
                               change->texts ? "ids and filter are not of this request"
                                             : "either ids or filter chooses the rows");
    return STATUS_OK;
}

enum status ops_change_read(const struct http_request *request, struct ops_change *change,
                            struct error *error)
{
    static const char *const names[] = {"tenant", NULL};
    struct json_value body, value;
    struct json_iter it;
    struct str name;
    enum status status = http_request_query_only(request, names, error);
    if (status == STATUS_OK)
        status = ops_tenant_read(request, STR_NONE, &change->tenant, error);
    if (status == STATUS_OK)
        status = json_parse(request->body, JSON_DEPTH_MAX, &body, error);
    if (status != STATUS_OK)
        return status;
    if (body.type != JSON_OBJECT || json_has_duplicates(&body, request->arena))
        return error_set_field(error, STATUS_BAD_REQUEST, "body", "the body must be an object");
    json_iter_init(&it, &body);
    while (status == STATUS_OK && json_iter_next(&it, &name, &value))
        status = read_member(name, &value, request->arena, change, error);
    return status == STATUS_OK ? check_change(change, error) : status;
}

enum status ops_filter_read(const struct ops_view *view, const struct json_value *filter, struct arena *arena,
                            struct ops_question *question, struct error *error)
{
    struct json_iter it;
    struct json_value value;
    struct str name;
    json_iter_init(&it, filter);
    while (json_iter_next(&it, &name, &value)) {
        size_t i = 0;
        while (view->filters[i].name && !json_str_eq(name, str_from(view->filters[i].name)))
            i++;
        if (!view->filters[i].name || view->filters[i].is_path)
            return error_set_field(error, STATUS_BAD_REQUEST, "filter",
                                   "the filter has an unknown member: %.*s", STR_ARG(name));
        enum status status = read_text(&value, view->filters[i].name, arena, &question->values[i], error);
        if (status == STATUS_OK)
            status = kernel_ops_value_check(&view->filters[i], &question->values[i], arena, error);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

/* ---- the transaction ---- */

static enum status run_change(struct ops_ask *ask, struct db_conn *conn, struct error *error)
{
    struct ops_change *change = ask->context;
    int64_t deadline_ns = change->timeout_ms ? clock_deadline_ms(change->timeout_ms) : ask->deadline_ns;
    enum status status = db_begin(conn, DB_READ_COMMITTED, deadline_ns, error);
    if (status == STATUS_OK)
        status = change->run(change, conn, deadline_ns, error);
    if (status == STATUS_OK && !change->is_dry_run)
        status = kernel_ops_audit_write(
            conn,
            &(struct ops_audit){.tenant = change->tenant,
                                .who = change->who,
                                .action = str_from(change->action),
                                .target = change->target,
                                .ids = change->has_ids ? change->ids.raw : STR_NONE,
                                .filter = change->has_filter ? change->filter.raw : STR_NONE,
                                .matched = change->matched,
                                .changed = change->changed,
                                .reason = change->reason},
            deadline_ns, error);
    if (status == STATUS_OK && !change->is_dry_run)
        status = db_commit(conn, deadline_ns, error);
    else
        db_rollback(conn);
    if (status == STATUS_OK && !change->is_dry_run && change->on_committed)
        change->on_committed(change, conn, deadline_ns);
    return status;
}

void ops_send_change(struct http_request *request, struct ops_change *change, enum ops_place place)
{
    struct ops *ops = request->context;
    struct ops_sites *sites = ops_sites_hold(ops);
    struct ops_ask *asks = arena_zalloc(request->arena, (sites->count + 1) * sizeof *asks);
    struct error error = {0};
    size_t count = 0;
    const struct auth_identity *identity = kernel_identity(request);
    change->who = identity->subject.len ? identity->subject : STR("unknown");
    enum status status = ops_asks_init(sites, place, change->database, asks, &count, &error);
    if (status == STATUS_OK && count != 1)
        status = error_set_field(&error, STATUS_BAD_REQUEST, "database",
                                 "database must name one of them, since there are several");
    if (status == STATUS_OK) {
        ops_ask_all(ops, asks, 1, run_change, change);
        status = asks[0].status;
        error = asks[0].error;
    }
    if (status == STATUS_OK) {
        struct buf body = {0};
        buf_printf(&body, "{\"matched\":%lld,\"changed\":%lld,\"dry_run\":%s%s}", (long long)change->matched,
                   (long long)(change->is_dry_run ? 0 : change->changed),
                   change->is_dry_run ? "true" : "false", change->has_more ? ",\"more\":true" : "");
        http_send(request, &(struct http_response){.status = 200, .body = buf_str(&body)});
        buf_deinit(&body);
    } else {
        http_send_error(request, &error);
    }
    ops_sites_unref(sites);
}
