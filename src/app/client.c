/* Calling a pod: URL, headers, patience, refusals as one line for a person; and the frame of the commands that do. */
#include "app/client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "app/commands.h"
#include "app/terminal.h"
#include "base/backoff.h"
#include "base/clock.h"
#include "base/json.h"
#include "http/http.h"

enum {
    CONNECT_TIMEOUT_MS = 5000,
    ATTEMPT_MIN_MS = 1000, /* less could not tell a busy pod from a frozen one */
    TOKEN_TTL_S = 3600,
    HEADERS_MAX = 5,
    BAR_WIDTH = 30,
};
#define ITEMS_BYTES_MAX ((size_t)1 << 30)   /* of items that are kept */
#define ANSWER_BYTES_MAX ((size_t)64 << 20) /* of any other answer, and of a line of a stream */
#define DRAW_EVERY_NS (200 * CLOCK_NS_PER_MS)

/* ---- one call ---- */

/* {"code","message"} of C4, or at least the number. The server wrote it: its control characters do not reach the terminal. */
static enum status refusal_error(int http_status, struct str body, struct error *error)
{
    enum status status = http_status == 503 ? STATUS_UNAVAILABLE : STATUS_BAD_REQUEST;
    struct json_value answer;
    if (json_parse_stored(body, JSON_DEPTH_MAX, &answer, NULL) != STATUS_OK)
        answer = (struct json_value){0};
    struct arena arena = ARENA(512);
    const char *code = terminal_text(json_get_text(&answer, STR("code"), &arena), &arena);
    const char *message = terminal_text(json_get_text(&answer, STR("message"), &arena), &arena);
    const char *field = terminal_text(json_get_text(&answer, STR("field"), &arena), &arena);
    if (*code && *message)
        error_set_field(error, status, code, "%d %s: %s%s%s", http_status, code, field, *field ? ": " : "",
                        message);
    else
        error_set(error, status, "%d, and " CLIENT_STRANGE_ANSWER, http_status);
    arena_deinit(&arena);
    return status;
}

static enum status call_once(const struct pod_call *call, struct str json, int64_t limit_ms, struct buf *body,
                             struct error *error)
{
    struct fetch_answer answer;
    struct arena arena = ARENA(2048);
    struct buf url = {0};
    const char *headers[HEADERS_MAX + 1] = {NULL};
    size_t count = 0;
    int64_t connect_ms = limit_ms < CONNECT_TIMEOUT_MS ? limit_ms : CONNECT_TIMEOUT_MS;
    headers[count++] = arena_printf(&arena, "Authorization: Bearer %.*s", STR_ARG(call->token)).ptr;
    headers[count++] = arena_printf(&arena, "Accept: %s", call->accept ? call->accept : "*/*").ptr;
    if (call->min_version.len)
        headers[count++] = arena_printf(&arena, "X-Min-Version: %.*s", STR_ARG(call->min_version)).ptr;
    if (json.len > 0) {
        headers[count++] = "Content-Type: application/json";
        headers[count++] = "Expect:"; /* a large body is sent at once: a refusal arrives in any case */
    }
    buf_put_str(&url, call->url);
    buf_put_str(&url, call->path.len ? call->path : STR("/v1/tenants/"));
    if (!call->path.len) {
        http_percent_encode(&url, call->tenant);
        buf_put_str(&url, call->code.len ? STR("/dictionaries/") : STR_NONE);
        http_percent_encode(&url, call->code);
        buf_put_str(&url, call->rest);
    }
    enum status status = fetch_run(&(struct fetch_request){.url = buf_str(&url),
                                                           .headers = headers,
                                                           .body = json,
                                                           .connect_timeout_ms = connect_ms,
                                                           .timeout_ms = call->on_body ? 0 : limit_ms,
                                                           .stall_timeout_ms = limit_ms,
                                                           .answer_bytes_max = call->on_body || call->path.len
                                                                                   ? ANSWER_BYTES_MAX
                                                                                   : ITEMS_BYTES_MAX,
                                                           .on_body = call->on_body,
                                                           .context = call->context,
                                                           .session = call->session,
                                                           .tls = call->tls},
                                   &answer, error);
    arena_deinit(&arena);
    buf_deinit(&url);
    if (call->http_status)
        *call->http_status = status == STATUS_OK ? answer.status : 0;
    if (status == STATUS_OK && answer.status / 100 != 2)
        status = refusal_error(answer.status, buf_str(&answer.body), error);
    if (status == STATUS_TIMEOUT)
        error_set(error, status, "no answer within %lld.%lld s", (long long)limit_ms / 1000,
                  (long long)limit_ms % 1000 / 100);
    *body = answer.body;
    return status;
}

bool pod_is_away(enum status status)
{
    return status == STATUS_UNAVAILABLE || status == STATUS_IO || status == STATUS_TIMEOUT;
}

void pod_pause(int64_t ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * CLOCK_NS_PER_MS};
    nanosleep(&time, NULL);
}

