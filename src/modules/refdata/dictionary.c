/* Definitions: from settings to compiled templates. Which parameters a template may name depends on its field: a
 * parameter that could never have a value there is an error of the file, found before anything starts. */
#include "modules/refdata/dictionary.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/memory.h"
#include "modules/refdata/provider.h"

/* In the order of enum refdata_parameter. */
static const struct db_name all_names[] = {
    {"tenantId", DB_TEXT},       {"key", DB_TEXT},
    {"snapshotId", DB_TEXT},     {"payload", DB_JSONB},
    {"snapshotJson", DB_JSONB},  {"eventEpoch", DB_BIGINT},
    {"eventVersion", DB_BIGINT}, {"chunkIndex", DB_INT},
    {"keys", DB_TEXT_ARRAY},     {.name = NULL},
};

#define BIT(parameter) (1u << (parameter))
#define EVENT_BITS (BIT(REFDATA_TENANT_ID) | BIT(REFDATA_EVENT_EPOCH) | BIT(REFDATA_EVENT_VERSION))

static const struct field {
    const char *name;
    size_t offset; /* of its struct refdata_template */
    unsigned allowed;
} fields[REFDATA_FIELDS] = {
#define FIELD(member) offsetof(struct refdata_dictionary_settings, member)
    [REFDATA_LOAD] = {"loadSql", FIELD(load), BIT(REFDATA_TENANT_ID)},
    [REFDATA_LOAD_KEYS] = {"loadKeysSql", FIELD(load_keys), BIT(REFDATA_TENANT_ID) | BIT(REFDATA_KEYS)},
    [REFDATA_DRIFT_CHECK] = {"driftCheckSql", FIELD(drift_check), BIT(REFDATA_TENANT_ID)},
    [REFDATA_UPSERT] = {"apply.upsertSql", FIELD(upsert),
                        EVENT_BITS | BIT(REFDATA_KEY) | BIT(REFDATA_PAYLOAD)},
    [REFDATA_DELETE] = {"apply.deleteSql", FIELD(delete), EVENT_BITS | BIT(REFDATA_KEY)},
    [REFDATA_SNAPSHOT_REPLACE] = {"apply.snapshotReplaceSql", FIELD(snapshot_replace),
                                  EVENT_BITS | BIT(REFDATA_SNAPSHOT_ID) | BIT(REFDATA_SNAPSHOT_JSON)},
    [REFDATA_SNAPSHOT_STAGE] = {"apply.snapshotStageSql", FIELD(snapshot_stage),
                                EVENT_BITS | BIT(REFDATA_SNAPSHOT_ID) | BIT(REFDATA_SNAPSHOT_JSON) |
                                    BIT(REFDATA_CHUNK_INDEX)},
    [REFDATA_SNAPSHOT_FINALIZE] = {"apply.snapshotFinalizeSql", FIELD(snapshot_finalize),
                                   EVENT_BITS | BIT(REFDATA_SNAPSHOT_ID)},
#undef FIELD
};

static const struct refdata_template *template_of(const struct refdata_dictionary_settings *settings,
                                                  size_t field)
{
    return (const struct refdata_template *)((const char *)settings + fields[field].offset);
}

const char *refdata_field_name(enum refdata_field field)
{
    return fields[field].name;
}

uint64_t refdata_dictionary_fingerprint(const struct refdata_dictionary_settings *settings, uint64_t database)
{
    struct buf text;
    buf_init(&text);
    buf_printf(&text, "%016llx %.*s %d %d %d ", (unsigned long long)database, STR_ARG(settings->code),
               settings->apply_mode, settings->snapshot_strategy, settings->reload);
    for (size_t field = 0; field < REFDATA_FIELDS; field++) {
        struct str sql = template_of(settings, field)->sql;
        buf_printf(&text, "%zu:", sql.len);
        buf_put_str(&text, sql);
    }
    uint64_t fingerprint = hash_content(buf_str(&text));
    buf_deinit(&text);
    return fingerprint;
}

static enum status fail_at(const struct config *config, const struct refdata_template *template, size_t index,
                           const char *field, size_t offset, struct error *error)
{
    char where[96], message[sizeof error->message];
    snprintf(where, sizeof where, "refdata.dictionaries[%zu].%s", index, field);
    snprintf(message, sizeof message, "%s", error->message);
    if (!config)
        return error_set(error, STATUS_CONFIG, "%s: %s", where, message);
    struct setting_place place = config_place_in_text(config, template->place, template->sql, offset);
    return config_error_at(config, place, where, error, "%s", message);
}

