/* Where keys come from: a file, a URL, a secret of the environment, together one set. A reading happens on
 * a worker, one at a time: when the file changed, when the URL's interval is over (sooner, with backoff,
 * after a failure), or when a token names a key we do not have, that at most once per refresh_min. A
 * reading that fails changes nothing: the last good keys stay. A key set that was read counts: a key that it
 * no longer lists is not trusted any more, even when no other key of it can be used. An empty set counts as a
 * failure, since no issuer means it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "auth/state.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "fetch/fetch.h"

#define DOCUMENT_BYTES_MAX (256 * 1024)
#define BACKOFF_FIRST_MS 1000

struct document {
    struct buf text;   /* the last key set that was read; replaced under the mutex */
    unsigned failures; /* in a row */
};

struct auth_keysource {
    struct worker_job job;
    atomic_uint refs;
    struct auth *auth;
    struct auth_rules *rules;

    pthread_mutex_t mutex;
    struct auth_keyset *keys; /* from here to next_url_ns: under the mutex */
    bool running, closed;
    bool demanded;   /* somebody waits for a reading that has not begun */
    bool for_demand; /* the one that runs began after they asked */
    int64_t last_demand_ns, next_url_ns;

    /* Only the one reading at a time touches these. */
    struct document file, url;
    struct stat file_seen;
    bool changed;
};

static void source_unref(struct auth_keysource *source)
{
    if (atomic_fetch_sub_explicit(&source->refs, 1, memory_order_acq_rel) > 1)
        return;
    struct auth *auth = source->auth;
    auth_keyset_unref(source->keys);
    auth_rules_unref(source->rules);
    buf_deinit(&source->file.text);
    buf_deinit(&source->url.text);
    pthread_mutex_destroy(&source->mutex);
    free(source);
    auth_unref(auth);
}

/* ---- reading ---- */

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

static enum status read_open_file(int fd, const struct stat *info, struct buf *text, struct error *error)
{
    if (!S_ISREG(info->st_mode) || info->st_size > DOCUMENT_BYTES_MAX)
        return error_set(error, STATUS_IO, "is not a regular file of at most %d bytes", DOCUMENT_BYTES_MAX);
    while (buf_len(text) <= DOCUMENT_BYTES_MAX) {
        ssize_t got = read(fd, buf_reserve(text, 4096), 4096);
        if (got < 0 && errno != EINTR)
            return error_set(error, STATUS_IO, "cannot be read: %s", strerror(errno));
        if (got == 0)
            return STATUS_OK;
        buf_commit(text, got > 0 ? (size_t)got : 0);
    }
    return error_set(error, STATUS_IO, "has more than %d bytes", DOCUMENT_BYTES_MAX);
}

/* *text stays empty when the file is the one that was seen last. */
static enum status read_file(struct auth_keysource *source, struct buf *text, struct stat *info,
                             struct error *error)
{
    int fd =
        open(source->rules->jwks_file.ptr, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hold us */
    enum status status = STATUS_OK;

    if (fd < 0)
        return error_set(error, STATUS_IO, "cannot be opened: %s", strerror(errno));
    if (fstat(fd, info) != 0)
        status = error_set(error, STATUS_IO, "cannot be read: %s", strerror(errno));
    else if (!same_file(info, &source->file_seen))
        status = read_open_file(fd, info, text, error);
    close(fd);
    return status;
}

static enum status read_url(const struct auth_keysource *source, struct buf *text, struct error *error)
{
    static const char *const HEADERS[] = {"Accept: application/json, application/jwk-set+json", NULL};
    struct fetch_answer answer;
    enum status status = fetch_run(&(struct fetch_request){.url = source->rules->jwks_url,
                                                           .headers = HEADERS,
                                                           .connect_timeout_ms = source->rules->timeout_ms,
                                                           .timeout_ms = source->rules->timeout_ms,
                                                           .answer_bytes_max = DOCUMENT_BYTES_MAX},
                                   &answer, error);

