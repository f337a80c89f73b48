/* Readers: subscriptions, each with its workers. A place is a partition, or POSTGRES_ANYWHERE; a wake adds a place where something
 * may be, and a worker takes one of them, handles one batch there and runs again while a place is left. No two workers are at the
 * same partition. A place that is added while a worker is there waits for that worker's end, so no message is forgotten between two
 * looks. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/postgres/inside.h"

#define SETUP_MS 10000
#define RETRY_MIN_MS 50
#define RETRY_MAX_MS 2000
#define NOWHERE (-2)

/* ---- places: all of this under postgres->lock ---- */

static void add_place(struct reader *reader, int place)
{
    if (place == POSTGRES_ANYWHERE)
        reader->anywhere = true;
    else
        reader->places[place / 64] |= UINT64_C(1) << (place % 64);
}

/* A place to look at, without a worker. */
static bool has_free_place(const struct reader *reader)
{
    bool any = reader->anywhere;

    for (size_t i = 0; i < sizeof reader->places / sizeof reader->places[0]; i++)
        any |= (reader->places[i] & ~reader->taken[i]) != 0;
    return any;
}

/* Until the reader is ready it has one worker, which makes it so. */
static void wake_idle_worker(struct reader *reader)
{
    unsigned usable = atomic_load(&reader->is_ready) ? reader->consumer.spec.parallel : 1;

    for (unsigned i = 0; i < usable; i++)
        if (!reader->workers[i].is_busy) {
            reader->workers[i].is_busy = true;
            task_wake(reader->workers[i].task);
            return;
        }
}

/* A look anywhere covers all partitions but those with a worker, which look once more. */
static int take_place(struct reader *reader)
{
    if (reader->anywhere) {
        reader->anywhere = false;
        memcpy(reader->places, reader->taken, sizeof reader->places);
        return POSTGRES_ANYWHERE;
    }
    for (int i = 0; i < BUS_PARTITIONS_MAX / 64; i++) {
        uint64_t free = reader->places[i] & ~reader->taken[i];
        if (!free)
            continue;
        uint64_t bit = free & -free;
        reader->places[i] &= ~bit;
        reader->taken[i] |= bit;
        if (has_free_place(reader))
            wake_idle_worker(reader);
        return 64 * i + __builtin_ctzll(bit);
    }
    return NOWHERE;
}

/* A reader of everything takes the message itself only when it is woken for nothing else there, since it does not look for others
 * then; and only with its time, which is compared after a crash of the server. */
void bus_postgres_reader_wake(struct reader *reader, int partition, struct str attached,
                              const struct bus_message *message)
{
    bool is_every = reader->consumer.spec.mode == BUS_EVERY;

    if (reader->postgres->is_stopping)
        return;
    if (is_every || (attached.len && reader->consumer.spec.uses_attached)) {
        bool is_woken = reader->anywhere || partition == POSTGRES_ANYWHERE ||
                        (reader->places[partition / 64] >> (partition % 64) & 1);
        bool is_usable = !is_every || (message && message->created_us > 0 && !is_woken);
        bus_postgres_attached_free(reader->attached);
        reader->attached = !is_usable ? NULL
                           : is_every ? bus_postgres_attached_copy(message)
                                      : bus_postgres_attached_parse(attached, partition);
    }
    add_place(reader, partition);
    wake_idle_worker(reader);
}

/* The message that came with the notice of `place`, or NULL. A shared group's is dropped unless this process is likely to lock the
 * cursor: a message that is read without it must not be tried again with it. */
static struct attached_message *take_attached(struct reader *reader, int place)
{
    bool is_shared = reader->consumer.spec.mode == BUS_SHARED;
    struct attached_message *attached = NULL;

    pthread_mutex_lock(&reader->postgres->lock);
    if (reader->attached &&
        (reader->attached->partition == place || (is_shared && place == POSTGRES_ANYWHERE))) {
        attached = reader->attached;
        reader->attached = NULL;
    }
    pthread_mutex_unlock(&reader->postgres->lock);
    if (!attached || !is_shared ||
        (place != POSTGRES_ANYWHERE && atomic_load(&reader->partitions[place].was_last)))
        return attached;
    bus_postgres_attached_free(attached);
    return NULL;
}

