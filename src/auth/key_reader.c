/* Where keys come from: a file, a URL, a secret of the environment, together one set. A task reads them: when the
 * file changed, when the URL's interval is over (sooner, with backoff, after a failure), or when a token names an
 * unknown key, that at most once per refresh_min. A reading that fails changes nothing: the last good keys stay. A
 * key set that was read counts: a key that it no longer lists is not trusted any more, even when no other key of it
 * can be used. An empty set counts as a failure, since no issuer means it. */
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "auth/state.h"
#include "base/backoff.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "fetch/fetch.h"
#include "loop/task.h"

#define DOCUMENT_BYTES_MAX (256 * 1024)
#define FILE_INTERVAL_MS 1000 /* how soon a changed key file is seen */
#define BACKOFF_MIN_MS 500

static struct metric_family keys_family = {
    .name = "auth_keys",
    .help = "Keys that tokens may be signed by; absent where clients need none.",
    .type = METRIC_GAUGE,
};
static struct metric_family refreshes_family = {
    .name = "auth_jwks_refresh_total",
    .help = "Readings of the key file or URL, by result (changed, unchanged, failed).",
    .type = METRIC_COUNTER,
    .labels = {"result"},
};

struct document {
    const char *origin; /* file or URL, as it is shown; empty = not configured */
    struct buf text;    /* the last key set that was read; replaced under the mutex */
    unsigned failures;  /* in a row */
};

struct auth_key_reader {
    struct task *task;
    struct auth *auth;
    struct auth_rules *rules;

    pthread_mutex_t mutex;
    struct auth_keyset *keys; /* these three under the mutex */
    bool demanded;            /* a reading for an unknown key is still to end */
    int64_t last_demand_ns;

    /* The reading's own. */
    struct document file, url;
    struct stat file_seen;
    int64_t next_url_ns;
    struct backoff url_backoff;
};

/* ---- reading ---- */

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* *text stays empty when the file is the one that was seen last. Its state is taken first: what changes while it is read is
 * read again. */
static enum status read_file(struct auth_key_reader *reader, struct buf *text, struct stat *info,
                             struct error *error)
{
    bool is_found = stat(reader->file.origin, info) == 0;

    if (is_found && same_file(info, &reader->file_seen))
        return STATUS_OK;
    if (is_found && (!S_ISREG(info->st_mode) || info->st_size > DOCUMENT_BYTES_MAX))
        return error_set(error, STATUS_IO, "is not a regular file of at most %d bytes", DOCUMENT_BYTES_MAX);
    if (!is_found || !buf_read_file(text, reader->file.origin, DOCUMENT_BYTES_MAX))
        return error_set(error, STATUS_IO, "cannot be read: %s", strerror(errno));
    if (buf_len(text) > DOCUMENT_BYTES_MAX)
        return error_set(error, STATUS_IO, "has more than %d bytes", DOCUMENT_BYTES_MAX);
    return STATUS_OK;
}

