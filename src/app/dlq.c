/* `freshet dlq`: what notification could not handle or deliver, and what an operator does about it (N2). Works on the
 * tables of the store, whether or not anything serves; what is requeued is taken up by whoever runs the role notification.
 * Every change has its row in notification.dlq_audit. */
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/by_hand.h"
#include "app/commands.h"
#include "app/modules.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/uuid.h"
#include "kernel/store.h"
#include "modules/notification/dlq.h"

struct dlq_command;
typedef enum status action_fn(struct db_conn *conn, const struct dlq_command *command, struct error *error);
static action_fn list, show, change;

enum { LIST, SHOW, REQUEUE, DISCARD, ACTIONS };
static const struct by_hand_action actions[] = {
    [LIST] = {"list", NULL},
    [SHOW] = {"show", NULL},
    [REQUEUE] = {"requeue", "sent again"},
    [DISCARD] = {"discard", "given up for good"},
    [ACTIONS] = {.name = NULL},
};
static action_fn *const runs[ACTIONS] = {
    [LIST] = list, [SHOW] = show, [REQUEUE] = change, [DISCARD] = change};

struct dlq_command {
    size_t action;
    const char *config, *status, *kind, *reason, *tenant, *note, *limit;
    bool all;
    struct option_words ids;
    struct notification_dlq_selection selection;
    struct buf messages, deliveries;
};

/* ---- what is done ---- */

static const char *text_of(const struct db_result *rows, size_t row, unsigned column)
{
    return db_result_is_null(rows, row, column) ? "-" : db_result_str(rows, row, column).ptr;
}

static enum status list(struct db_conn *conn, const struct dlq_command *command, struct error *error)
{
    struct db_result *rows = NULL;
    enum status status =
        notification_dlq_list(conn, &command->selection, clock_deadline_ms(BY_HAND_MS), &rows, error);
    size_t count = status == STATUS_OK ? db_result_rows(rows) : 0;
    for (size_t i = 0; i < count; i++)
        printf("id=%s kind=%s status=%s tenant=%s event=%s type=%s deliveries=%s age=%ss reason=%s\n",
               text_of(rows, i, 0), text_of(rows, i, 1), text_of(rows, i, 2), text_of(rows, i, 3),
               text_of(rows, i, 4), text_of(rows, i, 5), text_of(rows, i, 6), text_of(rows, i, 7),
               text_of(rows, i, 8));
    if (status == STATUS_OK && (int64_t)count == command->selection.rows_max)
        fprintf(stderr, "freshet dlq list: these are the first %zu; --limit shows more\n", count);
    db_result_free(rows);
    return status;
}

static enum status show(struct db_conn *conn, const struct dlq_command *command, struct error *error)
{
    struct db_result *rows = NULL;
    enum status status = notification_dlq_show(conn, str_from(command->ids.items[0]),
                                               clock_deadline_ms(BY_HAND_MS), &rows, error);
    size_t count = status == STATUS_OK ? db_result_rows(rows) : 0;
    for (size_t i = 0; i < count; i++)
        printf("%s: %s\n", text_of(rows, i, 0), text_of(rows, i, 1));
    db_result_free(rows);
    if (status == STATUS_OK && count == 0)
        status = error_set(error, STATUS_NOT_FOUND, "there is no dead letter %s", command->ids.items[0]);
    return status;
}

/* Who is at the keyboard, as the system knows them; USER may be anything. */
static void name_actor(char *out, size_t size)
{
    char memory[4096], host[128] = "";
    struct passwd entry, *found = NULL;
    (void)!gethostname(host, sizeof host - 1);
    if (getpwuid_r(getuid(), &entry, memory, sizeof memory, &found) == 0 && found)
        snprintf(out, size, "%s@%s", found->pw_name, host);
    else
        snprintf(out, size, "uid %u@%s", (unsigned)getuid(), host);
}

static enum status change(struct db_conn *conn, const struct dlq_command *command, struct error *error)
{
    char actor[512];
    int64_t messages = 0, deliveries = 0;
    name_actor(actor, sizeof actor);
    enum status status = notification_dlq_change(
        conn, command->action == REQUEUE ? NOTIFICATION_DLQ_REQUEUE : NOTIFICATION_DLQ_DISCARD,
        &command->selection, str_from(actor), str_from(command->note ? command->note : ""),
        clock_deadline_ms(BY_HAND_MS), &messages, &deliveries, error);
    if (status != STATUS_OK)
        return status;
    log_info("dlq_changed_by_hand", LOG_CSTR("action", actions[command->action].name),
             LOG_INT("messages", messages), LOG_INT("deliveries", deliveries), LOG_CSTR("user", actor));
    printf("%lld messages and %lld deliveries: %s\n", (long long)messages, (long long)deliveries,
           actions[command->action].done);
    if (command->ids.count > 0 && messages + deliveries < (int64_t)command->ids.count)
        return error_set(error, STATUS_NOT_FOUND,
                         "%lld of those named are not dead letters, or decided already",
                         (long long)command->ids.count - (long long)(messages + deliveries));
    return STATUS_OK;
}

static enum status run_on_store(const struct dlq_command *command, const struct db_target *target,
                                struct error *error)
{
    struct db_pool *pool = NULL;
    struct db_conn *conn = NULL;
    enum status status = db_pool_create(target, &pool, error);
    if (status != STATUS_OK)
        return status;
    status = db_acquire(pool, clock_deadline_ms(BY_HAND_MS), &conn, error);
    if (status == STATUS_OK)
        status = runs[command->action](conn, command, error);
    if (status == STATUS_DB_ERROR && strcmp(db_sqlstate(conn), "42P01") == 0)
        status = error_set(error, STATUS_CONFIG, "there are no dead letters' tables: run `freshet migrate`");
    db_release(conn);
    db_pool_destroy(pool);
    return status;
}

