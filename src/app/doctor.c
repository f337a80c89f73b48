/* `freshet doctor`: places, their threads, and what is printed. */
#include "app/doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/client.h"
#include "app/commands.h"
#include "app/terminal.h"
#include "base/clock.h"
#include "base/memory.h"
#include "kernel/engines.h"
#include "modules/refdata/settings.h"

enum { PATIENCE_MS = 10000, GRACE_MS = 1000, CONNECTIONS = 2 };

/* Mistakes in the file have no row in the table of checks: nothing else can be checked then. */
static const struct doctor_check config_check = {"configuration",
                                                 DOCTOR_CRITICAL,
                                                 DOCTOR_MACHINE,
                                                 NULL,
                                                 "the configuration file is missing or has mistakes",
                                                 NULL};

/* ---- for checks ---- */

static void add_finding(struct doctor *doctor, const struct doctor_check *check, const char *place,
                        bool is_unchecked, const char *help, const char *format, va_list arguments)
{
    char text[1024];
    vsnprintf(text, sizeof text, format, arguments);
    pthread_mutex_lock(&doctor->lock);
    doctor->findings =
        memory_realloc_array(doctor->findings, doctor->finding_count + 1, sizeof *doctor->findings);
    doctor->findings[doctor->finding_count] = (struct doctor_finding){
        .check = check,
        .is_unchecked = is_unchecked,
        .order = doctor->finding_count,
        .place = terminal_text(str_from(place), &doctor->arena),
        .what = terminal_text(str_utf8_cut(str_from(text), sizeof text), &doctor->arena),
        .help = help ? terminal_text(str_from(help), &doctor->arena) : NULL};
    doctor->finding_count++;
    pthread_mutex_unlock(&doctor->lock);
}

void doctor_found(struct doctor_place *place, const char *help, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    add_finding(place->doctor, place->check, place->name, false, help, format, arguments);
    va_end(arguments);
}

void doctor_unchecked(struct doctor_place *place, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    add_finding(place->doctor, place->check, place->name, true, NULL, format, arguments);
    va_end(arguments);
}

struct db_result *doctor_query(struct doctor_place *place, const struct db_statement *statement,
                               const struct db_param *params)
{
    struct error error = {0};
    struct db_result *rows = NULL;
    enum status status = db_pool_query(place->pool, statement, params, place->deadline_ns, &rows, &error);
    if (status == STATUS_OK)
        return rows;
    if (status != STATUS_DB_ERROR || !place->is_behind) /* else a table may be missing, as was reported */
        doctor_unchecked(place, "%s", error.message);
    return NULL;
}

/* ---- places ---- */

static void run_checks(struct doctor_place *place)
{
    const struct doctor *doctor = place->doctor;
    size_t left_out = 0, run = 0;
    for (const struct doctor_check *check = doctor_checks; check->name; check++) {
        if (!(check->kinds & place->kinds))
            continue;
        int64_t now_ns = clock_mono_ns(), limit_ns = now_ns + DOCTOR_CHECK_MS * CLOCK_NS_PER_MS;
        if (place->is_lost || now_ns >= doctor->deadline_ns) {
            left_out++;
            continue;
        }
        place->check = check;
        place->deadline_ns = limit_ns < doctor->deadline_ns ? limit_ns : doctor->deadline_ns;
        check->run(place);
        run++;
    }
    if (left_out)
        doctor_unchecked(place, "%zu more checks%s", left_out, place->is_lost ? "" : ": the time was over");
    pthread_mutex_lock(&place->doctor->lock);
    place->doctor->run_count += run;
    pthread_mutex_unlock(&place->doctor->lock);
}

static void *run_place(void *context)
{
    struct doctor_place *place = context;
    struct doctor *doctor = place->doctor;
    struct error error = {0};
    if (place->site &&
        app_site_open(place->site, CONNECTIONS, DOCTOR_CHECK_MS, &place->pool, &error) == STATUS_OK)
        place->name = arena_printf(&place->arena, "database %s",
                                   app_site_shown(place->site, place->pool, &place->arena))
                          .ptr;
    run_checks(place);
    db_pool_destroy(place->pool);
    place->pool = NULL;
    buf_deinit(&place->metrics);
    pthread_mutex_lock(&doctor->lock);
    place->is_done = true;
    doctor->done_count++;
    pthread_cond_broadcast(&doctor->changed);
    pthread_mutex_unlock(&doctor->lock);
    return NULL;
}

/* Takes over the place. Under the doctor's lock. */
static void start_place(struct doctor *doctor, struct doctor_place *place)
{
    if (doctor->place_count == DOCTOR_PLACES_MAX ||
        pthread_create(&place->thread, NULL, run_place, place) != 0) {
        arena_deinit(&place->arena);
        free(place);
        return;
    }
    doctor->places[doctor->place_count++] = place;
}

