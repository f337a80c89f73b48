/* Keys in flight in this process (I3), of rows whose twins wait: one is inside, the others are in line behind it. Elsewhere
 * twins go in side by side: whether the first of them has the effect or reads what is stored, PostgreSQL alone can tell.
 *
 *     bucket ─▶ visit (inside) ─▶ visit (inside, another key)
 *                  └ line: visit (waits) ─ visit (waits)
 *
 * Whoever goes inside without finding a twin keeps its visit in its request's arena: no allocation. Whoever waits has one of
 * its own, since the call that it is its turn may cross its client's going away; from that call on the visit is the
 * message's, and the message finds out whether anybody is still there. Loops share the buckets under a lock per shard. */
#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/memory.h"
#include "idempotency/idempotency_inside.h"

enum { SHARDS = 64, BUCKETS = 64 };

enum visit_state {
    VISIT_INSIDE,
    VISIT_WAITS,  /* in line, its request parked */
    VISIT_CALLED, /* the key is its, the message that says so on its way */
};

struct visit {
    struct idempotency *idempotency;
    struct idempotency_id id;
    enum visit_state state;
    bool is_own_memory;                    /* not the request's */
    struct visit *next_in_bucket;          /* inside or called */
    struct visit *first, *last;            /* the line behind it */
    struct visit *next_in_line, *previous; /* of one that waits */
    struct loop *loop;
    struct loop_park_ref ref;
    struct loop_message turn;
};

struct shard {
    pthread_mutex_t mutex;
    struct visit *buckets[BUCKETS];
};

struct idempotency {
    int64_t wait_ms;
    struct shard shards[SHARDS];
};

struct idempotency *idempotency_create(int64_t wait_ms)
{
    struct idempotency *idempotency = memory_zalloc(sizeof *idempotency);

    idempotency->wait_ms = wait_ms;
    for (size_t i = 0; i < SHARDS; i++)
        pthread_mutex_init(&idempotency->shards[i].mutex, NULL);
    idempotency_metrics_register();
    return idempotency;
}

void idempotency_destroy(struct idempotency *idempotency)
{
    for (size_t i = 0; i < SHARDS; i++)
        pthread_mutex_destroy(&idempotency->shards[i].mutex);
    free(idempotency);
}

/* ---- buckets and lines: all under the shard's lock ---- */

/* Seeded: keys are chosen by clients, buckets are not. */
static struct shard *shard_of(struct idempotency *idempotency, const struct idempotency_id *id,
                              struct visit ***bucket)
{
    uint64_t hash = hash_seeded(str_of((const char *)id->bytes, sizeof id->bytes));
    struct shard *shard = &idempotency->shards[hash % SHARDS];

    *bucket = &shard->buckets[hash / SHARDS % BUCKETS];
    return shard;
}

/* Where the visit that has this key hangs; the end of the chain when nobody has it. */
static struct visit **find(struct visit **bucket, const struct idempotency_id *id)
{
    while (*bucket && memcmp((*bucket)->id.bytes, id->bytes, sizeof id->bytes) != 0)
        bucket = &(*bucket)->next_in_bucket;
    return bucket;
}

static void get_in_line(struct visit *holder, struct visit *visit)
{
    visit->previous = holder->last;
    if (holder->last)
        holder->last->next_in_line = visit;
    else
        holder->first = visit;
    holder->last = visit;
}

static void get_out_of_line(struct visit *holder, struct visit *visit)
{
    if (visit->previous)
        visit->previous->next_in_line = visit->next_in_line;
    else
        holder->first = visit->next_in_line;
    if (visit->next_in_line)
        visit->next_in_line->previous = visit->previous;
    else
        holder->last = visit->previous;
}

/* The first in line takes the holder's place in the bucket, and the rest of the line; NULL: nobody waits. */
static struct visit *hand_over(struct visit **place, struct visit *holder)
{
    struct visit *next = holder->first;

    if (!next) {
        *place = holder->next_in_bucket;
        return NULL;
    }
    get_out_of_line(holder, next);
    next->first = holder->first;
    next->last = holder->last;
    next->next_in_bucket = holder->next_in_bucket;
    next->state = VISIT_CALLED;
    *place = next;
    return next;
}

/* ---- leaving ---- */

static void end(struct visit *visit)
{
    struct visit **bucket;
    struct shard *shard = shard_of(visit->idempotency, &visit->id, &bucket);

    pthread_mutex_lock(&shard->mutex);
    struct visit *next = hand_over(find(bucket, &visit->id), visit);
    pthread_mutex_unlock(&shard->mutex);
    if (next)
        loop_post(next->loop, &next->turn);
    if (visit->is_own_memory)
        free(visit);
}

