/* Agents: which one answers a message, and its reply.
 *
 * The keywords in a message choose its agent. Letters are compared without case in the scripts where upper and lower case
 * differ by a constant. A keyword that begins or ends with a Latin letter or a digit must do so at a word's edge; others
 * match anywhere, as languages with endings or without spaces need it.
 *
 * An agent with a URL is called before any transaction, with one POST and a deadline. When that fails, the user's message is
 * kept: a system message in the chat and a log line with the reason report it. */
#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "base/span.h"
#include "fetch/fetch.h"
#include "modules/chat/chat.h"

enum { CONNECT_MS = 2000, ENVELOPE_BYTES = 4096, ESCAPED_BYTES = 6, HEADERS = 4, TRACESTATE_BYTES_MAX = 512 };

static const struct chat_agent repeater = {.name = {"assistant", 9}, .reply = {"{content}", 9}};

/* ---- keywords ---- */

static uint32_t fold(uint32_t point)
{
    if ((point >= 'A' && point <= 'Z') || (point >= 0xc0 && point <= 0xde && point != 0xd7) ||
        (point >= 0x391 && point <= 0x3a9) || (point >= 0x410 && point <= 0x42f))
        return point + 32;
    if (point >= 0x400 && point <= 0x40f)
        return point + 80;
    return point;
}

