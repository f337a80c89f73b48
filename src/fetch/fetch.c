/* One request by libcurl's easy interface: a handle of its own each time, nothing shared between threads.
 * What a server answers decides nothing: no redirect is followed, no other protocol spoken, no more than
 * the bound taken. */
#include "fetch/fetch.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdlib.h>

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

struct sink {
    struct buf *body;
    size_t bytes_max;
    bool overflowed;
};

static size_t on_body(char *bytes, size_t size, size_t count, void *arg)
{
    struct sink *sink = arg;
    size_t len = size * count; /* size is always 1 */

    if (len > sink->bytes_max - buf_len(sink->body)) {
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
        return error_set(error, STATUS_IO, "the answer has more than %zu bytes", sink->bytes_max);
    if (code == CURLE_OPERATION_TIMEDOUT)
        return error_set(error, STATUS_TIMEOUT, "no answer in time");
    return error_set(error, STATUS_IO, "%s", details[0] ? details : curl_easy_strerror(code));
}

enum status fetch_run(const struct fetch_request *request, struct fetch_answer *answer, struct error *error)
{
    char details[CURL_ERROR_SIZE] = "";
    struct sink sink = {.body = &answer->body, .bytes_max = request->answer_bytes_max};
    long status = 0;

    *answer = (struct fetch_answer){0};
    if (request->url.len == 0 || memchr(request->url.ptr, '\0', request->url.len))
        return error_set(error, STATUS_IO, "the URL is not valid");
    fetch_init();
    CURL *curl = curl_easy_init();
    if (!curl)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a request");

    char *url = str_dup(request->url);
    struct curl_slist *headers = header_list(request->headers);
    set_limits(curl, request);
    set_message(curl, request, url, headers);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, details);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &sink);
    CURLcode code = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_cleanup(curl);
    curl_slist_free_all(headers);
    free(url);
    answer->status = (int)status;
    if (code == CURLE_OK)
        return STATUS_OK;
    buf_deinit(&answer->body);
    return failed(code, &sink, details, error);
}
