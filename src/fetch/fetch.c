/* Requests by libcurl: one by its easy interface, with a handle of its own each time or the session's, or several at once by its
 * multi interface. Nothing is shared between threads. What a server answers decides nothing: no redirect is followed, no other
 * protocol spoken, no more than the bound taken. */
#include "fetch/fetch.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/memory.h"

static atomic_bool is_stopping;

void fetch_init(void)
{
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        abort(); /* at start only */
}

void fetch_stop(void)
{
    atomic_store(&is_stopping, true);
}

/* libcurl asks at least once a second, also while nothing moves. */
static int on_progress(void *arg, curl_off_t down_total, curl_off_t down, curl_off_t up_total, curl_off_t up)
{
    (void)arg, (void)down_total, (void)down, (void)up_total, (void)up;
    return atomic_load(&is_stopping); /* not 0 ends the transfer */
}

static CURL *open_handle(void)
{
    CURL *curl = curl_easy_init();

    if (!curl)
        abort(); /* as every allocation of ours */
    return curl;
}

/* ---- sessions: a handle that outlives its request, with the connection in it ---- */

struct fetch_session {
    CURL *curl; /* without any option between requests */
};

struct fetch_session *fetch_session_open(void)
{
    struct fetch_session *session = memory_zalloc(sizeof *session);

    session->curl = open_handle();
    return session;
}

void fetch_session_close(struct fetch_session *session)
{
    if (session)
        curl_easy_cleanup(session->curl);
    free(session);
}

/* ---- one request ---- */

struct fetch_transfer { /* does not move while it is under way: libcurl points into it */
    CURL *curl;
    const struct fetch_request *request;
    struct fetch_answer *answer;
    char *url;
    struct curl_slist *headers;
    char details[CURL_ERROR_SIZE];
    bool overflowed, refused;
    struct fetch_call *next; /* of several at once: the next one under way */
};

static size_t on_body(char *bytes, size_t size, size_t count, void *arg)
{
    struct fetch_transfer *transfer = arg;
    const struct fetch_request *request = transfer->request;
    struct buf *body = &transfer->answer->body;
    size_t len = size * count; /* size is always 1 */
    long status = 0;

    if (request->on_body)
        curl_easy_getinfo(transfer->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status >= 200 && status < 300) {
        transfer->refused = !request->on_body(request->context, str_of(bytes, len));
        return transfer->refused ? 0 : len;
    }
    if (len > request->answer_bytes_max - buf_len(body)) {
        transfer->overflowed = true;
        return 0; /* ends the transfer */
    }
    buf_put(body, bytes, len);
    return len;
}

static void set_tls(CURL *curl, const struct fetch_tls *tls)
{
    curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, tls->is_unverified ? 0L : 1L);
    curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, tls->is_unverified ? 0L : 2L);
    curl_easy_setopt(curl, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    if (tls->ca_file) {
        curl_easy_setopt(curl, CURLOPT_CAINFO, tls->ca_file);
        curl_easy_setopt(curl, CURLOPT_CAPATH, NULL); /* these authorities only */
    }
    if (tls->cert_file) {
        curl_easy_setopt(curl, CURLOPT_SSLCERT, tls->cert_file);
        curl_easy_setopt(curl, CURLOPT_SSLKEY, tls->key_file ? tls->key_file : tls->cert_file);
    }
}

static void set_options(struct fetch_transfer *transfer, const struct fetch_request *request)
{
    CURL *curl = transfer->curl;

    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(curl, CURLOPT_NOPROXY, "*"); /* the environment's proxies are not ours */
    curl_easy_setopt(curl, CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)request->connect_timeout_ms);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)request->timeout_ms);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    if (request->stall_timeout_ms > 0) {
        curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
        curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, (long)((request->stall_timeout_ms + 999) / 1000));
    }
    if (!request->on_body) /* the length announced is that of whatever comes, also of what is streamed */
        curl_easy_setopt(curl, CURLOPT_MAXFILESIZE_LARGE, (curl_off_t)request->answer_bytes_max);
    set_tls(curl, &request->tls);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "freshet/" FRESHET_VERSION);
    curl_easy_setopt(curl, CURLOPT_URL, transfer->url);
    curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L); /* ".." may be a key */
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, transfer->headers);
    if (request->body.len > 0) {
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->body.len);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request->body.ptr);
    }
    if (request->method)
        curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request->method);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, transfer->details);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, transfer);
}