    if (status != STATUS_OK)
        return status;
    if (answer.status != 200)
        status = error_set(error, STATUS_IO, "answered HTTP %d", answer.status);
    else
        buf_put_str(text, buf_str(&answer.body));
    buf_deinit(&answer.body);
    return status;
}

/* Makes `text` the document, if it is a key set. *changed: it differs from the last one. NOT_FOUND: it is the
 * document now, but holds no usable key. */
static enum status take_document(struct auth_keysource *source, struct document *document, struct buf *text,
                                 const char *origin, bool *changed, struct error *error)
{
    if (str_eq(buf_str(text), buf_str(&document->text)) && buf_len(text) > 0)
        return STATUS_OK;
    struct auth_keyset *trial = auth_keyset_create();
    enum status status = auth_keyset_add_jwks(trial, buf_str(text), origin, error);
    auth_keyset_unref(trial);
    if (status != STATUS_OK && status != STATUS_NOT_FOUND)
        return status;
    pthread_mutex_lock(&source->mutex);
    struct buf old = document->text;
    document->text = *text;
    pthread_mutex_unlock(&source->mutex);
    *text = old;
    *changed = true;
    return status;
}

static void report(struct document *document, enum status status, const char *origin, bool changed,
                   const struct error *error)
{
    if (status == STATUS_OK) {
        auth_metrics_refresh(changed ? "changed" : "unchanged");
        document->failures = 0;
        return;
    }
    auth_metrics_refresh("failed");
    document->failures++;
    if ((document->failures & (document->failures - 1)) == 0) /* the 1st, 2nd, 4th, 8th … in a row */
        log_warn("jwks_read_failed", LOG_CSTR("source", origin), LOG_INT("failures", document->failures),
                 LOG_CSTR("error", error->message));
}

static enum status refresh_file(struct auth_keysource *source, bool *changed, struct error *error)
{
    struct stat info = {0};
    struct buf text;
    bool is_new = false;

    buf_init(&text);
    enum status status = read_file(source, &text, &info, error);
    if (status == STATUS_OK && same_file(&info, &source->file_seen)) {
        buf_deinit(&text);
        return STATUS_OK;
    }
    if (status == STATUS_OK)
        status = take_document(source, &source->file, &text, source->rules->jwks_file.ptr, &is_new, error);
    else
        error_context(error, "%s", source->rules->jwks_file.ptr);
    if (status == STATUS_OK)
        source->file_seen = info; /* only then: a file caught half-written is read again */
    report(&source->file, status, source->rules->jwks_file.ptr, is_new, error);
    buf_deinit(&text);
    *changed |= is_new;
    return status;
}

static enum status refresh_url(struct auth_keysource *source, bool *changed, struct error *error)
{
    struct buf text;
    bool is_new = false;

    buf_init(&text);
    enum status status = read_url(source, &text, error);
    if (status == STATUS_OK)
        status =
            take_document(source, &source->url, &text, source->rules->jwks_url_shown.ptr, &is_new, error);
    else
        error_context(error, "%s", source->rules->jwks_url_shown.ptr);
    report(&source->url, status, source->rules->jwks_url_shown.ptr, is_new, error);
    buf_deinit(&text);
    *changed |= is_new;
    return status;
}

/* After a failure 1, 2, 4 … seconds up to the interval itself; a little earlier or later, so that pods
 * spread. */
static int64_t url_pause_ns(const struct auth_keysource *source)
{
    unsigned failures = source->url.failures;
    int64_t pause_ms = source->rules->refresh_ms;

    if (failures > 0) {
        int64_t backoff_ms = (int64_t)BACKOFF_FIRST_MS << (failures < 16 ? failures - 1 : 15);
        pause_ms = backoff_ms < pause_ms ? backoff_ms : pause_ms;
    }
    return pause_ms * (CLOCK_NS_PER_MS / 100) * (int64_t)(90 + random_u64() % 21);
}

/* ---- one set out of all sources ---- */

static void add_document(struct auth_keyset *set, const struct document *document, const char *origin)
{
    struct error error;

    if (buf_len(&document->text) == 0)
        return;
    if (auth_keyset_add_jwks(set, buf_str(&document->text), origin, &error) != STATUS_OK)
        log_error("auth_keys_unusable", LOG_CSTR("source", origin), LOG_ERROR_FIELDS(&error));
}

/* The secret comes first, then the file: what stands last has no place once there are AUTH_KEYS_MAX keys. */
static enum status build_keys(struct auth_keysource *source, struct auth_keyset **out, struct error *error)
{
    struct auth_keyset *set = auth_keyset_create();
    enum status status = STATUS_OK;

