/* The idempotency step of a request: its key is checked (I1), and duplicates, requests with the same key, wait for each other where the
 * route serializes them (I3). With the other policy duplicates run side by side: only PostgreSQL knows which of them has the effect.
 *
 *     key ─▶ use (TAKEN) ─ waiting: use (WAITS) ─ use (WAITS)
 *
 *     WAITS ── the key's holder ends ──▶ CALLED ── its message arrives ──▶ TAKEN
 *
 * The use of a request that does not wait is in the request's arena: no allocation. One that waits has memory of its own, since the
 * message that calls it may cross the end of its client; from CALLED on the message owns the use and finds out whether the request
 * is still there. Loops share the maps under a lock per shard. */
#include <pthread.h>
#include <stdlib.h>

#include "auth/digest.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/list.h"
#include "base/log.h"
#include "base/map.h"
#include "base/memory.h"
#include "base/metrics.h"
#include "idempotency/idempotency.h"

enum { SHARDS = 64, SHARD_KEYS = 64, SCOPE_PARTS = 5, LENGTH_BYTES = 4 };

/* ---- metrics (I7) ---- */

#define FAMILY(metric, text)                                \
    {                                                       \
        .name = metric, .help = text, .labels = { "route" } \
    }

struct metric_family idempotency_families[IDEMPOTENCY_EVENTS + 1] = {
    [IDEMPOTENCY_HIT] =
        FAMILY("idempotency_hit_total", "Requests answered with the stored answer of their Idempotency-Key."),
    [IDEMPOTENCY_MISS] = FAMILY("idempotency_miss_total", "Requests whose Idempotency-Key was new."),
    [IDEMPOTENCY_CONFLICT] =
        FAMILY("idempotency_conflict_total",
               "Requests refused because their Idempotency-Key was used with another body before."),
    [IDEMPOTENCY_COLLISION] =
        FAMILY("idempotency_processing_collision_total",
               "Requests refused because one with the same Idempotency-Key was being processed."),
    [IDEMPOTENCY_EVENTS] =
        FAMILY("idempotency_cleanup_count_total", "Expired idempotency keys that were deleted."),
};

static void register_metrics(void)
{
    for (int i = 0; i <= IDEMPOTENCY_EVENTS; i++)
        metrics_register(&idempotency_families[i]);
}

/* A thread mostly counts one route: it keeps the series of that one. */
void idempotency_count(const struct http_route *route, enum idempotency_event event)
{
    static _Thread_local const char *last; /* paths are literals of the route tables */
    static _Thread_local struct metric_series *series[IDEMPOTENCY_EVENTS];

    if (last != route->path) {
        struct str path = str_from(route->path);
        register_metrics();
        for (int each = 0; each < IDEMPOTENCY_EVENTS; each++)
            series[each] = metric_series_get(&idempotency_families[each], &path);
        last = route->path;
    }
    metric_add(series[event], 1);
}

void idempotency_count_cleaned(struct str route, int64_t count)
{
    register_metrics();
    metric_add(metric_series_get(&idempotency_families[IDEMPOTENCY_EVENTS], &route), (uint64_t)count);
}

void idempotency_log_cleaned(struct str table, int64_t count)
{
    log_info("idempotency_keys_cleaned", LOG_STR("table", table), LOG_INT("count", count));
}

/* ---- keys ---- */

