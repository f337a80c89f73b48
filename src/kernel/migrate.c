/* `freshet migrate`, and the list of routes: what needs the configuration and the modules but no running process. */
#include <stdio.h>

#include "base/clock.h"
#include "bus/bus_postgres.h"
#include "kernel/kernel_inside.h"

enum { MIGRATE_TIMEOUT_MS = 10 * 60 * 1000, EXIT_MISSING = 3 };

struct migration_run {
    const struct kernel_migration *wanted;
    const struct module *module; /* NULL: those that keep their tables in the store */
    const struct module *const *modules;
    bool has_platform;   /* its tables were migrated as another's */
    struct buf *printed; /* the address of the database that SQL was last printed for */
    int exit_status;
};

/* ---- what is done with each schema of each database ---- */

/* Everything on standard output is SQL. */
static enum status plan_schema(struct db_pool *pool, const struct db_schema *schema, struct error *error)
{
    struct buf sql = {0};
    unsigned count = 0;
    enum status status = db_migrate_plan(pool, schema->module, schema->migrations,
                                         clock_deadline_ms(MIGRATE_TIMEOUT_MS), &sql, &count, error);
    if (status == STATUS_OK)
        printf("-- %s on %s: %u to apply\n%.*s", schema->module, db_pool_address(pool), count,
               STR_ARG(buf_str(&sql)));
    buf_deinit(&sql);
    return status;
}

static enum status print_state(struct db_pool *pool, const struct db_schema *schema, int *exit_status,
                               struct error *error)
{
    unsigned known = db_migrations_last(schema->migrations);
    struct db_schema_state state;
    enum status status = db_migrate_state(pool, schema->module, schema->migrations,
                                          clock_deadline_ms(MIGRATE_TIMEOUT_MS), &state, error);
    if (status != STATUS_OK)
        return status;
    bool is_too_new = state.oldest_program > known;
    const char *verdict = is_too_new           ? "too new for this program"
                          : state.missing > 0  ? "to be migrated"
                          : state.last > known ? "newer than this program, which works with it"
                                               : "up to date";
    printf("%s on %s: database %03u, program %03u, oldest program %03u: %s\n", schema->module,
           db_pool_address(pool), state.last, known, state.oldest_program, verdict);
    if (is_too_new)
        *exit_status = 1;
    else if (state.missing > 0 && *exit_status == 0)
        *exit_status = EXIT_MISSING;
    return STATUS_OK;
}

/* A name as an identifier of SQL, whatever is in it. */
static void put_identifier(struct buf *out, struct str name)
{
    buf_put_char(out, '"');
    for (size_t i = 0; i < name.len; i++) {
        if (name.ptr[i] == '"')
            buf_put_char(out, '"');
        buf_put_char(out, name.ptr[i]);
    }
    buf_put_char(out, '"');
}

static void print_grants(const char *grants, const char *role)
{
    static const char mark[] = ":role";
    struct buf text = {0};
    for (const char *at; (at = strstr(grants, mark)) != NULL; grants = at + strlen(mark)) {
        buf_put(&text, grants, (size_t)(at - grants));
        put_identifier(&text, str_from(role));
    }
    buf_put_str(&text, str_from(grants));
    printf("%.*s", STR_ARG(buf_str(&text)));
    buf_deinit(&text);
}

/* An argument of a command of psql; "-" = as it is connected now. */
static void put_psql_argument(struct buf *out, struct str text)
{
    buf_put_str(out, text.len ? STR(" '") : STR(" -"));
    for (size_t i = 0; i < text.len; i++) {
        if (text.ptr[i] == '\'' || text.ptr[i] == '\\')
            buf_put_char(out, text.ptr[i]); /* both are doubled */
        buf_put_char(out, text.ptr[i]);
    }
    if (text.len)
        buf_put_char(out, '\'');
}

/* SQL of one database must not run on another: psql is connected to the first, and goes on to the next. */
static void print_database(struct migration_run *run, const struct db_pool *pool, const char *name)
{
    struct str address = str_from(db_pool_address(pool));
    struct buf text = {0}, hosts = {0}, ports = {0};
    bool is_first = buf_len(run->printed) == 0;
    if (str_eq(buf_str(run->printed), address))
        return;
    buf_clear(run->printed);
    buf_put_str(run->printed, address);
    if (!is_first) {
        buf_put_str(&text, STR("\\connect"));
        db_pool_put_hosts(pool, &hosts, &ports);
        put_psql_argument(&text, str_from(db_pool_database(pool)));
        buf_put_str(&text, STR(" -"));
        put_psql_argument(&text, buf_str(&hosts));
        put_psql_argument(&text, buf_str(&ports));
        buf_put_char(&text, '\n');
    }
    printf("-- database \"%s\": %.*s\n%.*s", name, STR_ARG(address), STR_ARG(buf_str(&text)));
    buf_deinit(&text), buf_deinit(&hosts), buf_deinit(&ports);
}