unsigned bus_postgres_reader_turn(struct reader *reader)
{
    return atomic_fetch_add(&reader->turn, 1) % reader->consumer.topic->spec.partitions;
}

/* ---- slots ---- */

bool bus_postgres_slots_are_scarce(struct reader *reader)
{
    if (!reader->slots.shares)
        return false;
    pthread_mutex_lock(&reader->postgres->lock);
    bool are_scarce = bus_slots_are_scarce(&reader->slots);
    pthread_mutex_unlock(&reader->postgres->lock);
    return are_scarce;
}

size_t bus_postgres_slot_enter(struct reader *reader, struct bus_slot *slot,
                               const struct bus_message *messages, size_t count)
{
    if (!reader->slots.shares)
        return count;
    pthread_mutex_lock(&reader->postgres->lock);
    size_t allowed = bus_slots_enter(&reader->slots, slot, messages, count);
    reader->is_refused |= allowed < count;
    pthread_mutex_unlock(&reader->postgres->lock);
    return allowed;
}

void bus_postgres_slot_leave(struct reader *reader, struct bus_slot *slot)
{
    if (!slot->is_taken)
        return;
    pthread_mutex_lock(&reader->postgres->lock);
    bus_slots_leave(&reader->slots, slot);
    if (reader->is_refused)
        bus_postgres_reader_wake(reader, POSTGRES_ANYWHERE, STR_NONE, NULL);
    reader->is_refused = false;
    pthread_mutex_unlock(&reader->postgres->lock);
}

/* ---- a worker's run ---- */

void bus_postgres_worker_due(struct reader_worker *worker, int64_t wait_ms)
{
    int64_t due_ns = clock_deadline_ms(wait_ms);

    if (due_ns < worker->due_ns)
        worker->due_ns = due_ns;
}

static enum status make_ready(struct reader *reader, struct error *error)
{
    const struct bus_subscription *spec = &reader->consumer.spec;
    int64_t deadline_ns = clock_deadline_ms(SETUP_MS);
    struct db_conn *conn;
    enum status status = db_acquire(reader->postgres->pool, deadline_ns, &conn, error);

    if (status == STATUS_OK)
        status = bus_postgres_topic_ensure(conn, reader->consumer.topic, deadline_ns, error);
    if (status == STATUS_OK)
        status = spec->mode == BUS_SHARED ? bus_postgres_shared_begin(reader, conn, deadline_ns, error)
                                          : bus_postgres_every_begin(reader, conn, deadline_ns, error);
    db_release(conn);
    if (status != STATUS_OK)
        return status;
    atomic_store(&reader->is_ready, true);
    bus_consumer_ready(&reader->consumer);
    return STATUS_OK;
}

static enum bus_postgres_step reader_step(struct reader_worker *worker, int place)
{
    struct reader *reader = worker->reader;
    bool is_shared = reader->consumer.spec.mode == BUS_SHARED;
    enum bus_postgres_step step = STEP_NOTHING;
    struct error error = {0};

    if (!atomic_load(&reader->is_ready) && make_ready(reader, &error) != STATUS_OK)
        step = STEP_FAILED;
    struct attached_message *attached = step == STEP_FAILED ? NULL : take_attached(reader, place);
    if (attached)
        step = is_shared ? bus_postgres_shared_step(worker, place, attached, &error)
                         : bus_postgres_every_attached(reader, attached);
    bus_postgres_attached_free(attached);
    if (step == STEP_NOTHING)
        step = is_shared ? bus_postgres_shared_step(worker, place, NULL, &error)
                         : bus_postgres_every_step(reader, &error);
    bool was_failing = atomic_exchange(&reader->is_failing, step == STEP_FAILED);
    if (step != STEP_FAILED)
        return step;
    bus_postgres_worker_due(worker, task_retry(worker->task) / CLOCK_NS_PER_MS);
    if (!was_failing && !bus_postgres_is_stopping(reader->postgres) && error.status != STATUS_CANCELLED)
        log_warn("bus_reader_waits", LOG_CSTR("topic", reader->consumer.spec.topic),
                 LOG_CSTR("group", reader->consumer.spec.group), LOG_ERROR_FIELDS(&error));
    return step;
}