/* Fills the handle with the request. On failure there is nothing to end. */
static enum status transfer_begin(struct fetch_transfer *transfer, const struct fetch_request *request,
                                  struct fetch_answer *answer, struct error *error)
{
    *answer = (struct fetch_answer){0};
    *transfer = (struct fetch_transfer){.request = request, .answer = answer};
    if (request->url.len == 0 || memchr(request->url.ptr, '\0', request->url.len))
        return error_set(error, STATUS_IO, "the URL is not valid");
    transfer->curl = request->session ? request->session->curl : open_handle();
    transfer->url = str_dup(request->url);
    for (const char *const *header = request->headers; header && *header; header++)
        transfer->headers = curl_slist_append(transfer->headers, *header);
    set_options(transfer, request);
    return STATUS_OK;
}

/* Its outcome. The handle is the session's again, or gone. */
static enum status transfer_end(struct fetch_transfer *transfer, CURLcode code, struct error *error)
{
    curl_off_t retry_after_s = 0;
    long status = 0;

    curl_easy_getinfo(transfer->curl, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(transfer->curl, CURLINFO_RETRY_AFTER, &retry_after_s);
    if (transfer->request->session)
        curl_easy_reset(transfer->curl); /* forgets what is freed now, keeps the connection */
    else
        curl_easy_cleanup(transfer->curl);
    curl_slist_free_all(transfer->headers);
    free(transfer->url);
    transfer->answer->status = (int)status;
    transfer->answer->retry_after_s = retry_after_s;
    if (code == CURLE_OK)
        return STATUS_OK;
    buf_deinit(&transfer->answer->body);
    if (transfer->overflowed || code == CURLE_FILESIZE_EXCEEDED)
        return error_set(error, STATUS_IO, "the answer has more than %zu bytes",
                         transfer->request->answer_bytes_max);
    if (code == CURLE_ABORTED_BY_CALLBACK)
        return error_set(error, STATUS_CANCELLED, "the process is stopping");
    if (transfer->refused)
        return error_set(error, STATUS_CANCELLED, "the rest of the answer was not wanted");
    if (code == CURLE_OPERATION_TIMEDOUT)
        return error_set(error, STATUS_TIMEOUT, "no answer in time");
    return error_set(error, STATUS_IO, "%s",
                     transfer->details[0] ? transfer->details : curl_easy_strerror(code));
}

bool fetch_is_url(struct str url)
{
    for (size_t i = 0; i < url.len; i++)
        if ((unsigned char)url.ptr[i] <= ' ' || url.ptr[i] == 0x7f)
            return false;
    return (str_starts_with(url, STR("http://")) && url.len > 7) ||
           (str_starts_with(url, STR("https://")) && url.len > 8);
}

enum status fetch_run(const struct fetch_request *request, struct fetch_answer *answer, struct error *error)
{
    struct fetch_transfer transfer;
    enum status status = transfer_begin(&transfer, request, answer, error);

    return status == STATUS_OK ? transfer_end(&transfer, curl_easy_perform(transfer.curl), error) : status;
}

/* ---- several at once: a thread moves them on while it has time ---- */

struct fetch_calls {
    pthread_mutex_t lock;     /* for `multi` as a whole, against fetch_calls_wake() */
    CURLM *multi;             /* NULL while no call is under way */
    struct fetch_call *first; /* under way; linked by their transfers */
    size_t running;
};

struct fetch_calls *fetch_calls_open(void)
{
    struct fetch_calls *calls = memory_zalloc(sizeof *calls);

