/* Definitions: from settings to compiled templates. Which parameters a template may name depends on its field: a
 * parameter that could never have a value there is an error of the file, found before anything starts. */
#include "modules/refdata/dictionary.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/memory.h"

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

const struct refdata_template *refdata_field_template(const struct refdata_dictionary_settings *settings,
                                                      enum refdata_field field)
{
    return (const struct refdata_template *)((const char *)settings + fields[field].offset);
}

const char *refdata_field_name(enum refdata_field field)
{
    return fields[field].name;
}

uint64_t refdata_dictionary_fingerprint(const struct refdata_dictionary_settings *settings, uint64_t database)
{
    struct buf text = {0};
    buf_printf(&text, "%016llx %.*s %d %d %d ", (unsigned long long)database, STR_ARG(settings->code),
               settings->apply_mode, settings->snapshot_strategy, settings->reload);
    for (enum refdata_field field = 0; field < REFDATA_FIELDS; field++) {
        struct str sql = refdata_field_template(settings, field)->sql;
        buf_printf(&text, "%zu:", sql.len);
        buf_put_str(&text, sql);
    }
    uint64_t fingerprint = hash_content(buf_str(&text));
    buf_deinit(&text);
    return fingerprint;
}

/* What is needed while a definition is compiled, for errors too. */
struct making {
    const struct config *config;
    const struct refdata_dictionary_settings *settings;
    size_t index;
    struct error *error;
};

/* At a byte of a template, or at the place of another setting. The message may be the error's own. */
static enum status fail_at(const struct making *making, const struct refdata_template *template,
                           const char *field, size_t offset, const char *message)
{
    char where[96], text[sizeof making->error->message];
    snprintf(where, sizeof where, "refdata.dictionaries[%zu].%s", making->index, field);
    snprintf(text, sizeof text, "%s", message);
    struct setting_place place = config_place_in_text(making->config, template->place, template->sql, offset);
    return config_error_at(making->config, place, where, making->error, "%s", text);
}

#define AT(setting_place) (&(const struct refdata_template){.place = (setting_place)})

/* A parameter that the program knows but that has no value in this field. Where it stands is found by compiling once
 * more, with nothing else known than what is allowed. */
