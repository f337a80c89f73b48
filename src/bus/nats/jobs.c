/* A slot's job, on a worker: one batch from the head of its queue, then the server is told. A shared group's message that
 * is to come again goes back to the server with a delay; those behind it stay here and wait for it. */
#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "bus/nats/inside.h"

#define ARENA_BYTES 16384

static bool is_shared(const struct nats_slot *slot)
{
    return slot->reader->consumer.spec.mode == BUS_SHARED;
}

/* ---- whose turn it is; under the lock ---- */

static bool has_work(const struct nats_slot *slot, int64_t now_ns)
{
    const struct nats_reader *reader = slot->reader;

    if (slot->busy || !reader->ready)
        return false;
    if (!reader->ready_told) /* once, before anything else */
        return reader->busy == 0;
    if (slot->gap)
        return true;
    if (slot->state != SLOT_RUNNING || slot->give_up || (is_shared(slot) && now_ns >= slot->lease_until_ns))
        return false;
    return (slot->count > 0 && slot->items[0].message && slot->due_ns <= now_ns) ||
           bus_nats_fates_are_due(slot, now_ns);
}

static void submit(struct nats_slot *slot, int64_t now_ns)
{
    struct nats_reader *reader = slot->reader;

    slot->busy = worker_pool_submit(reader->nats->config.workers, &slot->work);
    if (!slot->busy)
        return; /* the workers are swamped: the keeper comes back to it */
    slot->busy_since_ns = now_ns;
    reader->busy++;
    reader->nats->busy++;
}

void bus_nats_reader_wake(struct nats_reader *reader)
{
    unsigned partitions = reader->consumer.topic->spec.partitions;
    int64_t now_ns = clock_mono_ns();

    for (unsigned i = 0; i < partitions; i++) {
        struct nats_slot *slot = &reader->slots[(reader->turn + i) % partitions];
        if (reader->nats->stopping || reader->busy >= reader->consumer.spec.parallel)
            return;
        if (has_work(slot, now_ns)) {
            submit(slot, now_ns);
            reader->turn = slot->partition + 1;
        }
    }
}

/* ---- a batch ---- */

static size_t take_batch(struct nats_slot *slot, struct arena *arena, struct bus_message **messages,
                         natsMsg ***raw)
{
    const struct bus_consumer *consumer = &slot->reader->consumer;
    size_t count = 0;

    *messages = arena_zalloc(arena, consumer->spec.batch_max * sizeof(**messages));
    *raw = arena_zalloc(arena, consumer->spec.batch_max * sizeof(**raw));
    while (count < slot->count && count < consumer->spec.batch_max && slot->items[count].message) {
        const struct nats_item *item = &slot->items[count];
        if (count > 0 && (item->delivered > 1 || slot->items[0].delivered > 1))
            break;
        (*raw)[count] = item->message;
        (*messages)[count] = (struct bus_message){
            .topic = consumer->topic->name,
            .payload = str_of(natsMsg_GetData(item->message), (size_t)natsMsg_GetDataLength(item->message)),
            .partition = slot->partition,
            .offset = item->sequence,
            .created_us = item->created_us,
        };
        count++;
    }
    return count;
}

static void tell_settled(struct nats_slot *slot, natsMsg **raw, size_t settled)
{
    for (size_t i = 0; i < settled && is_shared(slot); i++)
        bus_nats_tell(slot->reader->nats, raw[i], slot->dead[i] ? "+TERM" : "+ACK");
}

/* Under the lock. A batch may have lost its queue to bus_nats_slot_drop(): not while a job has it. */
static void remove_settled(struct nats_slot *slot, const struct bus_message *messages, size_t settled)
{
    size_t kept = 0;

    if (settled == 0)
        return;
    if (messages[settled - 1].offset > slot->settled)
        slot->settled = messages[settled - 1].offset;
    for (size_t i = 0; i < settled; i++)
        if (slot->dead[i])
            bus_nats_bury_note(slot, messages[i].offset);
    for (size_t i = 0; i < slot->count; i++) {
        if (slot->items[i].sequence > slot->settled) {
            slot->items[kept++] = slot->items[i];
            continue;
        }
        if (slot->items[i].given_up)
            bus_nats_bury_note(slot, slot->items[i].sequence);
        bus_nats_item_free(&slot->items[i]);
    }
    slot->count = kept;
}

/* Its turn comes again after `wait_ms`: the server keeps the time when it is the message's own failure; while the database
 * is away nobody is to blame, and no delivery is used up: it stays here, as work in progress. */
static void put_off(struct nats_slot *slot, int64_t wait_ms, bool failed)
{
    struct nats *nats = slot->reader->nats;
    char nak[64];
    natsMsg *head = NULL;

    pthread_mutex_lock(&nats->lock);
    slot->due_ns = clock_deadline_ms(wait_ms);
    slot->overdue_ns = clock_deadline_ms(wait_ms + NATS_OVERDUE_WAITS * nats->config.ack_wait_ms);
    if (is_shared(slot) && failed && slot->count > 0 && slot->state == SLOT_RUNNING) {
        head = slot->items[0].message;
        slot->items[0].message = NULL;
    }
    bus_nats_kick(nats);
    pthread_mutex_unlock(&nats->lock);
    if (!head)
        return;
    snprintf(nak, sizeof nak, "-NAK {\"delay\": %lld}", (long long)(wait_ms * 1000000));
    bus_nats_tell(nats, head, nak); /* if it gets lost, it comes again all the same, a little later */
    natsMsg_Destroy(head);
}