static int run(const struct dlq_command *command)
{
    struct db_target target;
    struct error error = {0};
    struct config *config = app_config_load(command->config);
    if (!config)
        return 1;
    if (kernel_store_find(config, app_modules, &target))
        error.status = run_on_store(command, &target, &error);
    else
        error_set(&error, STATUS_CONFIG, "the configuration names no PostgreSQL");
    config_free(config);
    if (error.status != STATUS_OK) {
        fprintf(stderr, "freshet dlq %s: %s\n", actions[command->action].name, error.message);
        return 1;
    }
    return by_hand_end("dlq", 0);
}

/* ---- its arguments ---- */

static bool take_status(struct dlq_command *command)
{
    static const char *const names[][2] = {{"dead", "DEAD"},
                                           {"requeue", "REQUEUE"},
                                           {"publishing", "PUBLISHING"},
                                           {"requeued", "REQUEUED"},
                                           {"discarded", "DISCARDED"}};
    if (strcmp(command->status, "any") == 0)
        return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(command->status, names[i][0]) == 0)
            command->selection.status = str_from(names[i][1]);
    return command->selection.status.ptr != NULL;
}

/* Numbers are messages, UUIDs deliveries; where some are named, all others are not meant. */
static bool take_ids(struct dlq_command *command)
{
    db_array_begin(&command->messages);
    db_array_begin(&command->deliveries);
    for (size_t i = 0; i < command->ids.count; i++) {
        struct str id = str_from(command->ids.items[i]);
        struct uuid uuid;
        int64_t number;
        bool is_delivery = uuid_parse(id, &uuid);
        if (!is_delivery && (!str_to_i64(id, &number) || number < 1))
            return false;
        db_array_put(is_delivery ? &command->deliveries : &command->messages, id);
    }
    db_array_end(&command->messages);
    db_array_end(&command->deliveries);
    if (command->ids.count > 0) {
        command->selection.messages = buf_str(&command->messages);
        command->selection.deliveries = buf_str(&command->deliveries);
    }
    return true;
}

static bool take_kind(struct dlq_command *command)
{
    command->selection.kind = str_from(command->kind);
    return !command->kind || strcmp(command->kind, "terminated") == 0 ||
           strcmp(command->kind, "max_deliver") == 0 || strcmp(command->kind, "delivery") == 0;
}

static const char *find_mistake(struct dlq_command *command)
{
    struct notification_dlq_selection *selection = &command->selection;
    bool changes = actions[command->action].done != NULL, shows = command->action == SHOW;
    bool narrowed = command->ids.count > 0 || command->kind || command->reason || command->tenant;
    if (!take_status(command))
        return "--status is dead, requeue, publishing, requeued, discarded or any";
    if (!take_kind(command))
        return "--kind is terminated, max_deliver or delivery";
    if (!take_ids(command))
        return "an ID is a number or a UUID: `freshet dlq list` shows them";
    if (!by_hand_limit(command->limit, changes, &selection->rows_max))
        return BY_HAND_LIMIT_MISTAKE;
    selection->reason = str_from(command->reason);
    selection->tenant = str_from(command->tenant);
    if (shows && command->ids.count != 1)
        return "name one ID";
    if (changes && !narrowed && !command->all)
        return "name IDs, or --reason, --kind or --tenant, or --all";
    if (narrowed && command->all)
        return "either --all, or what to choose";
    return NULL;
}

int app_dlq(int argc, char **argv)
{
    struct dlq_command command = {.status = "dead"};
    const struct option_row rows[] = {
        APP_CONFIG_ROW(command.config),
        {"--status", "STATUS", "list: dead (default), requeue, publishing, requeued, discarded or any",
         .into = &command.status},
        {"--kind", "KIND", "only these: terminated and max_deliver are the bus's, delivery a webhook's",
         .into = &command.kind},
        {"--reason", "TEXT", "only those whose reason has this in it", .into = &command.reason},
        {"--tenant", "NAME", "only this tenant's", .into = &command.tenant},
        {"--note", "TEXT", "why, for the audit", .into = &command.note},
        BY_HAND_LIMIT_ROW(command.limit),
        {"--all", NULL, "change all dead ones", .flag = &command.all},
        {.name = NULL},
    };
    enum options_outcome outcome = by_hand_read(
        argc, argv, actions,
        "Dead letters of notification: messages of the bus that could not be handled (their ID is a number), and\n"
        "notifications that could not be delivered (a UUID). `requeue` sends them again from the start: a message goes\n"
        "back to its topic, a notification is PENDING; `discard` gives them up. Both are written to\n"
        "notification.dlq_audit.",
        rows, &command.action, &command.ids);
    if (outcome != OPTIONS_RUN)
        return outcome == OPTIONS_HELPED ? 0 : 2;
    buf_init(&command.messages), buf_init(&command.deliveries);
    const char *mistake = find_mistake(&command);
    if (mistake)
        fprintf(stderr, "freshet dlq %s: %s\n", actions[command.action].name, mistake);
    int exit_status = mistake ? 2 : run(&command);
    buf_deinit(&command.messages), buf_deinit(&command.deliveries);
    return exit_status;
}
