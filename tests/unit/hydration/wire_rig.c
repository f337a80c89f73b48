/* Several processes in one: buses, wires and sources with threads of their own. */
#include "wire_rig.h"

#include <stdio.h>
#include <stdlib.h>

#include "../bus/nats_fixture.h"
#include "../db/pg_fixture.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/bus_nats.h"
#include "bus/bus_postgres.h"

#define NOTES_MAX 8192

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct rig_note notes[NOTES_MAX];
    size_t count;
    size_t malformed, overload, dead[HYDRATION_KINDS];
    char reasons[HYDRATION_KINDS][BUS_REASON_BYTES];
    enum status store_next;
    bool is_gate_closed, is_slow_closed;
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static bool is_nats;
static char huge[HYDRATION_DATA_BYTES_MAX]; /* {      } */

/* ---- what is seen ---- */

static void put_text(char *out, size_t size, struct str text)
{
    snprintf(out, size, "%.*s", STR_ARG(text));
}

static void note(struct rig_note *note)
{
    pthread_mutex_lock(&seen.lock);
    if (seen.count < NOTES_MAX)
        seen.notes[seen.count++] = *note;
    pthread_cond_broadcast(&seen.changed);
    pthread_mutex_unlock(&seen.lock);
}

static void note_event(const struct rig_pod *pod, enum rig_what what, const struct hydration_event *event)
{
    struct rig_note own = {.what = what,
                           .pod = pod->number,
                           .kind = event->kind,
                           .reason = event->reason,
                           .is_private = event->is_private,
                           .version = event->version};
    put_text(own.id, sizeof own.id, event->entity_id);
    put_text(own.caller, sizeof own.caller, event->caller);
    put_text(own.data, sizeof own.data, event->data);
    put_text(own.correlation_id, sizeof own.correlation_id, event->correlation_id);
    note(&own);
}

static size_t count_locked(int pod, enum rig_what what, const char *id)
{
    size_t count = 0;
    for (size_t i = 0; i < seen.count; i++)
        count += seen.notes[i].what == what && strcmp(seen.notes[i].id, id) == 0 &&
                 (pod < 0 || seen.notes[i].pod == (unsigned)pod);
    return count;
}

size_t rig_count(enum rig_what what, const char *id)
{
    pthread_mutex_lock(&seen.lock);
    size_t count = count_locked(-1, what, id);
    pthread_mutex_unlock(&seen.lock);
    return count;
}

size_t rig_count_of(unsigned pod, enum rig_what what, const char *id)
{
    pthread_mutex_lock(&seen.lock);
    size_t count = count_locked((int)pod, what, id);
    pthread_mutex_unlock(&seen.lock);
    return count;
}

/* Under the lock: till something changes, at most a little. */
static void wait_a_little(void)
{
    clock_cond_wait(&seen.changed, &seen.lock, clock_deadline_ms(20));
}

void rig_await(enum rig_what what, const char *id, size_t count)
{
    int64_t deadline_ns = clock_deadline_ms(RIG_PATIENCE_MS);
    pthread_mutex_lock(&seen.lock);
    while (count_locked(-1, what, id) < count && clock_mono_ns() < deadline_ns)
        wait_a_little();
    size_t found = count_locked(-1, what, id);
    pthread_mutex_unlock(&seen.lock);
    if (found < count)
        fail_msg("%s: %zu of %zu", id, found, count);
}

struct rig_note rig_note_of(enum rig_what what, const char *id)
{
    struct rig_note found = {0};
    pthread_mutex_lock(&seen.lock);
    for (size_t i = seen.count; i-- > 0;)
        if (seen.notes[i].what == what && strcmp(seen.notes[i].id, id) == 0)
            found = seen.notes[i];
    pthread_mutex_unlock(&seen.lock);
    return found;
}

