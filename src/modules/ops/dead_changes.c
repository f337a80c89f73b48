/* POST /v1/ops/dead-letters/{source}/requeue and /discard. */
#include "base/uuid.h"
#include "modules/ops/dead_letters.h"

enum { CHANGE_MS = 8000, TABLE_ROWS_MAX = 100000 };

struct dead_work {
    struct ops *ops;
    struct dead_letter_store letter_store;
    bool requeues;
    struct arena *arena;
    /* of a topic */
    struct dead_filter filter;
    struct dead_position *ids;
    size_t id_count;
    /* of a table */
    struct dead_choice choice;
    struct buf ids_text;
};

/* ---- what is chosen ---- */

static enum status refuse_id(struct error *error, const char *expected)
{
    return error_set_field(error, STATUS_BAD_REQUEST, "ids", "ids of this source are %s", expected);
}

static enum status read_id(struct dead_work *work, struct str id, struct error *error)
{
    struct uuid uuid;
    int64_t number;
    if (work->letter_store.kind == DEAD_OF_TOPIC)
        return dead_id_read(id, &work->ids[work->id_count++])
                   ? STATUS_OK
                   : refuse_id(error, "as 3-120: partition and offset");
    bool is_uuid = work->letter_store.kind == DEAD_OF_TABLE
                       ? work->letter_store.table->is_uuid
                       : strcmp(work->letter_store.outbox->id.type, "uuid") == 0;
    if (is_uuid ? !uuid_parse(id, &uuid) : !str_to_i64(id, &number))
        return refuse_id(error, is_uuid ? "UUIDs" : "numbers");
    db_array_put(&work->ids_text, id);
    return STATUS_OK;
}

static enum status read_ids(struct dead_work *work, const struct json_value *ids, struct error *error)
{
    struct json_iter it;
    struct json_value id;
    enum status status = STATUS_OK;
    work->ids = arena_alloc(work->arena, (DEAD_IDS_MAX + 1) * sizeof *work->ids);
    json_iter_init(&it, ids);
    while (status == STATUS_OK && json_iter_next(&it, NULL, &id))
        status = read_id(work, id.type == JSON_STRING ? json_str_decode(id.raw, work->arena) : id.raw, error);
    if (work->letter_store.kind != DEAD_OF_TOPIC)
        work->choice.ids = db_array_end(&work->ids_text);
    return status;
}

static const struct ops_filter filters[] = {{"state", OPS_TEXT, .sql = ""},
                                            {"reason", OPS_TEXT, .sql = ""},
                                            {"from", OPS_TIME, .sql = ""},
                                            {"to", OPS_TIME, .sql = ""},
                                            {.name = NULL}};

/* Only open letters are changed, so another state is a mistake. */
static enum status read_filter(struct dead_work *work, const struct json_value *filter, struct error *error)
{
    static const struct ops_view names = {.filters = filters};
    struct ops_question question = {.limit = 0};
    enum status status = ops_filter_read(&names, filter, work->arena, &question, error);
    if (status == STATUS_OK && question.values[0].ptr && !str_eq(question.values[0], STR("open")))
        status =
            error_set_field(error, STATUS_BAD_REQUEST, "state", "state must be open: others are decided");
    work->choice.reason = work->filter.reason = question.values[1];
    work->choice.from = question.values[2];
    work->choice.to = question.values[3];
    if (question.values[2].ptr)
        (void)clock_rfc3339_parse(question.values[2], &work->filter.from_us);
    if (question.values[3].ptr)
        (void)clock_rfc3339_parse(question.values[3], &work->filter.to_us);
    return status;
}

/* ---- the transaction ---- */

static enum status change_topic(struct ops_change *change, struct db_conn *conn, int64_t deadline_ns,
                                struct error *error)
{
    struct dead_work *work = change->context;
    const struct kernel_bus_settings *bus = kernel_bus(work->ops->kernel);
    struct dead_change letters = {.requeues = work->requeues,
                                  .is_dry_run = change->is_dry_run,
                                  .ids = change->has_ids ? work->ids : NULL,
                                  .id_count = work->id_count,
                                  .filter = work->filter,
                                  .who = change->who,
                                  .why = change->reason,
                                  .keep_ms = bus->keep_dead_ms,
                                  .arena = work->arena};
    enum status status =
        ops_dead_open(work->ops, &work->letter_store, conn, deadline_ns, &letters.place, error);
    if (status == STATUS_OK)
        status = kernel_dead_change(&letters, error);
    bus_dead_close(letters.place.dead);
    change->matched = letters.matched;
    change->changed = letters.changed;
    change->has_more = letters.has_more;
    return status;
}

