/* `freshet updates`: which updates were accepted, what became of them, and what will decide those that are PENDING. It reads the
 * databases of the configuration, by the rows of the operator's API (kernel/ops.h), whether or not anything serves. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/commands.h"
#include "app/sites.h"
#include "app/terminal.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/uuid.h"
#include "modules/refdata/carrier.h"

enum { LIMIT = 100, LIMIT_MAX = 100000, PATIENCE_MS = 30000 };

struct updates_command {
    const char *config_path, *database, *status, *dict, *tenant, *error_code, *since, *until, *event_id;
    int64_t limit, patience_ms;
    bool is_json;
    const char *name; /* "updates list", for messages */
    struct config *config;
    struct app_sites sites;
    const struct module *module;
    const struct ops_view *view;
    struct ops_question question;
    struct arena arena;
    int64_t deadline_ns;
    unsigned failed_count; /* databases that did not answer */
};

/* Rows of one database, page after page. */
struct updates_pages {
    const struct app_site *site;
    struct db_pool *pool;
    struct ops_answer *answers;
    size_t answer_count;
};

struct updates_row {
    const struct ops_view *view;
    const struct updates_pages *pages;
    const struct db_result *rows;
    size_t row;
};

/* ---- columns ---- */

static unsigned column_of(const struct ops_view *view, const char *name)
{
    unsigned at = 0;
    while (view->columns[at].name && strcmp(view->columns[at].name, name) != 0)
        at++;
    return at;
}

/* Safe for a terminal; "-" where it is null. */
static const char *shown(struct updates_command *command, const struct updates_row *at, const char *name)
{
    unsigned column = column_of(command->view, name);
    return db_result_is_null(at->rows, at->row, column)
               ? "-"
               : terminal_text(db_result_str(at->rows, at->row, column), &command->arena);
}

static struct str raw(const struct updates_command *command, const struct updates_row *at, const char *name)
{
    return db_result_str(at->rows, at->row, column_of(command->view, name));
}

/* ---- databases ---- */

/* Reads until there are `limit` rows, or no more. */
static enum status read_pages(struct updates_command *command, struct updates_pages *pages,
                              struct db_conn *conn, struct error *error)
{
    struct ops_question question = command->question;
    size_t count = 0;
    for (;;) {
        pages->answers =
            memory_realloc_array(pages->answers, pages->answer_count + 1, sizeof *pages->answers);
        struct ops_answer *answer = &pages->answers[pages->answer_count];
        question.limit = command->limit - (int64_t)count;
        enum status status =
            kernel_ops_list(conn, command->view, &question, command->deadline_ns, answer, error);
        if (status != STATUS_OK)
            return status;
        pages->answer_count++;
        count += db_result_rows(answer->rows);
        if ((int64_t)count >= command->limit || !answer->has_more)
            return STATUS_OK;
        question.has_after = true;
        memcpy(question.after, answer->stop, sizeof question.after);
    }
}

static void read_site(struct updates_command *command, struct updates_pages *pages)
{
    struct error error = {0};
    struct db_conn *conn = NULL;
    enum status status = db_pool_create(&pages->site->target, &pages->pool, &error);
    if (status == STATUS_OK)
        status = db_acquire(pages->pool, command->deadline_ns, &conn, &error);
    if (status == STATUS_OK)
        status = read_pages(command, pages, conn, &error);
    if (status != STATUS_OK) {
        (void)app_fail(command->name, "database %s: %s",
                       app_site_shown(pages->site, pages->pool, &command->arena), error.message);
        command->failed_count++;
    }
    db_release(conn);
}

/* ---- a list ---- */

static int by_keys(const void *a, const void *b)
{
    const struct updates_row *x = a, *y = b;
    struct str keys_x[OPS_KEYS_MAX], keys_y[OPS_KEYS_MAX];
    kernel_ops_row_keys(x->view, x->rows, x->row, keys_x);
    kernel_ops_row_keys(y->view, y->rows, y->row, keys_y);
    return kernel_ops_keys_compare(x->view, keys_x, keys_y);
}

