/* Which member of a group handles which partition: a lease for each partition, an entry of a JetStream bucket that expires by
 * itself, taken and renewed by compare-and-set. The member that should have a partition follows from the members that are there:
 * in the order of their ids they take turns. Members announce themselves; while they disagree for a moment, a lease still has
 * one holder.
 *
 * A holder that was frozen finds its lease over, by its own clock, before it begins another batch. The batch under way is
 * finished and acknowledged: its effect is in the database, and handlers know an event that was handled by its id (bus_inside.h).
 * A lease is twice as long as the wait for acknowledgements, so the server sends the new holder what the old one had, in order.
 *
 * A process that dies loses its connection at once, and the server answers a request to the subject of that member: nobody listens. Then its
 * leases are taken without waiting for their end (ADR 17). A member that is frozen is still connected. ADR 14 compares leases with
 * advisory locks of PostgreSQL. */
#include <stdio.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/nats/inside.h"

#define STUCK_SLACK_MS 10000
#define ASK_MS 500        /* between two questions whether a member is there */
#define ANSWER_MS 100     /* for the answer of a member, which may be frozen; the server's is immediate */
#define RECONNECT_MS 3000 /* after this member's own connection others may still be reconnecting */
#define FREE "-"
#define LISTENS "+" /* after the id of a holder, and the word of an announcement: it can be asked */

/* ---- members ---- */

/* "ID here+", "ID free" (of a lease), "ID gone". Members over as many as partitions can be get none, and are ignored. */
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
        bool is_gone = str_eq(text, STR("gone")), is_free = str_eq(text, STR("free")),
             listens = str_eq(text, STR("here" LISTENS));
        size_t at = 0;
        pthread_mutex_lock(&nats->lock);
        while (at < reader->member_count && !str_eq(str_from(reader->members[at].id), id))
            at++;
        bool is_new = at == reader->member_count;
        if (is_new && !is_gone && at < BUS_PARTITIONS_MAX) {
            reader->members = memory_realloc_array(reader->members, at + 1, sizeof reader->members[0]);
            reader->members[at] = (struct nats_member){0};
            snprintf(reader->members[at].id, sizeof reader->members[at].id, "%.*s", STR_ARG(id));
            reader->member_count++;
        }
        if (!is_new && is_gone) {
            reader->members[at] = reader->members[--reader->member_count];
        } else if (at < reader->member_count) {
            reader->members[at].seen_ns = clock_mono_ns();
            reader->members[at].listens |= listens; /* its first word may have been of a lease */
        }
        if (!is_gone && (is_new || is_free))
            reader->announce_ns = 0; /* a new member does not know of this one */
        if (is_gone || is_new || is_free)
            bus_nats_wake(nats);
        pthread_mutex_unlock(&nats->lock);
    }
    natsMsg_Destroy(message);
}

static void on_question(natsConnection *connection, natsSubscription *subscription, natsMsg *message,
                        void *closure)
{
    (void)subscription;
    (void)closure;
    if (natsMsg_GetReply(message))
        natsConnection_PublishString(connection, natsMsg_GetReply(message), "");
    natsMsg_Destroy(message);
}

natsStatus bus_nats_members_subscribe(struct nats_reader *reader)
{
    char group[NATS_NAME_BYTES], own_subject[NATS_LONG_NAME_BYTES + sizeof reader->nats->id];

    if (reader->members_inbox)
        return NATS_OK;
    bus_nats_durable(group, reader, 0);
    snprintf(reader->members_subject, sizeof reader->members_subject, "_FRESHET.members.%s.%s",
             reader->topic->stream, group);
    snprintf(own_subject, sizeof own_subject, "%s.%s", reader->members_subject, reader->nats->id);
    bus_nats_unsubscribe(&reader->own_inbox);
    natsStatus status =
        bus_nats_subscribe(reader->nats, &reader->own_inbox, own_subject, NULL, on_question, reader);
    return status == NATS_OK ? bus_nats_subscribe(reader->nats, &reader->members_inbox,
                                                  reader->members_subject, NULL, on_announcement, reader)
                             : status;
}

static void announce(struct nats_reader *reader, const char *what)
{
    char text[64];

    snprintf(text, sizeof text, "%s %s", reader->nats->id, what);
    natsConnection_PublishString(reader->nats->connection, reader->members_subject, text);
}

