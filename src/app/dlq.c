/* `freshet dlq`: dead letters of every topic, of notification and of outboxes, and what an operator does about them (N2). Those of
 * notification are messages that could not be handled and notifications that could not be delivered; a process with the role notification
 * sends them again. Every change has its row in platform.ops_audit, those of notification in notification.dlq_audit too. */
#include "app/dlq.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/uuid.h"
#include "kernel/store.h"

static struct dlq_command *command_of(struct admin *admin)
{
    return CONTAINER_OF(admin, struct dlq_command, admin);
}

/* ---- notification ---- */

static enum status list_notification(struct dlq_command *command, struct db_conn *conn, struct error *error)
{
    enum { COLUMNS = 9 };
    static const char *const names[COLUMNS] = {"id",   "kind",       "status", "tenant", "event",
                                               "type", "deliveries", "age",    "reason"};
    struct admin *admin = &command->admin;
    struct db_result *rows = NULL;
    enum status status = notification_dlq_list(conn, &command->selection, admin->deadline_ns, &rows, error);
    size_t count = status == STATUS_OK ? db_result_rows(rows) : 0;
    for (size_t i = 0; i < count; i++)
        for (unsigned column = 0; column < COLUMNS; column++)
            printf("%s=%s%s", names[column], admin_text(admin, rows, i, column, "-"),
                   column == COLUMNS - 1 ? "\n" : " ");
    command->listed += count;
    db_result_free(rows);
    return status;
}

/* Messages and deliveries, in one transaction with their audit. */
static enum status change_both(struct dlq_command *command, struct db_conn *conn, int64_t *messages,
                               int64_t *deliveries, struct error *error)
{
    struct admin *admin = &command->admin;
    enum notification_dlq_action action = (enum notification_dlq_action)admin->action->change;
    struct str who = str_from(admin_user(admin)), note = str_from(admin->note ? admin->note : "");
    int64_t *const counts[] = {messages, deliveries};
    enum status status = db_begin(conn, DB_READ_COMMITTED, admin->deadline_ns, error);
    for (int of_deliveries = 0; of_deliveries < 2 && status == STATUS_OK; of_deliveries++)
        status = admin->is_dry_run
                     ? notification_dlq_count(conn, of_deliveries, &command->selection, admin->deadline_ns,
                                              counts[of_deliveries], error)
                     : notification_dlq_change_in_tx(conn, action, of_deliveries, &command->selection, who,
                                                     note, admin->deadline_ns, counts[of_deliveries], error);
    bool is_changed = status == STATUS_OK && !admin->is_dry_run;
    const struct admin_filter filter[] = {
        {"kind", command->kind}, {"reason", command->reason}, {"tenant", command->tenant}, {NULL, NULL}};
    if (is_changed && *messages + *deliveries > 0)
        status = admin_audit(
            admin, conn, action == NOTIFICATION_DLQ_REQUEUE ? "dead_letter.requeue" : "dead_letter.discard",
            "notification", filter, *messages + *deliveries, error);
    if (is_changed && status == STATUS_OK)
        return db_commit(conn, admin->deadline_ns, error);
    db_rollback(conn);
    return status;
}

static enum status change_notification(struct admin *admin, struct db_conn *conn, struct error *error)
{
    struct dlq_command *command = command_of(admin);
    int64_t messages = 0, deliveries = 0;
    enum status status = change_both(command, conn, &messages, &deliveries, error);
    if (status != STATUS_OK)
        return admin_explain(conn, status, error);
    if (!admin->is_dry_run)
        log_info("dlq_changed_by_hand", LOG_CSTR("action", admin->action->name),
                 LOG_INT("messages", messages), LOG_INT("deliveries", deliveries),
                 LOG_CSTR("user", admin_user(admin)));
    printf("%lld messages and %lld deliveries: %s%s\n", (long long)messages, (long long)deliveries,
           admin->is_dry_run ? "would be " : "", admin->action->done);
    if (messages + deliveries < (int64_t)admin->ids.count)
        return error_set(error, STATUS_NOT_FOUND,
                         "%lld of those named are not dead letters, or were requeued or discarded before",
                         (long long)admin->ids.count - (long long)(messages + deliveries));
    return STATUS_OK;
}

