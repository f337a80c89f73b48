/* `freshet dlq`: dead letters of notification, messages that could not be handled and notifications that could not be delivered,
 * and what an operator does about them (N2). A process with the role notification sends again what is requeued. Every change
 * has its row in notification.dlq_audit. */
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "app/admin.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/uuid.h"
#include "kernel/store.h"
#include "modules/notification/dlq.h"

struct dlq_command {
    struct admin admin;
    const char *status, *kind, *reason, *tenant, *note;
    struct notification_dlq_selection selection;
    struct buf messages, deliveries;
};

static struct dlq_command *command_of(struct admin *admin)
{
    return CONTAINER_OF(admin, struct dlq_command, admin);
}

static enum status explain(struct db_conn *conn, enum status status, struct error *error)
{
    if (status == STATUS_DB_ERROR && strcmp(db_sqlstate(conn), "42P01") == 0)
        return error_set(error, STATUS_CONFIG,
                         "the tables of dead letters are missing: run `freshet migrate`");
    return status;
}

static enum status list_letters(struct admin *admin, struct db_conn *conn, struct error *error)
{
    enum { COLUMNS = 9 };
    static const char *const names[COLUMNS] = {"id",   "kind",       "status", "tenant", "event",
                                               "type", "deliveries", "age",    "reason"};
    struct db_result *rows = NULL;
    enum status status =
        notification_dlq_list(conn, &command_of(admin)->selection, admin->deadline_ns, &rows, error);
    size_t count = status == STATUS_OK ? db_result_rows(rows) : 0;
    for (size_t i = 0; i < count; i++)
        for (unsigned column = 0; column < COLUMNS; column++)
            printf("%s=%s%s", names[column], admin_text(admin, rows, i, column, "-"),
                   column == COLUMNS - 1 ? "\n" : " ");
    if (status == STATUS_OK)
        admin_note_limit(admin, count);
    db_result_free(rows);
    return explain(conn, status, error);
}

static enum status show_letter(struct admin *admin, struct db_conn *conn, struct error *error)
{
    struct db_result *rows = NULL;
    const char *id = admin->ids.items[0];
    enum status status = notification_dlq_show(conn, str_from(id), admin->deadline_ns, &rows, error);
    size_t count = status == STATUS_OK ? db_result_rows(rows) : 0;
    for (size_t i = 0; i < count; i++)
        printf("%s: %s\n", admin_text(admin, rows, i, 0, "-"), admin_text(admin, rows, i, 1, "-"));
    db_result_free(rows);
    if (status == STATUS_OK && count == 0)
        return error_set(error, STATUS_NOT_FOUND, "there is no dead letter %s", id);
    return explain(conn, status, error);
}

static enum status change_letters(struct admin *admin, struct db_conn *conn, struct error *error)
{
    const struct dlq_command *command = command_of(admin);
    char actor[512], memory[4096], host[128] = "";
    struct passwd entry, *found = NULL; /* the user as the system knows it; $USER may be anything */
    int64_t messages = 0, deliveries = 0;
    (void)!gethostname(host, sizeof host - 1);
    if (getpwuid_r(getuid(), &entry, memory, sizeof memory, &found) == 0 && found)
        snprintf(actor, sizeof actor, "%s@%s", found->pw_name, host);
    else
        snprintf(actor, sizeof actor, "uid %u@%s", (unsigned)getuid(), host);
    enum status status = notification_dlq_change(
        conn, (enum notification_dlq_action)admin->action->change, &command->selection, str_from(actor),
        str_from(command->note ? command->note : ""), admin->deadline_ns, &messages, &deliveries, error);
    if (status != STATUS_OK)
        return explain(conn, status, error);
    log_info("dlq_changed_by_hand", LOG_CSTR("action", admin->action->name), LOG_INT("messages", messages),
             LOG_INT("deliveries", deliveries), LOG_CSTR("user", actor));
    printf("%lld messages and %lld deliveries: %s\n", (long long)messages, (long long)deliveries,
           admin->action->done);
    if (messages + deliveries < (int64_t)admin->ids.count)
        return error_set(error, STATUS_NOT_FOUND,
                         "%lld of those named are not dead letters, or were requeued or discarded before",
                         (long long)admin->ids.count - (long long)(messages + deliveries));
    return STATUS_OK;
}