enum status pod_post(const struct pod_call *call, struct str json, struct buf *body, struct error *error)
{
    int64_t deadline_ns = clock_deadline_ms(call->patience_ms);
    struct backoff backoff = {.min_ms = 100, .max_ms = 2000};
    for (unsigned tries = 1;; tries++) {
        int64_t left_ms = clock_ms_left(deadline_ns);
        enum status status =
            call_once(call, json, left_ms < ATTEMPT_MIN_MS ? ATTEMPT_MIN_MS : left_ms, body, error);
        if (!pod_is_away(status) || call->single)
            return status;
        left_ms = clock_ms_left(deadline_ns);
        if (left_ms <= 0)
            return tries > 1 ? error_context(error, "no success after %u attempts", tries) : status;
        buf_deinit(body);
        int64_t pause_ms = backoff_next_ms(&backoff);
        pod_pause(pause_ms < left_ms ? pause_ms : left_ms);
    }
}

enum status pod_get(const struct pod_call *call, struct buf *body, struct error *error)
{
    return pod_post(call, STR_NONE, body, error);
}

bool pod_take_lines(void *context, struct str bytes)
{
    struct pod_lines *lines = context;
    while (bytes.len) {
        const char *end = memchr(bytes.ptr, '\n', bytes.len);
        size_t len = end ? (size_t)(end - bytes.ptr) : bytes.len;
        if (len > ANSWER_BYTES_MAX - buf_len(&lines->line)) {
            (void)lines->take_line(lines->context, STR(""));
            return false;
        }
        buf_put(&lines->line, bytes.ptr, len);
        if (!end)
            break;
        bool goes_on = lines->take_line(lines->context, buf_str(&lines->line));
        buf_clear(&lines->line);
        if (!goes_on)
            return false;
        bytes = str_of(end + 1, bytes.len - len - 1);
    }
    return true;
}

/* ---- one command ---- */

/* http or https, a host, and a port that one can connect to where there is one. */
static bool is_pod_url(struct str url)
{
    struct str rest = url, part;
    int64_t port = 1;
    if (!fetch_is_url(url))
        return false;
    for (unsigned i = 0; i < 3; i++) /* "http:", "", and what names the server */
        (void)str_split(&rest, '/', &part);
    const char *end = part.ptr + part.len, *user = memrchr(part.ptr, '@', part.len);
    part = user ? str_of(user + 1, (size_t)(end - user - 1)) : part;
    const char *colon = memrchr(part.ptr, ':', part.len), *bracket = memrchr(part.ptr, ']', part.len);
    if (!colon || (bracket && colon < bracket)) /* no port: the scheme's */
        return part.len > 0;
    return colon > part.ptr && str_to_i64(str_of(colon + 1, (size_t)(end - colon - 1)), &port) && port >= 1 &&
           port <= 65535;
}

struct str client_url(const char *command, const char *given, struct buf *buffer)
{
    const char *named = given ? given : getenv("FRESHET_URL"), *port = getenv("FRESHET_PORT");
    struct str url = str_from(named);
    if (!given && !url.len) {
        buf_printf(buffer, "http://127.0.0.1:%s", port && *port ? port : "8080");
        url = buf_str(buffer);
    }
    struct str trimmed = url;
    while (str_ends_with(trimmed, STR("/")))
        trimmed.len--;
    if (is_pod_url(trimmed))
        return trimmed;
    (void)app_misuse(command, "%s \"%.*s\" is not a URL, such as http://127.0.0.1:8080",
                     given             ? "--url"
                     : named && *named ? "$FRESHET_URL"
                                       : "the URL with $FRESHET_PORT",
                     STR_ARG(url));
    return STR_NONE;
}

bool client_token_given(const char *command, const char *given, struct str *token)
{
    *token = str_from(given ? given : getenv("FRESHET_TOKEN"));
    bool is_good = !given || token->len > 0;
    /* Visible ASCII: anything else (a line break, for example) would end its header field. */
    for (size_t i = 0; i < token->len; i++)
        is_good &= token->ptr[i] > ' ' && token->ptr[i] <= '~';
    if (!is_good)
        (void)app_misuse(command,
                         "%s is not a token: it is empty or contains white space or control characters",
                         given ? "the value of --token" : "$FRESHET_TOKEN");
    return is_good;
}

static const char *file_given(const char *given, const char *variable)
{
    const char *file = given ? given : getenv(variable);
    return file && *file ? file : NULL;
}

/* Checked here, since libcurl does not report which option or variable named the file. */
static bool file_is_readable(const char *command, const char *given, const char *option, const char *variable)
{
    const char *file = file_given(given, variable);
    if (!file || access(file, R_OK) == 0)
        return true;
    (void)app_misuse(command, "%s: %s: %s", given ? option : variable, file, strerror(errno));
    return false;
}

