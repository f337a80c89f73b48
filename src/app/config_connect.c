/* `freshet config --connect`: one database after another. Mistakes go to standard error in the form of those of the file, notes and the
 * last line of a good file to standard output. A database that cannot be asked is one message, and the others are still tried. */
#include <stdio.h>

#include "app/commands.h"
#include "app/sites.h"
#include "app/terminal.h"
#include "base/clock.h"
#include "base/memory.h"
#include "bus/bus_postgres.h"
#include "kernel/trial.h"

enum { CONNECTIONS = 2 };

struct connect_run {
    struct trial trial;
    struct app_sites sites;
    struct arena arena;
    int64_t deadline_ns;         /* to connect, and to look at the schemas */
    bool is_lost[APP_SITES_MAX]; /* by the index of a database's first site */
    unsigned mistake_count, database_count, lost_count;
};

/* ---- what is printed ---- */

static void print_at(struct connect_run *run, FILE *out, struct setting_place place, const char *what,
                     const char *kind, const char *message)
{
    fprintf(out, "%s:%u:%u: %s: %s%s\n", config_path(run->trial.config), place.line, place.column, what, kind,
            terminal_text(str_from(message), &run->arena));
}

static void print_mistake(struct trial *trial, struct setting_place place, const char *what,
                          const char *message)
{
    struct connect_run *run = CONTAINER_OF(trial, struct connect_run, trial);
    run->mistake_count++;
    print_at(run, stderr, place, what, "", message);
}

static void print_note(struct trial *trial, struct setting_place place, const char *what, const char *message)
{
    print_at(CONTAINER_OF(trial, struct connect_run, trial), stdout, place, what, "note: ", message);
}

static int print_summary(const struct connect_run *run)
{
    const char *path = config_path(run->trial.config);
    unsigned databases = run->database_count, templates = run->trial.template_count;
    bool is_ok = run->mistake_count == 0 && run->lost_count == 0;
    const char *plural = databases == 1 ? "" : "s", *plural_templates = templates == 1 ? "" : "s";
    if (is_ok)
        printf("%s: ok; %u database%s, %u template%s tried\n", path, databases, plural, templates,
               plural_templates);
    else
        fprintf(stderr, "%s: %u mistake%s; %u of %u database%s, %u template%s tried\n", path,
                run->mistake_count, run->mistake_count == 1 ? "" : "s", databases - run->lost_count,
                databases, plural, templates, plural_templates);
    return is_ok ? 0 : 1;
}

/* ---- one database ---- */

/* A schema that is not migrated is not a mistake in the file; one that the program refuses to serve is. */
static enum status look_at_schema(struct connect_run *run, const struct app_site *site, struct db_pool *pool,
                                  const struct db_schema *schema, struct error *error)
{
    struct db_schema_state state;
    const char *shown = app_site_shown(site, pool, &run->arena), *path = config_path(run->trial.config);
    unsigned known = db_migrations_last(schema->migrations);
    enum status status =
        db_migrate_state(pool, schema->module, schema->migrations, run->deadline_ns, &state, error);
    if (status == STATUS_DB_ERROR) {
        printf(
            "%s: database %s: note: the schema %s cannot be looked at: %s: `freshet migrate --grants ROLE` "
            "prints what the role needs\n",
            path, shown, schema->module, terminal_text(str_from(error->message), &run->arena));
        return STATUS_OK;
    }
    if (status == STATUS_OK && state.oldest_program > known) {
        run->mistake_count++;
        fprintf(
            stderr,
            "%s: database %s: the schema %s needs migration %u, this program has %u: install a newer one\n",
            path, shown, schema->module, state.oldest_program, known);
    } else if (status == STATUS_OK && state.missing) {
        printf("%s: database %s: note: %u migration%s of the schema %s %s missing: run `freshet migrate`\n",
               path, shown, state.missing, state.missing == 1 ? "" : "s", schema->module,
               state.missing == 1 ? "is" : "are");
    }
    return status;
}

/* The platform's, and those of the modules whose tables are there. */
static enum status look_at_schemas(struct connect_run *run, const struct app_site *site, struct db_pool *pool,
                                   struct error *error)
{
    const struct db_schema platform = {"platform", platform_migrations};
    enum status status = site->is_twin ? STATUS_OK : look_at_schema(run, site, pool, &platform, error);
    for (const struct module *const *at = app_modules; *at && status == STATUS_OK; at++) {
        const struct db_schema schema = {(*at)->name, (*at)->migrations};
        if (schema.migrations && app_site_keeps(site, *at))
            status = look_at_schema(run, site, pool, &schema, error);
    }
    return status;
}

/* A twin of a database that was lost is not asked again: it would take the time limit twice. */
static void visit_site(struct connect_run *run, size_t index)
{
    int64_t timeout_ms = run->trial.timeout_ms;
    const struct app_site *site = &run->sites.items[index];
    struct db_pool *pool = NULL;
    struct db_conn *conn = NULL;
    struct error error = {0};
    size_t first = site->is_twin ? site->twin_of : index;
    run->database_count += !site->is_twin;
    if (run->is_lost[first])
        return;
    run->trial.target = &site->target;
    run->deadline_ns = clock_deadline_ms(timeout_ms);
    enum status status = app_site_open(site, CONNECTIONS, timeout_ms, &pool, &error);
    if (status == STATUS_OK)
        status = look_at_schemas(run, site, pool, &error);
    if (status == STATUS_OK && site->module && site->module->try_sql) {
        status = db_acquire(pool, run->deadline_ns, &conn, &error);
        if (status == STATUS_OK)
            status = site->module->try_sql(&run->trial, conn, &error);
        db_release(conn);
    }
    if (status != STATUS_OK) {
        run->is_lost[first] = true;
        run->lost_count++;
        fprintf(stderr, "%s: database %s: %s: %s\n", config_path(run->trial.config),
                app_site_shown(site, pool, &run->arena), terminal_text(str_from(error.message), &run->arena),
                status == STATUS_TIMEOUT ? "check that it runs, or give a longer --timeout"
                                         : "check its address, its user and the password, and that it runs");
    }
    db_pool_destroy(pool);
}

int app_config_connect(struct config *config, int64_t timeout_ms)
{
    struct connect_run run = {.trial = {.config = config,
                                        .timeout_ms = timeout_ms,
                                        .on_mistake = print_mistake,
                                        .on_note = print_note},
                              .arena = ARENA(4096)};
    app_sites_init(&run.sites, config);
    for (size_t i = 0; i < run.sites.count; i++)
        visit_site(&run, i);
    int exit_status = print_summary(&run);
    app_sites_deinit(&run.sites);
    arena_deinit(&run.arena);
    return exit_status;
}
