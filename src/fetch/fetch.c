/* One request by libcurl's easy interface: a handle of its own each time, or the session's; nothing is shared
 * between threads. What a server answers decides nothing: no redirect is followed, no other protocol spoken, no more than
 * the bound taken. */
#include "fetch/fetch.h"

#include <curl/curl.h>
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

struct sink {
    CURL *curl;
    const struct fetch_request *request;
    struct buf *body;
    bool overflowed, refused;
};

static bool is_streamed(const struct sink *sink)
{
    long status = 0;

    if (!sink->request->on_body)
        return false;
    curl_easy_getinfo(sink->curl, CURLINFO_RESPONSE_CODE, &status);
    return status >= 200 && status < 300;
}

static size_t on_body(char *bytes, size_t size, size_t count, void *arg)
{
    struct sink *sink = arg;
    size_t len = size * count; /* size is always 1 */

    if (is_streamed(sink)) {
        sink->refused = !sink->request->on_body(sink->request->context, str_of(bytes, len));
        return sink->refused ? 0 : len;
    }
    if (len > sink->request->answer_bytes_max - buf_len(sink->body)) {
        sink->overflowed = true;
        return 0; /* ends the transfer */
    }
    buf_put(sink->body, bytes, len);
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

static enum status failed(CURLcode code, const struct sink *sink, const char *details, struct error *error)
{
    if (sink->overflowed || code == CURLE_FILESIZE_EXCEEDED)
        return error_set(error, STATUS_IO, "the answer has more than %zu bytes",
                         sink->request->answer_bytes_max);
    if (code == CURLE_ABORTED_BY_CALLBACK)
        return error_set(error, STATUS_CANCELLED, "the process is stopping");
    if (sink->refused)
        return error_set(error, STATUS_CANCELLED, "the rest of the answer was not wanted");
    if (code == CURLE_OPERATION_TIMEDOUT)
        return error_set(error, STATUS_TIMEOUT, "no answer in time");
    return error_set(error, STATUS_IO, "%s", details[0] ? details : curl_easy_strerror(code));
}

enum status fetch_run(const struct fetch_request *request, struct fetch_answer *answer, struct error *error)
{
    char details[CURL_ERROR_SIZE] = "";
    struct sink sink = {.request = request, .body = &answer->body};
    long status = 0;

    *answer = (struct fetch_answer){0};
    if (request->url.len == 0 || memchr(request->url.ptr, '\0', request->url.len))
        return error_set(error, STATUS_IO, "the URL is not valid");
    fetch_init();
    CURL *curl = request->session ? request->session->curl : curl_easy_init();
    if (!curl)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a request");

    sink.curl = curl;
    char *url = str_dup(request->url);
    struct curl_slist *headers = header_list(request->headers);
    set_limits(curl, request);
    set_message(curl, request, url, headers);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, details);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &sink);
    CURLcode code = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    if (request->session)
        curl_easy_reset(curl); /* forgets what is freed now, keeps the connection */
    else
        curl_easy_cleanup(curl);
    curl_slist_free_all(headers);
    free(url);
    answer->status = (int)status;
    if (code == CURLE_OK)
        return STATUS_OK;
    buf_deinit(&answer->body);
    return failed(code, &sink, details, error);
}