/* Instead of the engine's own. */
void hydration_count_ignored(const char *why)
{
    pthread_mutex_lock(&seen.lock);
    seen.malformed += strcmp(why, "malformed") == 0;
    seen.overload += strcmp(why, "overload") == 0;
    pthread_cond_broadcast(&seen.changed);
    pthread_mutex_unlock(&seen.lock);
}

size_t rig_ignored(const char *why)
{
    pthread_mutex_lock(&seen.lock);
    size_t count = strcmp(why, "malformed") == 0 ? seen.malformed : seen.overload;
    pthread_mutex_unlock(&seen.lock);
    return count;
}

void rig_await_ignored(const char *why, size_t count)
{
    int64_t deadline_ns = clock_deadline_ms(RIG_PATIENCE_MS);
    while (rig_ignored(why) < count && clock_mono_ns() < deadline_ns) {
        pthread_mutex_lock(&seen.lock);
        wait_a_little();
        pthread_mutex_unlock(&seen.lock);
    }
    assert_true(rig_ignored(why) >= count);
}

void rig_await_dead(enum hydration_kind kind, size_t count, char reason[BUS_REASON_BYTES])
{
    int64_t deadline_ns = clock_deadline_ms(RIG_PATIENCE_MS);
    pthread_mutex_lock(&seen.lock);
    while (seen.dead[kind] < count && clock_mono_ns() < deadline_ns)
        wait_a_little();
    size_t found = seen.dead[kind];
    memcpy(reason, seen.reasons[kind], BUS_REASON_BYTES);
    pthread_mutex_unlock(&seen.lock);
    assert_true(found >= count);
}

/* ---- a source ---- */

void rig_gate_close(void)
{
    pthread_mutex_lock(&seen.lock);
    seen.is_gate_closed = seen.is_slow_closed = true;
    pthread_mutex_unlock(&seen.lock);
}

static void open_gate(bool is_slow_closed)
{
    pthread_mutex_lock(&seen.lock);
    seen.is_gate_closed = false;
    seen.is_slow_closed = is_slow_closed;
    pthread_cond_broadcast(&seen.changed);
    pthread_mutex_unlock(&seen.lock);
}

void rig_gate_open(void)
{
    open_gate(false);
}

void rig_gate_open_but_slow(void)
{
    open_gate(true);
}

static bool must_fail(struct str id)
{
    pthread_mutex_lock(&seen.lock);
    while (seen.is_gate_closed || (seen.is_slow_closed && str_starts_with(id, STR("slow"))))
        wait_a_little();
    char text[64];
    put_text(text, sizeof text, id);
    bool fails = str_starts_with(id, STR("fails")) && count_locked(-1, RIG_LOOKED, text) == 1;
    pthread_mutex_unlock(&seen.lock);
    return fails;
}

static enum status look(void *context, const struct hydration_need *question, int64_t deadline_ns,
                        struct hydration_entity *entity, struct error *error)
{
    struct rig_note own = {.what = RIG_LOOKED, .pod = ((struct rig_pod *)context)->number};
    struct str id = question->entity_id;
    (void)deadline_ns;
    put_text(own.id, sizeof own.id, id);
    put_text(own.caller, sizeof own.caller, question->caller);
    note(&own);
    if (must_fail(id))
        return error_set(error, STATUS_UNAVAILABLE, "not now");
    entity->found = str_starts_with(id, STR("absent"))   ? HYDRATION_ENTITY_ABSENT
                    : str_starts_with(id, STR("hidden")) ? HYDRATION_ENTITY_HIDDEN
                                                         : HYDRATION_ENTITY_EXISTS;
    entity->version = 7;
    entity->is_private = str_starts_with(id, STR("private")) || str_starts_with(id, STR("nobodys"));
    entity->only_caller = str_starts_with(id, STR("private")) ? STR("alice") : STR_NONE;
    if (entity->found == HYDRATION_ENTITY_EXISTS)
        buf_printf(entity->data, "{\"id\":\"%.*s\",\"title\":\"t\",\"price\":1}", STR_ARG(id));
    if (str_starts_with(id, STR("huge"))) {
        buf_clear(entity->data);
        buf_put(entity->data, huge, sizeof huge);
    }
    return STATUS_OK;
}