/* I1 */
static bool is_valid_key(struct str key)
{
    bool is_valid = key.len > 0 && key.len <= IDEMPOTENCY_KEY_BYTES_MAX;

    for (size_t i = 0; i < key.len && is_valid; i++) {
        char c = key.ptr[i], letter = (char)(c | 0x20);
        is_valid = (letter >= 'a' && letter <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
    }
    return is_valid;
}

/* Scope and key as one number that clients cannot make collide. Each part follows its length: no two scopes hash alike. */
struct key_id {
    uint8_t bytes[AUTH_SHA256_BYTES];
};

static struct key_id key_id_of(const struct http_request *request, struct str tenant, struct str subject,
                               struct str key)
{
    struct str method = request->method == HTTP_POST ? STR("POST") : STR_NONE;
    const struct str scope[SCOPE_PARTS] = {tenant, subject, method, str_from(request->route->path), key};
    uint8_t lengths[SCOPE_PARTS][LENGTH_BYTES];
    struct str parts[2 * SCOPE_PARTS];
    struct key_id id;

    for (size_t i = 0; i < SCOPE_PARTS; i++) {
        for (size_t byte = 0; byte < LENGTH_BYTES; byte++)
            lengths[i][byte] = (uint8_t)(scope[i].len >> (8 * byte));
        parts[2 * i] = str_of((const char *)lengths[i], LENGTH_BYTES);
        parts[2 * i + 1] = scope[i];
    }
    auth_sha256(parts, 2 * SCOPE_PARTS, id.bytes);
    return id;
}

int64_t idempotency_lock_key(const struct http_request *request, struct str tenant, struct str subject,
                             struct str key)
{
    struct key_id id = key_id_of(request, tenant, subject, key);
    uint64_t lock = 0;

    for (size_t i = 0; i < sizeof lock; i++)
        lock = lock << 8 | id.bytes[i];
    return (int64_t)lock;
}

/* The key is returned as it came, so its length is bounded: a header can hold anything. */
void idempotency_send_error(struct http_request *request, const struct error *error, struct str key)
{
    bool is_busy = error->status == STATUS_IDEMPOTENCY_KEY_PROCESSING;
    struct buf members = {0};

    if (key.ptr) {
        buf_put_str(&members, STR(",\"idempotency_key\":"));
        json_put_string(&members, str_utf8_cut(key, IDEMPOTENCY_KEY_BYTES_MAX));
    }
    http_send_error_with(request, error, is_busy ? STR("Retry-After: 1\r\n") : STR_NONE, buf_str(&members));
    buf_deinit(&members);
}

/* ---- keys in use ---- */

enum use_state {
    USE_TAKEN,  /* its request has the key */
    USE_WAITS,  /* its request is parked */
    USE_CALLED, /* it has the key; the message to its loop is on its way */
};

struct use {
    struct idempotency *idempotency;
    struct key_id id;
    enum use_state state;
    bool is_heap;         /* not in the request's arena */
    struct map_node node; /* TAKEN and CALLED */
    TAILQ_HEAD(, use) waiting;
    TAILQ_ENTRY(use) link; /* WAITS: in the holder's waiting line */
    struct loop_park_ref ref;
    struct loop_message message;
};

struct shard {
    pthread_mutex_t mutex;
    struct map uses;
};

struct idempotency {
    int64_t wait_ms;
    struct shard shards[SHARDS];
};

struct idempotency *idempotency_create(int64_t wait_ms)
{
    struct idempotency *idempotency = memory_zalloc(sizeof *idempotency);

    idempotency->wait_ms = wait_ms;
    for (size_t i = 0; i < SHARDS; i++) {
        pthread_mutex_init(&idempotency->shards[i].mutex, NULL);
        map_reserve(&idempotency->shards[i].uses, SHARD_KEYS);
    }
    register_metrics();
    return idempotency;
}

void idempotency_destroy(struct idempotency *idempotency)
{
    for (size_t i = 0; i < SHARDS; i++) {
        pthread_mutex_destroy(&idempotency->shards[i].mutex);
        map_deinit(&idempotency->shards[i].uses);
    }
    free(idempotency);
}

static uint64_t key_hash(const struct key_id *id)
{
    return hash_seeded(str_of((const char *)id->bytes, sizeof id->bytes));
}

static struct shard *shard_of(struct idempotency *idempotency, uint64_t hash)
{
    return &idempotency->shards[hash / SHARDS % SHARDS]; /* the map's buckets use the lowest bits */
}

/* Under the shard's lock: the use that has the key, or NULL. */
static struct use *find_holder(const struct shard *shard, const struct key_id *id, uint64_t hash)
{
    struct map_node *node;

    MAP_MATCH(node, &shard->uses, hash) {
        struct use *use = CONTAINER_OF(node, struct use, node);
        if (memcmp(use->id.bytes, id->bytes, sizeof id->bytes) == 0)
            return use;
    }
    return NULL;
}

/* The first that waits gets the key and the rest of the line. */
static void end_use(struct use *use)
{
    uint64_t hash = use->node.hash;
    struct shard *shard = shard_of(use->idempotency, hash);

    pthread_mutex_lock(&shard->mutex);
    struct use *next = TAILQ_FIRST(&use->waiting);
    map_remove(&shard->uses, &use->node);
    if (next) {
        TAILQ_REMOVE(&use->waiting, next, link);
        TAILQ_CONCAT(&next->waiting, &use->waiting, link);
        next->state = USE_CALLED;
        map_add(&shard->uses, &next->node, hash);
    }
    pthread_mutex_unlock(&shard->mutex);
    if (next)
        loop_post(next->ref.loop, &next->message);
    if (use->is_heap)
        free(use);
}

void idempotency_leave(struct http_request *request)
{
    end_use(request->idempotency_memo);
}

/* ---- waiting ---- */

static void on_called(struct loop *loop, struct loop_message *message)
{
    struct use *use = CONTAINER_OF(message, struct use, message);
    struct http_request *request = http_request_unpark(use->ref);

    (void)loop;
    if (!request) { /* disconnected, or timed out */
        end_use(use);
        return;
    }
    use->state = USE_TAKEN;
    request->idempotency_memo = use;
    http_request_resume(request);
}

/* A use that was called already belongs to its message. */
static void stop_waiting(struct http_request *request, void *context)
{
    struct use *use = context;
    (void)request;
    uint64_t hash = key_hash(&use->id);
    struct shard *shard = shard_of(use->idempotency, hash);

    pthread_mutex_lock(&shard->mutex);
    bool was_waiting = use->state == USE_WAITS;
    if (was_waiting)
        TAILQ_REMOVE(&find_holder(shard, &use->id, hash)->waiting, use, link);
    pthread_mutex_unlock(&shard->mutex);
    if (was_waiting)
        free(use);
}

static void on_wait_timeout(struct http_request *request, void *context)
{
    struct error error;

    stop_waiting(request, context);
    error_set(&error, STATUS_IDEMPOTENCY_KEY_PROCESSING, "%s",
              status_message(STATUS_IDEMPOTENCY_KEY_PROCESSING));
    idempotency_count(request->route, IDEMPOTENCY_COLLISION);
    idempotency_send_error(request, &error, request->idempotency_key);
}

/* Under the shard's lock, so that the holder cannot end before the use is in its line. */
static enum http_step wait_for(struct use *holder, struct http_request *request, struct use *use)
{
    int64_t deadline_ns = loop_now_ns(request->loop) + use->idempotency->wait_ms * CLOCK_NS_PER_MS;

    use->state = USE_WAITS;
    use->message.on_message = on_called;
    if (!http_request_park(request, deadline_ns, on_wait_timeout, use, &use->ref)) {
        free(use);
        return HTTP_STEP_ANSWERED; /* with 503, by http_request_park() */
    }
    http_request_on_drop(request, stop_waiting);
    TAILQ_INSERT_TAIL(&holder->waiting, use, link);
    return HTTP_STEP_PARKED;
}

/* ---- the step ---- */

enum http_step idempotency_enter(struct idempotency *idempotency, struct http_request *request,
                                 struct str tenant, struct str subject)
{
    static const char name[] = "Idempotency-Key";
    size_t count = http_request_header_count(request, str_from(name));
    struct str key = http_request_header(request, str_from(name));
    struct error error = {0};

    if (request->method != HTTP_POST || (count == 0 && !request->route->key_required))
        return HTTP_STEP_PASS;
    if (count == 0) {
        error_set_field(&error, STATUS_BAD_REQUEST, name, "Idempotency-Key is required");
    } else if (count > 1 || !is_valid_key(key)) {
        error_set(&error, STATUS_INVALID_IDEMPOTENCY_KEY, "%s",
                  status_message(STATUS_INVALID_IDEMPOTENCY_KEY));
    } else if (subject.len == 0 && request->route->access != HTTP_PUBLIC) { /* such tokens would share keys */
        error_set(&error, STATUS_INSUFFICIENT_SCOPE, "Idempotency-Key needs a user: the token has no sub");
        key = STR_NONE; /* not shown */
    }
    if (error.status != STATUS_OK) {
        idempotency_send_error(request, &error, key);
        return HTTP_STEP_ANSWERED;
    }
    request->idempotency_key = key;
    if (request->route->idempotency == HTTP_KEY_REJECT)
        return HTTP_STEP_PASS;
    struct key_id id = key_id_of(request, tenant, subject, key);
    uint64_t hash = key_hash(&id);
    struct shard *shard = shard_of(idempotency, hash);
    enum http_step step = HTTP_STEP_PASS;
    pthread_mutex_lock(&shard->mutex);
    struct use *holder = find_holder(shard, &id, hash);
    struct use *use = holder ? memory_alloc(sizeof *use) : arena_alloc(request->arena, sizeof *use);
    *use = (struct use){.idempotency = idempotency, .id = id, .is_heap = holder != NULL};
    TAILQ_INIT(&use->waiting);
    if (holder) {
        step = wait_for(holder, request, use);
    } else {
        map_add(&shard->uses, &use->node, hash);
        request->idempotency_memo = use;
    }
    pthread_mutex_unlock(&shard->mutex);
    return step;
}
