/* The trial of templates: PostgreSQL parses each with the types of its parameters, plans it and checks the privileges of the role. Each has a
 * read-only transaction of its own, which is rolled back, so that nothing is written and locks on tables end with the template.
 * What only a run shows, such as a constraint or a value that cannot be cast, is not found. */
#include <stdio.h>

#include "base/clock.h"
#include "kernel/trial.h"
#include "modules/refdata/provider.h"
#include "modules/refdata/refdata.h"

/* Parts of the time limit of a template. The server ends the wait for a lock, and a slow plan, before the connection is given up: they
 * keep one template from being tried, not all that follow. */
enum { LOCK_PART = 5, STATEMENT_PART = 2 };

static const struct db_statement limits_sql =
    DB_STATEMENT("select set_config('lock_timeout', $1, true), set_config('statement_timeout', $2, true)");

struct template_trial {
    struct trial *trial;
    const struct refdata_dictionary_settings *settings;
    const struct refdata_dictionary *dictionary;
    enum refdata_field field;
    struct db_conn *conn;
};

static const char *advice_for(const char *sqlstate)
{
    static const struct {
        const char *sqlstate, *text;
    } rows[] = {
        {"42501", "grant it to the role that this database is opened with, or name another role"},
        {"42P01", "create it, correct the name, or name its schema"},
        {"3F000", "create it, or correct the name"},
        {"42703", "correct the name, or add the column"},
        {"42883", "correct the name, or cast the parameter to the type that is needed, such as :key::bigint"},
        {"42804", "cast the parameter to the type that is needed, such as :key::bigint"},
        {"42846", "cast the parameter to another type first, such as :payload::text"},
        {"42P10", "add a unique index on these columns, or name those of another one"},
        {"55P03", "another transaction holds a lock that it waits for; try again"},
        {"57014", "its plan takes too long; try again with a longer --timeout"},
        {"", NULL}, /* found by this program: the message says what to do */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].sqlstate, sqlstate) == 0)
            return rows[i].text;
    return "correct the template";
}

/* A load runs in a read-only transaction, which EXPLAIN does not mind. Names are quoted in JSON: none looks like a node. */
static enum status check_reads(const struct db_result *plan, struct error *error)
{
    const char *json = db_result_str(plan, 0, 0).ptr;
    if (strstr(json, "\"Node Type\": \"ModifyTable\"") || strstr(json, "\"Node Type\": \"LockRows\""))
        return error_set(error, STATUS_DB_ERROR,
                         "writes or locks rows: a load is read-only, remove that part");
    return STATUS_OK;
}

static enum status set_limits(const struct template_trial *at, int64_t deadline_ns, struct error *error)
{
    char lock_ms[24], statement_ms[24]; /* 0 would be no limit */
    snprintf(lock_ms, sizeof lock_ms, "%lld", (long long)at->trial->timeout_ms / LOCK_PART + 1);
    snprintf(statement_ms, sizeof statement_ms, "%lld",
             (long long)at->trial->timeout_ms / STATEMENT_PART + 1);
    return db_exec(at->conn, &limits_sql, DB_PARAMS(db_cstr(lock_ms), db_cstr(statement_ms)), deadline_ns,
                   NULL, error);
}

static enum status ask(const struct template_trial *at, size_t *offset, struct error *error)
{
    const struct refdata_sql *sql = &at->dictionary->sql[at->field];
    bool is_load = at->field == REFDATA_LOAD || at->field == REFDATA_LOAD_KEYS;
    int64_t deadline_ns = clock_deadline_ms(at->trial->timeout_ms);
    struct db_result *plan = NULL;
    *offset = REFDATA_NO_OFFSET;
    enum status status = db_begin(at->conn, DB_REPEATABLE_READ_ONLY, deadline_ns, error);
    if (status == STATUS_OK)
        status = set_limits(at, deadline_ns, error);
    if (status == STATUS_OK)
        status = refdata_provider_describe_field(sql, at->field, at->conn, deadline_ns, offset, error);
    if (status == STATUS_OK)
        status = db_explain(at->conn, &sql->statement, deadline_ns, &plan, error);
    if (status == STATUS_OK && is_load && db_result_rows(plan) > 0)
        status = check_reads(plan, error);
    db_result_free(plan);
    db_rollback(at->conn);
    return status;
}

/* Where it is about no byte of the template, its start. */
static void report(const struct template_trial *at, const char *what, size_t offset,
                   const struct error *error)
{
    const struct refdata_template *template = refdata_field_template(at->settings, at->field);
    const char *advice = advice_for(db_sqlstate(at->conn));
    char message[sizeof error->message + 128];
    struct setting_place place = template->place;
    if (offset != REFDATA_NO_OFFSET)
        place = config_place_in_text(at->trial->config, place, template->sql, offset);
    snprintf(message, sizeof message, "%s%s%s", error->message, advice ? ": " : "", advice ? advice : "");
    at->trial->on_mistake(at->trial, place, what, message);
}

/* Fails only where the database could not be asked. */
static enum status try_template(const struct template_trial *at, struct error *error)
{
    char what[128];
    size_t offset;
    snprintf(what, sizeof what, "dictionary %.*s, %s", STR_ARG(at->settings->code),
             refdata_field_name(at->field));
    enum status status = ask(at, &offset, error);
    bool is_about_template = status == STATUS_DB_ERROR || status == STATUS_DB_RETRY ||
                             (status == STATUS_TIMEOUT && strcmp(db_sqlstate(at->conn), "57014") == 0);
    if (is_about_template) {
        report(at, what, offset, error);
        status = STATUS_OK;
    }
    if (status != STATUS_OK)
        return error_context(error, "%s", what);
    at->trial->template_count++;
    return STATUS_OK;
}

static enum status try_dictionary(struct template_trial *at, size_t index, struct error *error)
{
    struct refdata_dictionary *dictionary = NULL;
    char what[128];
    enum status status =
        refdata_dictionary_create(at->trial->config, at->settings, index, NULL, &dictionary, error);
    if (status != STATUS_OK)
        return status;
    at->dictionary = dictionary;
    snprintf(what, sizeof what, "dictionary %.*s, shared", STR_ARG(at->settings->code));
    if (at->settings->shared)
        at->trial->on_note(at->trial, at->settings->shared_place, what, "every tenant may read every row");
    for (unsigned field = 0; field < REFDATA_FIELDS && status == STATUS_OK; field++) {
        at->field = field;
        if (dictionary->sql[field].given)
            status = try_template(at, error);
    }
    refdata_dictionary_unref(dictionary);
    return status;
}

enum status refdata_try_sql(struct trial *trial, struct db_conn *conn, struct error *error)
{
    const struct refdata_settings *settings = config_section(trial->config, refdata_section.name);
    struct template_trial at = {.trial = trial, .conn = conn};
    int here = refdata_settings_database(settings, str_from(trial->target->name));
    enum status status = STATUS_OK;
    for (size_t i = 0; i < settings->dictionaries.count && status == STATUS_OK; i++) {
        at.settings = refdata_settings_dictionary(settings, i);
        if (at.settings->enabled && refdata_settings_database(settings, at.settings->postgres) == here)
            status = try_dictionary(&at, i, error);
    }
    return status;
}
