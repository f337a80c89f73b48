/* Which member of a group handles which partition: a lease for each partition, an entry of a JetStream bucket that expires by
 * itself, taken and renewed by compare-and-set. The member that should have a partition follows from the members that are there:
 * in the order of their ids they take turns. Members announce themselves; while they disagree for a moment, a lease still has
 * one holder.
 *
 * A holder that was frozen finds its lease over, by its own clock, before it begins another batch. The batch under way is
 * finished and acknowledged: its effect is in the database, and handlers know an event that was handled by its id (delivery.h).
 * A lease is twice as long as the wait for acknowledgements, so the server sends the new holder what the old one had, in order.
 * ADR 0014 compares this with advisory locks of PostgreSQL. */
#include <stdio.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/nats/inside.h"

#define STUCK_SLACK_MS 10000
#define FREE "-"

/* ---- members ---- */

static void remove_member(struct nats_reader *reader, struct nats_member *member)
{
    *member = reader->members[--reader->member_count];
}

/* "ID here", "ID free" (of a lease), "ID gone". Members over as many as partitions can be get none, and are ignored. */
static void on_announcement(natsConnection *connection, natsSubscription *subscription, natsMsg *message,
                            void *closure)
{
    struct nats_reader *reader = closure;
    struct nats *nats = reader->nats;
    struct str text = str_of(natsMsg_GetData(message), (size_t)natsMsg_GetDataLength(message)), id;

    (void)connection;
    (void)subscription;
    if (text.len > 0 && str_split(&text, ' ', &id) && id.len == sizeof nats->id - 1 &&
        !str_eq(id, str_from(nats->id))) {
        bool is_gone = str_eq(text, STR("gone")), is_free = str_eq(text, STR("free"));
        size_t at = 0;
        pthread_mutex_lock(&nats->lock);
        while (at < reader->member_count && !str_eq(str_from(reader->members[at].id), id))
            at++;
        bool is_new = at == reader->member_count;
        if (is_new && !is_gone && at < BUS_PARTITIONS_MAX) {
            reader->members = memory_realloc_array(reader->members, at + 1, sizeof reader->members[0]);
            snprintf(reader->members[at].id, sizeof reader->members[at].id, "%.*s", STR_ARG(id));
            reader->member_count++;
        }
        if (!is_new && is_gone)
            remove_member(reader, &reader->members[at]);
        else if (at < reader->member_count)
            reader->members[at].seen_ns = clock_mono_ns();
        if (!is_gone && (is_new || is_free))
            reader->announce_ns = 0; /* a new member does not know of this one */
        if (is_gone || is_new || is_free)
            bus_nats_wake(nats);
        pthread_mutex_unlock(&nats->lock);
    }
    natsMsg_Destroy(message);
}

natsStatus bus_nats_members_subscribe(struct nats_reader *reader)
{
    char group[NATS_NAME_BYTES];

    if (reader->members_inbox)
        return NATS_OK;
    bus_nats_durable(group, reader, 0);
    snprintf(reader->members_subject, sizeof reader->members_subject, "_FRESHET.members.%s.%s",
             reader->topic->stream, group);
    return bus_nats_subscribe(reader->nats, &reader->members_inbox, reader->members_subject, NULL,
                              on_announcement, reader);
}

static void announce(struct nats_reader *reader, const char *what)
{
    char text[64];

    snprintf(text, sizeof text, "%s %s", reader->nats->id, what);
    natsConnection_PublishString(reader->nats->connection, reader->members_subject, text);
}

/* ---- leases ---- */

static natsStatus write_lease(struct nats_partition *partition, const char *holder, uint64_t *revision)
{
    return kvStore_UpdateString(revision, partition->reader->nats->leases, partition->lease_key, holder,
                                partition->lease_revision);
}

static bool take_lease(struct nats_partition *partition, uint64_t *revision)
{
    struct nats *nats = partition->reader->nats;
    const char *key = partition->lease_key;
    kvEntry *entry = NULL;

    natsStatus status = kvStore_Get(&entry, nats->leases, key);
    if (status == NATS_NOT_FOUND)
        return kvStore_CreateString(revision, nats->leases, key, nats->id) == NATS_OK;
    if (status != NATS_OK)
        return false;
    const char *holder = kvEntry_ValueString(entry);
    bool is_taken =
        holder && (strcmp(holder, FREE) == 0 || strcmp(holder, nats->id) == 0) &&
        kvStore_UpdateString(revision, nats->leases, key, nats->id, kvEntry_Revision(entry)) == NATS_OK;
    kvEntry_Destroy(entry);
    return is_taken;
}

/* Under the lock. Shorter than the server's, since clocks differ and requests take time. */
static void set_lease(struct nats_partition *partition, uint64_t revision, int64_t asked_ns)
{
    partition->lease_revision = revision;
    partition->lease_until_ns = asked_ns + partition->reader->nats->lease_ns * 4 / 5;
}

/* No further batch begins. The inbox, and with it the open request, ends before messages are returned: or the server would send
 * them here again at once, until their deliveries are used up. False: a job runs. */
