/* Checks of a database as such: does it answer, is it what the program needs, what will it run out of? */
#include "app/commands.h"
#include "app/doctor.h"
#include "base/clock.h"
#include "bus/bus_postgres.h"

enum { SKEW_MAX_US = 1000000, CONNECTIONS_MAX_PERCENT = 90, TRANSACTION_MAX_S = 600, SHOWN_MAX = 5 };

static const struct db_statement clock_sql =
    DB_STATEMENT("select (extract(epoch from clock_timestamp()) * 1000000)::bigint");

/* Rows of other users are visible too, but for what they do. */
static const struct db_statement connections_sql = DB_STATEMENT(
    "select count(*), current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint"
    " from pg_stat_activity where datid is not null");

/* $1 seconds */
static const struct db_statement transactions_sql = DB_STATEMENT(
    "select pid, extract(epoch from clock_timestamp() - xact_start)::bigint, coalesce(state, '?'),"
    "       coalesce(nullif(application_name, ''), usename, '?')"
    " from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    "  and backend_type = 'client backend' and xact_start < clock_timestamp() - $1 * interval '1 s'"
    " order by xact_start limit 5");

/* $1 bytes. On a standby there is no current position. */
static const struct db_statement slots_sql = DB_STATEMENT(
    "select slot_name, pg_size_pretty(kept), wal_status from (select *, pg_wal_lsn_diff(case when pg_is_in_recovery()"
    "   then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end, restart_lsn) as kept from pg_replication_slots) s"
    " where not active and (kept > $1 or wal_status in ('unreserved', 'lost')) order by kept desc limit 5");
#define SLOT_BYTES_MAX (INT64_C(64) << 20)

void doctor_check_database(struct doctor_place *place)
{
    struct error error = {0};
    struct db_result *rows = NULL;
    enum status status =
        place->pool ? db_pool_query(place->pool, &clock_sql, DB_NO_PARAMS, place->deadline_ns, &rows, &error)
                    : db_target_check(&place->site->target, &error);
    place->is_lost = status != STATUS_OK;
    if (place->is_lost && !place->site->is_twin) /* else it was found by another name */
        doctor_found(place, place->pool ? doctor_psql(place, "select 1") : doctor_command(place, "config"),
                     "%s", error.message);
    db_result_free(rows);
}

void doctor_check_clock(struct doctor_place *place)
{
    int64_t before_us = clock_unix_us();
    struct db_result *rows = doctor_query(place, &clock_sql, DB_NO_PARAMS);
    if (!rows)
        return;
    int64_t after_us = clock_unix_us(), there_us = db_result_i64(rows, 0, 0);
    /* The answer was made between the two moments. */
    int64_t skew_us = there_us < before_us  ? there_us - before_us
                      : there_us > after_us ? there_us - after_us
                                            : 0;
    if (skew_us > SKEW_MAX_US || skew_us < -SKEW_MAX_US)
        doctor_found(place, "timedatectl status", "its clock is %.1f s %s that of this machine",
                     (double)(skew_us < 0 ? -skew_us : skew_us) / 1e6, skew_us < 0 ? "behind" : "ahead of");
    db_result_free(rows);
}

static void check_schema(struct doctor_place *place, const char *module,
                         const struct db_migration *migrations)
{
    struct error error = {0};
    struct db_schema_state state;
    unsigned known = db_migrations_last(migrations);
    if (db_migrate_state(place->pool, module, migrations, place->deadline_ns, &state, &error) != STATUS_OK) {
        doctor_unchecked(place, "%s: %s", module, error.message);
    } else if (state.oldest_program > known) {
        place->is_behind = true;
        doctor_found(place, doctor_command(place, "migrate --status"),
                     "the schema %s is too new for this program: it needs migration %u, the program has %u",
                     module, state.oldest_program, known);
    } else if (state.missing) {
        place->is_behind = true;
        doctor_found(place, doctor_command(place, "migrate"), "%u migration%s of the schema %s %s missing",
                     state.missing, state.missing == 1 ? "" : "s", module, state.missing == 1 ? "is" : "are");
    }
}

/* Every database has the schema of the platform, and those of the modules that it is for. */
void doctor_check_schema(struct doctor_place *place)
{
    if (place->kinds & DOCTOR_DATABASE)
        check_schema(place, "platform", platform_migrations);
    for (const struct module *const *at = app_modules; *at; at++)
        if ((*at)->migrations && app_site_keeps(place->site, *at))
            check_schema(place, (*at)->name, (*at)->migrations);
}

void doctor_check_connections(struct doctor_place *place)
{
    struct db_result *rows = doctor_query(place, &connections_sql, DB_NO_PARAMS);
    if (!rows)
        return;
    int64_t used = db_result_i64(rows, 0, 0), most = db_result_i64(rows, 0, 1);
    if (used * 100 > most * CONNECTIONS_MAX_PERCENT)
        doctor_found(place,
                     doctor_psql(place,
                                 "select datname, usename, application_name, count(*) from pg_stat_activity"
                                 " where datid is not null group by 1, 2, 3 order by 4 desc"),
                     "%lld of the %lld connections of PostgreSQL are used", (long long)used, (long long)most);
    db_result_free(rows);
}

void doctor_check_transactions(struct doctor_place *place)
{
    struct db_result *rows = doctor_query(place, &transactions_sql, DB_PARAMS(db_i64(TRANSACTION_MAX_S)));
    for (size_t i = 0; rows && i < db_result_rows(rows); i++) {
        const char *end = arena_printf(&place->arena, "select pg_terminate_backend(%lld)",
                                       (long long)db_result_i64(rows, i, 0))
                              .ptr;
        doctor_found(
            place, doctor_psql(place, end),
            "a transaction of \"%.*s\" is open for %lld min (%.*s): dead rows cannot be removed meanwhile",
            STR_ARG(db_result_str(rows, i, 3)), (long long)db_result_i64(rows, i, 1) / 60,
            STR_ARG(db_result_str(rows, i, 2)));
    }
    db_result_free(rows);
}

void doctor_check_slots(struct doctor_place *place)
{
    struct db_result *rows = doctor_query(place, &slots_sql, DB_PARAMS(db_i64(SLOT_BYTES_MAX)));
    for (size_t i = 0; rows && i < db_result_rows(rows); i++) {
        struct str name = db_result_str(rows, i, 0); /* a-z, 0-9 and _ only */
        const char *drop =
            arena_printf(&place->arena, "select pg_drop_replication_slot('%.*s')", STR_ARG(name)).ptr;
        doctor_found(
            place, doctor_psql(place, drop),
            "nothing reads from the replication slot %.*s, which keeps %.*s of WAL on the disk (%.*s): start its"
            " reader again, or drop it",
            STR_ARG(name), STR_ARG(db_result_str(rows, i, 1)), STR_ARG(db_result_str(rows, i, 2)));
    }
    db_result_free(rows);
}