    if (source->rules->secret.len > 0)
        status = auth_keyset_add_secret(set, source->rules->secret, error);
    if (status != STATUS_OK) {
        auth_keyset_unref(set);
        return status;
    }
    add_document(set, &source->file, source->rules->jwks_file.ptr);
    add_document(set, &source->url, source->rules->jwks_url_shown.ptr);
    *out = set;
    return STATUS_OK;
}

static void swap_keys(struct auth_keysource *source)
{
    struct auth_keyset *fresh, *old;
    struct error error;

    if (build_keys(source, &fresh, &error) != STATUS_OK) { /* the secret was taken before */
        log_error("auth_keys_unusable", LOG_ERROR_FIELDS(&error));
        source->changed = false;
        return;
    }
    pthread_mutex_lock(&source->mutex);
    old = source->keys;
    source->keys = fresh;
    pthread_mutex_unlock(&source->mutex);
    auth_keyset_unref(old);
    auth_metrics_keys(auth_keyset_count(fresh));
    log_info("auth_keys_changed", LOG_INT("keys", auth_keyset_count(fresh)));
}

/* ---- when ---- */

static void run_reading(struct worker_job *job)
{
    struct auth_keysource *source = (struct auth_keysource *)job;
    struct error error;
    int64_t now_ns = clock_mono_ns();

    pthread_mutex_lock(&source->mutex);
    source->for_demand = source->demanded;
    bool url_due = source->rules->jwks_url.len > 0 && (source->demanded || now_ns >= source->next_url_ns);
    pthread_mutex_unlock(&source->mutex);

    source->changed = false;
    /* Failures are logged and counted where they happen; the keys just stay. */
    if (source->rules->jwks_file.len > 0)
        refresh_file(source, &source->changed, &error);
    if (url_due) {
        refresh_url(source, &source->changed, &error);
        pthread_mutex_lock(&source->mutex);
        source->next_url_ns = clock_mono_ns() + url_pause_ns(source);
        pthread_mutex_unlock(&source->mutex);
    }
    if (source->changed)
        swap_keys(source);
}

static void reading_done(struct worker_job *job);

/* Under the mutex. A reading holds the source until it is done. */
static bool start_reading(struct auth_keysource *source)
{
    source->job.loop = NULL;
    source->job.run = run_reading;
    source->job.done = reading_done;
    atomic_fetch_add_explicit(&source->refs, 1, memory_order_relaxed);
    source->running = worker_pool_submit(source->auth->workers, &source->job);
    if (!source->running)
        atomic_fetch_sub_explicit(&source->refs, 1,
                                  memory_order_relaxed); /* never the last: the caller has one */
    return source->running;
}

static void reading_done(struct worker_job *job)
{
    struct auth_keysource *source = (struct auth_keysource *)job;
    bool cancelled = job->cancelled, changed = !cancelled && source->changed;

    pthread_mutex_lock(&source->mutex);
    bool answers_demand = source->demanded && (source->for_demand || cancelled);
    source->running = source->for_demand = false;
    if (answers_demand) {
        source->demanded = false;
    } else if (source->demanded && !start_reading(source)) { /* asked for after this one began */
        answers_demand = true;
        source->demanded = false;
    }
    bool heard = !source->closed && (changed || answers_demand);
    pthread_mutex_unlock(&source->mutex);

    if (heard)
        auth_publish(source->auth, changed);
    source_unref(source);
}

void auth_keysource_tick(struct auth_keysource *source)
{
    pthread_mutex_lock(&source->mutex);
    bool url_due = source->rules->jwks_url.len > 0 && clock_mono_ns() >= source->next_url_ns;
    if (!source->running && (url_due || source->rules->jwks_file.len > 0))
        start_reading(source); /* a full queue is no matter: the next tick asks again */
    pthread_mutex_unlock(&source->mutex);
}

bool auth_keysource_demand(struct auth_keysource *source)
{
    int64_t now_ns = clock_mono_ns();

    pthread_mutex_lock(&source->mutex);
    bool allowed = now_ns - source->last_demand_ns >= source->rules->refresh_min_ms * CLOCK_NS_PER_MS ||
                   source->last_demand_ns == 0;
    bool has_source = source->rules->jwks_url.len > 0 || source->rules->jwks_file.len > 0;
    if (!source->demanded && allowed && has_source) {
        source->demanded = source->running || start_reading(source);
        if (source->demanded)
            source->last_demand_ns = now_ns;
    }
    bool coming = source->demanded;
    pthread_mutex_unlock(&source->mutex);
    return coming;
}

struct auth_keyset *auth_keysource_keys(struct auth_keysource *source)
{
    pthread_mutex_lock(&source->mutex);
    struct auth_keyset *keys = auth_keyset_ref(source->keys);
    pthread_mutex_unlock(&source->mutex);
    return keys;
}

/* ---- life ---- */

/* A reload that cannot reach the same URL as before keeps what that URL said last. */
static void borrow_url_document(struct auth_keysource *source, struct auth_keysource *previous)
{
    if (!previous || !str_eq(previous->rules->jwks_url, source->rules->jwks_url))
        return;
    pthread_mutex_lock(&previous->mutex);
    buf_put_str(&source->url.text, buf_str(&previous->url.text));
    pthread_mutex_unlock(&previous->mutex);
}

static enum status first_reading(struct auth_keysource *source, struct auth_keysource *previous,
                                 struct error *error)
{
    bool changed = false;
    enum status status = STATUS_OK;

