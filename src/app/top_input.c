/* Where a sample comes from: the operator's API of one pod, or the databases themselves by the same rows. */
#include <string.h>

#include "app/commands.h"
#include "app/top.h"
#include "base/clock.h"
#include "base/json.h"
#include "kernel/outbox_views.h"
#include "modules/refdata/carrier.h"

enum { POD_MS = 2000, POD_AGAIN_MS = 1000, DATABASE_MS = 2000, ROWS_MAX = 500, CONNECTIONS = 1 };

/* ---- a pod ---- */

/* Rows of all tenants, or, where the token may not see them, of its own. */
static enum status ask_pod(const struct top_input *input, const char *path, bool has_tenants,
                           struct buf *body, struct error *error)
{
    struct pod_call call = input->call;
    struct arena arena = ARENA(256);
    char separator = strchr(path, '?') ? '&' : '?';
    call.path = has_tenants ? arena_printf(&arena, "/v1/ops/%s%ctenant=*", path, separator)
                            : arena_printf(&arena, "/v1/ops/%s", path);
    enum status status = pod_get(&call, body, error);
    if (has_tenants && status == STATUS_BAD_REQUEST &&
        str_eq(str_from(error->field), STR("TENANT_MISMATCH"))) {
        buf_deinit(body);
        call.path = arena_printf(&arena, "/v1/ops/%s", path);
        status = pod_get(&call, body, error);
    }
    arena_deinit(&arena);
    return status;
}

static enum status read_pod(struct top_input *input, struct top_sample *sample, struct error *error)
{
    static const struct {
        const char *list, *path;
        bool has_tenants;
    } wanted[] = {{"overview", "overview", true},
                  {"pods", "pods?limit=500", false},
                  {"dictionaries", "dictionaries?limit=500", true},
                  {"lag", "lag?limit=500", false}};
    enum status status = STATUS_OK;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted && status == STATUS_OK; i++) {
        struct buf body;
        struct json_value answer, part;
        status = ask_pod(input, wanted[i].path, wanted[i].has_tenants, &body, error);
        if (status == STATUS_OK &&
            json_parse_stored(buf_str(&body), JSON_DEPTH_LIMIT, &answer, NULL) != STATUS_OK)
            status = error_set(error, STATUS_BAD_REQUEST, CLIENT_STRANGE_ANSWER);
        if (status == STATUS_OK && answer.raw.ptr[0] != '{')
            status = error_set(error, STATUS_BAD_REQUEST, CLIENT_STRANGE_ANSWER);
        if (status == STATUS_OK) {
            top_rows_read(sample, wanted[i].list,
                          json_get(&answer, STR("items"), &part) ? part.raw : answer.raw);
            size_t warnings = sample->warning_count;
            if (json_get(&answer, STR("unavailable"), &part))
                top_rows_read(sample, "unavailable", part.raw);
            sample->is_partial |= sample->warning_count > warnings;
        }
        buf_deinit(&body);
    }
    return status;
}

/* ---- the databases ---- */

static enum status read_view(const char *name, const struct app_site *site, struct db_conn *conn,
                             struct top_sample *sample, int64_t deadline_ns, struct error *error)
{
    const struct module *module = NULL;
    const struct ops_view *view = app_view_find(name, &module);
    struct ops_question question = {.limit = ROWS_MAX};
    struct ops_answer answer;
    struct buf json = {0};
    if (!view || !app_site_has(site, module, view->place))
        return STATUS_OK;
    enum status status = kernel_ops_list(conn, view, &question, deadline_ns, &answer, error);
    for (size_t i = 0; status == STATUS_OK && i < db_result_rows(answer.rows); i++) {
        buf_clear(&json);
        kernel_ops_put_row(&json, view, answer.rows, i, site->target.name);
        top_rows_read(sample, name, buf_str(&json));
    }
    if (status == STATUS_OK)
        kernel_ops_answer_free(&answer);
    buf_deinit(&json);
    return status;
}