/* Of all databases, newest first. The rows are the arena's. */
static size_t sort_rows(struct updates_command *command, const struct updates_pages *pages, size_t page_count,
                        struct updates_row **sorted)
{
    size_t count = 0, at = 0;
    for (size_t i = 0; i < page_count; i++)
        for (size_t j = 0; j < pages[i].answer_count; j++)
            count += db_result_rows(pages[i].answers[j].rows);
    *sorted = arena_zalloc(&command->arena, (count + 1) * sizeof **sorted);
    for (size_t i = 0; i < page_count; i++)
        for (size_t j = 0; j < pages[i].answer_count; j++)
            for (size_t row = 0; row < db_result_rows(pages[i].answers[j].rows); row++)
                (*sorted)[at++] =
                    (struct updates_row){command->view, &pages[i], pages[i].answers[j].rows, row};
    qsort(*sorted, count, sizeof **sorted, by_keys);
    return count;
}

static void print_row(struct updates_command *command, const struct updates_row *at)
{
    if (command->is_json) {
        struct buf text = {0};
        kernel_ops_put_row(&text, command->view, at->rows, at->row, at->pages->site->target.name);
        printf("%.*s\n", STR_ARG(buf_str(&text)));
        buf_deinit(&text);
        return;
    }
    printf("%s %s %s %s/%s", shown(command, at, "created_at"), shown(command, at, "event_id"),
           shown(command, at, "status"), shown(command, at, "tenant_id"), shown(command, at, "dict_code"));
    printf(" database=%s age=%ss by=%s source=%s", at->pages->site->target.name,
           shown(command, at, "age_seconds"), shown(command, at, "requested_by"),
           shown(command, at, "source"));
    if (raw(command, at, "committed_version").len)
        printf(" version=%s", shown(command, at, "committed_version"));
    if (raw(command, at, "error_code").len)
        printf(" error=%s: %s", shown(command, at, "error_code"), shown(command, at, "error_message"));
    printf("\n");
}

static int print_list(struct updates_command *command, struct updates_row *rows, size_t count)
{
    bool is_cut = (int64_t)count > command->limit - 1;
    size_t pending = 0;
    for (size_t i = 0; i < count && (int64_t)i < command->limit; i++) {
        print_row(command, &rows[i]);
        pending += str_eq(raw(command, &rows[i], "status"), STR("PENDING"));
    }
    (void)fflush(stdout); /* where both are one terminal, rows are first */
    if (count == 0 && !command->failed_count)
        (void)app_fail(command->name, "there is no such update");
    if (is_cut)
        (void)app_fail(command->name, "these are the newest %lld; --limit shows more",
                       (long long)command->limit);
    if (pending && !command->is_json)
        (void)app_fail(command->name,
                       "`freshet updates show EVENT_ID` shows what will decide one that is PENDING");
    return command->failed_count ? 1 : 0;
}

/* ---- one update ---- */

static const char *const shown_columns[] = {"tenant_id",         "dict_code",    "event_type", "status",
                                            "committed_version", "requested_by", "source",     "error_code",
                                            "error_message",     "created_at",   "updated_at", NULL};

/* Why a PENDING update has no carrier in its database, and what happens then. */
static void explain_none(struct updates_command *command, const struct updates_row *at,
                         const struct refdata_route *route, bool is_published, struct buf *out)
{
    struct error error = {0};
    unsigned partition = 0;
    int64_t lag = 0;
    if (!route->is_on_kafka) {
        buf_put_str(out, STR("none: its command is not on the bus any more"));
    } else if (!is_published) {
        buf_put_str(out, STR("none: its command is in no outbox"));
    } else if (refdata_carrier_lag(command->config, route, raw(command, at, "tenant_id"),
                                   raw(command, at, "dict_code"), command->deadline_ns, &partition, &lag,
                                   &error) != STATUS_OK) {
        buf_printf(out, "Kafka, topic %s, which could not be asked: %s", route->topic, error.message);
        return;
    } else if (lag > 0) {
        buf_printf(out, "Kafka, topic %s, partition %u: the group %s has %lld messages to handle",
                   route->topic, partition, route->group, (long long)lag);
        return;
    } else {
        buf_put_str(out, STR("none: Kafka has it no more, and the group has handled everything"));
    }
    buf_put_str(
        out,
        STR(". The auditor, in a process with the role apply, publishes it again or fails it with COMMAND_LOST,"
            " refdata.updates.auditAfter after it was accepted"));
}

