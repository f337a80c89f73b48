/* Several chunks on their way at once, a connection each: while one is being committed, the next are read, sent
 * and parsed. The first failure ends it; what is under way still arrives, which does no harm. */
#include <pthread.h>

#include "app/load.h"
#include "loop/worker.h"

enum { LANES = 4 };

struct lane {
    struct worker_job job;
    struct sender *sender;
    struct fetch_session *session;
    size_t index, item_count;
    struct buf json;
    bool is_busy; /* under the sender's mutex */
};

struct sender {
    struct load_sending *sending;
    struct worker_pool *pool;
    struct lane lanes[LANES];
    pthread_mutex_t mutex;
    pthread_cond_t is_free;
    enum status status; /* the first failure, under the mutex; OK = none */
    struct error error;
};

/* ---- on a worker ---- */

/* Is this chunk with the pod already? A question is shorter than a chunk. */
static bool is_there(struct lane *lane, const struct pod_call *call)
{
    const struct load_sending *sending = lane->sender->sending;
    char event_id[UUID_TEXT_BYTES];
    struct update_state state;
    if (!sending->is_resumed)
        return false;
    load_plan_event_id(sending->plan, lane->index, event_id);
    return updates_ask(call, event_id, sending->patience_ms, &state, NULL, NULL) == STATUS_OK &&
           state.status != UPDATE_FAILED;
}

static enum status send_chunk(struct lane *lane, bool *skipped, struct error *error)
{
    const struct load_sending *sending = lane->sender->sending;
    struct pod_call call = *sending->call;
    struct update_state state;
    call.session = lane->session;
    *skipped = is_there(lane, &call);
    if (*skipped)
        return STATUS_OK;
    enum status status = updates_post(&call, "", buf_str(&lane->json), sending->patience_ms, &state, error);
    if (status == STATUS_OK && state.status == UPDATE_FAILED)
        return error_set_field(error, STATUS_BAD_REQUEST, state.code, "%s: %s", state.code, state.message);
    return status;
}

static void run(struct worker_job *job)
{
    struct lane *lane = (struct lane *)job; /* its first member */
    struct sender *sender = lane->sender;
    struct error error = {0};
    bool skipped = false;
    enum status status = send_chunk(lane, &skipped, &error);
    pthread_mutex_lock(&sender->mutex);
    if (status == STATUS_OK) {
        progress_count(sender->sending->progress, lane->item_count, buf_len(&lane->json));
        sender->sending->skipped_count += skipped;
    } else if (sender->status == STATUS_OK) {
        sender->status = status;
        sender->error = error;
    }
    pthread_mutex_unlock(&sender->mutex);
}

static void done(struct worker_job *job)
{
    struct lane *lane = (struct lane *)job;
    pthread_mutex_lock(&lane->sender->mutex);
    lane->is_busy = false;
    pthread_cond_signal(&lane->sender->is_free);
    pthread_mutex_unlock(&lane->sender->mutex);
}

/* ---- on the main thread ---- */

static struct lane *find_free(struct sender *sender)
{
    for (unsigned i = 0; i < LANES; i++)
        if (!sender->lanes[i].is_busy)
            return &sender->lanes[i];
    return NULL;
}

/* Waits for a lane; NULL after a failure. */
static struct lane *take_lane(struct sender *sender)
{
    struct lane *lane = NULL;
    pthread_mutex_lock(&sender->mutex);
    while (sender->status == STATUS_OK && !(lane = find_free(sender)))
        pthread_cond_wait(&sender->is_free, &sender->mutex);
    if (lane)
        lane->is_busy = true;
    pthread_mutex_unlock(&sender->mutex);
    return lane;
}

static bool on_chunk(void *context, const struct load_chunk *chunk)
{
    struct sender *sender = context;
    struct lane *lane = take_lane(sender);
    if (!lane)
        return false;
    lane->index = chunk->index;
    lane->item_count = chunk->item_count;
    buf_clear(&lane->json);
    load_chunk_put(&lane->json, sender->sending->plan, chunk);
    return worker_pool_submit(sender->pool, &lane->job); /* a place in the queue for every lane */
}

static void wait_for_all(struct sender *sender)
{
    pthread_mutex_lock(&sender->mutex);
    for (unsigned i = 0; i < LANES; i++)
        while (sender->lanes[i].is_busy)
            pthread_cond_wait(&sender->is_free, &sender->mutex);
    pthread_mutex_unlock(&sender->mutex);
}

static void sender_init(struct sender *sender, struct load_sending *sending)
{
    *sender = (struct sender){.sending = sending};
    pthread_mutex_init(&sender->mutex, NULL);
    pthread_cond_init(&sender->is_free, NULL);
    sender->pool = worker_pool_create("load", LANES, LANES);
    for (unsigned i = 0; i < LANES; i++)
        sender->lanes[i] = (struct lane){
            .job = {.run = run, .done = done}, .sender = sender, .session = fetch_session_open()};
}

static void sender_deinit(struct sender *sender)
{
    worker_pool_stop(sender->pool);
    worker_pool_destroy(sender->pool);
    for (unsigned i = 0; i < LANES; i++) {
        fetch_session_close(sender->lanes[i].session);
        buf_deinit(&sender->lanes[i].json);
    }
    pthread_cond_destroy(&sender->is_free);
    pthread_mutex_destroy(&sender->mutex);
}

enum status load_send(struct load_sending *sending, struct error *error)
{
    struct sender sender;
    sender_init(&sender, sending);
    enum status status = load_plan_walk(sending->plan, sending->file, on_chunk, &sender, error);
    wait_for_all(&sender);
    if (sender.status != STATUS_OK) {
        status = sender.status;
        *error = sender.error;
    }
    sender_deinit(&sender);
    return status;
}
