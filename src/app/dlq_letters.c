/* `freshet dlq` on topics and outboxes. A line is as those of notification: id=SOURCE/ID kind=… status=… tenant=… */
#include <stdio.h>
#include <string.h>

#include "app/dlq.h"
#include "app/terminal.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/uuid.h"
#include "kernel/outbox_views.h"

enum { ENGINE_MS = 20000, PAYLOAD_MAX = 1 << 20 };

static const char *clean(struct dlq_command *command, struct str text)
{
    return text.ptr ? terminal_text(text, &command->arena) : "-";
}

/* ---- lists ---- */

static void print_line(struct dlq_command *command, const char *source, const char *id, const char *kind,
                       const char *status, struct str tenant, struct str event, struct str type,
                       int64_t age_s, struct str reason)
{
    printf("id=%s/%s kind=%s status=%s tenant=%s event=%s type=%s age=%llds reason=%s\n", source, id, kind,
           status, clean(command, tenant), clean(command, event), clean(command, type), (long long)age_s,
           clean(command, reason));
    command->listed++;
}

static size_t lines_left(const struct dlq_command *command)
{
    return command->listed < (size_t)command->admin.rows_max
               ? (size_t)command->admin.rows_max - command->listed
               : 0;
}

static enum status list_topic(void *arg, const struct dead_place *place, bool is_elsewhere,
                              struct error *error)
{
    struct dlq_command *command = arg;
    struct dead_scan scan = {.place = *place,
                             .filter = {.state = command->state,
                                        .tenant = str_from(command->tenant),
                                        .reason = str_from(command->reason)},
                             .is_oldest_first = true,
                             .limit = lines_left(command),
                             .until_ns = place->deadline_ns,
                             .arena = &command->arena};
    if (scan.limit == 0)
        return STATUS_OK;
    enum status status = kernel_dead_scan(&scan, error);
    for (size_t i = 0; i < scan.count && status == STATUS_OK; i++) {
        const struct dead_item *item = &scan.items[i];
        const struct bus_message *letter = item->letter;
        char id[48], source[BUS_REASON_BYTES];
        snprintf(id, sizeof id, "%u-%lld", letter->partition, (long long)letter->offset);
        snprintf(source, sizeof source, "%s%s", place->name, is_elsewhere ? DEAD_ELSEWHERE : "");
        print_line(
            command, source, id, "topic", dead_state_name(item->state),
            dead_item_tenant(place->topic, letter), bus_message_header(letter, STR(BUS_HEADER_EVENT_ID)),
            bus_message_header(letter, STR("event_type")), (clock_unix_us() - letter->created_us) / 1000000,
            bus_message_header(letter, STR(BUS_HEADER_DEAD_REASON)));
    }
    return status;
}

static int64_t engine_deadline(const struct dlq_command *command, enum kernel_engine engine)
{
    return engine == KERNEL_ON_POSTGRES ? command->admin.deadline_ns : clock_deadline_ms(ENGINE_MS);
}

static enum status list_engine(struct dlq_command *command, enum kernel_engine engine, struct db_conn *conn,
                               struct error *error)
{
    const struct dead_walk walk = {.config = command->config,
                                   .modules = app_modules,
                                   .topics = command->topics,
                                   .topic_count = command->topic_count,
                                   .only = command->has_letter_store ? &command->letter_store : NULL,
                                   .conn = conn,
                                   .deadline_ns = engine_deadline(command, engine),
                                   .arena = &command->arena,
                                   .visit = list_topic,
                                   .arg = command};
    return kernel_dead_each(&walk, engine, error);
}

static enum status list_outbox(struct dlq_command *command, const struct outbox_table *table,
                               struct db_conn *conn, struct error *error)
{
    struct db_result *rows = NULL;
    const struct outbox_selection selection = {.tenant = str_from(command->tenant),
                                               .error = str_from(command->reason),
                                               .rows_max = (int64_t)lines_left(command)};
    struct admin *admin = &command->admin;
    enum status status =
        outbox_list(conn, table, OUTBOX_FAILED, &selection, admin->deadline_ns, &rows, error);
    for (size_t i = 0; status == STATUS_OK && i < db_result_rows(rows); i++)
        print_line(command, table->name, admin_text(admin, rows, i, 0, ""), "outbox", "open", STR_NONE,
                   STR_NONE, db_result_str(rows, i, 3), db_result_i64(rows, i, 6),
                   db_result_is_null(rows, i, 7) ? STR_NONE : db_result_str(rows, i, 7));
    db_result_free(rows);
    /* a database that was not migrated for the module has no such table */
    if (status == STATUS_DB_ERROR && !command->has_letter_store && strcmp(db_sqlstate(conn), "42P01") == 0)
        status = STATUS_OK;
    return status;
}