/* Lines of text, ended by NUL each: what carries it, or why nothing does; and whether nothing handles it. */
static enum status read_carriers(struct updates_command *command, const struct updates_row *at,
                                 struct buf *out, struct error *error)
{
    struct db_conn *conn = NULL;
    struct db_result *rows = NULL;
    struct refdata_route route =
        refdata_route_of(command->config, at->pages->site->target.name, &command->arena);
    bool is_carried = false, is_published = false, is_applied = true;
    enum status status = db_acquire(at->pages->pool, command->deadline_ns, &conn, error);
    if (status == STATUS_OK)
        status = refdata_carriers_list(conn, &route, raw(command, at, "tenant_id"),
                                       raw(command, at, "event_id"), command->deadline_ns, &rows, error);
    for (size_t i = 0; status == STATUS_OK && i < db_result_rows(rows); i++) {
        bool is_alive = str_eq(db_result_str(rows, i, CARRIER_IS_ALIVE), STR("t"));
        is_carried |= is_alive;
        is_published |= str_starts_with(db_result_str(rows, i, CARRIER_STATE), STR("published"));
        buf_printf(out, "%s: %s", terminal_text(db_result_str(rows, i, CARRIER_PLACE), &command->arena),
                   terminal_text(db_result_str(rows, i, CARRIER_STATE), &command->arena));
        if (!db_result_is_null(rows, i, CARRIER_ERROR))
            buf_printf(out, "; last error: %s",
                       terminal_text(db_result_str(rows, i, CARRIER_ERROR), &command->arena));
        buf_put_char(out, '\0');
    }
    if (status == STATUS_OK && !is_carried) {
        explain_none(command, at, &route, is_published, out);
        buf_put_char(out, '\0');
    }
    if (status == STATUS_OK)
        status = refdata_apply_is_run(conn, command->deadline_ns, &is_applied, error);
    if (!is_applied)
        buf_put_str(
            out,
            STR("no process runs the role apply: it stays PENDING until one does (freshet serve --roles apply)\0"));
    db_result_free(rows);
    db_release(conn);
    return status;
}

static void print_update(struct updates_command *command, const struct updates_row *at, struct str carriers)
{
    struct buf text = {0};
    const char *end = carriers.ptr + carriers.len;
    if (command->is_json) {
        kernel_ops_put_row(&text, command->view, at->rows, at->row, at->pages->site->target.name);
        text.end--; /* the row's brace */
        json_put_open(&text, "carriers", '[');
        for (const char *line = carriers.ptr; line < end; line += strlen(line) + 1) {
            if (line > carriers.ptr)
                buf_put_char(&text, ',');
            json_put_string(&text, str_from(line));
        }
        printf("%.*s]}\n", STR_ARG(buf_str(&text)));
        buf_deinit(&text);
        return;
    }
    printf("%-18s %s\n%-18s %s\n", "event_id", shown(command, at, "event_id"), "database",
           at->pages->site->target.name);
    for (const char *const *name = shown_columns; *name; name++)
        if (raw(command, at, *name).len)
            printf("%-18s %s\n", *name, shown(command, at, *name));
    for (const char *line = carriers.ptr; line < end; line += strlen(line) + 1)
        printf("%-18s %s\n", line == carriers.ptr ? "carrier" : "", line);
}