void idempotency_leave(struct idempotency *idempotency, struct http_request *request)
{
    (void)idempotency;
    end(request->idempotency_memo);
}

/* ---- waiting ---- */

static void on_turn(struct loop *loop, struct loop_message *message)
{
    struct visit *visit = (struct visit *)((char *)message - offsetof(struct visit, turn));
    struct http_request *request = http_request_unpark(visit->ref);

    (void)loop;
    if (!request) { /* gone, or out of patience */
        end(visit);
        return;
    }
    visit->state = VISIT_INSIDE;
    request->idempotency_memo = visit;
    http_request_resume(request);
}

/* It no longer waits. One that was called already is left to its message. */
static void give_up(struct visit *visit)
{
    struct visit **bucket;
    struct shard *shard = shard_of(visit->idempotency, &visit->id, &bucket);

    pthread_mutex_lock(&shard->mutex);
    bool in_line = visit->state == VISIT_WAITS;
    if (in_line)
        get_out_of_line(*find(bucket, &visit->id), visit);
    pthread_mutex_unlock(&shard->mutex);
    if (in_line)
        free(visit);
}

static void on_drop(struct http_request *request, void *context)
{
    (void)request;
    give_up(context);
}

static void on_timeout(struct http_request *request, void *context)
{
    struct error error;

    give_up(context);
    error_set(&error, STATUS_IDEMPOTENCY_KEY_PROCESSING, "%s",
              status_message(STATUS_IDEMPOTENCY_KEY_PROCESSING));
    idempotency_count(request->route, IDEMPOTENCY_COLLISION);
    idempotency_send_error(request, &error, request->idempotency_key);
}

/* Under the holder's lock, so that it cannot leave before the visit is in line with its reference. */
static enum http_step wait_behind(struct visit *holder, struct http_request *request,
                                  const struct visit *made)
{
    struct visit *visit = memory_alloc(sizeof *visit);
    int64_t deadline_ns = loop_now_ns(request->loop) + made->idempotency->wait_ms * CLOCK_NS_PER_MS;

    *visit = *made;
    visit->state = VISIT_WAITS;
    visit->is_own_memory = true;
    visit->loop = request->loop;
    visit->turn.on_message = on_turn;
    if (!http_request_park(request, deadline_ns, on_timeout, visit, &visit->ref)) {
        free(visit);
        return HTTP_STEP_ANSWERED; /* with 503, by http_request_park() */
    }
    http_request_on_drop(request, on_drop);
    get_in_line(holder, visit);
    return HTTP_STEP_PARKED;
}

/* ---- entering ---- */

static void go_inside(struct visit **place, struct http_request *request, const struct visit *made)
{
    struct visit *visit = arena_alloc(request->arena, sizeof *visit);

    *visit = *made;
    visit->state = VISIT_INSIDE;
    *place = visit; /* at the end of its chain */
    request->idempotency_memo = visit;
}

static enum http_step refuse_key(struct http_request *request, const struct error *error, struct str key)
{
    if (key.ptr)
        idempotency_send_error(request, error, key);
    else
        http_send_error(request, error);
    return HTTP_STEP_ANSWERED;
}

enum http_step idempotency_enter(struct idempotency *idempotency, struct http_request *request,
                                 struct str tenant, struct str subject)
{
    struct error error = {0};
    struct str key;

    if (request->method != HTTP_POST)
        return HTTP_STEP_PASS;
    if (idempotency_key_of(request, &key, &error) != STATUS_OK)
        return refuse_key(request, &error, key);
    if (!key.ptr && request->route->key_required) {
        error_set_field(&error, STATUS_BAD_REQUEST, "Idempotency-Key", "Idempotency-Key is required");
        return refuse_key(request, &error, key);
    }
    if (!key.ptr)
        return HTTP_STEP_PASS;
    if (subject.len == 0 && request->route->access != HTTP_PUBLIC) { /* all of these would share their keys */
        error_set(&error, STATUS_INSUFFICIENT_SCOPE, "Idempotency-Key needs a user: the token has no sub");
        return refuse_key(request, &error, STR_NONE);
    }
    request->idempotency_key = key;
    if (request->route->idempotency == HTTP_KEY_REJECT)
        return HTTP_STEP_PASS;

    struct visit made = {.idempotency = idempotency, .id = idempotency_id_of(request, tenant, subject, key)};
    struct visit **bucket;
    struct shard *shard = shard_of(idempotency, &made.id, &bucket);
    enum http_step verdict = HTTP_STEP_PASS;
    pthread_mutex_lock(&shard->mutex);
    struct visit **place = find(bucket, &made.id);
    if (!*place)
        go_inside(place, request, &made);
    else
        verdict = wait_behind(*place, request, &made);
    pthread_mutex_unlock(&shard->mutex);
    return verdict;
}