/* Without the lock. False: it is there, or that is not known. */
static bool is_dead(struct nats_reader *reader, struct str id)
{
    struct nats *nats = reader->nats;
    int64_t now_ns = clock_mono_ns();
    char subject[NATS_LONG_NAME_BYTES + sizeof nats->id];
    natsMsg *answer = NULL;

    bool is_asked = str_eq(id, str_from(reader->asked)) && now_ns < reader->ask_ns; /* it was there */
    if (is_asked || now_ns < nats->connected_ns + RECONNECT_MS * CLOCK_NS_PER_MS)
        return false;
    snprintf(subject, sizeof subject, "%s.%.*s", reader->members_subject, STR_ARG(id));
    natsStatus status = natsConnection_RequestString(&answer, nats->connection, subject, "", ANSWER_MS);
    natsMsg_Destroy(answer);
    snprintf(reader->asked, sizeof reader->asked, "%.*s", STR_ARG(id));
    reader->ask_ns = status == NATS_NO_RESPONDERS ? 0 : clock_deadline_ms(ASK_MS);
    return status == NATS_NO_RESPONDERS;
}

/* Those that have not reported themselves lately, or that the server does not know any more. */
static void remove_members(struct nats_reader *reader)
{
    struct nats *nats = reader->nats;
    int64_t now_ns = clock_mono_ns(), ack_wait_ns = nats->config.ack_wait_ms * CLOCK_NS_PER_MS;
    bool is_due = now_ns >= reader->members_ask_ns;

    if (is_due)
        reader->members_ask_ns = clock_deadline_ms(ASK_MS);
    for (size_t i = reader->member_count; i-- > 0;) {
        struct nats_member member = reader->members[i];
        bool is_gone = member.seen_ns < now_ns - ack_wait_ns;
        if (is_due && !is_gone && member.listens) {
            pthread_mutex_unlock(&nats->lock);
            is_gone = is_dead(reader, str_from(member.id));
            pthread_mutex_lock(&nats->lock);
        }
        /* others may have come or left meanwhile */
        if (is_gone && i < reader->member_count && strcmp(reader->members[i].id, member.id) == 0)
            reader->members[i] = reader->members[--reader->member_count];
        i = i < reader->member_count ? i : reader->member_count;
    }
}

/* ---- leases ---- */

static natsStatus write_lease(struct nats_partition *partition, const char *holder, uint64_t *revision)
{
    struct nats *nats = partition->reader->nats;

    pthread_mutex_unlock(&nats->lock);
    natsStatus status =
        kvStore_UpdateString(revision, nats->leases, partition->lease_key, holder, partition->lease_revision);
    pthread_mutex_lock(&nats->lock);
    return status;
}

static bool take_lease(struct nats_partition *partition, uint64_t *revision)
{
    struct nats *nats = partition->reader->nats;
    const char *key = partition->lease_key, *holder = NULL;
    char own[sizeof nats->id + 1];
    bool is_free = false;
    kvEntry *entry = NULL;

    pthread_mutex_unlock(&nats->lock);
    natsStatus status = kvStore_Get(&entry, nats->leases, key);
    if (status == NATS_OK)
        holder = kvEntry_ValueString(entry);
    snprintf(own, sizeof own, "%s" LISTENS, nats->id);
    partition->is_inherited = false;
    if (holder) {
        struct str id = str_from(holder);
        is_free = strcmp(holder, FREE) == 0 || strcmp(holder, own) == 0;
        if (!is_free && id.len == sizeof nats->id && holder[id.len - 1] == LISTENS[0])
            partition->is_inherited = is_free = is_dead(partition->reader, str_of(holder, id.len - 1));
    }
    if (status == NATS_NOT_FOUND)
        status = kvStore_CreateString(revision, nats->leases, key, own);
    else if (is_free)
        status = kvStore_UpdateString(revision, nats->leases, key, own, kvEntry_Revision(entry));
    else
        status = NATS_ILLEGAL_STATE; /* another member has it, or the server does not answer */
    kvEntry_Destroy(entry);
    pthread_mutex_lock(&nats->lock);
    return status == NATS_OK;
}

/* Shorter than the server's, since clocks differ and requests take time. */
static void set_lease(struct nats_partition *partition, uint64_t revision, int64_t asked_ns)
{
    partition->lease_revision = revision;
    partition->lease_until_ns = asked_ns + partition->reader->nats->lease_ns * 4 / 5;
}