static void wake_topic(struct ops_change *change, struct db_conn *conn, int64_t deadline_ns)
{
    const struct dead_work *work = change->context;
    if (work->letter_store.kind != DEAD_OF_TOPIC || work->letter_store.topic.engine != KERNEL_ON_POSTGRES ||
        !work->requeues)
        return;
    struct bus_dead *dead = bus_dead_open_postgres(conn);
    bus_dead_wake(dead, str_from(work->letter_store.topic.topic), deadline_ns);
    bus_dead_close(dead);
}

static enum status change_table(struct ops_change *change, struct db_conn *conn, int64_t deadline_ns,
                                struct error *error)
{
    struct dead_work *work = change->context;
    enum status status = work->letter_store.table->change(
        work->letter_store.table, conn, work->requeues, change->is_dry_run, &work->choice, change->who,
        change->reason, deadline_ns, &change->matched, error);
    change->changed = change->matched;
    change->has_more = change->matched >= TABLE_ROWS_MAX;
    return status;
}

static enum status change_outbox(struct ops_change *change, struct db_conn *conn, int64_t deadline_ns,
                                 struct error *error)
{
    struct dead_work *work = change->context;
    enum outbox_change kind = work->requeues ? OUTBOX_CHANGE_RETRY : OUTBOX_CHANGE_DISCARD;
    const struct outbox_selection selection = {.ids = work->choice.ids,
                                               .since = work->choice.from,
                                               .until = work->choice.to,
                                               .error = work->choice.reason,
                                               .tenant = work->choice.tenant,
                                               .is_narrow = true,
                                               .rows_max = TABLE_ROWS_MAX};
    enum status status = (change->is_dry_run ? outbox_change_count : outbox_change)(
        conn, work->letter_store.outbox, kind, &selection, deadline_ns, &change->matched, error);
    change->changed = change->matched;
    change->has_more = change->matched >= TABLE_ROWS_MAX;
    return status;
}

/* ---- the request ---- */

/* Kafka's decisions are in one database: it need not be named, and no other may be. */
static enum status name_database(struct dead_work *work, struct ops_change *change, struct error *error)
{
    struct ops_sites *sites = ops_sites_hold(work->ops);
    struct ops_ask *asks = arena_zalloc(work->arena, (sites->count + 1) * sizeof *asks);
    size_t count = 0;
    enum status status = ops_dead_asks(sites, &work->letter_store, change->database, asks, &count, error);
    if (status == STATUS_OK && count == 1)
        change->database = arena_str(work->arena, str_from(asks[0].site->name));
    ops_sites_unref(sites);
    return status;
}

void ops_change_dead_letters(struct http_request *request)
{
    bool requeues = str_ends_with(str_from(request->route->path), STR("/requeue"));
    struct dead_work work = {.ops = request->context, .requeues = requeues, .arena = request->arena};
    struct ops_change change = {.action = requeues ? "dead_letter.requeue" : "dead_letter.discard",
                                .context = &work,
                                .on_committed = wake_topic};
    struct error error = {0};
    if (!ops_dead_letter_store(request, &work.letter_store))
        return;
    enum status status = ops_change_read(request, &change, &error);
    if (status == STATUS_OK)
        status = change.has_ids ? read_ids(&work, &change.ids, &error)
                                : read_filter(&work, &change.filter, &error);
    work.choice.tenant = work.filter.tenant = change.tenant;
    work.choice.rows_max = TABLE_ROWS_MAX;
    change.target = str_from(work.letter_store.name);
    change.run = work.letter_store.kind == DEAD_OF_TOPIC   ? change_topic
                 : work.letter_store.kind == DEAD_OF_TABLE ? change_table
                                                           : change_outbox;
    change.timeout_ms = CHANGE_MS;
    if (status == STATUS_OK)
        status = name_database(&work, &change, &error);
    if (status == STATUS_OK)
        ops_send_change(request, &change, ops_dead_place(&work.letter_store));
    else
        http_send_error(request, &error);
    buf_deinit(&work.ids_text);
}