static struct doctor_place *make_place(struct doctor *doctor, unsigned kinds)
{
    struct doctor_place *place = memory_zalloc(sizeof *place);
    *place =
        (struct doctor_place){.doctor = doctor, .kinds = kinds, .arena = ARENA(2048), .check = doctor_checks};
    return place;
}

void doctor_add_pod(struct doctor *doctor, struct str url, bool is_given)
{
    pthread_mutex_lock(&doctor->lock);
    bool is_known = false;
    for (size_t i = 0; i < doctor->place_count; i++)
        is_known |= str_eq(doctor->places[i]->url, url);
    if (!is_known) {
        struct doctor_place *place = make_place(doctor, DOCTOR_POD);
        place->url = arena_str(&place->arena, url);
        place->name = arena_printf(&place->arena, "pod %.*s", STR_ARG(url)).ptr;
        place->is_given = is_given;
        start_place(doctor, place);
    }
    pthread_mutex_unlock(&doctor->lock);
}

static void add_engine(struct doctor *doctor, enum doctor_engine engine, const char *name,
                       const struct setting_strings *nodes, bool has_tls)
{
    struct doctor_place *place = make_place(doctor, DOCTOR_ENGINE);
    place->name = name;
    place->engine = engine;
    place->nodes = nodes;
    place->has_tls = has_tls;
    start_place(doctor, place);
}

static void add_places(struct doctor *doctor)
{
    const struct kernel_bus_settings *bus = config_section(doctor->config, "bus");
    const struct kernel_kafka *kafka = config_section(doctor->config, "kafka");
    const struct kernel_redis *redis = config_section(doctor->config, "redis");
    const struct kernel_nats *nats = config_section(doctor->config, "nats");
    const struct refdata_settings *refdata = config_section(doctor->config, refdata_section.name);
    struct doctor_place *machine = make_place(doctor, DOCTOR_MACHINE);
    machine->name = "configuration";
    pthread_mutex_lock(&doctor->lock);
    start_place(doctor, machine);
    for (size_t i = 0; i < doctor->sites.count; i++) {
        const struct app_site *site = &doctor->sites.items[i];
        struct doctor_place *place = make_place(doctor, site->module ? DOCTOR_REFDATA : DOCTOR_STORE);
        place->kinds |= site->is_twin ? 0 : DOCTOR_DATABASE;
        place->site = site;
        place->name = arena_printf(&place->arena, "database %s", site->target.name).ptr;
        start_place(doctor, place);
    }
    if (bus->commands == KERNEL_KAFKA || refdata->adapter.sources.count > 0)
        add_engine(doctor, DOCTOR_KAFKA, "Kafka", &kafka->brokers, kafka->tls.enabled);
    if (bus->invalidations == KERNEL_REDIS)
        add_engine(doctor, DOCTOR_REDIS, "Redis", refdata_settings_redis_nodes(refdata, redis),
                   redis->tls.enabled);
    if (bus->events == KERNEL_NATS)
        add_engine(doctor, DOCTOR_NATS, "NATS", &nats->servers, nats->tls.enabled);
    pthread_mutex_unlock(&doctor->lock);
}

/* False: some have not ended, although every wait of theirs is bounded (the system's resolver is not). */
static bool await_places(struct doctor *doctor)
{
    int64_t deadline_ns = doctor->deadline_ns + GRACE_MS * CLOCK_NS_PER_MS;
    pthread_mutex_lock(&doctor->lock);
    while (doctor->done_count < doctor->place_count &&
           clock_cond_wait(&doctor->changed, &doctor->lock, deadline_ns))
        ;
    bool are_done = doctor->done_count == doctor->place_count;
    pthread_mutex_unlock(&doctor->lock);
    for (size_t i = 0; i < doctor->place_count; i++)
        if (are_done)
            pthread_join(doctor->places[i]->thread, NULL);
        else if (!doctor->places[i]->is_done)
            doctor_unchecked(doctor->places[i], "the time was over");
    return are_done;
}

/* ---- the command ---- */

static void list_checks(void)
{
    printf("%-24s %-9s %s\n", config_check.name, "critical", config_check.about);
    for (const struct doctor_check *check = doctor_checks; check->name; check++)
        printf("%-24s %-9s %s\n", check->name, check->severity == DOCTOR_CRITICAL ? "critical" : "warning",
               check->about);
}

static void note_problem(struct doctor_place *place, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    add_finding(place->doctor, &config_check, place->name, false, doctor_command(place, "config"), format,
                arguments);
    va_end(arguments);
}