static void print_connect(const struct db_pool *pool, const char *role)
{
    struct buf text = {0};
    if (!*db_pool_database(pool)) {
        printf("-- grant connect on database …: the configuration names neither a database nor a user\n");
        return;
    }
    buf_put_str(&text, STR("grant connect on database "));
    put_identifier(&text, str_from(db_pool_database(pool)));
    buf_put_str(&text, STR(" to "));
    put_identifier(&text, str_from(role));
    printf("%.*s;\n", STR_ARG(buf_str(&text)));
    buf_deinit(&text);
}

static enum status handle_schema(struct migration_run *run, struct db_pool *pool,
                                 const struct db_schema *schema, const char *grants, struct error *error)
{
    enum status status = STATUS_OK;
    unsigned applied = 0;
    switch (run->wanted->action) {
    case KERNEL_MIGRATE_APPLY:
        status = db_migrate(pool, schema->module, schema->migrations, clock_deadline_ms(MIGRATE_TIMEOUT_MS),
                            &applied, error);
        if (status == STATUS_OK)
            printf("%s on %s: %u applied, up to date\n", schema->module, db_pool_address(pool), applied);
        break;
    case KERNEL_MIGRATE_PLAN: status = plan_schema(pool, schema, error); break;
    case KERNEL_MIGRATE_STATE: status = print_state(pool, schema, &run->exit_status, error); break;
    case KERNEL_MIGRATE_GRANTS: print_grants(grants, run->wanted->role); break;
    }
    return status == STATUS_OK ? status : error_context(error, "%s", schema->module);
}

/* ---- the databases ---- */

static bool is_in(const struct migration_run *run, const struct module *module)
{
    return module->migrations && (run->module ? run->module == module : module->keeps_store);
}

/* Every database has the platform's tables beside the modules': its embedded bus. */
static void migrate_database(const struct db_target *target, void *arg)
{
    struct migration_run *run = arg;
    struct error error = {0};
    struct db_pool *pool = NULL;
    enum status status = db_pool_create(target, &pool, &error);
    if (status == STATUS_OK &&
        (run->wanted->action == KERNEL_MIGRATE_PLAN || run->wanted->action == KERNEL_MIGRATE_GRANTS))
        print_database(run, pool, target->name);
    if (status == STATUS_OK && run->wanted->action == KERNEL_MIGRATE_GRANTS)
        print_connect(pool, run->wanted->role);
    if (status == STATUS_OK && !run->has_platform)
        status = handle_schema(run, pool, &(struct db_schema){"platform", platform_migrations},
                               platform_grants, &error);
    for (const struct module *const *at = run->modules; *at && status == STATUS_OK; at++)
        if (is_in(run, *at))
            status = handle_schema(run, pool, &(struct db_schema){(*at)->name, (*at)->migrations},
                                   (*at)->grants, &error);
    if (status != STATUS_OK) {
        fprintf(stderr, "freshet: cannot migrate database \"%s\": %s\n", target->name, error.message);
        run->exit_status = 1;
    }
    db_pool_destroy(pool);
}

static int worse(int a, int b)
{
    return a == 1 || b == 1 ? 1 : a | b;
}

int kernel_migrate(const struct kernel_options *options, const struct kernel_migration *wanted)
{
    struct config *config = kernel_config_load_or_print(options);
    if (!config)
        return 1;
    struct buf printed = {0};
    int exit_status = 0;
    for (const struct module *const *at = options->modules; *at; at++) {
        struct migration_run run = {
            .wanted = wanted, .module = *at, .modules = options->modules, .printed = &printed};
        if ((*at)->migrations && (*at)->each_database)
            (*at)->each_database(config, config_section(config, (*at)->section->name), migrate_database,
                                 &run);
        exit_status = worse(exit_status, run.exit_status);
    }
    /* The store; without a database for it nothing is reported, since no role that needs one can start. */
    const struct kernel_postgres *own = config_section(config, "postgres");
    struct migration_run run = {
        .wanted = wanted, .modules = options->modules, .has_platform = !own->url.len, .printed = &printed};
    struct db_target target;
    bool is_kept = false;
    for (const struct module *const *at = options->modules; *at; at++)
        is_kept |= is_in(&run, *at);
    if (is_kept && kernel_store_find(config, options->modules, &target))
        migrate_database(&target, &run);
    buf_deinit(&printed);
    config_free(config);
    return worse(exit_status, run.exit_status);
}

void kernel_schema_version(const struct module *const *modules, struct buf *out)
{
    buf_printf(out, "platform %u", db_migrations_last(platform_migrations));
    for (; *modules; modules++)
        if ((*modules)->migrations)
            buf_printf(out, ", %s %u", (*modules)->name, db_migrations_last((*modules)->migrations));
}

/* ---- routes ---- */

static void print_routes(const struct http_route *route)
{
    for (; route->handler; route++) {
        const char *needs = route->access == HTTP_PUBLIC ? "public" : route->needs_user ? "user" : "token";
        printf("%-7s %-70s %s\n", http_method_name(route->method), route->path,
               route->scope ? route->scope : needs);
    }
}

int kernel_print_routes(const struct kernel_options *options)
{
    for (const struct module *const *at = options->modules; *at; at++)
        for (const struct module_routes *routes = (*at)->routes; routes && routes->role; routes++)
            print_routes(routes->routes);
    print_routes(kernel_actuator_routes);
    return 0;
}
