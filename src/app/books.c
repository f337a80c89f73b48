/* `freshet verify --books`: is everything that was accepted decided, or does something carry it? One snapshot of each database; for
 * what an engine carries, the engine is asked too. A line for each kind, and a line for each thing that is lost or doubled. */
#include <stdio.h>
#include <string.h>

#include "app/commands.h"
#include "app/sites.h"
#include "app/verify.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/memory.h"
#include "kernel/books.h"
#include "kernel/store.h"

enum { CULPRITS_SHOWN_MAX = 20, STATEMENT_MS = 10 * 60 * 1000, EXIT_WRONG = 3 };

struct books_run {
    struct books books;
    uint64_t wrong_count, failed_count;
    struct buf culprits; /* lines, printed after the table */
    unsigned shown;      /* of the current database */
    bool is_json;
};

static struct books_run *run_of(struct books *books)
{
    return CONTAINER_OF(books, struct books_run, books);
}

struct member {
    const char *name;
    int64_t number;
};

static void print_json(const char *database, const char *kind, const struct member *numbers, struct str id,
                       const char *why)
{
    struct buf text = {0};
    buf_put_char(&text, '{');
    json_put_member_str(&text, "database", str_from(database));
    json_put_member_str(&text, "kind", str_from(kind));
    for (; numbers && numbers->name; numbers++)
        json_put_member_i64(&text, numbers->name, numbers->number);
    if (why) {
        json_put_member_str(&text, "wrong", id);
        json_put_member_str(&text, "why", str_from(why));
    }
    printf("%.*s}\n", STR_ARG(buf_str(&text)));
    buf_deinit(&text);
}

static void print_line(struct books *books, const struct books_line *line)
{
    struct books_run *run = run_of(books);
    int64_t carried = line->accepted - line->decided - line->lost - line->doubled;
    run->wrong_count += (uint64_t)(line->lost + line->doubled);
    if (run->is_json)
        print_json(books->target->name, line->kind,
                   (struct member[]){{"accepted", line->accepted},
                                     {"decided", line->decided},
                                     {"carried", carried},
                                     {"lost", line->lost},
                                     {"doubled", line->doubled},
                                     {NULL, 0}},
                   STR_NONE, NULL);
    else
        printf("%-12s %-37s %10lld %10lld %10lld %8lld %8lld\n", books->target->name, line->kind,
               (long long)line->accepted, (long long)line->decided, (long long)carried, (long long)line->lost,
               (long long)line->doubled);
}

static void note_culprit(struct books *books, const char *kind, struct str id, const char *why)
{
    struct books_run *run = run_of(books);
    if (run->is_json)
        print_json(books->target->name, kind, NULL, id, why); /* all of them */
    else if (run->shown++ < CULPRITS_SHOWN_MAX)
        buf_printf(&run->culprits, "WRONG %s %s %.*s: %s\n", books->target->name, kind, STR_ARG(id), why);
}

struct followers {
    struct books_run *run;
    struct db_conn *conn;
    struct error *error;
    enum status status;
};

static void read_topic(const struct kernel_topic *topic, void *arg)
{
    struct followers *followers = arg;
    if (followers->status == STATUS_OK)
        followers->status = kernel_books_count_followers(&followers->run->books, followers->conn,
                                                         topic->topic.name, followers->error);
}

/* On NATS the consumers' positions alone do not show what they missed. */
static enum status read_followers(struct books_run *run, const struct module *module, struct db_conn *conn,
                                  struct error *error)
{
    const struct kernel_bus_settings *bus = config_section(run->books.config, "bus");
    struct followers followers = {.run = run, .conn = conn, .error = error, .status = STATUS_OK};
    if (bus->events == KERNEL_NATS)
        return STATUS_OK;
    if (module->topic)
        read_topic(module->topic, &followers);
    if (module->each_topic)
        module->each_topic(config_section(run->books.config, module->section->name), read_topic, &followers);
    return followers.status;
}

static enum status read_module(struct books_run *run, const struct module *module, struct db_conn *conn,
                               struct error *error)
{
    enum status status = STATUS_OK;
    for (const struct outbox_table *const *at = module->outboxes; at && *at && status == STATUS_OK; at++)
        status = kernel_books_count_rows(&run->books, conn, *at,
                                         "its lease ends in hours: `freshet outbox unlock` frees it", error);
    if (status == STATUS_OK && module->outboxes && module->keeps_store)
        status = read_followers(run, module, conn, error);
    if (status == STATUS_OK && module->books)
        status = module->books(&run->books, conn, error);
    return status;
}

static void read_database(struct books_run *run, const struct app_site *site)
{
    const struct db_target *target = &site->target;
    struct error error = {0};
    struct db_pool *pool = NULL;
    struct db_conn *conn = NULL;
    run->books.target = target;
    run->books.deadline_ns = clock_deadline_ms(STATEMENT_MS);
    run->shown = 0;
    enum status status = db_pool_create(target, &pool, &error);
    if (status == STATUS_OK)
        status = db_acquire(pool, run->books.deadline_ns, &conn, &error);
    for (const struct module *const *at = app_modules; *at && status == STATUS_OK; at++) {
        if (!app_site_keeps(site, *at))
            continue;
        status = db_begin(conn, DB_REPEATABLE_READ_ONLY, run->books.deadline_ns, &error);
        if (status == STATUS_OK)
            status = db_transaction_timeout(conn, STATEMENT_MS, run->books.deadline_ns, &error);
        if (status == STATUS_OK)
            status = read_module(run, *at, conn, &error);
        /* A database that was not migrated for the module has nothing of it. */
        if (status == STATUS_DB_ERROR && strcmp(db_sqlstate(conn), "42P01") == 0 && !site->module)
            status = STATUS_OK;
        db_rollback(conn);
    }
    if (status != STATUS_OK) {
        (void)app_fail("verify", "database %s%s%s: %s", target->name, pool ? " at " : "",
                       pool ? db_pool_address(pool) : "", error.message);
        run->failed_count++;
    }
    if (run->shown > CULPRITS_SHOWN_MAX)
        buf_printf(&run->culprits, "and %u more in %s\n", run->shown - CULPRITS_SHOWN_MAX, target->name);
    db_release(conn);
    db_pool_destroy(pool);
}

int app_books(const char *config_path, int64_t patience_ms, bool is_json)
{
    struct books_run run = {.is_json = is_json,
                            .books = {.modules = app_modules,
                                      .patience_ms = patience_ms,
                                      .on_line = print_line,
                                      .on_culprit = note_culprit}};
    struct app_sites sites;
    run.books.config = app_config_load(config_path);
    if (!run.books.config)
        return 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!is_json)
        printf("%-12s %-37s %10s %10s %10s %8s %8s\n", "database", "kind", "accepted", "decided", "carried",
               "lost", "doubled");
    app_sites_init(&sites, run.books.config);
    for (size_t i = 0; i < sites.count; i++)
        read_database(&run, &sites.items[i]);
    app_sites_deinit(&sites);
    printf("%.*s", STR_ARG(buf_str(&run.culprits)));
    if (run.wrong_count)
        (void)app_fail("verify", "%llu lost or doubled", (unsigned long long)run.wrong_count);
    buf_deinit(&run.culprits);
    config_free(run.books.config);
    return run.wrong_count ? EXIT_WRONG : run.failed_count ? 1 : 0;
}