static int print_updates(struct updates_command *command, struct updates_row *rows, size_t count)
{
    int exit_status = command->failed_count ? 1 : 0;
    for (size_t i = 0; i < count; i++) {
        struct error error = {0};
        struct buf carriers = {0};
        bool is_pending = str_eq(raw(command, &rows[i], "status"), STR("PENDING"));
        if (i && !command->is_json)
            printf("\n");
        if (is_pending && read_carriers(command, &rows[i], &carriers, &error) != STATUS_OK)
            exit_status = app_fail(command->name, "what carries it could not be read: %s", error.message);
        print_update(command, &rows[i], buf_str(&carriers));
        buf_deinit(&carriers);
    }
    if (count == 0 && !command->failed_count)
        exit_status = app_fail(command->name, "there is no update %s%s%s", command->event_id,
                               command->tenant ? " of tenant " : "", command->tenant ? command->tenant : "");
    return exit_status;
}

/* ---- the call ---- */

static int run_updates(struct updates_command *command, bool is_show)
{
    struct updates_pages pages[APP_SITES_MAX] = {0};
    struct updates_row *rows;
    size_t page_count = 0;
    for (size_t i = 0; i < command->sites.count; i++) {
        const struct app_site *site = &command->sites.items[i];
        if (app_site_has(site, command->module, command->view->place) &&
            (!command->database || strcmp(command->database, site->target.name) == 0))
            pages[page_count++].site = site;
    }
    if (page_count == 0)
        return app_misuse(command->name, "there is no database \"%s\" with dictionaries in %s",
                          command->database ? command->database : "main", config_path(command->config));
    for (size_t i = 0; i < page_count; i++)
        read_site(command, &pages[i]);
    size_t count = sort_rows(command, pages, page_count, &rows);
    int exit_status = (is_show ? print_updates : print_list)(command, rows, count);
    for (size_t i = 0; i < page_count; i++) {
        for (size_t j = 0; j < pages[i].answer_count; j++)
            kernel_ops_answer_free(&pages[i].answers[j]);
        free(pages[i].answers);
        db_pool_destroy(pages[i].pool);
    }
    return exit_status;
}

/* The option's value as the filter `name` of the view; NULL = it is fine, else the mistake. */
static const char *take_filter(struct updates_command *command, const char *name, const char *option,
                               const char *given)
{
    struct error error = {0};
    if (!given)
        return NULL;
    for (size_t i = 0; command->view->filters[i].name; i++) {
        if (strcmp(command->view->filters[i].name, name) != 0)
            continue;
        struct str *value = &command->question.values[i];
        *value = str_from(given);
        if (kernel_ops_value_check(&command->view->filters[i], value, &command->arena, &error) == STATUS_OK)
            return NULL;
        return arena_printf(&command->arena, "%s: %s", option, error.message).ptr;
    }
    return arena_printf(&command->arena, "%s cannot be chosen by", option).ptr;
}

/* A time, or how long ago, as RFC 3339. */
static const char *moment(struct updates_command *command, const char *given)
{
    int64_t unix_us;
    char text[CLOCK_RFC3339_BYTES];
    if (!given || !options_moment(given, &unix_us))
        return given; /* which the filter refuses */
    return arena_str(&command->arena, str_of(text, clock_rfc3339(unix_us, text))).ptr;
}

static const char *take_filters(struct updates_command *command)
{
    const struct {
        const char *name, *option, *given;
    } all[] = {{"status", "--status", command->status},
               {"dict", "--dict", command->dict},
               {"error_code", "--error-code", command->error_code},
               {"from", "--since", moment(command, command->since)},
               {"to", "--until", moment(command, command->until)},
               {"event_id", "EVENT_ID", command->event_id}};
    const char *mistake = NULL;
    for (size_t i = 0; i < sizeof all / sizeof *all && !mistake; i++) {
        mistake = take_filter(command, all[i].name, all[i].option, all[i].given);
        if (mistake && (all[i].given == command->since || all[i].given == command->until))
            mistake = arena_printf(&command->arena,
                                   "%s needs a time, 2026-01-31T12:00:00Z, or how long ago: 90s, 15m, 1h, 7d",
                                   all[i].option)
                          .ptr;
    }
    command->question.tenant = str_from(command->tenant);
    if (!mistake && command->tenant && !str_is_name(command->question.tenant))
        mistake = "--tenant is not a name of a tenant";
    return mistake;
}