static enum status list_outboxes(struct dlq_command *command, struct db_conn *conn, struct error *error)
{
    const struct dead_letter_store *only = command->has_letter_store ? &command->letter_store : NULL;
    bool is_store = !command->admin.target->module;
    enum status status = STATUS_OK;
    if (command->state != DEAD_OPEN && command->state != DEAD_ANY)
        return STATUS_OK;
    for (const struct module *const *module = app_modules; *module && status == STATUS_OK; module++)
        for (const struct outbox_table *const *at = (*module)->outboxes; at && *at && status == STATUS_OK;
             at++)
            if ((*module)->keeps_store == is_store && lines_left(command) > 0 &&
                (!only || only->outbox == *at))
                status = list_outbox(command, *at, conn, error);
    return status;
}

enum status dlq_letters_list(struct dlq_command *command, struct db_conn *conn, struct error *error)
{
    const struct admin_target *target = command->admin.target;
    const struct db_server *own = db_server_find(&command->servers, &target->target);
    bool is_twin = false; /* a target before this one names the same database */
    for (const struct admin_target *at = command->admin.targets; at < target; at++)
        is_twin |= own && db_server_find(&command->servers, &at->target) == own;
    enum status status = is_twin ? STATUS_OK : list_engine(command, KERNEL_ON_POSTGRES, conn, error);
    if (status == STATUS_OK)
        status = list_outboxes(command, conn, error);
    if (status == STATUS_OK && !target->module)
        status = list_engine(command, KERNEL_ON_NATS, conn, error);
    if (status == STATUS_OK && target->module && command->kafka_database &&
        strcmp(target->target.name, command->kafka_database) == 0)
        status = list_engine(command, KERNEL_ON_KAFKA, conn, error);
    return admin_explain(conn, status, error);
}

/* ---- IDs ---- */

bool dlq_letters_take_ids(struct dlq_command *command)
{
    const struct dead_letter_store *letter_store = &command->letter_store;
    bool is_uuid = letter_store->kind == DEAD_OF_OUTBOX && strcmp(letter_store->outbox->id.type, "uuid") == 0;
    command->places = arena_alloc(&command->arena, (command->admin.ids.count + 1) * sizeof *command->places);
    for (size_t i = 0; i < command->admin.ids.count; i++) {
        const char *given = command->admin.ids.items[i], *slash = strrchr(given, '/');
        struct str id = str_from(slash ? slash + 1 : given);
        struct uuid uuid;
        int64_t number;
        bool is_good = letter_store->kind == DEAD_OF_TOPIC ? dead_id_read(id, &command->places[i])
                       : is_uuid                           ? uuid_parse(id, &uuid)
                                                           : str_to_i64(id, &number);
        if (!is_good)
            return false;
        db_array_put(&command->outbox_ids, id);
    }
    command->id_count = command->admin.ids.count;
    return true;
}

/* ---- one ---- */

static enum status open_place(struct dlq_command *command, struct db_conn *conn, struct dead_place *place,
                              struct error *error)
{
    const struct kernel_dead_topic *topic = &command->letter_store.topic;
    int64_t deadline_ns = engine_deadline(command, topic->engine);
    *place = (struct dead_place){NULL, conn, topic, command->letter_store.name, deadline_ns};
    return kernel_dead_open(command->config, app_modules, topic->engine, conn, deadline_ns, &place->dead,
                            error);
}

