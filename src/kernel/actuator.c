/* The routes that every process serves without a token: health, metrics, and the description of all routes.
 *
 * GET /actuator/prometheus needs no token, so it has a thread of its own and one rendering at a time.
 *
 * A request waits, parked, for the next rendering that begins; all that wait by then share its text, so each reads values
 * that are not older than its question. Between two renderings there is a pause, past WAITERS_MAX, or half of them from one
 * address, a request is answered 503: however many scrape, they use one thread, and only a part of its time. The text is counted and copied piece by piece
 * as a client's socket takes it. A text is charged to the account of requests until its last reader ends, by the address of one
 * that waited for it. Without room for any of them they are answered 503, unless the last text that was printed without room is gone:
 * so one client at least sees the metrics of a process that is full. */
#include <pthread.h>
#include <stdlib.h>

#include "base/budget.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/memory.h"
#include "kernel/kernel_inside.h"
#include "loop/task.h"

enum {
    WAITERS_MAX = 32,
    WAITERS_OF_SENDER_MAX = WAITERS_MAX / 2, /* from one address */
    PAUSE_MS = 50,                           /* between two renderings */
};

struct scrape_text {
    atomic_uint refs;
    struct buf bytes, gzip; /* gzip is empty where no waiter takes it, or without memory for it */
    size_t charged;         /* to BUDGET_REQUESTS */
    uint64_t sender;        /* that it is charged to */
};

/* A parked request until its message runs on its loop, from then on the source of its answer. */
struct scrape_waiter {
    struct loop_message message; /* first */
    struct scrape_waiter *next;
    struct loop_park_ref ref;
    uint64_t sender;
    bool takes_gzip;
    struct scrape_text *text; /* NULL: there is none, for this reason */
    enum status refusal;
    struct str unsent;
};

struct kernel_scrape {
    struct worker_pool *lane; /* one thread */
    struct task *task;
    struct buf shown; /* the task's: health as the metrics have it */
    struct scrape_text
        *extra; /* the task's: the last text for which there was no room, referenced; NULL = none */
    pthread_mutex_t mutex; /* of all that follows */
    struct scrape_waiter *waiters;
    unsigned waiter_count;
    bool is_stopped;
    struct buf health; /* kernel_health_lines(), as the first of the waiters found them; "": known already */
};

/* ---- a text and its readers ---- */

static void unref_text(struct scrape_text *text)
{
    if (!text || atomic_fetch_sub(&text->refs, 1) > 1)
        return;
    if (text->charged > 0)
        budget_release_tenant(BUDGET_REQUESTS, text->sender, text->charged);
    buf_deinit(&text->bytes);
    buf_deinit(&text->gzip);
    free(text);
}

static bool charge_text(struct kernel_scrape *scrape, struct scrape_text *text,
                        const struct scrape_waiter *waiters)
{
    size_t bytes = sizeof *text + text->bytes.capacity + text->gzip.capacity;
    const struct scrape_waiter *payer = waiters;
    if (scrape->extra && atomic_load(&scrape->extra->refs) == 1) {
        unref_text(scrape->extra);
        scrape->extra = NULL;
    }
    while (payer && !budget_charge_tenant(BUDGET_REQUESTS, payer->sender, bytes))
        payer = payer->next;
    if (!payer && scrape->extra)
        return false;
    if (!payer) {
        budget_add_tenant(BUDGET_REQUESTS, text->sender, bytes); /* of nobody */
        scrape->extra = text;
        atomic_fetch_add(&text->refs, 1);
    } else {
        text->sender = payer->sender;
    }
    text->charged = bytes;
    return true;
}

/* The next piece of *unsent, so that a client that does not read holds a piece and not a copy of the whole. */
static enum http_producer_state produce_text(void *context, struct buf *out, size_t room)
{
    struct str *unsent = context;
    size_t len = unsent->len < room ? unsent->len : room;
    buf_put(out, unsent->ptr, len);
    *unsent = str_of(unsent->ptr + len, unsent->len - len);
    return unsent->len == 0 ? HTTP_PRODUCER_END : HTTP_PRODUCER_MORE;
}