static bool end_partition(struct nats_partition *partition, bool give_back)
{
    struct nats *nats = partition->reader->nats;

    pthread_mutex_lock(&nats->lock);
    bool is_busy = partition->is_busy;
    bus_nats_partition_move(partition, is_busy ? PARTITION_LEAVING : PARTITION_AWAY);
    pthread_mutex_unlock(&nats->lock);
    if (is_busy)
        return false;
    if (give_back)
        bus_nats_unsubscribe(&partition->pull.inbox);
    bus_nats_partition_drop(partition, give_back);
    return true;
}

static void release_partition(struct nats_partition *partition)
{
    uint64_t revision;

    if (!end_partition(partition, true))
        return;
    /* the replies reach the server before the lease is free */
    natsConnection_FlushTimeout(partition->reader->nats->connection, NATS_API_MS / 4);
    FAILPOINT("nats.before_release");
    if (write_lease(partition, FREE, &revision) == NATS_OK)
        announce(partition->reader, "free");
}

static void keep_lease(struct nats_partition *partition, bool should_hold)
{
    struct nats *nats = partition->reader->nats;
    const struct bus_subscription *spec = &partition->reader->consumer.spec;
    int64_t asked_ns = clock_mono_ns();
    uint64_t revision;

    pthread_mutex_lock(&nats->lock);
    bool is_held = partition->state != PARTITION_AWAY, is_leaving = partition->state == PARTITION_LEAVING;
    /* a handler that does not return must not keep its partition for ever */
    bool is_stuck =
        partition->is_busy &&
        asked_ns > partition->busy_since_ns + (nats->config.handler_ms + STUCK_SLACK_MS) * CLOCK_NS_PER_MS;
    /* while the database is down it is down for all, and each message that changes hands uses up a delivery */
    should_hold |= is_held && partition->is_database_down;
    bool is_over = asked_ns >= partition->lease_until_ns;
    bool is_due = asked_ns > partition->lease_until_ns - nats->lease_ns / 2;
    pthread_mutex_unlock(&nats->lock);
    if (!is_held && should_hold && take_lease(partition, &revision) &&
        bus_nats_partition_open(partition) == NATS_OK) {
        pthread_mutex_lock(&nats->lock);
        set_lease(partition, revision, asked_ns);
        bus_nats_partition_move(partition, PARTITION_SYNCING);
        partition->consumer_sequence = 0;
        partition->pull.requested = 0;
        partition->is_database_down = false;
        pthread_mutex_unlock(&nats->lock);
        FAILPOINT("nats.lease_taken");
        log_debug("nats_partition_taken", LOG_CSTR("topic", spec->topic), LOG_CSTR("group", spec->group),
                  LOG_INT("partition", partition->number));
    } else if (is_held && (is_over || is_stuck)) {
        end_partition(partition, false);
    } else if (is_held && (!should_hold || is_leaving)) {
        release_partition(partition);
    } else if (is_held && is_due && write_lease(partition, nats->id, &revision) == NATS_OK) {
        bus_nats_partition_extend(partition);
        pthread_mutex_lock(&nats->lock);
        set_lease(partition, revision, asked_ns);
        pthread_mutex_unlock(&nats->lock);
    } /* else the server does not answer, or another member has it: it expires */
}

/* The members that announced themselves lately take turns, in the order of their ids. */
void bus_nats_leases_keep(struct nats_reader *reader)
{
    struct nats *nats = reader->nats;
    int64_t now_ns = clock_mono_ns(), ack_wait_ns = nats->config.ack_wait_ms * CLOCK_NS_PER_MS;
    size_t rank = 0;

    pthread_mutex_lock(&nats->lock);
    bool is_due = now_ns >= reader->announce_ns;
    if (is_due)
        reader->announce_ns = now_ns + ack_wait_ns / 5;
    for (size_t i = reader->member_count; i-- > 0;) {
        if (reader->members[i].seen_ns < now_ns - ack_wait_ns)
            remove_member(reader, &reader->members[i]);
        else
            rank += strcmp(reader->members[i].id, nats->id) < 0;
    }
    size_t members = reader->member_count + 1;
    pthread_mutex_unlock(&nats->lock);
    if (is_due)
        announce(reader, "here");
    for (unsigned i = 0; i < reader->partition_count; i++)
        keep_lease(&reader->partitions[i], i % members == rank);
}

/* At the end; no job runs. */
void bus_nats_leases_release(struct nats_reader *reader, int64_t deadline_ns)
{
    struct nats *nats = reader->nats;

    for (unsigned i = 0; i < reader->partition_count; i++) {
        pthread_mutex_lock(&nats->lock);
        bool is_held = reader->partitions[i].state != PARTITION_AWAY;
        pthread_mutex_unlock(&nats->lock);
        if (is_held && clock_mono_ns() < deadline_ns && atomic_load(&nats->is_up))
            release_partition(&reader->partitions[i]);
    }
    if (reader->members_inbox)
        announce(reader, "gone");
}
