/* The keeper: the one thread that waits for the server's answers about streams, consumers and leases, so that no worker
 * does. It looks every quarter of the wait for acknowledgements, and when it is kicked. */
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "bus/nats/inside.h"

enum {
    SYNC_MS = 50,
    FAILURE_MIN_MS = 50,
    FAILURE_MAX_MS = 2000,
    RELEASE_MS = 1500, /* for all leases, at the end */
};

struct keeper {
    struct nats *nats;
    unsigned epoch, failures;
    int64_t next_ns, look_ns, extend_ns;
};

static void at_latest(struct keeper *keeper, int64_t wait_ms)
{
    int64_t at_ns = clock_deadline_ms(wait_ms);

    if (at_ns < keeper->next_ns)
        keeper->next_ns = at_ns;
}

static void on_failure(struct keeper *keeper, const char *what)
{
    int64_t wait_ms = FAILURE_MIN_MS;

    for (unsigned i = 0; i < keeper->failures && wait_ms < FAILURE_MAX_MS; i++)
        wait_ms *= 2;
    if (keeper->failures++ == 0)
        log_warn("nats_waits", LOG_CSTR("for", what), LOG_CSTR("error", nats_GetLastError(NULL)));
    at_latest(keeper, wait_ms / 2 + (int64_t)(random_u64() % (uint64_t)wait_ms));
}

/* A new connection: what was asked for on the old one never comes, and what was on its way is owed. */
static void begin_epoch(struct keeper *keeper)
{
    struct nats *nats = keeper->nats;

    pthread_mutex_lock(&nats->lock);
    bool news = nats->epoch != keeper->epoch;
    keeper->epoch = nats->epoch;
    for (size_t i = 0; i < nats->reader_count && news; i++) {
        struct nats_reader *reader = nats->readers[i];
        reader->doubt = true;
        for (unsigned at = 0; at < reader->consumer.topic->spec.partitions; at++) {
            reader->slots[at].asked = 0;
            reader->slots[at].overdue_ns = clock_deadline_ms(NATS_OVERDUE_WAITS * nats->config.ack_wait_ms);
            for (int kind = 0; kind < FATE_KINDS; kind++)
                reader->slots[at].watches[kind].asked = 0;
            if (reader->consumer.spec.mode == BUS_SHARED && reader->slots[at].state != SLOT_AWAY) {
                reader->slots[at].state = SLOT_SYNCING;
                bus_nats_slot_forget_turns(&reader->slots[at]); /* a server that crashed may count anew */
            }
        }
    }
    pthread_mutex_unlock(&nats->lock);
}

static bool ensure_streams(struct keeper *keeper)
{
    struct nats *nats = keeper->nats;

    pthread_mutex_lock(&nats->lock);
    bool doubt = nats->doubt;
    nats->doubt = false;
    pthread_mutex_unlock(&nats->lock);
    if (!doubt || bus_nats_streams_ensure(nats))
        return true;
    pthread_mutex_lock(&nats->lock);
    nats->doubt = true;
    pthread_mutex_unlock(&nats->lock);
    on_failure(keeper, "streams");
    return false;
}

static void keep_slots(struct keeper *keeper, struct nats_reader *reader)
{
    struct nats *nats = reader->nats;

    for (unsigned i = 0; i < reader->consumer.topic->spec.partitions; i++) {
        struct nats_slot *slot = &reader->slots[i];
        pthread_mutex_lock(&nats->lock);
        bool syncing = slot->state == SLOT_SYNCING;
        pthread_mutex_unlock(&nats->lock);
        if (syncing)
            bus_nats_slot_sync(slot);
        else
            bus_nats_slot_pull(slot);
        bus_nats_watches_pull(slot);
        pthread_mutex_lock(&nats->lock);
        if (slot->state == SLOT_SYNCING)
            at_latest(keeper, SYNC_MS);
        if (slot->count > 0 && slot->state == SLOT_RUNNING && slot->due_ns > clock_mono_ns())
            at_latest(keeper, clock_ms_left(slot->due_ns));
        pthread_mutex_unlock(&nats->lock);
    }
    pthread_mutex_lock(&nats->lock);
    bus_nats_reader_wake(reader);
    pthread_mutex_unlock(&nats->lock);
}

