/* Checks of a database with dictionaries: does PostgreSQL accept their SQL, and are updates decided? */
#include "app/doctor.h"
#include "base/clock.h"
#include "modules/refdata/carrier.h"
#include "modules/refdata/provider.h"

enum { PENDING_MAX_S = 60 };

void doctor_check_templates(struct doctor_place *place)
{
    const struct refdata_catalog *catalog = place->doctor->catalog;
    struct error error = {0};
    struct db_conn *conn = NULL;
    if (db_acquire(place->pool, place->deadline_ns, &conn, &error) != STATUS_OK) {
        doctor_unchecked(place, "%s", error.message);
        return;
    }
    for (size_t i = 0; i < catalog->dictionary_count; i++) {
        struct refdata_dictionary *dictionary = catalog->dictionaries[i];
        if (!str_eq(dictionary->database->name, str_from(place->site->target.name)))
            continue;
        enum status status = refdata_provider_check(dictionary, conn, place->deadline_ns, &error);
        if (status == STATUS_DB_ERROR && !(dictionary->is_builtin && place->is_behind))
            doctor_found(place, doctor_command(place, "config --connect"),
                         "dictionary %.*s is not served: %s", STR_ARG(dictionary->code), error.message);
        else if (status != STATUS_OK && status != STATUS_DB_ERROR)
            doctor_unchecked(place, "dictionary %.*s: %s", STR_ARG(dictionary->code), error.message);
    }
    db_release(conn);
}

/* What decides the oldest one, or that nothing does. */
static const char *carrier_of(struct doctor_place *place, const struct db_result *update)
{
    struct error error = {0};
    struct db_conn *conn = NULL;
    struct db_result *rows = NULL;
    const char *shown = "what carries it could not be read";
    struct refdata_route route =
        refdata_route_of(place->doctor->config, place->site->target.name, &place->arena);
    enum status status = db_acquire(place->pool, place->deadline_ns, &conn, &error);
    if (status == STATUS_OK)
        status = refdata_carriers_list(conn, &route, db_result_str(update, 0, PENDING_TENANT),
                                       db_result_str(update, 0, PENDING_EVENT_ID), place->deadline_ns, &rows,
                                       &error);
    if (status == STATUS_OK && db_result_rows(rows) == 0)
        shown = route.is_on_kafka ? "Kafka may have it" : "nothing carries it";
    else if (status == STATUS_OK)
        shown = arena_printf(&place->arena, "%.*s: %.*s", STR_ARG(db_result_str(rows, 0, CARRIER_PLACE)),
                             STR_ARG(db_result_str(rows, 0, CARRIER_STATE)))
                    .ptr;
    db_result_free(rows);
    db_release(conn);
    return shown;
}

void doctor_check_updates(struct doctor_place *place)
{
    struct db_result *rows = doctor_query(place, &refdata_pending_sql, DB_PARAMS(db_i64(PENDING_MAX_S)));
    if (rows && db_result_rows(rows) == 1) {
        int64_t count = db_result_i64(rows, 0, PENDING_COUNT);
        doctor_found(
            place,
            doctor_command(place, "updates show %.*s", STR_ARG(db_result_str(rows, 0, PENDING_EVENT_ID))),
            "%lld%s update%s PENDING for more than a minute; the oldest, of %.*s/%.*s, for %lld s: %s",
            (long long)count, count == REFDATA_PENDING_MAX ? " or more" : "", count == 1 ? " is" : "s are",
            STR_ARG(db_result_str(rows, 0, PENDING_TENANT)),
            STR_ARG(db_result_str(rows, 0, PENDING_DICT_CODE)),
            (long long)db_result_i64(rows, 0, PENDING_AGE_S), carrier_of(place, rows));
    }
    db_result_free(rows);
}