static void release_waiter(void *context)
{
    struct scrape_waiter *waiter = CONTAINER_OF(context, struct scrape_waiter, unsent);
    unref_text(waiter->text);
    free(waiter);
}

/* On the request's loop. */
static void on_rendered(struct loop *loop, struct loop_message *message)
{
    struct scrape_waiter *waiter = (struct scrape_waiter *)message;
    struct http_request *request = http_request_unpark(waiter->ref);
    (void)loop;
    if (!request || !waiter->text) {
        if (request)
            http_send_error(request, &(struct error){.status = waiter->refusal});
        release_waiter(&waiter->unsent);
        return;
    }
    bool is_packed = waiter->takes_gzip && buf_len(&waiter->text->gzip) > 0;
    waiter->unsent = buf_str(is_packed ? &waiter->text->gzip : &waiter->text->bytes);
    http_send_stream(request,
                     &(struct http_response){
                         .status = 200,
                         .content_type = STR("text/plain; version=0.0.4; charset=utf-8"),
                         .headers = is_packed ? STR("Content-Encoding: gzip\r\n") : STR_NONE,
                     },
                     &(struct http_producer){
                         .produce = produce_text,
                         .release = release_waiter,
                         .context = &waiter->unsent,
                         .content_length = (int64_t)waiter->unsent.len,
                     });
}

/* ---- rendering ---- */

/* `text` NULL: there is none, for the reason `refusal`. */
static void deliver_scrape(struct scrape_waiter *waiters, struct scrape_text *text, enum status refusal)
{
    for (struct scrape_waiter *next; waiters; waiters = next) {
        next = waiters->next;
        if (text)
            atomic_fetch_add(&text->refs, 1);
        waiters->text = text;
        waiters->refusal = refusal;
        waiters->message.on_message = on_rendered;
        loop_post(waiters->ref.loop, &waiters->message); /* the loop's from here on */
    }
}

static struct scrape_waiter *take_waiters(struct kernel_scrape *scrape, bool is_stopped, struct buf *health)
{
    pthread_mutex_lock(&scrape->mutex);
    buf_put_str(health, buf_str(&scrape->health));
    buf_clear(&scrape->health);
    struct scrape_waiter *waiters = scrape->waiters;
    scrape->waiters = NULL;
    scrape->waiter_count = 0;
    scrape->is_stopped = is_stopped;
    pthread_mutex_unlock(&scrape->mutex);
    return waiters;
}

static int64_t scrape_step(struct task *task, void *context)
{
    struct kernel_scrape *scrape = context;
    struct buf health = {0};
    struct scrape_waiter *waiters = take_waiters(scrape, false, &health);
    struct scrape_text *text = memory_zalloc(sizeof *text);
    bool one_takes_gzip = false;
    for (const struct scrape_waiter *at = waiters; at; at = at->next)
        one_takes_gzip |= at->takes_gzip;
    atomic_init(&text->refs, 1);
    FAILPOINT("actuator.before_print");
    budget_metrics_update();
    kernel_process_metrics_update(buf_str(&health), &scrape->shown);
    buf_deinit(&health);
    metrics_print(&text->bytes);
    if (one_takes_gzip && !http_gzip_put(&text->gzip, buf_str(&text->bytes)))
        buf_clear(&text->gzip);
    deliver_scrape(waiters, charge_text(scrape, text, waiters) ? text : NULL, STATUS_OVERLOADED);
    unref_text(text);
    task_hold(task, TASK_MS(PAUSE_MS));
    return TASK_IDLE;
}

/* ---- asking ---- */

/* May one more of this sender wait? The mutex is held. */
static bool has_room(const struct kernel_scrape *scrape, uint64_t sender)
{
    unsigned own = 0;
    for (const struct scrape_waiter *waiter = scrape->waiters; waiter; waiter = waiter->next)
        own += waiter->sender == sender;
    return scrape->waiter_count < WAITERS_MAX && own < WAITERS_OF_SENDER_MAX;
}