    pthread_mutex_init(&calls->lock, NULL);
    return calls;
}

/* Its outcome is the caller's now. */
static void end_call(struct fetch_calls *calls, struct fetch_call *call, CURLcode code)
{
    struct fetch_call **at = &calls->first;

    while (*at != call)
        at = &(*at)->transfer->next;
    *at = call->transfer->next;
    calls->running--;
    curl_multi_remove_handle(calls->multi, call->transfer->curl);
    call->status = transfer_end(call->transfer, code, &call->error);
    call->has_ended = true;
    free(call->transfer);
    call->transfer = NULL;
}

static void end_all(struct fetch_calls *calls, CURLcode code)
{
    while (calls->first)
        end_call(calls, calls->first, code);
}

static void set_multi(struct fetch_calls *calls, CURLM *multi)
{
    pthread_mutex_lock(&calls->lock);
    CURLM *before = calls->multi;
    calls->multi = multi;
    pthread_mutex_unlock(&calls->lock);
    if (before)
        curl_multi_cleanup(before);
}

void fetch_calls_begin(struct fetch_calls *calls, struct fetch_call *call)
{
    struct fetch_transfer *transfer = call->transfer = memory_zalloc(sizeof *transfer);

    call->has_ended = false;
    call->error = (struct error){0};
    call->status = transfer_begin(transfer, &call->request, &call->answer, &call->error);
    if (call->status != STATUS_OK) {
        call->has_ended = true;
        free(transfer);
        call->transfer = NULL;
        return;
    }
    if (!calls->multi)
        set_multi(calls, curl_multi_init());
    if (!calls->multi)
        abort(); /* as every allocation of ours */
    transfer->next = calls->first;
    calls->first = call;
    calls->running++;
    curl_easy_setopt(transfer->curl, CURLOPT_PRIVATE, call);
    if (curl_multi_add_handle(calls->multi, transfer->curl) != CURLM_OK)
        end_call(calls, call, CURLE_OUT_OF_MEMORY);
}

/* Takes away what has ended; false: nothing has. */
static bool take_ended(struct fetch_calls *calls)
{
    CURLMsg *message;
    bool is_any = false;
    int left = 0;

    while ((message = curl_multi_info_read(calls->multi, &left)) != NULL) {
        char *call = NULL;
        CURLcode result = message->data.result; /* the message ends with its handle */
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &call);
        end_call(calls, (struct fetch_call *)(void *)call, result);
        is_any = true;
    }
    return is_any;
}

size_t fetch_calls_run(struct fetch_calls *calls, int64_t wait_ms)
{
    int running = 0;

    if (!calls->multi)
        return 0;
    CURLMcode code = curl_multi_perform(calls->multi, &running);
    if (!take_ended(calls) && code == CURLM_OK && calls->running > 0 && !atomic_load(&is_stopping)) {
        code = curl_multi_poll(calls->multi, NULL, 0, (int)wait_ms, NULL);
        if (code == CURLM_OK)
            code = curl_multi_perform(calls->multi, &running);
        take_ended(calls);
    }
    if (code != CURLM_OK)
        end_all(calls, CURLE_OUT_OF_MEMORY);
    if (atomic_load(&is_stopping))
        end_all(calls, CURLE_ABORTED_BY_CALLBACK);
    if (calls->running == 0)
        set_multi(calls, NULL);
    return calls->running;
}

void fetch_calls_wake(struct fetch_calls *calls)
{
    pthread_mutex_lock(&calls->lock);
    if (calls->multi)
        curl_multi_wakeup(calls->multi);
    pthread_mutex_unlock(&calls->lock);
}

void fetch_calls_cancel(struct fetch_calls *calls)
{
    end_all(calls, CURLE_ABORTED_BY_CALLBACK);
    set_multi(calls, NULL);
}

void fetch_calls_close(struct fetch_calls *calls)
{
    if (!calls)
        return;
    fetch_calls_cancel(calls);
    pthread_mutex_destroy(&calls->lock);
    free(calls);
}
