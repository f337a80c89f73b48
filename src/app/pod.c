/* Calling a pod: the request's URL and headers, and its refusals as one line for a person. */
#include "app/pod.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"

enum {
    CONNECT_TIMEOUT_MS = 5000,
    TIMEOUT_MS = 60000, /* of an answer that is kept; a first read waits for its load */
    STALL_TIMEOUT_MS = 60000,
    TOKEN_TTL_S = 3600,
    HEADERS_MAX = 5,
};
#define ANSWER_BYTES_MAX ((size_t)1 << 30)

void pod_put_encoded(struct buf *out, struct str text)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    for (size_t i = 0; i < text.len; i++) {
        if (text.ptr[i] && strchr(plain, text.ptr[i]))
            buf_put_char(out, text.ptr[i]);
        else
            buf_printf(out, "%%%02X", (unsigned char)text.ptr[i]);
    }
}

struct str pod_url(const char *command, const char *given, struct buf *buffer)
{
    const char *named = given ? given : getenv("FRESHET_URL"), *port = getenv("FRESHET_PORT");
    struct str url = str_from(named);
    if (!given && !url.len) {
        buf_printf(buffer, "http://127.0.0.1:%s", port && *port ? port : "8080");
        return buf_str(buffer);
    }
    while (str_ends_with(url, STR("/")))
        url.len--;
    if (str_starts_with(url, STR("http://")) || str_starts_with(url, STR("https://")))
        return url;
    fprintf(stderr, "freshet %s: \"%s\" is not the URL of a pod, such as http://127.0.0.1:8080\n", command,
            named);
    return STR_NONE;
}

/* Visible ASCII: what else there may be (a line break, say) would end the header it stands in. */
static bool is_token(struct str token)
{
    for (size_t i = 0; i < token.len; i++)
        if (token.ptr[i] <= ' ' || token.ptr[i] > '~')
            return false;
    return token.len > 0;
}

enum status pod_token(const char *given, const struct auth_token_request *request, struct buf *token,
                      struct error *error)
{
    const char *from_environment = getenv("FRESHET_TOKEN");
    struct str ready = str_from(given ? given : from_environment);
    if (!given && !ready.len) {
        struct auth_token_request development = *request;
        development.subject = STR("developer");
        development.ttl_s = TOKEN_TTL_S;
        return app_token_development(&development, token, error);
    }
    if (!is_token(ready))
        return error_set(error, STATUS_BAD_REQUEST, "%s is not a token",
                         given ? "what --token says" : "$FRESHET_TOKEN");
    buf_put_str(token, ready);
    return STATUS_OK;
}

/* {"code","message"} of C4, or at least the number. */
static enum status refused(int http_status, struct str body, struct error *error)
{
    enum status status = http_status == 503 ? STATUS_UNAVAILABLE : STATUS_BAD_REQUEST;
    struct json_value answer, code, message, field;
    if (json_parse_stored(body, JSON_DEPTH_MAX, &answer, NULL) != STATUS_OK ||
        !json_get(&answer, STR("code"), &code) || !json_get(&answer, STR("message"), &message))
        return error_set(error, status, "the answer is %d, and not one of freshet's", http_status);
    struct arena arena;
    arena_init(&arena, 512);
    struct str code_text = json_str_decode(code.raw, &arena);
    struct str message_text = json_str_decode(message.raw, &arena);
    struct str at = json_get(&answer, STR("field"), &field) ? json_str_decode(field.raw, &arena) : STR_NONE;
    error_set_field(error, status, arena_str(&arena, code_text).ptr, "%d %.*s: %.*s%.*s%.*s", http_status,
                    STR_ARG(code_text), STR_ARG(at), STR_ARG(at.len ? STR(": ") : STR_NONE),
                    STR_ARG(message_text));
    arena_deinit(&arena);
    return status;
}

static void put_url(struct buf *out, const struct pod_call *call)
{
    buf_put_str(out, call->url);
    if (call->path.len) {
        buf_put_str(out, call->path);
        return;
    }
    buf_put_str(out, STR("/v1/tenants/"));
    pod_put_encoded(out, call->tenant);
    if (call->code.len) {
        buf_put_str(out, STR("/dictionaries/"));
        pod_put_encoded(out, call->code);
    }
    buf_put_str(out, call->rest);
}

/* Authorization, Accept, and what the call asks for beside them; texts live in the arena. */
static void put_headers(const struct pod_call *call, bool has_body, struct arena *arena,
                        const char *headers[HEADERS_MAX + 1])
{
    size_t count = 0;
    headers[count++] = arena_printf(arena, "Authorization: Bearer %.*s", STR_ARG(call->token)).ptr;
    headers[count++] = arena_printf(arena, "Accept: %s", call->accept ? call->accept : "*/*").ptr;
    if (call->min_version.len)
        headers[count++] = arena_printf(arena, "X-Min-Version: %.*s", STR_ARG(call->min_version)).ptr;
    if (has_body) {
        headers[count++] = "Content-Type: application/json";
        headers[count++] = "Expect:"; /* a large body goes out at once: a refusal comes in any case */
    }
    headers[count] = NULL;
}

static enum status run(const struct pod_call *call, struct str url, struct str json,
                       struct fetch_answer *answer, struct error *error)
{
    struct arena arena;
    const char *headers[HEADERS_MAX + 1];
    arena_init(&arena, 2048);
    put_headers(call, json.len > 0, &arena, headers);
    enum status status = fetch_run(&(struct fetch_request){.url = url,
                                                           .headers = headers,
                                                           .body = json,
                                                           .connect_timeout_ms = CONNECT_TIMEOUT_MS,
                                                           .timeout_ms = call->on_body ? 0 : TIMEOUT_MS,
                                                           .stall_timeout_ms = STALL_TIMEOUT_MS,
                                                           .answer_bytes_max = ANSWER_BYTES_MAX,
                                                           .on_body = call->on_body,
                                                           .context = call->context,
                                                           .session = call->session},
                                   answer, error);
    arena_deinit(&arena);
    return status;
}

static enum status ask(const struct pod_call *call, struct str json, struct buf *body, struct error *error)
{
    struct fetch_answer answer;
    struct buf url;
    buf_init(&url);
    put_url(&url, call);
    enum status status = run(call, buf_str(&url), json, &answer, error);
    buf_deinit(&url);
    if (call->http_status)
        *call->http_status = status == STATUS_OK ? answer.status : 0;
    if (status == STATUS_OK && answer.status / 100 != 2)
        status = refused(answer.status, buf_str(&answer.body), error);
    *body = answer.body;
    return status;
}

enum status pod_get(const struct pod_call *call, struct buf *body, struct error *error)
{
    return ask(call, STR_NONE, body, error);
}

enum status pod_post(const struct pod_call *call, struct str json, struct buf *body, struct error *error)
{
    return ask(call, json, body, error);
}

int pod_session_open(struct pod_session *session, const char *command, const char *url, const char *token,
                     struct str tenant)
{
    struct error error = {0};
    *session = (struct pod_session){.call.tenant = tenant};
    session->call.url = pod_url(command, url, &session->url);
    if (!session->call.url.len)
        return 2;
    if (pod_token(token, &(struct auth_token_request){.tenant = tenant}, &session->token, &error) !=
        STATUS_OK) {
        fprintf(stderr, "freshet %s: %s\n", command, error.message);
        return 1;
    }
    session->call.token = buf_str(&session->token);
    session->call.session = fetch_session_open();
    return 0;
}

void pod_session_close(struct pod_session *session)
{
    fetch_session_close(session->call.session);
    buf_deinit(&session->url), buf_deinit(&session->token);
}