static void get_prometheus(struct http_request *request)
{
    struct kernel *kernel = request->context;
    struct kernel_scrape *scrape = kernel->scrape;
    const struct kernel_http_settings *http = config_section(kernel->first, "http");
    struct scrape_waiter *waiter = memory_zalloc(sizeof *waiter);
    if (!http_request_park(request, clock_deadline_ms(http->limits.deadline_ms), NULL, NULL, &waiter->ref)) {
        free(waiter);
        return;
    }
    waiter->sender = http_request_sender(request);
    waiter->takes_gzip = http_request_takes_gzip(request);
    pthread_mutex_lock(&scrape->mutex);
    bool joined = has_room(scrape, waiter->sender) && !scrape->is_stopped;
    if (joined) {
        if (!scrape->waiters)
            kernel_health_lines(kernel, &scrape->health); /* here, since it needs a loop */
        waiter->next = scrape->waiters;
        scrape->waiters = waiter;
        scrape->waiter_count++;
    }
    pthread_mutex_unlock(&scrape->mutex);
    if (joined) {
        task_wake(scrape->task);
        return;
    }
    (void)http_request_unpark(waiter->ref);
    free(waiter);
    http_send_error(request, &(struct error){.status = STATUS_OVERLOADED});
}

/* ---- life ---- */

struct kernel_scrape *kernel_scrape_create(struct loop *loop)
{
    struct kernel_scrape *scrape = memory_zalloc(sizeof *scrape);
    pthread_mutex_init(&scrape->mutex, NULL);
    scrape->lane = worker_pool_create("scrape", 1, 1);
    scrape->task = task_create(&(struct task_config){
        .name = "scrape", .loop = loop, .pool = scrape->lane, .run = scrape_step, .context = scrape});
    task_start(scrape->task, TASK_IDLE);
    return scrape;
}

void kernel_scrape_stop(struct kernel_scrape *scrape)
{
    (void)!task_stop(scrape->task, TASK_FOREVER);
    struct buf health = {0};
    deliver_scrape(take_waiters(scrape, true, &health), NULL, STATUS_UNAVAILABLE);
    buf_deinit(&health);
}

void kernel_scrape_destroy(struct kernel_scrape *scrape)
{
    task_destroy(scrape->task);
    worker_pool_destroy(scrape->lane);
    pthread_mutex_destroy(&scrape->mutex);
    buf_deinit(&scrape->health);
    buf_deinit(&scrape->shown);
    unref_text(scrape->extra);
    free(scrape);
}

/* ---- GET /openapi.yaml: api/openapi.yaml as it was when the program was built ----
 * Whether it is true is not decided here: the system tests hold it against the routes and the answers. */

/* Made from the file by tools/embed_file.py. */
extern const struct http_fixed kernel_openapi;

static void get_openapi(struct http_request *request)
{
    static const char *const none[] = {NULL};
    struct error error;
    if (http_request_query_only(request, none, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    http_send_fixed(request, &kernel_openapi, STR("Cache-Control: no-cache\r\n"));
}

const struct http_route kernel_actuator_routes[] = {
    {HTTP_GET, "/actuator/health", kernel_get_health, .access = HTTP_PUBLIC},
    {HTTP_GET, "/actuator/health/readiness", kernel_get_readiness, .access = HTTP_PUBLIC},
    {HTTP_GET, "/actuator/health/liveness", kernel_get_liveness, .access = HTTP_PUBLIC},
    {HTTP_GET, "/actuator/prometheus", get_prometheus, .access = HTTP_PUBLIC, .gzip = HTTP_GZIP_READY},
    {HTTP_GET, "/openapi.yaml", get_openapi, .access = HTTP_PUBLIC, .gzip = HTTP_GZIP_READY},
    {.handler = NULL},
};