/* A parameter that the program knows but that has no value in this field. Where it stands is found by compiling once
 * more, with nothing else known than what is allowed. */
static enum status check_allowed(const struct refdata_sql *sql, unsigned allowed, struct arena *arena,
                                 size_t *offset, struct error *error)
{
    unsigned stranger = REFDATA_PARAMETERS, count = 0;
    for (unsigned i = 0; i < sql->statement.param_count && stranger == REFDATA_PARAMETERS; i++)
        if (!(allowed & BIT(sql->statement.names[i])))
            stranger = sql->statement.names[i];
    if (stranger == REFDATA_PARAMETERS)
        return STATUS_OK;
    struct db_name known[REFDATA_PARAMETERS + 1] = {{0}};
    struct db_statement unused;
    for (unsigned i = 0; i < REFDATA_PARAMETERS; i++)
        if (allowed & BIT(i))
            known[count++] = all_names[i];
    if (db_sql_compile(sql->text, known, arena, &unused, offset, NULL) == STATUS_OK)
        *offset = 0;
    return error_set(error, STATUS_CONFIG, "the parameter :%s has no value here", all_names[stranger].name);
}

static bool uses(const struct refdata_sql *sql, enum refdata_parameter parameter)
{
    for (unsigned i = 0; i < sql->statement.param_count; i++)
        if (sql->statement.names[i] == parameter)
            return true;
    return false;
}

/* Rows that are not selected by tenant would be served to every tenant. */
static enum status check_tenant(const struct refdata_sql *sql, size_t field, bool shared, struct error *error)
{
    bool reads = field == REFDATA_LOAD || field == REFDATA_LOAD_KEYS;
    if (!reads || shared || uses(sql, REFDATA_TENANT_ID))
        return STATUS_OK;
    return error_set(
        error, STATUS_CONFIG,
        "does not use :tenantId, so that every tenant would read all rows; if that is meant, set "
        "shared: true");
}

/* A statement that changes the transaction it runs in, or the session of the connection's next user. Invalid SQL is refused by
 * PostgreSQL. */
static bool reaches_beyond(struct str sql)
{
    static const char *const verbs[] = {"begin", "start",     "commit",  "end",     "rollback",
                                        "abort", "savepoint", "release", "prepare", "deallocate",
                                        "set",   "reset",     "discard", "listen",  "notify",
                                        "lock",  "vacuum",    "declare", NULL};
    size_t at = 0, end;
    for (;;) { /* past white space, brackets and comments */
        struct str rest = str_of(sql.ptr + at, sql.len - at);
        if (str_starts_with(rest, STR("--")))
            for (; at < sql.len && sql.ptr[at] != '\n'; at++) {}
        else if (str_starts_with(rest, STR("/*")))
            for (at += 2; at < sql.len && !(sql.ptr[at - 1] == '/' && sql.ptr[at - 2] == '*'); at++) {}
        else if (rest.len && memchr(" \t\r\n\f(", rest.ptr[0], 6))
            at++;
        else
            break;
    }
    for (end = at; end < sql.len && isalpha((unsigned char)sql.ptr[end]); end++) {}
    for (const char *const *verb = verbs; *verb; verb++)
        if (str_eq_nocase(str_of(sql.ptr + at, end - at), str_from(*verb)))
            return true;
    return false;
}

static enum status compile(const struct config *config, const struct refdata_dictionary_settings *settings,
                           size_t index, size_t field, struct refdata_dictionary *dictionary,
                           struct error *error)
{
    const struct refdata_template *template = template_of(settings, field);
    struct refdata_sql *sql = &dictionary->sql[field];
    if (str_trim(template->sql).len == 0)
        return STATUS_OK;
    sql->given = true;
    sql->text = arena_str(&dictionary->arena, template->sql);
    sql->place = template->place;
    size_t offset = 0;
    enum status status =
        db_sql_compile(sql->text, all_names, &dictionary->arena, &sql->statement, &offset, error);
    if (status == STATUS_OK && reaches_beyond(sql->text))
        status = error_set(
            error, STATUS_CONFIG,
            "a template reads or writes data; it may not end transactions, change settings or take locks");
    if (status == STATUS_OK)
        status = check_allowed(sql, fields[field].allowed, &dictionary->arena, &offset, error);
    if (status == STATUS_OK) {
        offset = 0;
        status = check_tenant(sql, field, settings->shared, error);
    }
    return status == STATUS_OK ? status : fail_at(config, template, index, fields[field].name, offset, error);
}