static void find_dlq_targets(struct admin *admin, struct config *config)
{
    struct db_target store;
    if (kernel_store_find(config, app_modules, &store))
        admin_add_target(admin, &store, NULL);
}

/* ---- the call ---- */

static const char *check_dlq(struct admin *admin)
{
    static const char *const statuses[] = {"DEAD", "REQUEUE", "PUBLISHING", "REQUEUED", "DISCARDED", NULL};
    static const char *const kinds[] = {"terminated", "max_deliver", "delivery", NULL};
    struct dlq_command *command = command_of(admin);
    struct notification_dlq_selection *selection = &command->selection;
    for (const char *const *name = statuses; *name; name++)
        if (strcasecmp(command->status, *name) == 0)
            selection->status = str_from(*name);
    if (!selection->status.ptr && strcmp(command->status, "any") != 0)
        return "--status must be dead, requeue, publishing, requeued, discarded or any";
    const char *const *kind = kinds;
    while (command->kind && *kind && strcmp(command->kind, *kind) != 0)
        kind++;
    if (!*kind)
        return "--kind must be terminated, max_deliver or delivery";
    for (size_t i = 0; i < admin->ids.count; i++) { /* numbers are messages, UUIDs deliveries */
        struct str id = str_from(admin->ids.items[i]);
        struct uuid uuid;
        int64_t number;
        bool is_delivery = uuid_parse(id, &uuid);
        if (!is_delivery && (!str_to_i64(id, &number) || number < 1))
            return "an ID is a number or a UUID: `freshet dlq list` shows them";
        db_array_put(is_delivery ? &command->deliveries : &command->messages, id);
    }
    if (admin->ids.count > 0) {
        selection->messages = db_array_end(&command->messages);
        selection->deliveries = db_array_end(&command->deliveries);
    }
    if (strcmp(admin->action->name, "show") == 0 && admin->ids.count != 1)
        return "give one ID";
    selection->rows_max = admin->rows_max;
    selection->kind = str_from(command->kind);
    selection->reason = str_from(command->reason);
    selection->tenant = str_from(command->tenant);
    admin->is_narrowed = admin->ids.count > 0 || command->kind || command->reason || command->tenant;
    return NULL;
}

int app_dlq(int argc, char **argv)
{
    struct dlq_command command = {.status = "dead"};
    static const struct admin_action actions[] = {
        {.name = "list", .run = list_letters},
        {.name = "show", .run = show_letter},
        {"requeue", "sent again", change_letters, NOTIFICATION_DLQ_REQUEUE},
        {"discard", "discarded", change_letters, NOTIFICATION_DLQ_DISCARD},
        {.name = NULL},
    };
    const struct option_row rows[] = {
        {"--status", "STATUS", "list: dead (default), requeue, publishing, requeued, discarded or any",
         .into = &command.status, .choices = "dead requeue publishing requeued discarded any"},
        {"--kind", "KIND", "only these: terminated and max_deliver are messages, delivery is a webhook call",
         .into = &command.kind, .choices = "terminated max_deliver delivery"},
        {"--reason", "TEXT", "only those whose reason contains this text", .into = &command.reason},
        {"--tenant", "NAME", "only those of this tenant", .into = &command.tenant},
        {"--note", "TEXT", "a reason for the change, for the audit", .into = &command.note},
        ADMIN_ROWS(command.admin),
    };
    int exit_status = admin_main(
        argc, argv, &command.admin,
        &(struct admin_command){
            .name = "dlq",
            .summary =
                "Dead letters of notification: messages of the bus that could not be handled (their ID is a number), and\n"
                "notifications that could not be delivered (a UUID). `requeue` sends them again from the start: a message\n"
                "returns to its topic, a notification becomes PENDING. `discard` drops them. Both are written to\n"
                "notification.dlq_audit.",
            .actions = actions,
            .rows = rows,
            .choose = "IDs, --reason, --kind, --tenant, or --all",
            .check = check_dlq,
            .find_targets = find_dlq_targets,
        });
    buf_deinit(&command.messages);
    buf_deinit(&command.deliveries);
    return exit_status;
}