static int64_t reader_run(struct task *task, void *context)
{
    struct reader_worker *worker = context;
    struct reader *reader = worker->reader;
    struct postgres *postgres = reader->postgres;

    (void)task;
    pthread_mutex_lock(&postgres->lock);
    worker->is_busy = true;
    if (clock_mono_ns() >= worker->due_ns) {
        worker->due_ns = CLOCK_NEVER;
        add_place(reader, POSTGRES_ANYWHERE);
    }
    int place = postgres->is_stopping ? NOWHERE : take_place(reader);
    pthread_mutex_unlock(&postgres->lock);
    enum bus_postgres_step step = place == NOWHERE ? STEP_NOTHING : reader_step(worker, place);
    pthread_mutex_lock(&postgres->lock);
    if (place >= 0)
        reader->taken[place / 64] &= ~(UINT64_C(1) << (place % 64));
    bool is_one_of_many = place == POSTGRES_ANYWHERE && reader->consumer.spec.mode == BUS_SHARED;
    if (step == STEP_FOUND || (step == STEP_DRAINED && is_one_of_many))
        add_place(reader, POSTGRES_ANYWHERE); /* there were several messages: read many at once, then */
    worker->is_busy = !postgres->is_stopping && has_free_place(reader);
    bool goes_on = worker->is_busy;
    pthread_mutex_unlock(&postgres->lock);
    if (goes_on)
        return TASK_NOW;
    if (worker->due_ns == CLOCK_NEVER)
        return TASK_IDLE;
    int64_t wait_ns = worker->due_ns - clock_mono_ns();
    return wait_ns > 0 ? wait_ns : TASK_NOW;
}

bool bus_postgres_is_stopping(struct postgres *postgres)
{
    pthread_mutex_lock(&postgres->lock);
    bool is_stopping = postgres->is_stopping;
    pthread_mutex_unlock(&postgres->lock);
    return is_stopping;
}

bool bus_postgres_handling_begin(struct postgres *postgres)
{
    pthread_mutex_lock(&postgres->lock);
    bool begins = !postgres->is_stopping;
    postgres->handling += begins;
    pthread_mutex_unlock(&postgres->lock);
    return begins;
}

void bus_postgres_handling_end(struct postgres *postgres)
{
    pthread_mutex_lock(&postgres->lock);
    if (--postgres->handling == 0)
        pthread_cond_broadcast(&postgres->handled);
    pthread_mutex_unlock(&postgres->lock);
}

/* ---- life ---- */

void bus_postgres_reader_create(struct bus *bus, const struct bus_consumer *consumer)
{
    struct postgres *postgres = (struct postgres *)bus;
    struct reader *reader = memory_zalloc(sizeof *reader);
    unsigned partitions = consumer->topic->spec.partitions;

    reader->consumer = *consumer;
    reader->postgres = postgres;
    reader->polled_sum = -1; /* the first poll wakes it */
    bus_slots_init(&reader->slots, consumer);
    reader->workers = memory_zalloc(consumer->spec.parallel * sizeof reader->workers[0]);
    for (unsigned i = 0; i < consumer->spec.parallel; i++)
        reader->workers[i] = (struct reader_worker){
            .reader = reader,
            .due_ns = CLOCK_NEVER,
            .task = task_create(&(struct task_config){.name = "bus-reader",
                                                      .loop = postgres->config.loop,
                                                      .pool = postgres->config.workers,
                                                      .run = reader_run,
                                                      .context = &reader->workers[i],
                                                      .retry_min_ms = RETRY_MIN_MS,
                                                      .retry_max_ms = RETRY_MAX_MS}),
        };
    reader->partitions = memory_zalloc(partitions * sizeof reader->partitions[0]);
    for (unsigned i = 0; i < partitions; i++)
        reader->partitions[i].delivery = (struct bus_delivery){
            .bus = bus, .consumer = &reader->consumer, .handler_ms = postgres->config.handler_ms};
    postgres->readers =
        memory_realloc_array(postgres->readers, postgres->reader_count + 1, sizeof postgres->readers[0]);
    postgres->readers[postgres->reader_count++] = reader;
}

void bus_postgres_reader_free(struct reader *reader)
{
    for (unsigned i = 0; i < reader->consumer.spec.parallel; i++)
        task_destroy(reader->workers[i].task);
    bus_consumer_deinit(&reader->consumer);
    bus_slots_deinit(&reader->slots);
    bus_postgres_attached_free(reader->attached);
    free(reader->workers);
    free(reader->partitions);
    free(reader);
}
