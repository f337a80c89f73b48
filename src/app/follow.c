/* One connection after the other: each goes on from where the last one ended. */
#include "app/follow.h"

#include <stdio.h>
#include <time.h>

#include "base/clock.h"

enum { PAUSE_MIN_MS = 100, PAUSE_MAX_MS = 5000 };

bool follow_print(struct str line)
{
    return fwrite(line.ptr, 1, line.len, stdout) == line.len && fputc('\n', stdout) != EOF;
}

static bool take_bytes(void *context, struct str bytes)
{
    struct follow *follow = context;
    follow->has_begun = true;
    follow->pause_ms = PAUSE_MIN_MS;
    while (follow->step == FOLLOW_ON && bytes.len) {
        const char *end = memchr(bytes.ptr, '\n', bytes.len);
        size_t len = end ? (size_t)(end - bytes.ptr) : bytes.len;
        buf_put(&follow->line, bytes.ptr, len);
        if (!end)
            break;
        follow->step = follow->take_line(follow->context, buf_str(&follow->line));
        buf_clear(&follow->line);
        bytes = str_of(end + 1, bytes.len - len - 1);
    }
    return fflush(stdout) == 0 && !ferror(stdout) && follow->step == FOLLOW_ON;
}

/* One connection until it ends; its token is made anew, since it may have been the old one's end. */
static enum status connect_once(struct follow *follow, int *http_status, struct error *error)
{
    struct pod_session session;
    struct buf text, body;
    enum status status = STATUS_CANCELLED;
    buf_init(&text);
    buf_clear(&follow->line);
    follow->exit_status =
        pod_session_open(&session, follow->command, follow->url, follow->token, follow->tenant);
    if (follow->exit_status == 0) {
        session.call.accept = "application/x-ndjson";
        session.call.on_body = take_bytes;
        session.call.context = follow;
        session.call.http_status = http_status;
        follow->set_call(follow->context, &session.call, &text);
        status = pod_get(&session.call, &body, error);
        buf_deinit(&body);
    }
    pod_session_close(&session);
    buf_deinit(&text);
    return status;
}

static int give_up(const struct follow *follow, int http_status, const struct error *error)
{
    fprintf(stderr, "freshet %s: %s\n", follow->command, error->message);
    if (http_status != 410)
        return 1;
    follow->explain_too_old(follow->context);
    return FOLLOW_EXIT_TOO_OLD;
}

static void wait_a_little(struct follow *follow, const char *why)
{
    struct timespec time = {.tv_sec = follow->pause_ms / 1000,
                            .tv_nsec = follow->pause_ms % 1000 * CLOCK_NS_PER_MS};
    struct buf place;
    buf_init(&place);
    follow->put_place(follow->context, &place);
    fprintf(stderr, "freshet %s: %s; going on from %.*s\n", follow->command, why, STR_ARG(buf_str(&place)));
    buf_deinit(&place);
    nanosleep(&time, NULL);
    follow->pause_ms = follow->pause_ms * 2 < PAUSE_MAX_MS ? follow->pause_ms * 2 : PAUSE_MAX_MS;
}

static int run(struct follow *follow)
{
    for (;;) {
        struct error error = {0};
        int http_status = 0;
        enum status status = connect_once(follow, &http_status, &error);
        if (follow->step == FOLLOW_DONE || follow->exit_status)
            return follow->exit_status;
        if (follow->step == FOLLOW_STRANGE)
            error_set(&error, STATUS_BAD_REQUEST, "the answer is not one of freshet's");
        if (ferror(stdout))
            error_set(&error, STATUS_CANCELLED, "standard output cannot be written");
        bool is_passing = status == STATUS_OK || status == STATUS_IO || status == STATUS_TIMEOUT ||
                          status == STATUS_UNAVAILABLE;
        if (!is_passing || !follow->has_begun)
            return give_up(follow, http_status, &error);
        wait_a_little(follow, status == STATUS_OK ? "the pod ended the stream" : error.message);
    }
}

int follow_run(struct follow *follow)
{
    follow->pause_ms = PAUSE_MIN_MS;
    int exit_status = run(follow);
    buf_deinit(&follow->line);
    return exit_status;
}
