/* The upkeep: the one task that waits for the server's answers about streams, consumers and leases, so that no handler does. It
 * runs every quarter of the wait for acknowledgements, at most every second, and when it is woken. */
#include "base/clock.h"
#include "base/log.h"
#include "bus/nats/inside.h"

enum { SYNC_MS = 50 };

static void at_latest(int64_t *delay_ns, int64_t other_ns)
{
    if (other_ns < *delay_ns)
        *delay_ns = other_ns > 0 ? other_ns : 0;
}

/* A new connection: open requests are lost, and messages that were on their way are missing. */
static void begin_epoch(struct nats *nats)
{
    pthread_mutex_lock(&nats->lock);
    bool is_new = nats->epoch != nats->upkeep_epoch;
    nats->upkeep_epoch = nats->epoch;
    for (size_t i = 0; i < nats->reader_count && is_new; i++) {
        struct nats_reader *reader = nats->readers[i];
        reader->needs_check = true;
        for (unsigned at = 0; at < reader->partition_count; at++) {
            struct nats_partition *partition = &reader->partitions[at];
            partition->pull.requested = 0;
            partition->overdue_ns = bus_nats_overdue_ns(nats, 0);
            for (int kind = 0; kind < ADVISORY_KINDS; kind++)
                partition->watches[kind].pull.requested = 0;
            if (!nats_reader_is_shared(reader) || partition->state == PARTITION_AWAY)
                continue;
            if (partition->state == PARTITION_RUNNING)
                bus_nats_partition_move(partition, PARTITION_SYNCING);
            bus_nats_partition_reset_sequences(partition); /* a server that crashed may count from 1 again */
        }
    }
    pthread_mutex_unlock(&nats->lock);
}

/* Takes the request for a check; it may be raised again during the check. */
static bool take_check(struct nats *nats, bool *needs_check)
{
    pthread_mutex_lock(&nats->lock);
    bool needed = *needs_check;
    *needs_check = false;
    pthread_mutex_unlock(&nats->lock);
    return needed;
}

static void check_failed(struct nats *nats, bool *needs_check, const char *what)
{
    pthread_mutex_lock(&nats->lock);
    *needs_check = true;
    pthread_mutex_unlock(&nats->lock);
    if (!nats->upkeep_failed && task_failures(nats->upkeep) == 0)
        log_warn("nats_waits", LOG_CSTR("for", what), LOG_CSTR("error", nats_GetLastError(NULL)));
    nats->upkeep_failed = true;
}

/* Returns when it has to run again. */
static int64_t keep_partition(struct nats_partition *partition)
{
    struct nats *nats = partition->reader->nats;
    int64_t delay_ns = TASK_IDLE;

    pthread_mutex_lock(&nats->lock);
    bool is_syncing = partition->state == PARTITION_SYNCING;
    pthread_mutex_unlock(&nats->lock);
    if (is_syncing)
        bus_nats_partition_sync(partition);
    else
        bus_nats_partition_request(partition);
    bus_nats_watches_request(partition);
    pthread_mutex_lock(&nats->lock);
    if (partition->state == PARTITION_SYNCING)
        delay_ns = TASK_MS(SYNC_MS);
    else if (partition->state == PARTITION_RUNNING && partition->count > 0 &&
             partition->due_ns > clock_mono_ns())
        delay_ns = partition->due_ns - clock_mono_ns();
    pthread_mutex_unlock(&nats->lock);
    return delay_ns;
}

static int64_t keep_reader(struct nats_reader *reader, int64_t now_ns)
{
    struct nats *nats = reader->nats;
    bool is_shared = nats_reader_is_shared(reader);
    int64_t delay_ns = TASK_IDLE;

    if (take_check(nats, &reader->needs_check) && !bus_nats_consumers_ensure(reader)) {
        check_failed(nats, &reader->needs_check, "consumers");
        return delay_ns;
    }
    if (is_shared)
        bus_nats_leases_keep(reader);
    for (unsigned i = 0; i < reader->partition_count; i++)
        at_latest(&delay_ns, keep_partition(&reader->partitions[i]));
    pthread_mutex_lock(&nats->lock);
    bus_nats_reader_dispatch(reader);
    pthread_mutex_unlock(&nats->lock);
    if (now_ns >= nats->look_ns)
        bus_nats_reader_look(reader);
    for (unsigned i = 0; i < reader->partition_count && is_shared && now_ns >= nats->extend_ns; i++)
        bus_nats_partition_extend(&reader->partitions[i]);
    return delay_ns;
}

static int64_t keep_readers(struct nats *nats, int64_t now_ns)
{
    bool is_look_due = now_ns >= nats->look_ns;
    int64_t delay_ns = TASK_IDLE;

    if (take_check(nats, &nats->needs_check) && !bus_nats_streams_ensure(nats)) {
        check_failed(nats, &nats->needs_check, "streams");
        return delay_ns;
    }
    if (is_look_due)
        bus_nats_advisory_streams_ensure(nats);
    for (size_t i = 0; i < nats->reader_count && !task_is_stopping(nats->upkeep); i++)
        at_latest(&delay_ns, keep_reader(nats->readers[i], now_ns));
    if (is_look_due)
        nats->look_ns = clock_deadline_ms(nats->config.ack_wait_ms / 2); /* lag, gaps, advisories */
    if (now_ns >= nats->extend_ns)
        nats->extend_ns = clock_deadline_ms(nats->config.ack_wait_ms / 4);
    return delay_ns;
}

int64_t bus_nats_upkeep_step(struct task *task, void *context)
{
    struct nats *nats = context;
    int64_t pause_ms = nats->config.ack_wait_ms / 4;
    int64_t delay_ns = TASK_MS(pause_ms < 1000 ? pause_ms : 1000);

    if (!bus_nats_connect(nats))
        return delay_ns;
    begin_epoch(nats);
    nats->upkeep_failed = false;
    at_latest(&delay_ns, keep_readers(nats, clock_mono_ns()));
    if (nats->upkeep_failed)
        at_latest(&delay_ns, task_retry(task));
    else if (task_failures(task) > 0)
        log_info("nats_goes_on");
    return delay_ns;
}
