/* Checks of processes as they report themselves in the databases (platform.pod): which are gone, and which roles does none run although
 * work waits for them? */
#include "app/commands.h"
#include "app/doctor.h"
#include "kernel/ops.h"
#include "outbox/outbox.h"

#define SEEN_SQL "interval '15 s'"

/* Those that are gone and whose work no process that started since does; and those that are up. */
static const struct db_statement gone_sql = DB_STATEMENT(
    "select p.pod_id, p.host, array_to_string(p.roles, ','), extract(epoch from clock_timestamp() - p.seen_at)::bigint"
    "  from platform.pod p where p.stopped_at is null and p.seen_at < clock_timestamp() - " SEEN_SQL
    "   and not exists (select from platform.pod q where q.stopped_at is null and q.roles @> p.roles"
    "         and q.seen_at >= clock_timestamp() - " SEEN_SQL " and q.started_at > p.seen_at - " SEEN_SQL ")"
    " order by p.seen_at desc limit 20");
static const struct db_statement up_sql =
    DB_STATEMENT("select host, address from platform.pod where stopped_at is null"
                 "   and seen_at >= clock_timestamp() - " SEEN_SQL " order by pod_id limit 100");
static const struct db_statement roles_sql =
    DB_STATEMENT("select distinct r from platform.pod, unnest(roles) r where stopped_at is null"
                 "   and seen_at >= clock_timestamp() - " SEEN_SQL);
/* $1 the beginning of a group's name */
static const struct db_statement unread_sql =
    DB_STATEMENT("select sum(p.next_offset - c.position) from platform.bus_cursor c"
                 "  join platform.bus_partition p on p.topic = c.topic and p.partition = c.partition"
                 " where starts_with(c.group_name, $1) and c.position < p.next_offset");

/* A process that listens everywhere is reached by its host's name. */
static void add_pod(struct doctor_place *place, struct str host, struct str address)
{
    bool is_here = doctor_is_here(host);
    struct str url =
        kernel_http_url(place->doctor->config, address, is_here ? STR_NONE : host, &place->arena);
    bool is_loopback = str_starts_with(address, STR("127.")) || str_starts_with(address, STR("localhost:")) ||
                       str_starts_with(address, STR("[::1]:"));
    if (is_here || !is_loopback)
        doctor_add_pod(place->doctor, url, is_here);
}

void doctor_check_gone(struct doctor_place *place)
{
    struct db_result *gone = doctor_query(place, &gone_sql, DB_NO_PARAMS);
    struct db_result *up = gone ? doctor_query(place, &up_sql, DB_NO_PARAMS) : NULL;
    for (size_t i = 0; gone && i < db_result_rows(gone); i++) {
        struct str host = db_result_str(gone, i, 1);
        doctor_found(place, doctor_restart(place, "freshet", host),
                     "the process %.*s on %.*s (%.*s) has not reported for %lld s",
                     STR_ARG(db_result_str(gone, i, 0)), STR_ARG(host), STR_ARG(db_result_str(gone, i, 2)),
                     (long long)db_result_i64(gone, i, 3));
    }
    for (size_t i = 0; up && i < db_result_rows(up); i++)
        add_pod(place, db_result_str(up, i, 0), db_result_str(up, i, 1));
    db_result_free(gone);
    db_result_free(up);
}

/* ---- roles ---- */

/* The roles that read the groups whose name begins so. */
static const struct {
    const char *role, *group;
    bool is_of_refdata;
} groups[] = {{"apply", "refdata-apply", true}, {"notification", "notification", false}};

static bool is_run(const struct db_result *roles, const char *role)
{
    for (size_t i = 0; i < db_result_rows(roles); i++)
        if (str_eq(db_result_str(roles, i, 0), str_from(role)))
            return true;
    return false;
}

static void found_role(struct doctor_place *place, const char *role, const char *waits)
{
    doctor_found(place, doctor_command(place, "serve --roles %s", role),
                 "no process reports the role %s, for which %s", role, waits);
}

static void check_table_role(struct doctor_place *place, const struct outbox_table *table)
{
    enum { EVENTS_MAX = 1000 };
    struct error error = {0};
    struct db_conn *conn = NULL;
    struct db_result *rows = NULL;
    struct outbox_selection selection = {.rows_max = EVENTS_MAX};
    size_t count = 0;
    if (db_acquire(place->pool, place->deadline_ns, &conn, &error) == STATUS_OK &&
        outbox_list(conn, table, OUTBOX_PENDING, &selection, place->deadline_ns, &rows, &error) == STATUS_OK)
        count = db_result_rows(rows);
    if (count)
        found_role(place, outbox_role(table),
                   arena_printf(&place->arena, "%zu%s event%s of %s wait%s", count,
                                count == EVENTS_MAX ? " or more" : "", count == 1 ? "" : "s", table->name,
                                count == 1 ? "s" : "")
                       .ptr);
    db_result_free(rows);
    db_release(conn);
}

void doctor_check_roles(struct doctor_place *place)
{
    struct db_result *roles = doctor_query(place, &roles_sql, DB_NO_PARAMS);
    for (size_t i = 0; roles && i < sizeof groups / sizeof *groups; i++) {
        if (groups[i].is_of_refdata != (place->site->module != NULL) || is_run(roles, groups[i].role))
            continue;
        struct db_result *rows = doctor_query(place, &unread_sql, DB_PARAMS(db_cstr(groups[i].group)));
        long long count = rows ? db_result_i64(rows, 0, 0) : 0;
        if (count)
            found_role(
                place, groups[i].role,
                arena_printf(&place->arena, "%lld message%s", count, count == 1 ? " waits" : "s wait").ptr);
        db_result_free(rows);
    }
    for (const struct module *const *at = app_modules; roles && *at; at++)
        for (const struct outbox_table *const *table = (*at)->outboxes; table && *table; table++)
            if (app_site_keeps(place->site, *at) && !is_run(roles, outbox_role(*table)))
                check_table_role(place, *table);
    db_result_free(roles);
}