static int check_call(struct updates_command *command, const struct option_words *words, bool *is_show)
{
    *is_show = words->count > 0 && strcmp(words->items[0], "show") == 0;
    if (words->count == 0 || (!*is_show && strcmp(words->items[0], "list") != 0))
        return app_misuse("updates", "the first word must be list or show");
    command->name = *is_show ? "updates show" : "updates list";
    if (words->count != (*is_show ? 2u : 1u))
        return app_misuse(command->name, *is_show ? "give one EVENT_ID" : "unexpected argument %s",
                          words->items[1]);
    if (*is_show &&
        (command->status || command->dict || command->error_code || command->since || command->until))
        return app_misuse(command->name, "takes EVENT_ID, --tenant and --database only");
    command->event_id = *is_show ? words->items[1] : NULL;
    command->view = app_view_find("updates", &command->module);
    const char *mistake = take_filters(command);
    return mistake ? app_misuse(command->name, "%s", mistake) : OPTIONS_RUN;
}

int app_updates(int argc, char **argv)
{
    struct updates_command command = {.limit = LIMIT, .patience_ms = PATIENCE_MS};
    struct option_words words;
    bool is_show = false;
    const struct option_row rows[] = {
        {"--status", "STATUS", "only PENDING, COMMITTED or FAILED ones", .into = &command.status,
         .choices = "PENDING COMMITTED FAILED"},
        {"--dict", "DICT", "only those of this dictionary", .into = &command.dict},
        {"--tenant", "TENANT", "only those of this tenant", .into = &command.tenant},
        {"--error-code", "CODE", "only those that failed with this code", .into = &command.error_code},
        {"--since", "TIME", "only those accepted since 2026-01-31T12:00:00Z, or in the last 90s, 15m, 7d",
         .into = &command.since},
        {"--until", "TIME", "only those accepted before", .into = &command.until},
        {"--database", "NAME", "only this postgres block", .into = &command.database},
        {"--limit", "N", "at most N, newest first (default 100)", .number = &command.limit, .min = 1,
         .max = LIMIT_MAX},
        {"--patience", "30s", "how long the databases may take to answer (default 30s)",
         .duration_ms = &command.patience_ms},
        {"--json", NULL, "one JSON object a line", .flag = &command.is_json},
        APP_CONFIG_ROW(command.config_path),
        {.name = NULL},
    };
    int exit_status = options_read_words(
        argc, argv, "list|show [EVENT_ID]",
        "Lists updates of dictionaries, newest first, or shows everything about one: while it is PENDING, what will decide it,\n"
        "or why nothing will. It reads the databases of the configuration and needs no server. Exit status 1 when a\n"
        "database does not answer, or there is no such update to show.\n\n"
        "  freshet updates list --status PENDING\n"
        "  freshet updates list --status FAILED --tenant demo --since 1h\n"
        "  freshet updates show 3f0c8f0e-6c52-4f9f-9d0c-0d5b2a3c1e77",
        rows, &words);
    if (exit_status != OPTIONS_RUN)
        return exit_status;
    command.arena = ARENA(4096);
    exit_status = check_call(&command, &words, &is_show);
    if (exit_status == OPTIONS_RUN) {
        command.config = app_config_load(command.config_path);
        command.deadline_ns = clock_deadline_ms(command.patience_ms);
        exit_status = command.config ? 0 : 1;
    }
    if (command.config) {
        app_sites_init(&command.sites, command.config);
        exit_status = run_updates(&command, is_show);
        app_sites_deinit(&command.sites);
        config_free(command.config);
    }
    arena_deinit(&command.arena);
    return exit_status;
}