    if (source->rules->jwks_file.len > 0 && refresh_file(source, &changed, error) != STATUS_OK)
        return error_set_field(error, STATUS_CONFIG, "auth.jwksFile", "%s", error->message);
    if (source->rules->jwks_url.len > 0) {
        borrow_url_document(source, previous);
        status = refresh_url(source, &changed, error);
        bool was_other_url = previous && !str_eq(previous->rules->jwks_url, source->rules->jwks_url);
        if (status != STATUS_OK && was_other_url)
            return error_set_field(error, STATUS_CONFIG, "auth.jwksUrl", "%s", error->message);
        source->next_url_ns = clock_mono_ns() + url_pause_ns(source);
    }
    if (build_keys(source, &source->keys, error) != STATUS_OK)
        return error_set_field(error, STATUS_CONFIG, "auth", "%s", error->message);
    auth_metrics_keys(auth_keyset_count(source->keys));
    return STATUS_OK;
}

enum status auth_keysource_create(struct auth *auth, struct auth_rules *rules,
                                  struct auth_keysource *previous, struct auth_keysource **out,
                                  struct error *error)
{
    struct auth_keysource *source = memory_zalloc(sizeof(*source));

    atomic_init(&source->refs, 1);
    source->auth = auth_ref(auth);
    source->rules = auth_rules_ref(rules);
    pthread_mutex_init(&source->mutex, NULL);
    enum status status = first_reading(source, previous, error);
    if (status != STATUS_OK) {
        source_unref(source);
        return status;
    }
    *out = source;
    return STATUS_OK;
}

void auth_keysource_close(struct auth_keysource *source)
{
    if (!source)
        return;
    pthread_mutex_lock(&source->mutex);
    source->closed = true;
    pthread_mutex_unlock(&source->mutex);
    source_unref(source);
}