static void show_item(struct dlq_command *command, const struct dead_item *item)
{
    const struct bus_message *letter = item->letter;
    char at[CLOCK_RFC3339_BYTES];
    clock_rfc3339(letter->created_us, at);
    printf("id: %s/%u-%lld\nkind: topic\nstatus: %s\ntopic: %s\nat: %s\nbytes: %zu\n",
           command->letter_store.name, letter->partition, (long long)letter->offset,
           dead_state_name(item->state), command->letter_store.topic.topic, at, item->bytes);
    printf("tenant_id: %s\nkey: %s\n", clean(command, dead_item_tenant(&command->letter_store.topic, letter)),
           clean(command, letter->key));
    if (item->decided_by.ptr)
        printf("decided_by: %s\ndecided_at: %s\nnote: %s\n", clean(command, item->decided_by),
               clean(command, item->decided_at), clean(command, item->decided_why));
    for (unsigned i = 0; i < letter->header_count; i++)
        printf("header %s: %s\n", clean(command, letter->headers[i].name),
               clean(command, letter->headers[i].value));
    printf("payload: %s\n", clean(command, letter->payload));
}

static enum status show_topic(struct dlq_command *command, struct db_conn *conn, struct error *error)
{
    struct dead_place place;
    struct dead_item *items;
    size_t count = 0;
    enum status status = open_place(command, conn, &place, error);
    if (status == STATUS_OK)
        status = kernel_dead_get(&place, &(struct dead_filter){.state = DEAD_ANY}, command->places, 1,
                                 PAYLOAD_MAX, &command->arena, &items, &count, error);
    if (status == STATUS_OK && count == 1)
        show_item(command, items);
    bus_dead_close(place.dead);
    if (status == STATUS_OK && count == 0)
        return error_set(error, STATUS_NOT_FOUND, "there is no dead letter %s", command->admin.ids.items[0]);
    return status;
}

static enum status show_outbox(struct dlq_command *command, struct db_conn *conn, struct error *error)
{
    const struct ops_view *view = kernel_outbox_dead_one(command->letter_store.outbox, &command->arena);
    const char *slash = strrchr(command->admin.ids.items[0], '/');
    struct ops_question question = {.limit = 1};
    struct ops_answer answer;
    question.values[0] = str_from(slash ? slash + 1 : command->admin.ids.items[0]);
    enum status status = kernel_ops_list(conn, view, &question, command->admin.deadline_ns, &answer, error);
    size_t count = status == STATUS_OK ? db_result_rows(answer.rows) : 0;
    unsigned at = 0;
    for (const struct ops_column *column = view->columns; count && column->name; column++, at++)
        if (!db_result_is_null(answer.rows, 0, at))
            printf("%s: %s\n", column->name, clean(command, db_result_str(answer.rows, 0, at)));
    if (status == STATUS_OK)
        kernel_ops_answer_free(&answer);
    if (status == STATUS_OK && count == 0)
        return error_set(error, STATUS_NOT_FOUND, "there is no dead letter %s", command->admin.ids.items[0]);
    return status;
}

enum status dlq_letters_show(struct dlq_command *command, struct db_conn *conn, struct error *error)
{
    enum status status =
        (command->letter_store.kind == DEAD_OF_TOPIC ? show_topic : show_outbox)(command, conn, error);
    return admin_explain(conn, status, error);
}

/* ---- changes ---- */

static enum status audit_change(struct dlq_command *command, struct db_conn *conn, bool requeues,
                                int64_t count, struct error *error)
{
    const struct admin_filter filter[] = {
        {"reason", command->reason}, {"tenant", command->tenant}, {NULL, NULL}};
    return admin_audit(&command->admin, conn, requeues ? "dead_letter.requeue" : "dead_letter.discard",
                       command->letter_store.name, filter, count, error);
}

/* One transaction: at most DEAD_CHANGE_MAX letters of a filter. */
static enum status change_some(struct dlq_command *command, struct dead_change *change, struct error *error)
{
    struct admin *admin = &command->admin;
    struct db_conn *conn = change->place.conn;
    enum status status = db_begin(conn, DB_READ_COMMITTED, admin->deadline_ns, error);
    if (status == STATUS_OK)
        status = kernel_dead_change(change, error);
    if (status == STATUS_OK && !admin->is_dry_run && change->changed > 0)
        status = audit_change(command, conn, change->requeues, change->changed, error);
    if (status == STATUS_OK && !admin->is_dry_run)
        status = db_commit(conn, admin->deadline_ns, error);
    else
        db_rollback(conn);
    if (status == STATUS_OK && change->requeues && !admin->is_dry_run)
        bus_dead_wake(change->place.dead, str_from(command->letter_store.topic.topic), admin->deadline_ns);
    return status;
}

