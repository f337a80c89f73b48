/* Who of a group handles which partition: a lease for each, in a JetStream bucket whose entries end by themselves, taken
 * and renewed by compare-and-set. Whose it should be follows from who is there: the members, in the order of their ids, take
 * turns. They know of each other by a word now and then; should they not agree for a moment, the lease still has one holder.
 *
 * A holder that was frozen finds its lease over by its own clock, which went on, before it begins another batch. What it had
 * begun it finishes and acknowledges: its effect is in the database, once more than the new holder's, and must know its
 * event id (delivery.h). A lease ends twice as late as the wait for acknowledgements, so by then the server gives the new
 * holder what the old one had, and in order. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/nats/inside.h"

#define STUCK_SLACK_MS 10000
#define FREE "-"

/* ---- members ---- */

/* Under the lock. */
static struct nats_member *find_member(struct nats_reader *reader, const char *id)
{
    for (size_t i = 0; i < reader->member_count; i++)
        if (strcmp(reader->members[i].id, id) == 0)
            return &reader->members[i];
    return NULL;
}

static void remove_member(struct nats_reader *reader, struct nats_member *member)
{
    *member = reader->members[--reader->member_count];
}

static struct nats_member *add_member(struct nats_reader *reader, const char *id)
{
    struct nats_member *member;

    if (reader->member_count == BUS_PARTITIONS_MAX) /* the others would have nothing to do anyway */
        return NULL;
    reader->members =
        memory_realloc_array(reader->members, reader->member_count + 1, sizeof reader->members[0]);
    member = &reader->members[reader->member_count++];
    snprintf(member->id, sizeof member->id, "%s", id);
    return member;
}

/* "ID here", "ID free" (a lease is), "ID gone" */
static void on_word(natsConnection *connection, natsSubscription *subscription, natsMsg *message,
                    void *closure)
{
    struct nats_reader *reader = closure;
    struct nats *nats = reader->nats;
    struct str text = str_of(natsMsg_GetData(message), (size_t)natsMsg_GetDataLength(message)), id_text;
    char id[sizeof nats->id];

    (void)connection;
    (void)subscription;
    if (text.len > 0 && str_split(&text, ' ', &id_text) && id_text.len == sizeof id - 1) {
        snprintf(id, sizeof id, "%.*s", STR_ARG(id_text));
        pthread_mutex_lock(&nats->lock);
        struct nats_member *member = strcmp(id, nats->id) == 0 ? NULL : find_member(reader, id);
        bool other = strcmp(id, nats->id) != 0, gone = str_eq(text, STR("gone"));
        bool news = other && (gone || !member || str_eq(text, STR("free")));
        if (gone && member)
            remove_member(reader, member);
        else if (other && !gone && (member || (member = add_member(reader, id))))
            member->heard_ns = clock_mono_ns();
        reader->answer |= other && !gone && news;
        if (news)
            bus_nats_kick(nats);
        pthread_mutex_unlock(&nats->lock);
    }
    natsMsg_Destroy(message);
}

natsStatus bus_nats_members_listen(struct nats_reader *reader)
{
    char group[NATS_NAME_BYTES];

    if (reader->members_inbox)
        return NATS_OK;
    bus_nats_durable(group, reader, 0);
    snprintf(reader->members_subject, sizeof reader->members_subject, "_FRESHET.members.%s.%s",
             reader->topic->stream, group);
    return bus_nats_listen_to(reader->nats, &reader->members_inbox, reader->members_subject, NULL, on_word,
                              reader);
}

void bus_nats_members_say(struct nats_reader *reader, const char *what)
{
    char text[64];

    snprintf(text, sizeof text, "%s %s", reader->nats->id, what);
    natsConnection_PublishString(reader->nats->connection, reader->members_subject, text);
}

/* Under the lock: is this partition ours, by the members that were heard of? */
static bool is_ours(struct nats_reader *reader, unsigned partition)
{
    int64_t oldest_ns = clock_mono_ns() - reader->nats->config.ack_wait_ms * CLOCK_NS_PER_MS;
    size_t rank = 0, count = 1;

    for (size_t i = 0; i < reader->member_count;) {
        struct nats_member *member = &reader->members[i];
        if (member->heard_ns < oldest_ns) {
            remove_member(reader, member);
            continue;
        }
        count++;
        rank += strcmp(member->id, reader->nats->id) < 0;
        i++;
    }
    return partition % count == rank;
}

/* ---- leases ---- */

static void lease_key(const struct nats_slot *slot, char out[2 * NATS_NAME_BYTES])
{
    char durable[NATS_NAME_BYTES];

    bus_nats_durable(durable, slot->reader, slot->partition);
    snprintf(out, 2 * NATS_NAME_BYTES, "%s.%s", slot->reader->topic->stream, durable);
}

static natsStatus take(struct nats_slot *slot, uint64_t *revision)
{
    struct nats *nats = slot->reader->nats;
    char key[2 * NATS_NAME_BYTES];
    kvEntry *entry = NULL;

    lease_key(slot, key);
    natsStatus status = kvStore_Get(&entry, nats->leases, key);
    if (status == NATS_NOT_FOUND)
        return kvStore_CreateString(revision, nats->leases, key, nats->id);
    if (status == NATS_OK) {
        const char *holder = kvEntry_ValueString(entry);
        bool free_now = holder && (strcmp(holder, FREE) == 0 || strcmp(holder, nats->id) == 0);
        status = free_now
                     ? kvStore_UpdateString(revision, nats->leases, key, nats->id, kvEntry_Revision(entry))
                     : NATS_NOT_PERMITTED;
    }
    kvEntry_Destroy(entry);
    return status;
}