/* ---- one database ---- */

static bool is_of_notification(const struct dlq_command *command)
{
    return !command->has_letter_store || command->letter_store.kind == DEAD_OF_TABLE;
}

static enum status list_letters(struct admin *admin, struct db_conn *conn, struct error *error)
{
    struct dlq_command *command = command_of(admin);
    bool is_store = !admin->target->module,
         is_last = admin->target == admin->targets + admin->target_count - 1;
    enum status status = STATUS_OK;
    if (is_store && is_of_notification(command))
        status = list_notification(command, conn, error);
    status = admin_explain(conn, status, error);
    /* kinds and the words of a requeue are notification's */
    if (status == STATUS_OK && !command->kind && command->state <= DEAD_ANY &&
        (!command->has_letter_store || command->letter_store.kind != DEAD_OF_TABLE))
        status = dlq_letters_list(command, conn, error);
    if (status == STATUS_OK && is_last)
        admin_note_limit(admin, command->listed);
    if (status == STATUS_OK && is_last && command->listed == 0)
        (void)app_fail(admin->name, "there are no such dead letters");
    return status;
}

static enum status show_letter(struct admin *admin, struct db_conn *conn, struct error *error)
{
    struct dlq_command *command = command_of(admin);
    struct db_result *rows = NULL;
    const char *id = admin->ids.items[0];
    if (!is_of_notification(command))
        return dlq_letters_show(command, conn, error);
    enum status status = notification_dlq_show(conn, str_from(id), admin->deadline_ns, &rows, error);
    size_t count = status == STATUS_OK ? db_result_rows(rows) : 0;
    for (size_t i = 0; i < count; i++)
        printf("%s: %s\n", admin_text(admin, rows, i, 0, "-"), admin_text(admin, rows, i, 1, "-"));
    db_result_free(rows);
    if (status == STATUS_OK && count == 0)
        return error_set(error, STATUS_NOT_FOUND, "there is no dead letter %s", id);
    return admin_explain(conn, status, error);
}

static enum status change_letters(struct admin *admin, struct db_conn *conn, struct error *error)
{
    struct dlq_command *command = command_of(admin);
    return is_of_notification(command) ? change_notification(admin, conn, error)
                                       : dlq_letters_change(command, conn, error);
}

static void add_database(const struct db_target *target, const struct module *module, void *arg)
{
    struct dlq_command *command = arg;
    bool is_topic = command->has_letter_store && command->letter_store.kind == DEAD_OF_TOPIC;
    bool is_kafka = is_topic && command->letter_store.topic.engine == KERNEL_ON_KAFKA;
    if (!command->kafka_database)
        command->kafka_database = arena_str(&command->arena, str_from(target->name)).ptr;
    if (is_kafka && strcmp(command->kafka_database, target->name) != 0)
        return;
    admin_add_target(&command->admin, target, module);
}