bool client_tls_given(const char *command, const struct fetch_tls *given)
{
    if (client_tls(given).key_file && !client_tls(given).cert_file) {
        (void)app_misuse(command, "--key needs --cert: the certificate that the key belongs to");
        return false;
    }
    return file_is_readable(command, given->ca_file, "--ca", "FRESHET_CA") &&
           file_is_readable(command, given->cert_file, "--cert", "FRESHET_CERT") &&
           file_is_readable(command, given->key_file, "--key", "FRESHET_KEY");
}

struct fetch_tls client_tls(const struct fetch_tls *given)
{
    return (struct fetch_tls){
        .ca_file = file_given(given->ca_file, "FRESHET_CA"),
        .cert_file = file_given(given->cert_file, "FRESHET_CERT"),
        .key_file = file_given(given->key_file, "FRESHET_KEY"),
    };
}

enum status client_token(struct str given, const struct auth_token_request *request, struct buf *token,
                         struct error *error)
{
    struct auth_token_request development = *request;
    development.subject = STR("developer");
    development.ttl_s = TOKEN_TTL_S;
    if (!given.len)
        return app_token_issue(NULL, NULL, &development, token, error);
    buf_put_str(token, given);
    return STATUS_OK;
}

bool client_connect(struct client *client)
{
    struct error error = {0};
    buf_clear(&client->token_text);
    if (client_token(client->ready_token, &(struct auth_token_request){.tenant = client->tenant},
                     &client->token_text, &error) != STATUS_OK) {
        (void)app_fail(client->command, "%s", error.message);
        return false;
    }
    client->call.tenant = client->tenant;
    client->call.token = buf_str(&client->token_text);
    fetch_session_close(client->call.session);
    client->call.session = fetch_session_open();
    return true;
}

int client_main(int argc, char **argv, struct client *client, const struct client_command *command)
{
    const struct option_words *words = &client->words;
    client->command = argv[0];
    int exit_status =
        options_read_words(argc, argv, command->usage, command->summary, command->rows, &client->words);
    if (exit_status != OPTIONS_RUN)
        return exit_status;
    if (words->count < command->words_min || (command->words_max && words->count > command->words_max))
        return app_misuse(client->command, "%s is needed, given: %s%s", command->usage,
                          words->count ? words->items[0] : "nothing", words->count > 1 ? " …" : "");
    client->tenant = str_from(words->items[0]);
    client->code = str_from(words->count > 1 ? words->items[1] : NULL);
    if (command->names_dictionary && !(str_is_name(client->tenant) && str_is_name(client->code)))
        return app_misuse(client->command, CLIENT_NAME_MISTAKE);
    client->call.tls = client_tls(&client->tls);
    client->call.url = client_url(client->command, client->url, &client->url_text);
    if (!client->call.url.len || !client_token_given(client->command, client->token, &client->ready_token) ||
        !client_tls_given(client->command, &client->tls))
        exit_status = OPTIONS_WRONG;
    else
        exit_status = command->run(client);
    fetch_session_close(client->call.session);
    buf_deinit(&client->url_text);
    buf_deinit(&client->token_text);
    return exit_status;
}

/* ---- progress ---- */

void progress_start(struct progress *progress, bool wanted, uint64_t items_total)
{
    int64_t now_ns = clock_mono_ns();
    bool is_free = items_total || !isatty(STDOUT_FILENO);
    *progress = (struct progress){.shown = wanted && is_free && isatty(STDERR_FILENO),
                                  .items_total = items_total,
                                  .began_ns = now_ns,
                                  .drawn_ns = now_ns};
}

/* One line, drawn again a few times a second; the last one stays. */
static void draw_progress(const struct progress *progress, int64_t now_ns)
{
    double seconds = (double)(now_ns - progress->began_ns) / (double)CLOCK_NS_PER_S;
    double megabytes = (double)progress->bytes / 1e6;
    fputc('\r', stderr);
    if (progress->items_total) {
        double part = (double)progress->items / (double)progress->items_total;
        int filled = (int)(part * BAR_WIDTH);
        fprintf(stderr, "[%.*s%*s] %3.0f %% ", filled, "##############################", BAR_WIDTH - filled,
                "", part * 100);
    }
    fprintf(stderr, "%llu items, %.1f MB, %.1f MB/s ", (unsigned long long)progress->items, megabytes,
            megabytes / (seconds > 0.001 ? seconds : 0.001));
}

void progress_count(struct progress *progress, uint64_t items, uint64_t bytes)
{
    if (!progress->shown)
        return;
    progress->items += items;
    progress->bytes += bytes;
    int64_t now_ns = clock_mono_ns();
    if (now_ns - progress->drawn_ns < DRAW_EVERY_NS)
        return;
    progress->drawn_ns = now_ns;
    draw_progress(progress, now_ns);
}

void progress_end(struct progress *progress)
{
    if (!progress->shown)
        return;
    draw_progress(progress, clock_mono_ns());
    fputc('\n', stderr);
}