static natsStatus put(struct nats_slot *slot, const char *value, uint64_t *revision)
{
    char key[2 * NATS_NAME_BYTES];

    lease_key(slot, key);
    return kvStore_UpdateString(revision, slot->reader->nats->leases, key, value, slot->lease_revision);
}

static int64_t lease_end(const struct nats *nats, int64_t asked_ns)
{
    return asked_ns + nats->lease_ns * 4 / 5;
}

static void begin(struct nats_slot *slot, uint64_t revision, int64_t asked_ns)
{
    struct nats *nats = slot->reader->nats;

    pthread_mutex_lock(&nats->lock);
    slot->lease_revision = revision;
    slot->lease_until_ns = lease_end(nats, asked_ns);
    slot->state = SLOT_SYNCING;
    slot->turn = 0;
    slot->give_up = false;
    slot->asked = 0;
    slot->is_out = false;
    pthread_mutex_unlock(&nats->lock);
    FAILPOINT("nats.lease_taken");
    log_debug("nats_partition_taken", LOG_CSTR("topic", slot->reader->consumer.spec.topic),
              LOG_CSTR("group", slot->reader->consumer.spec.group), LOG_INT("partition", slot->partition));
}

/* Not ours any more: nothing of it is begun, and what a job has in hand is its last. The request that is open ends with the
 * inbox, before anything is given back: or the server would send us the same again at once, until its deliveries are used
 * up. */
static bool end(struct nats_slot *slot, bool give_back)
{
    struct nats *nats = slot->reader->nats;

    pthread_mutex_lock(&nats->lock);
    slot->give_up = true;
    bool busy = slot->busy;
    if (!busy)
        slot->state = SLOT_AWAY;
    pthread_mutex_unlock(&nats->lock);
    if (!busy && give_back)
        bus_nats_inbox_close(&slot->inbox);
    if (!busy)
        bus_nats_slot_drop(slot, give_back);
    return !busy;
}

static void release(struct nats_slot *slot)
{
    uint64_t revision;

    if (!end(slot, true))
        return;
    natsConnection_FlushTimeout(slot->reader->nats->connection,
                                NATS_API_MS / 4); /* what was told is there first */
    FAILPOINT("nats.before_release");
    if (put(slot, FREE, &revision) == NATS_OK)
        bus_nats_members_say(slot->reader, "free");
}

static bool open_inbox(struct nats_slot *slot)
{
    return bus_nats_inbox_open(slot->reader->nats, &slot->inbox, slot->inbox_subject, bus_nats_on_message,
                               slot) == NATS_OK;
}

/* A handler that does not come back must not keep its partition for ever. */
static bool is_stuck(const struct nats_slot *slot)
{
    const struct nats *nats = slot->reader->nats;

    return slot->busy && clock_mono_ns() > slot->busy_since_ns +
                                               (nats->config.handler_ms + STUCK_SLACK_MS) * CLOCK_NS_PER_MS;
}

static void keep(struct nats_slot *slot)
{
    struct nats *nats = slot->reader->nats;
    int64_t asked_ns = clock_mono_ns();
    uint64_t revision;

    pthread_mutex_lock(&nats->lock);
    bool held = slot->state != SLOT_AWAY, over = asked_ns >= slot->lease_until_ns;
    /* While the database is away nobody could do better, and each message that changes hands loses a delivery. */
    bool ours = is_ours(slot->reader, slot->partition) || (held && slot->is_out), stuck = is_stuck(slot);
    bool due = asked_ns > slot->lease_until_ns - nats->lease_ns / 2, give_up = slot->give_up;
    pthread_mutex_unlock(&nats->lock);
    if (!held) {
        if (ours && take(slot, &revision) == NATS_OK && open_inbox(slot))
            begin(slot, revision, asked_ns);
    } else if (over || stuck) {
        end(slot, false);
    } else if (!ours || give_up) {
        release(slot);
    } else if (due) {
        if (put(slot, nats->id, &revision) != NATS_OK)
            return; /* the server is away, or somebody has it: it ends by itself */
        bus_nats_slot_extend(slot);
        pthread_mutex_lock(&nats->lock);
        slot->lease_revision = revision;
        slot->lease_until_ns = lease_end(nats, asked_ns);
        pthread_mutex_unlock(&nats->lock);
    }
}

void bus_nats_leases_keep(struct nats_reader *reader)
{
    int64_t now_ns = clock_mono_ns();

    pthread_mutex_lock(&reader->nats->lock);
    bool speak = now_ns >= reader->say_ns || reader->answer;
    reader->answer = false;
    pthread_mutex_unlock(&reader->nats->lock);
    if (speak) {
        bus_nats_members_say(reader, "here");
        reader->say_ns = now_ns + reader->nats->config.ack_wait_ms * CLOCK_NS_PER_MS / 5;
    }
    for (unsigned i = 0; i < reader->consumer.topic->spec.partitions; i++)
        keep(&reader->slots[i]);
}

void bus_nats_leases_release(struct nats_reader *reader, int64_t deadline_ns)
{
    struct nats *nats = reader->nats;

    for (unsigned i = 0; i < reader->consumer.topic->spec.partitions; i++) {
        struct nats_slot *slot = &reader->slots[i];
        pthread_mutex_lock(&nats->lock);
        bool held = slot->state != SLOT_AWAY;
        pthread_mutex_unlock(&nats->lock);
        if (held && clock_mono_ns() < deadline_ns && atomic_load(&nats->up))
            release(slot);
    }
    if (reader->members_inbox)
        bus_nats_members_say(reader, "gone");
}