/* Settings that contradict each other: said at the field that should go or come. */
static enum status check_together(const struct config *config,
                                  const struct refdata_dictionary_settings *settings, size_t index,
                                  const struct refdata_dictionary *dictionary, struct error *error)
{
    const struct refdata_sql *sql = dictionary->sql;
    bool builtin = !sql[REFDATA_LOAD].given;
    if (sql[REFDATA_SNAPSHOT_STAGE].given != sql[REFDATA_SNAPSHOT_FINALIZE].given) {
        enum refdata_field lonely =
            sql[REFDATA_SNAPSHOT_STAGE].given ? REFDATA_SNAPSHOT_STAGE : REFDATA_SNAPSHOT_FINALIZE;
        error_set(error, STATUS_CONFIG, "snapshotStageSql and snapshotFinalizeSql come as a pair");
        return fail_at(config, template_of(settings, lonely), index, fields[lonely].name, 0, error);
    }
    if (sql[REFDATA_SNAPSHOT_REPLACE].given && sql[REFDATA_SNAPSHOT_STAGE].given) {
        error_set(error, STATUS_CONFIG,
                  "either snapshotReplaceSql or the pair snapshotStageSql/snapshotFinalizeSql, not both");
        return fail_at(config, &settings->snapshot_replace, index, fields[REFDATA_SNAPSHOT_REPLACE].name, 0,
                       error);
    }
    for (size_t field = REFDATA_LOAD_KEYS; field < REFDATA_FIELDS && builtin; field++)
        if (sql[field].given) {
            error_set(error, STATUS_CONFIG,
                      "without loadSql the dictionary lives in the built-in table and takes no templates");
            return fail_at(config, template_of(settings, field), index, fields[field].name, 0, error);
        }
    if (settings->shared && builtin) {
        error_set(error, STATUS_CONFIG,
                  "without loadSql the dictionary lives in the built-in table, which keeps tenants apart");
        return fail_at(config, &(struct refdata_template){.place = settings->shared_place}, index, "shared",
                       0, error);
    }
    if (settings->reload == REFDATA_RELOAD_DELTA && !builtin && !sql[REFDATA_LOAD_KEYS].given) {
        error_set(error, STATUS_CONFIG, "reloadOnEvent: DELTA needs loadKeysSql");
        return fail_at(config, &(struct refdata_template){.place = settings->code_place}, index,
                       "reloadOnEvent", 0, error);
    }
    return STATUS_OK;
}

static bool ends_statement(char c)
{
    return c == ';' || c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Without loadKeysSql, loadSql itself can be asked for some keys; the planner usually pushes the condition down. */
static void compile_lookup(struct refdata_dictionary *dictionary)
{
    struct str sql = dictionary->sql[REFDATA_LOAD].text;
    size_t offset;
    if (dictionary->sql[REFDATA_LOAD_KEYS].given) {
        dictionary->lookup = dictionary->sql[REFDATA_LOAD_KEYS].statement;
        dictionary->can_lookup = true;
        return;
    }
    while (sql.len && ends_statement(sql.ptr[sql.len - 1]))
        sql.len--;
    struct str text = arena_printf(
        &dictionary->arena, "select k, v from (\n%.*s\n) as loaded where k::text = any(:keys)", STR_ARG(sql));
    dictionary->can_lookup =
        db_sql_compile(text, all_names, &dictionary->arena, &dictionary->lookup, &offset, NULL) == STATUS_OK;
}

/* ---- scopes ---- */

/* Every scope that was ever configured: loops read them without a lock, so they stay. */
static const char *keep_scope(struct str scope)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static struct kept_scope {
        struct kept_scope *next;
        char text[];
    } * kept;

    if (scope.len == 0)
        return NULL;
    pthread_mutex_lock(&mutex);
    struct kept_scope *at = kept;
    while (at && !str_eq(str_from(at->text), scope))
        at = at->next;
    if (!at) {
        at = memory_zalloc(sizeof *at + scope.len + 1);
        memcpy(at->text, scope.ptr, scope.len);
        at->next = kept;
        kept = at;
    }
    pthread_mutex_unlock(&mutex);
    return at->text;
}