/* Under the lock. The server's count knows of deliveries that this process does not: what fails at its last one is buried
 * here, with the reason, instead of going back to be given up. */
static void count_deliveries(struct nats_slot *slot)
{
    const struct nats_item *head = &slot->items[0];
    struct bus_delivery *delivery = &slot->delivery;
    unsigned attempts_max = slot->reader->consumer.spec.attempts_max;

    if (!is_shared(slot) || !slot->reader->consumer.topic->dead || attempts_max == 0 ||
        head->delivered <= delivery->attempts + 1)
        return;
    delivery->attempts = head->delivered > attempts_max ? attempts_max : (unsigned)head->delivered - 1;
    if (!delivery->last_error[0])
        snprintf(delivery->last_error, sizeof delivery->last_error, "delivered %llu times and not settled",
                 (unsigned long long)head->delivered - 1);
}

/* It failed at its last delivery: back at the server it would be given up. It is buried here, next. */
static bool has_used_up(const struct nats_slot *slot)
{
    unsigned attempts_max = slot->reader->consumer.spec.attempts_max;

    return is_shared(slot) && attempts_max > 0 && slot->delivery.attempts >= attempts_max;
}

static void deliver(struct nats_slot *slot, struct bus_message *messages, natsMsg **raw, size_t count)
{
    struct nats *nats = slot->reader->nats;
    unsigned attempts = slot->delivery.attempts;
    int64_t wait_ms = 0;

    memset(slot->dead, 0, count * sizeof slot->dead[0]);
    size_t settled = bus_deliver(&slot->delivery, messages, count, &wait_ms);
    bool failed = slot->delivery.attempts > attempts;
    if (failed && has_used_up(slot))
        wait_ms = 0;
    FAILPOINT("nats.before_ack");
    tell_settled(slot, raw, settled);
    FAILPOINT("nats.after_ack");
    pthread_mutex_lock(&nats->lock);
    remove_settled(slot, messages, settled);
    slot->is_out = wait_ms > 0 && !failed;
    pthread_mutex_unlock(&nats->lock);
    if (wait_ms > 0)
        put_off(slot, wait_ms, failed);
    bus_nats_slot_pull(slot);
}

static void handle_batch(struct nats_slot *slot)
{
    struct nats *nats = slot->reader->nats;
    struct bus_message *messages;
    natsMsg **raw;
    struct arena arena;

    arena_init(&arena, ARENA_BYTES);
    pthread_mutex_lock(&nats->lock);
    bool ours = slot->state == SLOT_RUNNING && !nats->stopping && slot->due_ns <= clock_mono_ns() &&
                (!is_shared(slot) || clock_mono_ns() < slot->lease_until_ns);
    size_t count = ours ? take_batch(slot, &arena, &messages, &raw) : 0;
    if (count > 0)
        count_deliveries(slot);
    pthread_mutex_unlock(&nats->lock);
    for (size_t i = 0; i < count; i++)
        bus_nats_decode_headers(raw[i], &arena, &messages[i]);
    if (count > 0)
        deliver(slot, messages, raw, count);
    arena_deinit(&arena);
}

static void tell_gap(struct nats_slot *slot)
{
    const struct bus_subscription *spec = &slot->reader->consumer.spec;
    struct nats *nats = slot->reader->nats;

    pthread_mutex_lock(&nats->lock);
    bool gap = slot->gap;
    int64_t from = slot->gap_from, next = slot->gap_next;
    slot->gap = false;
    pthread_mutex_unlock(&nats->lock);
    if (!gap)
        return;
    log_warn("bus_gap", LOG_CSTR("topic", spec->topic), LOG_CSTR("group", spec->group),
             LOG_INT("partition", slot->partition), LOG_INT("offset", from), LOG_INT("next", next));
    if (spec->on_gap)
        spec->on_gap(spec->context, slot->partition, from, next);
}

static void tell_ready(struct nats_reader *reader)
{
    const struct bus_subscription *spec = &reader->consumer.spec;

    pthread_mutex_lock(&reader->nats->lock);
    bool tell = !reader->ready_told;
    reader->ready_told = true;
    pthread_mutex_unlock(&reader->nats->lock);
    if (tell && spec->on_ready)
        spec->on_ready(spec->context);
}

static void run(struct worker_job *work)
{
    struct nats_slot *slot = (struct nats_slot *)work;

    tell_ready(slot->reader);
    tell_gap(slot);
    bus_nats_fates_settle(slot);
    handle_batch(slot);
}

static void done(struct worker_job *work)
{
    struct nats_slot *slot = (struct nats_slot *)work;
    struct nats *nats = slot->reader->nats;

    pthread_mutex_lock(&nats->lock);
    slot->busy = false;
    slot->reader->busy--;
    nats->busy--;
    bus_nats_reader_wake(slot->reader);
    if (slot->give_up || nats->busy == 0 || nats->stopping)
        bus_nats_kick(nats);
    pthread_mutex_unlock(&nats->lock);
}

void bus_nats_job_init(struct nats_slot *slot)
{
    slot->work.run = run;
    slot->work.done = done;
}