static enum status read_url(const struct auth_key_reader *reader, struct buf *text, struct error *error)
{
    static const char *const HEADERS[] = {"Accept: application/json, application/jwk-set+json", NULL};
    struct fetch_answer answer;
    enum status status = fetch_run(&(struct fetch_request){.url = reader->rules->jwks_url,
                                                           .headers = HEADERS,
                                                           .connect_timeout_ms = reader->rules->timeout_ms,
                                                           .timeout_ms = reader->rules->timeout_ms,
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

/* Reads the document again. *changed: it differs from the last one. NOT_FOUND: it replaced the last one, but has no usable key.
 * A text that is not a key set is an error, and the last document stays. */
static enum status refresh(struct auth_key_reader *reader, struct document *document, bool *changed,
                           struct error *error)
{
    struct stat info = {0};
    struct buf text = {0};
    bool is_new = false, is_file = document == &reader->file;
    enum status status = is_file ? read_file(reader, &text, &info, error) : read_url(reader, &text, error);

    if (status == STATUS_OK && is_file && same_file(&info, &reader->file_seen))
        return STATUS_OK;
    if (status != STATUS_OK) {
        error_context(error, "%s", document->origin);
    } else if (buf_len(&text) == 0 || !str_eq(buf_str(&text), buf_str(&document->text))) {
        struct auth_keyset *trial = auth_keyset_create();
        status = auth_keyset_add_jwks(trial, buf_str(&text), document->origin, error);
        auth_keyset_unref(trial);
        is_new = status == STATUS_OK || status == STATUS_NOT_FOUND;
    }
    if (is_new) {
        pthread_mutex_lock(&reader->mutex);
        struct buf old = document->text;
        document->text = text;
        pthread_mutex_unlock(&reader->mutex);
        text = old;
        *changed = true;
    }
    buf_deinit(&text);
    struct str result = status != STATUS_OK ? STR("failed") : is_new ? STR("changed") : STR("unchanged");
    metric_add(metric_series_get(&refreshes_family, &result), 1);
    if (status == STATUS_OK) {
        if (is_file)
            reader->file_seen = info; /* only then: a file caught half-written is read again */
        document->failures = 0;
        return STATUS_OK;
    }
    document->failures++;
    if ((document->failures & (document->failures - 1)) == 0) /* the 1st, 2nd, 4th, 8th … in a row */
        log_warn("jwks_read_failed", LOG_CSTR("source", document->origin),
                 LOG_INT("failures", document->failures), LOG_CSTR("error", error->message));
    return status;
}

/* The interval, a little earlier or later so that pods spread; after a failure sooner. */
static void plan_url(struct auth_key_reader *reader)
{
    int64_t pause_ms = reader->rules->refresh_ms * (int64_t)(90 + random_u64() % 21) / 100;

    if (reader->url.failures > 0)
        pause_ms = backoff_next_ms(&reader->url_backoff);
    else
        backoff_reset(&reader->url_backoff);
    reader->next_url_ns = clock_deadline_ms(pause_ms);
}

/* ---- one set out of all documents ---- */

/* The secret comes first, then the file: what stands last is left out once there are AUTH_KEYS_MAX keys. */
static struct auth_keyset *build_keys(const struct auth_key_reader *reader)
{
    const struct document *const documents[] = {&reader->file, &reader->url};
    const struct auth_rules *rules = reader->rules;
    bool is_configured = rules->jwks_file.len > 0 || rules->jwks_url.len > 0 || rules->secret.len > 0;
    struct metric_series *series = metric_series_get(&keys_family, NULL);
    struct auth_keyset *set = auth_keyset_create();
    struct error unusable;

    if (rules->secret.len > 0)
        auth_keyset_add_secret(set, rules->secret);
    for (size_t i = 0; i < 2; i++)
        if (buf_len(&documents[i]->text) > 0 &&
            auth_keyset_add_jwks(set, buf_str(&documents[i]->text), documents[i]->origin, &unusable) !=
                STATUS_OK)
            log_error("auth_keys_unusable", LOG_CSTR("source", documents[i]->origin),
                      LOG_ERROR_FIELDS(&unusable));
    metric_set(series, (double)set->count);
    if (!is_configured && auth_rules_let_in(rules)) /* no key is needed: an alert on 0 would mean nothing */
        metric_series_drop(series);
    return set;
}

/* ---- when ---- */

static int64_t read_keys(struct task *task, void *context)
{
    struct auth_key_reader *reader = context;
    bool has_file = *reader->file.origin, has_url = *reader->url.origin, changed = false;
    struct error error;

    pthread_mutex_lock(&reader->mutex);
    bool for_demand = reader->demanded;
    pthread_mutex_unlock(&reader->mutex);
    /* Failures are logged and counted where they happen; the keys just stay. */
    if (has_file)
        refresh(reader, &reader->file, &changed, &error);
    if (has_url && (for_demand || clock_mono_ns() >= reader->next_url_ns)) {
        refresh(reader, &reader->url, &changed, &error);
        plan_url(reader);
    }
    struct auth_keyset *fresh = changed ? build_keys(reader) : NULL, *old = NULL;
    if (changed)
        log_info("auth_keys_changed", LOG_INT("keys", fresh->count));
    pthread_mutex_lock(&reader->mutex);
    if (changed) {
        old = reader->keys;
        reader->keys = fresh;
    }
    if (for_demand)
        reader->demanded = false;
    pthread_mutex_unlock(&reader->mutex);
    auth_keyset_unref(old);
    if ((changed || for_demand) && !task_is_stopping(task))
        auth_publish(reader->auth, changed);
    int64_t delay_ns = has_file ? TASK_MS(FILE_INTERVAL_MS) : TASK_IDLE;
    int64_t until_url_ns = has_url ? reader->next_url_ns - clock_mono_ns() : TASK_IDLE;
    return until_url_ns < 0 ? TASK_NOW : until_url_ns < delay_ns ? until_url_ns : delay_ns;
}

bool auth_key_reader_demand(struct auth_key_reader *reader)
{
    int64_t now_ns = clock_mono_ns();

    pthread_mutex_lock(&reader->mutex);
    bool allowed = now_ns - reader->last_demand_ns >= reader->rules->refresh_min_ms * CLOCK_NS_PER_MS ||
                   reader->last_demand_ns == 0;
    bool has_document = *reader->url.origin || *reader->file.origin;
    bool begins = !reader->demanded && allowed && has_document;
    if (begins) {
        reader->demanded = true;
        reader->last_demand_ns = now_ns;
    }
    bool coming = reader->demanded;
    pthread_mutex_unlock(&reader->mutex);
    if (begins)
        task_wake(reader->task);
    return coming;
}

struct auth_keyset *auth_key_reader_keys(struct auth_key_reader *reader)
{
    pthread_mutex_lock(&reader->mutex);
    struct auth_keyset *keys = auth_keyset_ref(reader->keys);
    pthread_mutex_unlock(&reader->mutex);
    return keys;
}

/* ---- life ---- */

static enum status first_reading(struct auth_key_reader *reader, struct auth_key_reader *previous,
                                 struct error *error)
{
    bool changed = false;

    if (*reader->file.origin && refresh(reader, &reader->file, &changed, error) != STATUS_OK)
        return error_set_field(error, STATUS_CONFIG, "auth.jwksFile", "%s", error->message);
    if (*reader->url.origin) {
        bool was_same_url = previous && str_eq(previous->rules->jwks_url, reader->rules->jwks_url);
        if (was_same_url) { /* a reload that cannot reach it keeps its last answer */
            pthread_mutex_lock(&previous->mutex);
            buf_put_str(&reader->url.text, buf_str(&previous->url.text));
            pthread_mutex_unlock(&previous->mutex);
        }
        if (refresh(reader, &reader->url, &changed, error) != STATUS_OK && previous && !was_same_url)
            return error_set_field(error, STATUS_CONFIG, "auth.jwksUrl", "%s", error->message);
        plan_url(reader);
    }
    reader->keys = build_keys(reader);
    return STATUS_OK;
}

enum status auth_key_reader_create(struct auth *auth, struct auth_rules *rules,
                                   struct auth_key_reader *previous, struct auth_key_reader **out,
                                   struct error *error)
{
    struct auth_key_reader *reader = memory_zalloc(sizeof(*reader));

    metrics_register(&keys_family);
    metrics_register(&refreshes_family);
    reader->auth = auth;
    reader->rules = auth_rules_ref(rules);
    reader->file.origin = rules->jwks_file.ptr;
    reader->url.origin = rules->jwks_url_shown.ptr;
    reader->url_backoff = (struct backoff){
        .min_ms = rules->refresh_ms < BACKOFF_MIN_MS ? rules->refresh_ms : BACKOFF_MIN_MS,
        .max_ms = rules->refresh_ms,
    };
    pthread_mutex_init(&reader->mutex, NULL);
    reader->task = task_create(&(struct task_config){.name = "auth_keys",
                                                     .loop = loop_group_loop(auth->group, 0),
                                                     .pool = auth->workers,
                                                     .run = read_keys,
                                                     .context = reader});
    enum status status = first_reading(reader, previous, error);
    if (status == STATUS_OK)
        *out = reader;
    else
        auth_key_reader_destroy(reader);
    return status;
}

void auth_key_reader_start(struct auth_key_reader *reader)
{
    bool has_document = *reader->file.origin || *reader->url.origin;

    task_start(reader->task, has_document ? TASK_MS(FILE_INTERVAL_MS) : TASK_IDLE);
}

void auth_key_reader_destroy(struct auth_key_reader *reader)
{
    if (!reader)
        return;
    task_stop(reader->task, TASK_FOREVER);
    task_destroy(reader->task);
    auth_keyset_unref(reader->keys);
    auth_rules_unref(reader->rules);
    buf_deinit(&reader->file.text);
    buf_deinit(&reader->url.text);
    pthread_mutex_destroy(&reader->mutex);
    free(reader);
}
