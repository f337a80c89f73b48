/* One request by libcurl's easy interface: a handle of its own each time, or the session's; nothing is shared
 * between threads. What a server answers decides nothing: no redirect is followed, no other protocol spoken, no more than
 * the bound taken. */
#include "fetch/fetch_inside.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/memory.h"

static atomic_bool is_stopping;

static void init_once(void)
{
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        abort(); /* at start only */
}

void fetch_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_once);
}

void fetch_stop(void)
{
    atomic_store(&is_stopping, true);
}

bool fetch_is_stopping(void)
{
    return atomic_load(&is_stopping);
}

/* libcurl asks at least once a second, also while nothing moves. */
static int on_progress(void *arg, curl_off_t down_total, curl_off_t down, curl_off_t up_total, curl_off_t up)
{
    (void)arg, (void)down_total, (void)down, (void)up_total, (void)up;
    return atomic_load(&is_stopping); /* not 0 ends the transfer */
}

/* ---- sessions: a handle that outlives its request, with the connection in it ---- */

struct fetch_session {
    CURL *curl; /* without any option between requests */
};

struct fetch_session *fetch_session_open(void)
{
    struct fetch_session *session = memory_zalloc(sizeof *session);
    fetch_init();
    session->curl = curl_easy_init();
    return session;
}

void fetch_session_close(struct fetch_session *session)
{
    if (session && session->curl)
        curl_easy_cleanup(session->curl);
    free(session);
}

/* ---- one request ---- */

static bool is_streamed(const struct fetch_transfer *transfer)
{
    long status = 0;

    if (!transfer->request->on_body)
        return false;
    curl_easy_getinfo(transfer->curl, CURLINFO_RESPONSE_CODE, &status);
    return status >= 200 && status < 300;
}

static size_t on_body(char *bytes, size_t size, size_t count, void *arg)
{
    struct fetch_transfer *transfer = arg;
    struct buf *body = &transfer->answer->body;
    size_t len = size * count; /* size is always 1 */

    if (is_streamed(transfer)) {
        transfer->refused = !transfer->request->on_body(transfer->request->context, str_of(bytes, len));
        return transfer->refused ? 0 : len;
    }
    if (len > transfer->request->answer_bytes_max - buf_len(body)) {
        transfer->overflowed = true;
        return 0; /* ends the transfer */
    }
    buf_put(body, bytes, len);
    return len;
}

static struct curl_slist *header_list(const char *const *headers)
{
    struct curl_slist *list = NULL;

    for (; headers && *headers; headers++)
        list = curl_slist_append(list, *headers);
    return list;
}

static void set_limits(CURL *curl, const struct fetch_request *request)
{
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
    curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 1L);
    curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 2L);
    curl_easy_setopt(curl, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "freshet/" FRESHET_VERSION);
}

static void set_message(CURL *curl, const struct fetch_request *request, const char *url,
                        const struct curl_slist *headers)
{
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L); /* ".." may be a key */
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    if (request->body.len > 0) {
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->body.len);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request->body.ptr);
    }
    if (request->method)
        curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request->method);
}

static enum status failed(CURLcode code, const struct fetch_transfer *transfer, struct error *error)
{
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

enum status fetch_transfer_begin(struct fetch_transfer *transfer, const struct fetch_request *request,
                                 struct fetch_answer *answer, struct error *error)
{
    *answer = (struct fetch_answer){0};
    *transfer = (struct fetch_transfer){.request = request, .answer = answer};
    if (request->url.len == 0 || memchr(request->url.ptr, '\0', request->url.len))
        return error_set(error, STATUS_IO, "the URL is not valid");
    fetch_init();
    transfer->curl = request->session ? request->session->curl : curl_easy_init();
    if (!transfer->curl)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a request");
    transfer->url = str_dup(request->url);
    transfer->headers = header_list(request->headers);
    set_limits(transfer->curl, request);
    set_message(transfer->curl, request, transfer->url, transfer->headers);
    curl_easy_setopt(transfer->curl, CURLOPT_ERRORBUFFER, transfer->details);
    curl_easy_setopt(transfer->curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(transfer->curl, CURLOPT_WRITEDATA, transfer);
    return STATUS_OK;
}

enum status fetch_transfer_end(struct fetch_transfer *transfer, CURLcode code, struct error *error)
{
    long status = 0;

    curl_easy_getinfo(transfer->curl, CURLINFO_RESPONSE_CODE, &status);
    if (transfer->request->session)
        curl_easy_reset(transfer->curl); /* forgets what is freed now, keeps the connection */
    else
        curl_easy_cleanup(transfer->curl);
    curl_slist_free_all(transfer->headers);
    free(transfer->url);
    transfer->answer->status = (int)status;
    if (code == CURLE_OK)
        return STATUS_OK;
    buf_deinit(&transfer->answer->body);
    return failed(code, transfer, error);
}

enum status fetch_run(const struct fetch_request *request, struct fetch_answer *answer, struct error *error)
{
    struct fetch_transfer transfer;
    enum status status = fetch_transfer_begin(&transfer, request, answer, error);

    return status == STATUS_OK ? fetch_transfer_end(&transfer, curl_easy_perform(transfer.curl), error)
                               : status;
}