void refdata_dictionary_set_scopes(struct refdata_dictionary *dictionary,
                                   const struct refdata_dictionary_settings *settings)
{
    atomic_store(&dictionary->read_scope, keep_scope(settings->read_scope));
    atomic_store(&dictionary->write_scope, keep_scope(settings->write_scope));
}

/* RFC 6749 §3.3: visible ASCII without '"' and '\\'. A space would make two of it, which no token can have as one. */
static bool is_scope(struct str text)
{
    for (size_t i = 0; i < text.len; i++)
        if (text.ptr[i] <= ' ' || text.ptr[i] >= 127 || text.ptr[i] == '"' || text.ptr[i] == '\\')
            return false;
    return true;
}

static enum status check_scopes(const struct config *config,
                                const struct refdata_dictionary_settings *settings, size_t index,
                                struct error *error)
{
    bool reads = is_scope(settings->read_scope);
    if (reads && is_scope(settings->write_scope))
        return STATUS_OK;
    struct setting_place place = reads ? settings->write_scope_place : settings->read_scope_place;
    error_set(error, STATUS_CONFIG, "is not one scope: visible ASCII without spaces, quotes and backslashes");
    return fail_at(config, &(struct refdata_template){.place = place.line ? place : settings->code_place},
                   index, reads ? "writeScope" : "readScope", 0, error);
}

static enum status build(const struct config *config, const struct refdata_dictionary_settings *settings,
                         size_t index, struct refdata_dictionary *dictionary, struct error *error)
{
    if (!str_is_name(settings->code)) {
        error_set(error, STATUS_CONFIG, "a dictionary's code is 1 to 64 of A-Z a-z 0-9 . _ -");
        return fail_at(config, &(struct refdata_template){.place = settings->code_place}, index, "code", 0,
                       error);
    }
    for (size_t field = 0; field < REFDATA_FIELDS; field++) {
        enum status status = compile(config, settings, index, field, dictionary, error);
        if (status != STATUS_OK)
            return status;
    }
    bool builtin = !dictionary->sql[REFDATA_LOAD].given;
    if (!builtin)
        compile_lookup(dictionary);
    dictionary->provider = builtin ? &refdata_provider_builtin : &refdata_provider_sql;
    dictionary->delta =
        settings->reload == REFDATA_RELOAD_DELTA ||
        (settings->reload == REFDATA_RELOAD_AUTO && (builtin || dictionary->sql[REFDATA_LOAD_KEYS].given));
    refdata_dictionary_set_scopes(dictionary, settings);
    enum status status = check_scopes(config, settings, index, error);
    return status == STATUS_OK ? check_together(config, settings, index, dictionary, error) : status;
}

enum status refdata_dictionary_create(const struct config *config,
                                      const struct refdata_dictionary_settings *settings, size_t index,
                                      struct refdata_database *database, struct refdata_dictionary **out,
                                      struct error *error)
{
    struct refdata_dictionary *dictionary = memory_zalloc(sizeof *dictionary);
    atomic_init(&dictionary->refs, 1);
    atomic_init(&dictionary->state, REFDATA_UNCHECKED);
    arena_init(&dictionary->arena, 4096);
    dictionary->code = arena_str(&dictionary->arena, settings->code);
    dictionary->database = database ? refdata_database_ref(database) : NULL;
    dictionary->fingerprint = refdata_dictionary_fingerprint(settings, database ? database->fingerprint : 0);
    enum status status = build(config, settings, index, dictionary, error);
    if (status != STATUS_OK) {
        refdata_dictionary_unref(dictionary);
        return status;
    }
    *out = dictionary;
    return STATUS_OK;
}

struct refdata_dictionary *refdata_dictionary_ref(struct refdata_dictionary *dictionary)
{
    atomic_fetch_add(&dictionary->refs, 1);
    return dictionary;
}

void refdata_dictionary_unref(struct refdata_dictionary *dictionary)
{
    if (atomic_fetch_sub(&dictionary->refs, 1) != 1)
        return;
    if (dictionary->database)
        refdata_database_unref(dictionary->database);
    arena_deinit(&dictionary->arena);
    free(dictionary);
}

void refdata_dictionary_bind(const struct db_statement *statement,
                             const struct str values[REFDATA_PARAMETERS],
                             struct db_param params[DB_PARAMS_MAX])
{
    for (unsigned i = 0; i < statement->param_count; i++)
        params[i].value = values[statement->names[i]];
}