static enum status read_outboxes(const struct app_site *site, struct db_conn *conn, struct top_sample *sample,
                                 int64_t deadline_ns, struct error *error)
{
    enum status status = STATUS_OK;
    for (const struct module *const *module = app_modules; *module; module++)
        for (const struct outbox_table *const *at = (*module)->outboxes; at && *at && status == STATUS_OK;
             at++) {
            struct kernel_outbox_counts counts;
            if (!app_site_keeps(site, *module))
                continue;
            status = kernel_outbox_count(conn, *at, STR_NONE, &sample->arena, deadline_ns, &counts, error);
            if (status != STATUS_OK)
                break;
            top_add_count(&sample->outbox_pending, counts.pending);
            top_add_count(&sample->outbox_in_flight, counts.in_flight);
            top_add_count(&sample->outbox_failed, counts.failed);
            if (counts.oldest_pending_age_s > sample->oldest_event_s)
                sample->oldest_event_s = counts.oldest_pending_age_s;
        }
    return status;
}

static enum status read_updates(struct db_conn *conn, struct top_sample *sample, int64_t deadline_ns,
                                struct error *error)
{
    struct db_result *rows = NULL;
    enum status status =
        db_query(conn, &refdata_pending_sql, DB_PARAMS(db_i64(0)), deadline_ns, &rows, error);
    if (status == STATUS_OK) {
        bool has_some = db_result_rows(rows) == 1;
        int64_t count = has_some ? db_result_i64(rows, 0, PENDING_COUNT) : 0;
        int64_t age_s = has_some ? db_result_i64(rows, 0, PENDING_AGE_S) : 0;
        top_add_count(&sample->updates_pending, count);
        sample->has_more_updates |= count == REFDATA_PENDING_MAX;
        sample->oldest_update_s = age_s > sample->oldest_update_s ? age_s : sample->oldest_update_s;
    }
    db_result_free(rows);
    return status;
}

static void read_site(struct top_input *input, size_t at, struct top_sample *sample)
{
    const struct app_site *site = &input->sites.items[at];
    int64_t deadline_ns = clock_deadline_ms(DATABASE_MS);
    static const char *const views[] = {"pods", "dictionaries", "lag"};
    struct db_conn *conn = NULL;
    struct error error = {0};
    enum status status = STATUS_OK;
    if (!input->pools[at])
        status = app_site_open(site, CONNECTIONS, DATABASE_MS, &input->pools[at], &error);
    if (status == STATUS_OK)
        status = db_acquire(input->pools[at], deadline_ns, &conn, &error);
    for (size_t i = 0; i < sizeof views / sizeof *views && status == STATUS_OK; i++)
        status = read_view(views[i], site, conn, sample, deadline_ns, &error);
    if (status == STATUS_OK)
        status = read_outboxes(site, conn, sample, deadline_ns, &error);
    if (status == STATUS_OK && site->module)
        status = read_updates(conn, sample, deadline_ns, &error);
    if (status != STATUS_OK)
        top_warn(sample, "database %s: %s", site->target.name, error.message);
    db_release(conn);
}

/* ---- either ---- */

static void begin_sample(struct top_sample *sample)
{
    memset(sample, 0, sizeof *sample);
    sample->arena = ARENA(16384);
    sample->updates_pending = sample->outbox_pending = sample->outbox_in_flight = sample->outbox_failed = -1;
    sample->dead_letters = -1;
    sample->freshness_p50_ms = sample->freshness_p99_ms = -1;
}

/* False: the databases are to be asked. */
static bool sample_pod(struct top_input *input, struct top_sample *sample)
{
    struct error error = {0};
    if (!input->call.url.len)
        return false;
    input->call.single = true;
    input->call.patience_ms = input->pod_is_away ? POD_AGAIN_MS : POD_MS;
    sample->source = arena_str(&sample->arena, input->call.url).ptr;
    enum status status = read_pod(input, sample, &error);
    input->pod_is_away = pod_is_away(status);
    if (status == STATUS_OK)
        return true;
    arena_deinit(&sample->arena);
    begin_sample(sample);
    top_warn(sample, "%.*s: %s", STR_ARG(input->call.url), error.message);
    return false;
}

void top_input_read(struct top_input *input, const struct top_sample *before, struct top_sample *sample)
{
    begin_sample(sample);
    if (!sample_pod(input, sample)) {
        sample->source = input->config ? "the databases" : "nowhere";
        for (size_t i = 0; input->config && i < input->sites.count; i++)
            read_site(input, i, sample);
    }
    sample->at_ns = clock_mono_ns();
    sample->at_us = clock_unix_us();
    top_rows_finish(sample, before);
}

void top_input_close(struct top_input *input)
{
    for (size_t i = 0; i < input->sites.count; i++)
        db_pool_destroy(input->pools[i]);
    app_sites_deinit(&input->sites);
    config_free(input->config);
    fetch_session_close(input->call.session);
}