static enum status check_allowed(const struct refdata_sql *sql, unsigned allowed, struct arena *arena,
                                 size_t *offset, struct error *error)
{
    unsigned unknown = REFDATA_PARAMETERS, count = 0;
    for (unsigned i = 0; i < sql->statement.param_count && unknown == REFDATA_PARAMETERS; i++)
        if (!(allowed & BIT(sql->statement.names[i])))
            unknown = sql->statement.names[i];
    if (unknown == REFDATA_PARAMETERS)
        return STATUS_OK;
    struct db_name known[REFDATA_PARAMETERS + 1] = {{0}};
    struct db_statement unused;
    for (unsigned i = 0; i < REFDATA_PARAMETERS; i++)
        if (allowed & BIT(i))
            known[count++] = all_names[i];
    if (db_sql_compile(sql->text, known, arena, &unused, offset, NULL) == STATUS_OK)
        *offset = 0;
    return error_set(error, STATUS_CONFIG, "the parameter :%s has no value here", all_names[unknown].name);
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

static enum status compile(const struct making *making, enum refdata_field field,
                           struct refdata_dictionary *dictionary)
{
    const struct refdata_template *template = refdata_field_template(making->settings, field);
    struct refdata_sql *sql = &dictionary->sql[field];
    bool reads = field == REFDATA_LOAD || field == REFDATA_LOAD_KEYS, uses_tenant = false;
    size_t offset = 0;
    if (str_trim(template->sql).len == 0)
        return STATUS_OK;
    sql->given = true;
    sql->text = arena_str(&dictionary->arena, template->sql);
    enum status status =
        db_sql_compile(sql->text, all_names, &dictionary->arena, &sql->statement, &offset, making->error);
    if (status == STATUS_OK && reaches_beyond(sql->text))
        status = error_set(
            making->error, STATUS_CONFIG,
            "a template reads or writes data; it may not end transactions, change settings or take locks");
    if (status == STATUS_OK)
        status = check_allowed(sql, fields[field].allowed, &dictionary->arena, &offset, making->error);
    if (status != STATUS_OK)
        return fail_at(making, template, fields[field].name, offset, making->error->message);
    for (unsigned i = 0; i < sql->statement.param_count; i++)
        uses_tenant |= sql->statement.names[i] == REFDATA_TENANT_ID;
    if (uses_tenant || !reads || making->settings->shared)
        return STATUS_OK;
    return fail_at(making, template, fields[field].name, 0,
                   "does not use :tenantId, so that every tenant would read all rows; if that is meant, set "
                   "shared: true");
}

/* Settings that contradict each other: reported at the field that has to be removed or added. */
static enum status check_together(const struct making *making, const struct refdata_dictionary *dictionary)
{
    const struct refdata_dictionary_settings *settings = making->settings;
    const struct refdata_sql *sql = dictionary->sql;
    bool builtin = !sql[REFDATA_LOAD].given;
    if (sql[REFDATA_SNAPSHOT_STAGE].given != sql[REFDATA_SNAPSHOT_FINALIZE].given) {
        enum refdata_field given =
            sql[REFDATA_SNAPSHOT_STAGE].given ? REFDATA_SNAPSHOT_STAGE : REFDATA_SNAPSHOT_FINALIZE;
        return fail_at(making, refdata_field_template(settings, given), fields[given].name, 0,
                       "snapshotStageSql and snapshotFinalizeSql come as a pair");
    }
    if (sql[REFDATA_SNAPSHOT_REPLACE].given && sql[REFDATA_SNAPSHOT_STAGE].given)
        return fail_at(
            making, &settings->snapshot_replace, fields[REFDATA_SNAPSHOT_REPLACE].name, 0,
            "either snapshotReplaceSql or the pair snapshotStageSql/snapshotFinalizeSql, not both");
    for (enum refdata_field field = REFDATA_LOAD_KEYS; field < REFDATA_FIELDS && builtin; field++)
        if (sql[field].given)
            return fail_at(
                making, refdata_field_template(settings, field), fields[field].name, 0,
                "without loadSql the dictionary lives in the built-in table and takes no templates");
    if (settings->shared && builtin)
        return fail_at(
            making, AT(settings->shared_place), "shared", 0,
            "without loadSql the dictionary lives in the built-in table, which keeps tenants apart");
    if (settings->reload == REFDATA_RELOAD_DELTA && !builtin && !sql[REFDATA_LOAD_KEYS].given)
        return fail_at(making, AT(settings->code_place), "reloadOnEvent", 0,
                       "reloadOnEvent: DELTA needs loadKeysSql");
    return STATUS_OK;
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

static enum status build(const struct making *making, struct refdata_dictionary *dictionary)
{
    const struct refdata_dictionary_settings *settings = making->settings;
    enum status status = STATUS_OK;
    if (!str_is_name(settings->code))
        return fail_at(making, AT(settings->code_place), "code", 0,
                       "a dictionary's code is 1 to 64 of A-Z a-z 0-9 . _ -");
    for (enum refdata_field field = 0; field < REFDATA_FIELDS && status == STATUS_OK; field++)
        status = compile(making, field, dictionary);
    if (status != STATUS_OK)
        return status;
    bool builtin = !dictionary->sql[REFDATA_LOAD].given;
    if (dictionary->sql[REFDATA_LOAD_KEYS].given) {
        dictionary->lookup = dictionary->sql[REFDATA_LOAD_KEYS].statement;
        dictionary->can_lookup = true;
    } else if (
        !builtin) { /* loadSql itself is asked for some keys; the planner usually pushes the condition down */
        struct str sql = dictionary->sql[REFDATA_LOAD].text;
        size_t offset;
        while (sql.len && memchr("; \t\n\r", sql.ptr[sql.len - 1], 5))
            sql.len--;
        sql = arena_printf(&dictionary->arena,
                           "select k, v from (\n%.*s\n) as loaded where k::text = any(:keys)", STR_ARG(sql));
        dictionary->can_lookup = db_sql_compile(sql, all_names, &dictionary->arena, &dictionary->lookup,
                                                &offset, NULL) == STATUS_OK;
    }
    dictionary->is_builtin = builtin;
    dictionary->delta =
        settings->reload == REFDATA_RELOAD_DELTA ||
        (settings->reload == REFDATA_RELOAD_AUTO && (builtin || dictionary->sql[REFDATA_LOAD_KEYS].given));
    refdata_dictionary_set_scopes(dictionary, settings);
    bool reads = is_scope(settings->read_scope);
    if (!reads || !is_scope(settings->write_scope)) {
        struct setting_place place = reads ? settings->write_scope_place : settings->read_scope_place;
        return fail_at(making, AT(place.line ? place : settings->code_place),
                       reads ? "writeScope" : "readScope", 0,
                       "is not one scope: visible ASCII without spaces, quotes and backslashes");
    }
    return check_together(making, dictionary);
}

enum status refdata_dictionary_create(const struct config *config,
                                      const struct refdata_dictionary_settings *settings, size_t index,
                                      struct refdata_database *database, struct refdata_dictionary **out,
                                      struct error *error)
{
    const struct making making = {config, settings, index, error};
    struct refdata_dictionary *dictionary = memory_zalloc(sizeof *dictionary);
    atomic_init(&dictionary->refs, 1);
    atomic_init(&dictionary->state, REFDATA_UNCHECKED);
    dictionary->arena = ARENA(4096);
    dictionary->code = arena_str(&dictionary->arena, settings->code);
    dictionary->database = database ? refdata_database_ref(database) : NULL;
    dictionary->fingerprint = refdata_dictionary_fingerprint(settings, database ? database->fingerprint : 0);
    enum status status = build(&making, dictionary);
    if (status == STATUS_OK)
        *out = dictionary;
    else
        refdata_dictionary_unref(dictionary);
    return status;
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