static enum status change_topic(struct dlq_command *command, struct db_conn *conn, int64_t *count,
                                int64_t *without_content, struct error *error)
{
    const struct kernel_bus_settings *bus = config_section(command->config, "bus");
    struct admin *admin = &command->admin;
    bool is_over = false;
    enum status status = STATUS_OK;
    int64_t begun_us = clock_unix_us(); /* a letter that dies again meanwhile is not sent again and again */
    while (status == STATUS_OK && !is_over) {
        struct dead_change change = {.requeues = admin->action->change == NOTIFICATION_DLQ_REQUEUE,
                                     .is_dry_run = admin->is_dry_run,
                                     .ids = command->id_count ? command->places : NULL,
                                     .id_count = command->id_count,
                                     .letters_max = admin->rows_max - *count,
                                     .filter = {.tenant = str_from(command->tenant),
                                                .reason = str_from(command->reason),
                                                .to_us = command->id_count ? 0 : begun_us},
                                     .who = arena_printf(&command->arena, "cli:%s", admin_user(admin)),
                                     .why = str_from(admin->note ? admin->note : ""),
                                     .keep_ms = bus->keep_dead_ms,
                                     .arena = &command->arena};
        admin->deadline_ns = clock_deadline_ms(ENGINE_MS);
        status = open_place(command, conn, &change.place, error);
        if (status == STATUS_OK)
            status = change_some(command, &change, error);
        bus_dead_close(change.place.dead);
        *count += admin->is_dry_run ? change.matched : change.changed;
        *without_content = change.without_content;
        is_over = !change.has_more || admin->is_dry_run || change.changed == 0 || *count >= admin->rows_max;
        if (admin->is_dry_run && change.has_more)
            (void)app_fail(admin->name, "these are the first %lld; there are more",
                           (long long)change.matched);
    }
    return status;
}

static enum status change_outbox(struct dlq_command *command, struct db_conn *conn, int64_t *count,
                                 struct error *error)
{
    struct admin *admin = &command->admin;
    bool requeues = admin->action->change == NOTIFICATION_DLQ_REQUEUE;
    const struct outbox_selection selection = {.ids = command->id_count ? db_array_end(&command->outbox_ids)
                                                                        : STR_NONE,
                                               .error = str_from(command->reason),
                                               .tenant = str_from(command->tenant),
                                               .is_narrow = true,
                                               .rows_max = admin->rows_max};
    enum status status = db_begin(conn, DB_READ_COMMITTED, admin->deadline_ns, error);
    if (status == STATUS_OK)
        status = (admin->is_dry_run ? outbox_change_count : outbox_change)(
            conn, command->letter_store.outbox, requeues ? OUTBOX_CHANGE_RETRY : OUTBOX_CHANGE_DISCARD,
            &selection, admin->deadline_ns, count, error);
    if (status == STATUS_OK && !admin->is_dry_run)
        status = audit_change(command, conn, requeues, *count, error);
    if (status == STATUS_OK && !admin->is_dry_run)
        return db_commit(conn, admin->deadline_ns, error);
    db_rollback(conn);
    return status;
}

enum status dlq_letters_change(struct dlq_command *command, struct db_conn *conn, struct error *error)
{
    struct admin *admin = &command->admin;
    int64_t count = 0, without_content = 0;
    enum status status = command->letter_store.kind == DEAD_OF_TOPIC
                             ? change_topic(command, conn, &count, &without_content, error)
                             : change_outbox(command, conn, &count, error);
    if (status != STATUS_OK)
        return admin_explain(conn, status, error);
    if (!admin->is_dry_run)
        log_info("dlq_changed_by_hand", LOG_CSTR("action", admin->action->name),
                 LOG_CSTR("source", command->letter_store.name), LOG_INT("letters", count),
                 LOG_CSTR("user", admin_user(admin)));
    printf("%s: %lld %s%s\n", command->letter_store.name, (long long)count,
           admin->is_dry_run ? "would be " : "", admin->action->done);
    if (without_content > 0)
        (void)app_fail(admin->name, "%lld of them cannot be sent again: their content was not kept",
                       (long long)without_content);
    if (count < (int64_t)admin->ids.count)
        return error_set(error, STATUS_NOT_FOUND,
                         "%lld of those named are not dead letters, or were requeued or discarded before",
                         (long long)admin->ids.count - (long long)count);
    return STATUS_OK;
}