static void keep_reader(struct keeper *keeper, struct nats_reader *reader)
{
    struct nats *nats = reader->nats;

    pthread_mutex_lock(&nats->lock);
    bool doubt = reader->doubt;
    reader->doubt = false; /* it may be raised again while it is dispelled */
    pthread_mutex_unlock(&nats->lock);
    if (doubt && !bus_nats_consumers_ensure(reader)) {
        pthread_mutex_lock(&nats->lock);
        reader->doubt = true;
        pthread_mutex_unlock(&nats->lock);
        on_failure(keeper, "consumers");
        return;
    }
    if (reader->consumer.spec.mode == BUS_SHARED)
        bus_nats_leases_keep(reader);
    keep_slots(keeper, reader);
    if (clock_mono_ns() >= keeper->look_ns)
        bus_nats_reader_look(reader);
}

static void extend(struct keeper *keeper, struct nats_reader *reader)
{
    if (reader->consumer.spec.mode == BUS_SHARED && clock_mono_ns() >= keeper->extend_ns)
        for (unsigned i = 0; i < reader->consumer.topic->spec.partitions; i++)
            bus_nats_slot_extend(&reader->slots[i]);
}

static void round_of(struct keeper *keeper)
{
    struct nats *nats = keeper->nats;
    int64_t pause_ms = nats->config.ack_wait_ms / 4;
    unsigned failures = keeper->failures;

    keeper->next_ns = clock_deadline_ms(pause_ms < 1000 ? pause_ms : 1000);
    if (!bus_nats_connect(nats))
        return;
    begin_epoch(keeper);
    if (!ensure_streams(keeper))
        return;
    if (clock_mono_ns() >= keeper->look_ns)
        bus_nats_advisories_keep(nats);
    for (size_t i = 0; i < nats->reader_count; i++) {
        keep_reader(keeper, nats->readers[i]);
        extend(keeper, nats->readers[i]);
    }
    if (clock_mono_ns() >= keeper->look_ns)
        keeper->look_ns = clock_deadline_ms(nats->config.ack_wait_ms / 2); /* lag and gaps */
    if (clock_mono_ns() >= keeper->extend_ns)
        keeper->extend_ns = clock_deadline_ms(pause_ms);
    if (failures > 0 && keeper->failures == failures) {
        keeper->failures = 0;
        log_info("nats_goes_on");
    }
}

void *bus_nats_keeper_run(void *closure)
{
    struct nats *nats = closure;
    struct keeper keeper = {.nats = nats};

    pthread_mutex_lock(&nats->lock);
    while (!nats->stopping) {
        nats->kicked = false;
        pthread_mutex_unlock(&nats->lock);
        round_of(&keeper);
        pthread_mutex_lock(&nats->lock);
        while (!nats->stopping && !nats->kicked && clock_mono_ns() < keeper.next_ns)
            bus_nats_wait(nats, keeper.next_ns);
    }
    while (nats->busy > 0) /* their messages are acknowledged first */
        bus_nats_wait(nats, CLOCK_NEVER);
    pthread_mutex_unlock(&nats->lock);
    int64_t deadline_ns = clock_deadline_ms(RELEASE_MS);
    for (size_t i = 0; i < nats->reader_count && atomic_load(&nats->up); i++)
        if (nats->readers[i]->consumer.spec.mode == BUS_SHARED)
            bus_nats_leases_release(nats->readers[i], deadline_ns);
    if (atomic_load(&nats->up) && nats->connection)
        natsConnection_FlushTimeout(nats->connection, NATS_API_MS / 4);
    return NULL;
}
