/* Checks of what waits in a database, or failed: events of outboxes, messages of the embedded bus, dead letters. */
#include <string.h>

#include "app/commands.h"
#include "app/doctor.h"
#include "modules/notification/dlq.h"
#include "outbox/outbox.h"

enum { OLD_S = 60, COUNTED_MAX = 1000, ID, AGE = 6, LAST_ERROR };

/* ---- outboxes ---- */

typedef void table_fn(struct doctor_place *place, const struct outbox_table *table, struct db_conn *conn);

/* Tables of the modules whose database this is. */
static void each_table(struct doctor_place *place, table_fn *check)
{
    struct error error = {0};
    struct db_conn *conn = NULL;
    if (db_acquire(place->pool, place->deadline_ns, &conn, &error) != STATUS_OK) {
        doctor_unchecked(place, "%s", error.message);
        return;
    }
    for (const struct module *const *at = app_modules; *at; at++)
        for (const struct outbox_table *const *table = (*at)->outboxes; table && *table; table++)
            if (app_site_keeps(place->site, *at))
                check(place, *table, conn);
    db_release(conn);
}

static struct db_result *list_events(struct doctor_place *place, const struct outbox_table *table,
                                     struct db_conn *conn, enum outbox_state state, int64_t rows_max)
{
    struct error error = {0};
    struct db_result *rows = NULL;
    struct outbox_selection selection = {.rows_max = rows_max};
    enum status status = outbox_list(conn, table, state, &selection, place->deadline_ns, &rows, &error);
    if (status == STATUS_OK)
        return rows;
    if (status != STATUS_DB_ERROR || !place->is_behind)
        doctor_unchecked(place, "%s: %s", table->name, error.message);
    return NULL;
}

static const char *on_table(struct doctor_place *place, const char *action, const struct outbox_table *table)
{
    return doctor_command(place, "outbox %s --database %s --table %s", action,
                          doctor_word(place, str_from(place->site->target.name)), table->name);
}

static void check_failed(struct doctor_place *place, const struct outbox_table *table, struct db_conn *conn)
{
    struct db_result *rows = list_events(place, table, conn, OUTBOX_FAILED, COUNTED_MAX);
    size_t count = rows ? db_result_rows(rows) : 0;
    if (count)
        doctor_found(place, on_table(place, "retry --all", table),
                     "%zu%s event%s of %s could not be published; the oldest is %lld s old: %.*s", count,
                     count == COUNTED_MAX ? " or more" : "", count == 1 ? "" : "s", table->name,
                     (long long)db_result_i64(rows, 0, AGE), STR_ARG(db_result_str(rows, 0, LAST_ERROR)));
    db_result_free(rows);
}

static void check_old(struct doctor_place *place, const struct outbox_table *table, struct db_conn *conn)
{
    struct db_result *rows = list_events(place, table, conn, OUTBOX_PENDING, 1);
    if (rows && db_result_rows(rows) == 1 && db_result_i64(rows, 0, AGE) > OLD_S) {
        struct str last_error = db_result_str(rows, 0, LAST_ERROR);
        doctor_found(place, on_table(place, "list --state pending", table),
                     "an event of %s waits for %lld s to be published%s%.*s", table->name,
                     (long long)db_result_i64(rows, 0, AGE), last_error.len ? ": " : "", STR_ARG(last_error));
    }
    db_result_free(rows);
}

static void check_locked(struct doctor_place *place, const struct outbox_table *table, struct db_conn *conn)
{
    struct error error = {0};
    struct db_result *rows = NULL;
    enum status status = outbox_count(conn, table, place->deadline_ns, &rows, &error);
    if (status == STATUS_OK && db_result_i64(rows, 0, 2) > 0)
        doctor_found(place, on_table(place, "unlock --all", table),
                     "%lld event%s of %s cannot be claimed by any process: their lease ends in hours",
                     (long long)db_result_i64(rows, 0, 2), db_result_i64(rows, 0, 2) == 1 ? "" : "s",
                     table->name);
    else if (status != STATUS_OK && (status != STATUS_DB_ERROR || !place->is_behind))
        doctor_unchecked(place, "%s: %s", table->name, error.message);
    db_result_free(rows);
}

void doctor_check_outbox_failed(struct doctor_place *place)
{
    each_table(place, check_failed);
}