/* False: the file cannot be used, which is found. */
static bool load_config(struct doctor *doctor)
{
    struct buf problems = {0};
    struct error error = {0};
    struct doctor_place file = {.doctor = doctor, .name = "configuration", .arena = ARENA(512)};
    doctor->config = kernel_config_load(
        &(struct kernel_options){.config_path = app_config_path(doctor->config_path), .modules = app_modules},
        &problems);
    struct str rest = buf_str(&problems), line;
    while (!doctor->config && str_split(&rest, '\n', &line)) {
        if (line.len)
            note_problem(&file, "%.*s", STR_ARG(line));
    }
    if (doctor->config && refdata_catalog_create(config_section(doctor->config, refdata_section.name), NULL,
                                                 NULL, &doctor->catalog, &error) != STATUS_OK)
        note_problem(&file, "%s", error.message);
    buf_deinit(&problems);
    arena_deinit(&file.arena);
    return doctor->config && doctor->catalog;
}

static void free_doctor(struct doctor *doctor)
{
    for (size_t i = 0; i < doctor->place_count; i++) {
        arena_deinit(&doctor->places[i]->arena);
        free(doctor->places[i]);
    }
    if (doctor->catalog)
        refdata_catalog_unref(doctor->catalog);
    app_sites_deinit(&doctor->sites);
    config_free(doctor->config);
    free(doctor->findings);
    arena_deinit(&doctor->arena);
    pthread_mutex_destroy(&doctor->lock);
    pthread_cond_destroy(&doctor->changed);
    free(doctor);
}

static int run_doctor(struct doctor *doctor, const struct option_list *urls, bool is_json)
{
    const char *named = getenv("FRESHET_URL");
    struct buf url = {0};
    bool are_done = true;
    if (load_config(doctor)) {
        app_sites_init(&doctor->sites, doctor->config);
        add_places(doctor);
        for (size_t i = 0; i < urls->count; i++)
            doctor_add_pod(doctor, client_url("doctor", urls->items[i], &url), true);
        if (!urls->count && named && *named)
            doctor_add_pod(doctor, client_url("doctor", NULL, &url), true);
        are_done = await_places(doctor);
    }
    buf_deinit(&url);
    int exit_status = doctor_print(doctor, is_json);
    if (!are_done) { /* threads still use all of it */
        (void)fflush(stdout);
        _exit(exit_status);
    }
    return exit_status;
}

int app_doctor(int argc, char **argv)
{
    struct doctor *doctor = memory_zalloc(sizeof *doctor);
    struct option_list urls = {0};
    int64_t patience_ms = PATIENCE_MS;
    bool is_json = false, lists = false;
    const struct option_row rows[] = {
        APP_CONFIG_ROW(doctor->config_path),
        {"--url", "URL",
         "a pod to ask (default $FRESHET_URL, and those that report themselves); may be given several times",
         .list = &urls},
        CLIENT_TLS_ROWS(doctor->tls),
        {"--patience", "10s", "how long all checks may take (default 10s); each has at most two seconds",
         .duration_ms = &patience_ms},
        {"--json", NULL, "one JSON object", .flag = &is_json},
        {"--list", NULL, "list the checks and make none", .flag = &lists},
        {.name = NULL},
    };
    int exit_status = options_read(
        argc, argv,
        "Checks the configuration, its databases, engines and pods, and prints everything that is wrong now, most serious\n"
        "first, each with the command that helps. It changes nothing. Exit status 0 when nothing is wrong, 3 when something is,\n"
        "1 when something could not be checked and nothing else is wrong.\n\n"
        "  freshet doctor\n"
        "  freshet doctor --url http://pod-1:8080 --url http://pod-2:8080 --json",
        rows);
    struct buf url = {0};
    for (size_t i = 0; i < urls.count && exit_status == OPTIONS_RUN; i++)
        if (!client_url("doctor", urls.items[i], &url).len)
            exit_status = OPTIONS_WRONG;
    if (exit_status == OPTIONS_RUN &&
        ((!urls.count && !client_url("doctor", NULL, &url).len) || !client_tls_given("doctor", &doctor->tls)))
        exit_status = OPTIONS_WRONG;
    buf_deinit(&url);
    pthread_mutex_init(&doctor->lock, NULL);
    pthread_cond_init(&doctor->changed, NULL);
    doctor->arena = ARENA(4096);
    doctor->deadline_ns = clock_deadline_ms(patience_ms);
    if (exit_status == OPTIONS_RUN && lists) {
        list_checks();
        exit_status = 0;
    } else if (exit_status == OPTIONS_RUN) {
        exit_status = run_doctor(doctor, &urls, is_json);
    }
    free_doctor(doctor);
    return exit_status;
}
