/* Checks of processes as they report themselves in the databases (platform.pod): which are gone, and which roles does none run although
 * work waits for them? */
#include <string.h>

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

/* Who does the work that waits in a table, or in the groups whose name begins so. */
static const struct {
    const char *role, *table, *group;
} works[] = {{"apply", NULL, "refdata-apply"},
             {"relay", "refdata.outbox_event", NULL},
             {"command", "refdata.command_outbox", NULL},
             {"intake", "intake.event_outbox", NULL},
             {"chat", "chat.event_outbox", NULL},
             {"entitlement", "entitlement.outbox_events", NULL},
             {"notification", "notification.notifications", NULL},
             {"notification", NULL, "notification"}};

static bool is_run(const struct db_result *roles, const char *role)
{
    for (size_t i = 0; i < db_result_rows(roles); i++)
        if (str_eq(db_result_str(roles, i, 0), str_from(role)))
            return true;
    return false;
}

static int64_t count_unread(struct doctor_place *place, const char *group)
{
    struct db_result *rows = doctor_query(place, &unread_sql, DB_PARAMS(db_cstr(group)));
    int64_t count = rows ? db_result_i64(rows, 0, 0) : 0;
    db_result_free(rows);
    return count;
}

static int64_t count_events(struct doctor_place *place, const char *table)
{
    struct error error = {0};
    struct db_conn *conn = NULL;
    struct db_result *rows = NULL;
    struct outbox_selection selection = {.rows_max = 1000};
    int64_t count = 0;
    for (const struct module *const *at = app_modules; *at; at++)
        for (const struct outbox_table *const *own = (*at)->outboxes; own && *own; own++)
            if (strcmp((*own)->name, table) == 0 &&
                (place->site->module ? place->site->module == *at : (*at)->keeps_store) &&
                db_acquire(place->pool, place->deadline_ns, &conn, &error) == STATUS_OK) {
                if (outbox_list(conn, *own, OUTBOX_PENDING, &selection, place->deadline_ns, &rows, &error) ==
                    STATUS_OK)
                    count = (int64_t)db_result_rows(rows);
                db_result_free(rows);
                db_release(conn);
            }
    return count;
}

void doctor_check_roles(struct doctor_place *place)
{
    struct db_result *roles = doctor_query(place, &roles_sql, DB_NO_PARAMS);
    for (size_t i = 0; roles && i < sizeof works / sizeof *works; i++) {
        bool is_of_refdata = i < 3;
        if (is_of_refdata != (place->site->module != NULL) || is_run(roles, works[i].role))
            continue;
        int64_t count =
            works[i].table ? count_events(place, works[i].table) : count_unread(place, works[i].group);
        if (count)
            doctor_found(place, doctor_command(place, "serve --roles %s", works[i].role),
                         "no process reports the role %s, for which %lld%s %s%s%s", works[i].role,
                         (long long)count, works[i].table && count == 1000 ? " or more" : "",
                         works[i].table ? (count == 1 ? "event of " : "events of ")
                         : count == 1   ? "message waits"
                                        : "messages wait",
                         works[i].table ? works[i].table : "",
                         works[i].table ? (count == 1 ? " waits" : " wait") : "");
    }
    db_result_free(roles);
}