/* No further batch begins. The inbox, and with it the open request, ends before messages are returned: or the server would send
 * them here again at once, until their deliveries are used up. False: a job runs. */
static bool end_partition(struct nats_partition *partition, bool give_back)
{
    bus_nats_partition_move(partition, partition->is_busy ? PARTITION_LEAVING : PARTITION_AWAY);
    if (partition->is_busy)
        return false;
    if (give_back)
        bus_nats_unsubscribe(&partition->pull.inbox);
    bus_nats_partition_drop(partition, give_back);
    return true;
}

static void release_partition(struct nats_partition *partition)
{
    struct nats *nats = partition->reader->nats;
    uint64_t revision;

    if (!end_partition(partition, true))
        return;
    /* the replies reach the server before the lease is free */
    pthread_mutex_unlock(&nats->lock);
    natsConnection_FlushTimeout(nats->connection, NATS_API_MS / 4);
    FAILPOINT("nats.before_release");
    pthread_mutex_lock(&nats->lock);
    if (write_lease(partition, FREE, &revision) == NATS_OK)
        announce(partition->reader, "free");
}

static void keep_lease(struct nats_partition *partition, bool should_hold)
{
    struct nats *nats = partition->reader->nats;
    const struct bus_subscription *spec = &partition->reader->consumer.spec;
    int64_t asked_ns = clock_mono_ns();
    bool is_held = partition->state != PARTITION_AWAY;
    /* a handler that does not return must not keep its partition for ever */
    bool is_stuck =
        partition->is_busy &&
        asked_ns > partition->busy_since_ns + (nats->config.handler_ms + STUCK_SLACK_MS) * CLOCK_NS_PER_MS;
    bool is_due = asked_ns > partition->lease_until_ns - nats->lease_ns / 2;
    uint64_t revision;
    char own[sizeof nats->id + 1];

    snprintf(own, sizeof own, "%s" LISTENS, nats->id);
    /* while the database is down it is down for all, and each message that changes hands uses up a delivery */
    should_hold |= is_held && partition->is_database_down;
    if (!is_held && should_hold && take_lease(partition, &revision) &&
        bus_nats_partition_open(partition) == NATS_OK) {
        set_lease(partition, revision, asked_ns);
        bus_nats_partition_move(partition, PARTITION_SYNCING);
        partition->consumer_sequence = 0;
        partition->pull.requested = 0;
        partition->is_database_down = false;
        FAILPOINT("nats.lease_taken");
        log_debug("nats_partition_taken", LOG_CSTR("topic", spec->topic), LOG_CSTR("group", spec->group),
                  LOG_INT("partition", partition->number));
    } else if (is_held && (asked_ns >= partition->lease_until_ns || is_stuck)) {
        end_partition(partition, false);
    } else if (is_held && (!should_hold || partition->state == PARTITION_LEAVING)) {
        release_partition(partition);
    } else if (is_held && is_due && write_lease(partition, own, &revision) == NATS_OK) {
        bus_nats_partition_reply(partition, "+WPI");
        set_lease(partition, revision, asked_ns);
    } /* else the server does not answer, or another member has it: it expires */
}

/* The members that announced themselves lately take turns, in the order of their ids. */
void bus_nats_leases_keep(struct nats_reader *reader)
{
    struct nats *nats = reader->nats;
    int64_t now_ns = clock_mono_ns(), ack_wait_ns = nats->config.ack_wait_ms * CLOCK_NS_PER_MS;
    size_t rank = 0;

    remove_members(reader);
    for (size_t i = 0; i < reader->member_count; i++)
        rank += strcmp(reader->members[i].id, nats->id) < 0;
    if (now_ns >= reader->announce_ns) {
        reader->announce_ns = now_ns + ack_wait_ns / 5;
        announce(reader, "here" LISTENS);
    }
    size_t members = reader->member_count + 1;
    for (unsigned i = 0; i < reader->partition_count; i++)
        keep_lease(&reader->partitions[i], i % members == rank);
}

/* At the end; no job runs. */
void bus_nats_leases_release(struct nats_reader *reader, int64_t deadline_ns)
{
    for (unsigned i = 0; i < reader->partition_count; i++)
        if (reader->partitions[i].state != PARTITION_AWAY && clock_mono_ns() < deadline_ns &&
            atomic_load(&reader->nats->bus.is_up))
            release_partition(&reader->partitions[i]);
    if (reader->members_inbox)
        announce(reader, "gone");
}