/* ---- what the ledger would do ---- */

void rig_store_next(enum status status)
{
    pthread_mutex_lock(&seen.lock);
    seen.store_next = status;
    pthread_mutex_unlock(&seen.lock);
}

enum status hydration_ledger_store(struct db_conn *conn, const struct hydration_event *events, size_t count,
                                   int64_t deadline_ns, struct error *error)
{
    static const struct rig_pod any; /* of all processes one stores */
    (void)deadline_ns;
    pthread_mutex_lock(&seen.lock);
    enum status status = seen.store_next;
    seen.store_next = STATUS_OK;
    pthread_mutex_unlock(&seen.lock);
    if (!conn)
        return error_set(error, STATUS_INTERNAL, "there is no transaction");
    if (status != STATUS_OK)
        return error_set(error, status, "as the test wants it");
    for (size_t i = 0; i < count; i++)
        note_event(&any, RIG_STORED, &events[i]);
    return STATUS_OK;
}

enum status hydration_ledger_find_held(struct db_pool *pool, struct str entity_type,
                                       const struct hydration_ref *refs, size_t count, int64_t deadline_ns,
                                       bool *held, struct error *error)
{
    (void)pool, (void)entity_type, (void)refs, (void)deadline_ns, (void)error;
    memset(held, true, count * sizeof *held);
    return STATUS_OK;
}

enum status hydration_list_held(struct hydration *hydration, const char *entity_type, struct str tenant,
                                struct str id_prefix, int64_t deadline_ns, struct arena *arena,
                                struct hydration_ref **refs, size_t *count, struct error *error)
{
    (void)hydration, (void)entity_type, (void)deadline_ns, (void)error;
    *count = 3;
    *refs = arena_alloc(arena, 3 * sizeof **refs);
    for (int i = 0; i < 3; i++)
        (*refs)[i] = (struct hydration_ref){tenant, arena_printf(arena, "%.*s%d", STR_ARG(id_prefix), i)};
    return STATUS_OK;
}

void hydration_post(struct hydration *hydration, struct hydration_shard *asker,
                    const struct hydration_event *event)
{
    assert_null(asker); /* no shard asks here */
    note_event(CONTAINER_OF(hydration, struct rig_pod, engine), RIG_RECEIVED, event);
}

/* ---- processes ---- */

static void on_dead(void *context, struct bus_batch *batch)
{
    enum hydration_kind kind = (enum hydration_kind)(uintptr_t)context;
    pthread_mutex_lock(&seen.lock);
    seen.dead[kind] += batch->count;
    put_text(seen.reasons[kind], BUS_REASON_BYTES,
             bus_message_header(&batch->messages[batch->count - 1], STR(BUS_HEADER_DEAD_REASON)));
    pthread_cond_broadcast(&seen.changed);
    pthread_mutex_unlock(&seen.lock);
}

static struct bus *create_bus(struct rig_pod *pod)
{
    static const struct bus_topic topics[] = {
        {.name = "entity.updated", .partitions = 1, .relaxed = true},
        {.name = "entity.not-found", .partitions = 1, .relaxed = true},
        {.name = RIG_OWN_TOPIC, .partitions = 1},
        {.name = "entity.unknown", .partitions = 4, .relaxed = true}, /* no stream of NATS */
    };
    static const struct bus_nats_names names[] = {
        {.topic = "entity.updated", .stream = "entity_updated", .subject = "entity.updated"},
        {.topic = "entity.not-found", .stream = "entity_not-found", .subject = "entity.not-found"},
    };
    struct db_target where = pg_fixture_target();
    struct error error = {0};
    struct bus *bus = NULL;
    where.connections_max = 6;
    enum status status = is_nats ? bus_nats_create(&(struct bus_nats_config){.loop = pod->loop,
                                                                             .workers = pod->workers,
                                                                             .servers = nats_fixture_url(),
                                                                             .client_name = "freshet-test",
                                                                             .target = &where,
                                                                             .topics = topics,
                                                                             .topic_count = 3,
                                                                             .names = names,
                                                                             .name_count = 2,
                                                                             .ack_wait_ms = 1000},
                                                   &bus, &error)
                                 : bus_postgres_create(&(struct bus_postgres_config){.loop = pod->loop,
                                                                                     .workers = pod->workers,
                                                                                     .target = &where,
                                                                                     .topics = topics,
                                                                                     .topic_count = 4,
                                                                                     .poll_ms = 200},
                                                       &bus, &error);
    if (status != STATUS_OK)
        fail_msg("%s", error.message);
    return bus;
}