/* Folds characters of one and two bytes, whose number of bytes that never changes. */
static struct str fold_text(struct str text, struct arena *arena)
{
    char *out = arena_alloc(arena, text.len + 1);
    size_t at = 0;
    memcpy(out, text.ptr, text.len);
    while (at < text.len) {
        size_t len = str_utf8_char(str_of(text.ptr + at, text.len - at));
        if (len == 1) {
            out[at] = (char)fold((uint8_t)out[at]);
        } else if (len == 2) {
            uint32_t point = fold(((uint32_t)out[at] & 0x1f) << 6 | ((uint32_t)out[at + 1] & 0x3f));
            out[at] = (char)(0xc0 | point >> 6);
            out[at + 1] = (char)(0x80 | (point & 0x3f));
        }
        at += len ? len : 1;
    }
    return str_of(out, text.len);
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

/* Both texts are folded. */
static bool contains_keyword(struct str text, struct str keyword)
{
    const char *at = text.ptr, *end = text.ptr + text.len;
    while ((at = memmem(at, (size_t)(end - at), keyword.ptr, keyword.len))) {
        const char *after = at + keyword.len;
        bool begins = at == text.ptr || !is_word(at[-1]) || !is_word(keyword.ptr[0]);
        bool ends = after == end || !is_word(*after) || !is_word(keyword.ptr[keyword.len - 1]);
        if (begins && ends)
            return true;
        at++;
    }
    return false;
}

struct chat_choice chat_agent_choose(const struct chat_settings *settings, struct str content,
                                     struct arena *arena)
{
    const struct chat_agent *agents = settings->agents.items;
    struct str folded = settings->agents.count ? fold_text(content, arena) : content;
    const struct chat_agent *fallback = &repeater;
    struct chat_choice best = {.agent = NULL};
    for (size_t i = 0; i < settings->agents.count; i++) {
        const struct setting_strings *keywords = &agents[i].keywords;
        size_t hits = 0;
        for (size_t k = 0; k < keywords->count; k++)
            hits += contains_keyword(folded, fold_text(keywords->items[k], arena));
        int64_t score = keywords->count ? (int64_t)(hits * 1000 / keywords->count) : 0;
        if (score > best.score)
            best = (struct chat_choice){&agents[i], score};
        if (fallback == &repeater && str_eq(agents[i].name, settings->default_agent))
            fallback = &agents[i];
    }
    if (!best.agent)
        best.agent = fallback;
    return best;
}

struct str chat_agent_fill(struct str reply, struct str content, size_t bytes_max, struct arena *arena)
{
    static const struct str placeholder = {"{content}", 9};
    struct buf text = {0};
    while (reply.len && buf_len(&text) <= bytes_max) {
        const char *at = memmem(reply.ptr, reply.len, placeholder.ptr, placeholder.len);
        size_t before = at ? (size_t)(at - reply.ptr) : reply.len;
        buf_put(&text, reply.ptr, before);
        if (at)
            buf_put_str(&text, content);
        size_t taken = before + (at ? placeholder.len : 0);
        reply = str_of(reply.ptr + taken, reply.len - taken);
    }
    struct str filled = arena_str(arena, str_utf8_cut(buf_str(&text), bytes_max));
    buf_deinit(&text);
    return filled;
}

/* ---- calling an agent ---- */

/* {"reply": "…"}, a text that can be stored. */
static enum status read_reply(const struct fetch_answer *answer, size_t bytes_max, struct arena *arena,
                              struct str *reply, struct error *error)
{
    struct json_value body, member;
    if (answer->status < 200 || answer->status > 299)
        return error_set(error, STATUS_UNAVAILABLE, "the agent returned HTTP %d", answer->status);
    enum status status = json_parse(buf_str(&answer->body), JSON_DEPTH_MAX, &body, error);
    if (status != STATUS_OK)
        return status;
    if (!json_get_string(&body, STR("reply"), &member))
        return error_set(error, STATUS_BAD_REQUEST, "the agent returned no reply");
    if (json_has_nul_escape(member.raw))
        return error_set(error, STATUS_BAD_REQUEST, "the reply contains U+0000");
    *reply = arena_str(arena, json_str_decode(member.raw, arena));
    if (reply->len == 0 || reply->len > bytes_max)
        return error_set(error, STATUS_BAD_REQUEST, "the reply has %zu bytes, not 1 to %zu", reply->len,
                         bytes_max);
    return STATUS_OK;
}

/* W3C trace context. `tracestate` belongs to a traceparent, and is passed on as it came, if it came once and is not too long. */
static void add_context(const char **headers, const struct http_request *request, const struct trace *trace)
{
    struct str state = http_request_header(request, STR("tracestate"));
    if (trace_is_none(trace))
        return;
    *headers++ = arena_printf(request->arena, "traceparent: %s", trace_text(trace, request->arena).ptr).ptr;
    if (state.len > 0 && state.len <= TRACESTATE_BYTES_MAX && str_is_utf8(state) &&
        http_request_header_count(request, STR("tracestate")) == 1)
        *headers = arena_printf(request->arena, "tracestate: %.*s", STR_ARG(state)).ptr;
}

enum status chat_agent_call(const struct chat_agent *agent, const struct chat_key *caller, struct str content,
                            const struct http_request *request, size_t bytes_max, struct str *reply,
                            struct error *error)
{
    const char *headers[HEADERS + 1] = {"Content-Type: application/json", "Accept: application/json"};
    struct arena *arena = request->arena;
    struct span span;
    struct fetch_answer answer = {0};
    struct buf body = {0};
    buf_put_char(&body, '{');
    json_put_member_str(&body, "agent", agent->name);
    json_put_member_str(&body, "tenant_id", caller->tenant);
    json_put_member_str(&body, "project_id", caller->project);
    json_put_member_str(&body, "session_id", caller->session);
    json_put_member_str(&body, "user_id", caller->user);
    json_put_member_str(&body, "content", content);
    buf_put_char(&body, '}');
    span_begin(&span, SPAN_CLIENT, "POST", &request->trace);
    add_context(headers + 2, request, &span.trace);
    enum status status = fetch_run(
        &(struct fetch_request){
            .method = "POST",
            .url = agent->url,
            .headers = headers,
            .body = buf_str(&body),
            .connect_timeout_ms = agent->timeout_ms < CONNECT_MS ? agent->timeout_ms : CONNECT_MS,
            .timeout_ms = agent->timeout_ms,
            .answer_bytes_max = bytes_max * ESCAPED_BYTES + ENVELOPE_BYTES,
        },
        &answer, error);
    if (status == STATUS_OK)
        status = read_reply(&answer, bytes_max, arena, reply, error);
    span_put_str(&span, "http.request.method", STR("POST"));
    span_put_str(&span, "freshet.tenant.id", caller->tenant);
    span_put_str(&span, "freshet.agent", agent->name);
    if (answer.status > 0)
        span_put_int(&span, "http.response.status_code", answer.status);
    if (status != STATUS_OK)
        span_fail(&span, str_from(status_code(status)));
    span_end(&span);
    if (status != STATUS_OK)
        log_warn("chat_agent_failed", LOG_STR("agent", agent->name), LOG_STR("tenantId", caller->tenant),
                 LOG_STR("sessionId", caller->session), LOG_ERROR_FIELDS(error));
    buf_deinit(&answer.body);
    buf_deinit(&body);
    return status;
}