/* Which databases the call is about: those of its source, or all. */
static void find_dlq_targets(struct admin *admin, struct config *config)
{
    struct dlq_command *command = command_of(admin);
    const struct dead_letter_store *letter_store = &command->letter_store;
    struct db_target store;
    command->config = config;
    kernel_dead_topics(config, app_modules, &command->arena, &command->topics, &command->topic_count);
    bool is_topic = command->has_letter_store && letter_store->kind == DEAD_OF_TOPIC;
    if (is_topic) { /* its engine is the configuration's to say */
        struct str name = arena_str(&command->arena, str_from(command->source_name));
        (void)kernel_dead_letter_store(config, app_modules, name, &command->arena, &command->letter_store);
    }
    bool changes = strcmp(admin->action->name, "list") != 0;
    bool of_store = is_of_notification(command) ||
                    (is_topic && letter_store->topic.engine != KERNEL_ON_KAFKA) ||
                    (letter_store->kind == DEAD_OF_OUTBOX && letter_store->module->keeps_store);
    bool of_databases = (!command->has_letter_store && !changes) ||
                        (is_topic && letter_store->topic.engine != KERNEL_ON_NATS) ||
                        (command->has_letter_store && letter_store->kind == DEAD_OF_OUTBOX &&
                         !letter_store->module->keeps_store);
    if (of_store && kernel_store_find(config, app_modules, &store))
        admin_add_target(admin, &store, NULL);
    if (of_databases)
        kernel_each_database(config, app_modules, add_database, command);
    /* a database that two names stand for is one: the last name stays, which is refdata's */
    for (size_t i = 0; is_topic && i + 1 < admin->target_count;) {
        const struct db_server *own = db_server_find(&command->servers, &admin->targets[i].target);
        bool is_twin = false;
        for (size_t later = i + 1; later < admin->target_count; later++)
            is_twin |= own && db_server_find(&command->servers, &admin->targets[later].target) == own;
        if (is_twin)
            memmove(admin->targets + i, admin->targets + i + 1,
                    (--admin->target_count - i) * sizeof *admin->targets);
        else
            i++;
    }
}

/* ---- the call ---- */

/* IDs as SOURCE/ID, all of one source; or --source. */
static const char *take_source(struct dlq_command *command)
{
    struct admin *admin = &command->admin;
    for (size_t i = 0; i < admin->ids.count; i++) {
        const char *slash = strrchr(admin->ids.items[i], '/');
        struct str name =
            slash ? str_of(admin->ids.items[i], (size_t)(slash - admin->ids.items[i])) : STR_NONE;
        if (slash && !command->source_name)
            command->source_name = arena_str(&command->arena, name).ptr;
        if ((slash || command->source_name) &&
            (!command->source_name || (slash && !str_eq(name, str_from(command->source_name))) ||
             (!slash && i > 0 && strrchr(admin->ids.items[0], '/'))))
            return "IDs of one source at a time";
    }
    if (!command->source_name)
        return NULL;
    command->has_letter_store = true;
    /* without the configuration: which engine has a topic is found later */
    struct str name = str_from(command->source_name);
    return kernel_dead_letter_store(NULL, app_modules, name, &command->arena, &command->letter_store)
               ? NULL
               : "there is no such source: a topic's dead letters are TOPIC.dlq, a table is named as in the list";
}

static const char *take_ids(struct dlq_command *command)
{
    struct admin *admin = &command->admin;
    struct notification_dlq_selection *selection = &command->selection;
    if (command->has_letter_store && command->letter_store.kind != DEAD_OF_TABLE)
        return dlq_letters_take_ids(command) ? NULL : "an ID is as `freshet dlq list` shows it: SOURCE/ID";
    for (size_t i = 0; i < admin->ids.count; i++) { /* numbers are messages, UUIDs deliveries */
        const char *slash = strrchr(admin->ids.items[i], '/');
        struct str id = str_from(slash ? slash + 1 : admin->ids.items[i]);
        struct uuid uuid;
        int64_t number;
        bool is_delivery = uuid_parse(id, &uuid);
        if (!is_delivery && (!str_to_i64(id, &number) || number < 1))
            return "an ID is a number, a UUID or SOURCE/ID: `freshet dlq list` shows them";
        db_array_put(is_delivery ? &command->deliveries : &command->messages, id);
    }
    if (admin->ids.count > 0) {
        selection->messages = db_array_end(&command->messages);
        selection->deliveries = db_array_end(&command->deliveries);
    }
    return NULL;
}