void doctor_check_outbox_old(struct doctor_place *place)
{
    each_table(place, check_old);
}

void doctor_check_outbox_locked(struct doctor_place *place)
{
    each_table(place, check_locked);
}

/* ---- the embedded bus ---- */

/* Groups whose next message is older than $1 seconds, with how many they have to handle. By the primary keys of all three tables. */
static const struct db_statement lag_sql = DB_STATEMENT(
    "select c.topic, c.group_name, sum(p.next_offset - c.position), max(extract(epoch from clock_timestamp() - m.created_at))::bigint,"
    "       max(c.last_error) filter (where c.attempts > 0)"
    "  from platform.bus_cursor c join platform.bus_partition p on p.topic = c.topic and p.partition = c.partition,"
    "       lateral (select m.created_at from platform.bus_message m where m.topic = c.topic and m.partition = c.partition"
    "                  and m.message_offset >= c.position order by m.message_offset limit 1) m"
    " where c.position < p.next_offset and m.created_at < clock_timestamp() - $1 * interval '1 s'"
    " group by 1, 2 order by 4 desc limit 10");

void doctor_check_lag(struct doctor_place *place)
{
    struct db_result *rows = doctor_query(place, &lag_sql, DB_PARAMS(db_i64(OLD_S)));
    for (size_t i = 0; rows && i < db_result_rows(rows); i++) {
        struct str last_error = db_result_str(rows, i, 4);
        doctor_found(place, doctor_command(place, "top --once"),
                     "the group %.*s has %.*s message%s of %.*s to handle, the oldest for %lld s%s%.*s",
                     STR_ARG(db_result_str(rows, i, 1)), STR_ARG(db_result_str(rows, i, 2)),
                     str_eq(db_result_str(rows, i, 2), STR("1")) ? "" : "s",
                     STR_ARG(db_result_str(rows, i, 0)), (long long)db_result_i64(rows, i, 3),
                     last_error.len ? ": " : "", STR_ARG(last_error));
    }
    db_result_free(rows);
}

/* ---- dead letters ---- */

/* Up to 1,000 of each topic. */
static const struct db_statement dead_sql = DB_STATEMENT(
    "select t.topic, d.count, d.reason from (select distinct topic from platform.bus_partition where topic like '%.dlq') t,"
    "  lateral (select count(*), max(reason) as reason from (select m.headers[array_position(m.headers, 'dlq-reason') + 1] as reason"
    "             from platform.bus_message m where m.topic = t.topic limit 1000) m) d"
    " where d.count > 0 order by 2 desc");

void doctor_check_dead_messages(struct doctor_place *place)
{
    struct db_result *rows = doctor_query(place, &dead_sql, DB_NO_PARAMS);
    for (size_t i = 0; rows && i < db_result_rows(rows); i++) {
        int64_t count = db_result_i64(rows, i, 1);
        doctor_found(place, doctor_command(place, "dlq list"), "%lld%s dead letter%s in %.*s, such as: %.*s",
                     (long long)count, count == COUNTED_MAX ? " or more" : "", count == 1 ? "" : "s",
                     STR_ARG(db_result_str(rows, i, 0)), STR_ARG(db_result_str(rows, i, 2)));
    }
    db_result_free(rows);
}

void doctor_check_dead_notifications(struct doctor_place *place)
{
    enum { REASON = 8 };
    struct error error = {0};
    struct db_conn *conn = NULL;
    struct db_result *rows = NULL;
    struct notification_dlq_selection selection = {.status = STR("DEAD"), .rows_max = COUNTED_MAX};
    enum status status = db_acquire(place->pool, place->deadline_ns, &conn, &error);
    if (status == STATUS_OK)
        status = notification_dlq_list(conn, &selection, place->deadline_ns, &rows, &error);
    size_t count = status == STATUS_OK ? db_result_rows(rows) : 0;
    if (count)
        doctor_found(place, doctor_command(place, "dlq requeue --all --note doctor"),
                     "%zu%s notification%s could not be handled or delivered, such as: %.*s", count,
                     count == COUNTED_MAX ? " or more" : "", count == 1 ? "" : "s",
                     STR_ARG(db_result_str(rows, 0, REASON)));
    else if (status != STATUS_OK && (status != STATUS_DB_ERROR || !place->is_behind))
        doctor_unchecked(place, "%s", error.message);
    db_result_free(rows);
    db_release(conn);
}