/* The topic of the owner's own events: a message is the id of an entity. */
static bool read_own(const struct bus_message *message, struct arena *own, struct hydration_ref *ref)
{
    (void)own;
    *ref = (struct hydration_ref){STR("acme"), message->payload};
    return !str_eq(message->payload, STR("of-no-entity"));
}

void rig_pod_open(struct rig_pod *pod, unsigned number, const char *const *entity_types)
{
    static const struct hydration_settings settings = {.copy_ttl_ms = 300000};
    *pod = (struct rig_pod){.number = number};
    pod->engine.config.loops = loop_group_create(1, 0);
    pod->loop = loop_group_loop(pod->engine.config.loops, 0);
    pod->workers = worker_pool_create("pod", 6, 1000);
    pod->bus = create_bus(pod);
    pod->engine.config.workers = pod->workers;
    pod->engine.config.is_plain = is_nats;
    pod->engine.config.settings = &settings;
    for (size_t i = 0; entity_types[i]; i++)
        hydration_provide(&pod->engine, &(struct hydration_owner){.entity_type = entity_types[i],
                                                                  .module = "owner",
                                                                  .look = look,
                                                                  .context = pod,
                                                                  .topic = number == 0 ? RIG_OWN_TOPIC : NULL,
                                                                  .read = read_own});
    struct error error = {0};
    if (hydration_wire_subscribe(&pod->engine, pod->bus, true, &error) != STATUS_OK ||
        hydration_owner_follow(&pod->engine.owners[0], pod->bus, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    atomic_store(&pod->engine.bus, pod->bus);
    for (int kind = is_nats ? HYDRATION_EVENT_UPDATED : 0; kind < HYDRATION_KINDS && number == 0; kind++) {
        char topic[64];
        snprintf(topic, sizeof topic, "%s" BUS_DEAD_SUFFIX, hydration_topics[kind]);
        assert_int_equal(bus_subscribe(pod->bus,
                                       &(struct bus_subscription){.topic = topic,
                                                                  .group = "dead",
                                                                  .from = BUS_FROM_NOW,
                                                                  .context = (void *)(uintptr_t)kind,
                                                                  .handler = on_dead},
                                       NULL),
                         STATUS_OK);
    }
}

static void *run_loop(void *loop)
{
    loop_run(loop);
    return NULL;
}

void rig_pod_start(struct rig_pod *pod)
{
    bus_start(pod->bus);
    assert_int_equal(pthread_create(&pod->thread, NULL, run_loop, pod->loop), 0);
}

void rig_pod_close(struct rig_pod *pod)
{
    bus_stop(pod->bus, 5000);
    loop_stop(pod->loop);
    pthread_join(pod->thread, NULL);
    for (size_t i = 0; i < pod->engine.owner_count; i++)
        hydration_owner_close(&pod->engine.owners[i]);
    bus_destroy(pod->bus);
    worker_pool_stop(pod->workers);
    worker_pool_destroy(pod->workers);
    loop_group_destroy(pod->engine.config.loops);
}

/* ---- questions ---- */

void rig_ask(struct rig_pod *pod, const char *entity_type, const char *id, const char *caller,
             const struct hydration_cover *cover)
{
    char correlation_id[80];
    struct hydration_event question = {.kind = HYDRATION_EVENT_UNKNOWN,
                                       .tenant = STR("acme"),
                                       .caller = str_from(caller),
                                       .entity_type = str_from(entity_type),
                                       .entity_id = str_from(id),
                                       .module = STR("test"),
                                       .wait_ms = RIG_PATIENCE_MS, /* no owner drops it on a slow machine */
                                       .cover =
                                           cover ? *cover : (struct hydration_cover){HYDRATION_FULL, 0, 0}};
    struct error error = {0};
    enum status status = STATUS_UNAVAILABLE;
    int64_t deadline_ns = clock_deadline_ms(RIG_PATIENCE_MS);
    snprintf(correlation_id, sizeof correlation_id, "c-%s", id);
    question.correlation_id = str_from(correlation_id);
    while (status == STATUS_UNAVAILABLE && clock_mono_ns() < deadline_ns) /* NATS is being connected to */
        status = hydration_wire_send(&pod->engine, &question, 1, deadline_ns, &error);
    if (status != STATUS_OK)
        fail_msg("%s", error.message);
}

enum status rig_send_raw(struct rig_pod *pod, enum hydration_kind kind, const char *payload)
{
    struct bus_header tenant = {STR("tenant_id"), STR("acme")};
    struct bus_message message = {.topic = str_from(hydration_topics[kind]),
                                  .key = STR("k"),
                                  .payload = str_from(payload),
                                  .headers = &tenant,
                                  .header_count = 1};
    return is_nats ? bus_nats_send(pod->bus, &message, NULL)
                   : bus_publish(pod->bus, &message, 1, clock_deadline_ms(RIG_PATIENCE_MS), NULL);
}

/* Asks until every pod heard an answer of each kind: all that is said from then on is heard. */
void rig_await_ready(struct rig_pod *pods, size_t count, const char *entity_type)
{
    static unsigned round;
    int64_t deadline_ns = clock_deadline_ms(RIG_PATIENCE_MS);
    bool ready = false;
    for (; !ready && clock_mono_ns() < deadline_ns; round++) {
        char there[32], absent[32];
        snprintf(there, sizeof there, "ready-%u", round);
        snprintf(absent, sizeof absent, "absent-ready-%u", round);
        rig_ask(&pods[0], entity_type, there, "", NULL);
        rig_ask(&pods[0], entity_type, absent, "", NULL);
        for (int i = 0; i < 25 && !ready; i++) {
            pthread_mutex_lock(&seen.lock);
            wait_a_little();
            pthread_mutex_unlock(&seen.lock);
            ready = rig_count(RIG_STORED, there) && rig_count(RIG_STORED, absent);
            for (unsigned pod = 0; pod < count; pod++)
                ready &= rig_count_of(pods[pod].number, RIG_RECEIVED, there) &&
                         rig_count_of(pods[pod].number, RIG_RECEIVED, absent);
        }
    }
    assert_true(ready);
}

/* ---- servers ---- */

bool rig_is_nats(void)
{
    return is_nats;
}

void rig_start(bool nats)
{
    struct db_target where;
    struct db_pool *pool;
    struct error error = {0};
    unsigned applied;
    is_nats = nats;
    memset(huge, ' ', sizeof huge);
    huge[0] = '{';
    huge[sizeof huge - 1] = '}';
    log_set_level(LOG_LEVEL_ERROR);
    pg_fixture_start();
    if (nats)
        nats_fixture_start("");
    where = pg_fixture_target();
    if (db_pool_create(&where, &pool, &error) != STATUS_OK ||
        db_migrate(pool, "platform", platform_migrations, clock_deadline_ms(RIG_PATIENCE_MS), &applied,
                   &error) != STATUS_OK) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
    db_pool_destroy(pool);
}

void rig_stop(void)
{
    if (is_nats)
        nats_fixture_stop();
    pg_fixture_stop();
}