/* The words of notification's tables, and those of topics. */
static const char *take_status(struct dlq_command *command)
{
    static const struct {
        const char *name, *status;
        enum dead_state state; /* DEAD_ANY + 1: topics know no such state */
    } words[] = {{"dead", "DEAD", DEAD_OPEN},
                 {"open", "DEAD", DEAD_OPEN},
                 {"requeue", "REQUEUE", DEAD_ANY + 1},
                 {"publishing", "PUBLISHING", DEAD_ANY + 1},
                 {"requeued", "REQUEUED", DEAD_REQUEUED},
                 {"discarded", "DISCARDED", DEAD_DISCARDED},
                 {"any", NULL, DEAD_ANY}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcasecmp(command->status, words[i].name) == 0) {
            command->selection.status = str_from(words[i].status);
            command->state = words[i].state;
            return NULL;
        }
    return "--status must be open (or dead), requeue, publishing, requeued, discarded or any";
}

static const char *check_dlq(struct admin *admin)
{
    static const char *const kinds[] = {"terminated", "max_deliver", "delivery", NULL};
    struct dlq_command *command = command_of(admin);
    struct notification_dlq_selection *selection = &command->selection;
    const char *mistake = take_status(command);
    const char *const *kind = kinds;
    while (command->kind && *kind && strcmp(command->kind, *kind) != 0)
        kind++;
    if (!mistake && !*kind)
        mistake = "--kind must be terminated, max_deliver or delivery";
    if (!mistake)
        mistake = take_source(command);
    if (!mistake)
        mistake = take_ids(command);
    if (!mistake && strcmp(admin->action->name, "show") == 0 && admin->ids.count != 1)
        mistake = "give one ID";
    selection->rows_max = admin->rows_max;
    selection->kind = str_from(command->kind);
    selection->reason = str_from(command->reason);
    selection->tenant = str_from(command->tenant);
    admin->is_narrowed = admin->ids.count > 0 || command->kind || command->reason || command->tenant;
    return mistake;
}

int app_dlq(int argc, char **argv)
{
    struct dlq_command command = {.status = "open", .arena = ARENA(16384)};
    static const struct admin_action actions[] = {
        {.name = "list", .run = list_letters},
        {.name = "show", .run = show_letter},
        {"requeue", "sent again", change_letters, NOTIFICATION_DLQ_REQUEUE},
        {"discard", "discarded", change_letters, NOTIFICATION_DLQ_DISCARD},
        {.name = NULL},
    };
    const struct option_row rows[] = {
        {"--source", "NAME", "only this source: a topic's dead letters (refdata.commands.dlq) or a table",
         .into = &command.source_name},
        {"--database", "NAME",
         "only this postgres block, or `store`; required for changes of a topic in several",
         .into = &command.admin.only_database},
        {"--status", "STATUS",
         "list: open (default; also dead), requeue, publishing, requeued, discarded or any",
         .into = &command.status, .choices = "open dead requeue publishing requeued discarded any"},
        {"--kind", "KIND",
         "only these of notification: terminated and max_deliver are messages, delivery is a webhook call",
         .into = &command.kind, .choices = "terminated max_deliver delivery"},
        {"--reason", "TEXT", "only those whose reason contains this text", .into = &command.reason},
        {"--tenant", "NAME", "only those of this tenant", .into = &command.tenant},
        ADMIN_ROWS(command.admin),
    };
    int exit_status = admin_main(
        argc, argv, &command.admin,
        &(struct admin_command){
            .name = "dlq",
            .summary =
                "Dead letters of every topic (their ID is SOURCE/PARTITION-OFFSET), failed events of outboxes (TABLE/ID), and\n"
                "those of notification: messages that could not be handled (a number) and notifications that could not be\n"
                "delivered (a UUID). `requeue` sends them again from the start: a message returns to its topic, a notification\n"
                "becomes PENDING. `discard` drops them. Without --source, changes that name no IDs are of notification's. Every\n"
                "change is written to platform.ops_audit.",
            .actions = actions,
            .rows = rows,
            .choose = "IDs, --reason, --kind, --tenant, or --all",
            .check = check_dlq,
            .find_targets = find_dlq_targets,
        });
    db_servers_destroy(command.servers);
    buf_deinit(&command.messages);
    buf_deinit(&command.deliveries);
    buf_deinit(&command.outbox_ids);
    arena_deinit(&command.arena);
    return exit_status;
}
