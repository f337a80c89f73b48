/* The two routes of updates, with patience for pods that are away for a moment. */
#include "app/updates.h"

#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"

enum { PAUSE_MIN_MS = 100, PAUSE_MAX_MS = 2000, ASK_MIN_MS = 10, ASK_MAX_MS = 500 };

/* ---- an answer's content ---- */

static void copy_text(const struct json_value *answer, struct str name, char *out, size_t out_bytes)
{
    struct json_value value;
    struct arena arena;
    arena_init(&arena, 512);
    if (json_get(answer, name, &value) && value.type == JSON_STRING)
        snprintf(out, out_bytes, "%.*s", STR_ARG(json_str_decode(value.raw, &arena)));
    arena_deinit(&arena);
}

static enum status read_state(struct str body, struct update_state *state, struct error *error)
{
    static const char *const names[] = {"PENDING", "COMMITTED", "FAILED"};
    struct json_value answer, status, version;
    *state = (struct update_state){0};
    if (json_parse_stored(body, JSON_DEPTH_MAX, &answer, NULL) != STATUS_OK ||
        !json_get(&answer, STR("status"), &status) || status.type != JSON_STRING)
        return error_set(error, STATUS_BAD_REQUEST, "the answer is not one of freshet's");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (json_str_eq(status.raw, str_from(names[i])))
            state->status = (enum update_status)i;
    if (json_get(&answer, STR("committedVersion"), &version) && !json_to_i64(&version, &state->version))
        return error_set(error, STATUS_BAD_REQUEST, "the answer has a committedVersion that is none");
    copy_text(&answer, STR("eventId"), state->event_id, sizeof state->event_id);
    copy_text(&answer, STR("errorCode"), state->code, sizeof state->code);
    copy_text(&answer, STR("errorMessage"), state->message, sizeof state->message);
    return STATUS_OK;
}

/* ---- patience ---- */

static void pause_ms(int64_t ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * CLOCK_NS_PER_MS};
    nanosleep(&time, NULL);
}

/* Half to one and a half times the pause, doubled for the next one. */
static void back_off(int64_t *pause)
{
    pause_ms(*pause / 2 + (int64_t)(random_u64() % (uint64_t)*pause));
    *pause = *pause * 2 < PAUSE_MAX_MS ? *pause * 2 : PAUSE_MAX_MS;
}

static bool is_passing(enum status status)
{
    return status == STATUS_UNAVAILABLE || status == STATUS_IO || status == STATUS_TIMEOUT;
}

static enum status ask_patiently(const struct pod_call *call, struct str json, int64_t patience_ms,
                                 struct buf *body, struct error *error)
{
    int64_t deadline_ns = clock_deadline_ms(patience_ms), pause = PAUSE_MIN_MS;
    for (unsigned tries = 1;; tries++) {
        enum status status = json.len ? pod_post(call, json, body, error) : pod_get(call, body, error);
        if (!is_passing(status))
            return status;
        if (clock_mono_ns() >= deadline_ns)
            return tries > 1 ? error_context(error, "given up after %u tries", tries) : status;
        buf_deinit(body);
        back_off(&pause);
    }
}

/* ---- the routes ---- */

enum status updates_post(const struct pod_call *call, const char *query, struct str json, int64_t patience_ms,
                         struct update_state *state, struct error *error)
{
    struct pod_call post = *call;
    struct buf rest, body;
    buf_init(&rest);
    buf_printf(&rest, "/updates%s", query);
    post.code = STR_NONE;
    post.rest = buf_str(&rest);
    enum status status = ask_patiently(&post, json, patience_ms, &body, error);
    if (status == STATUS_OK)
        status = read_state(buf_str(&body), state, error);
    buf_deinit(&rest), buf_deinit(&body);
    return status;
}

enum status updates_ask(const struct pod_call *call, const char *event_id, int64_t patience_ms,
                        struct update_state *state, struct buf *body, struct error *error)
{
    struct pod_call get = *call;
    struct buf rest, answer;
    buf_init(&rest);
    buf_put_str(&rest, STR("/updates/"));
    pod_put_encoded(&rest, str_from(event_id));
    get.code = STR_NONE;
    get.rest = buf_str(&rest);
    enum status status = ask_patiently(&get, STR_NONE, patience_ms, &answer, error);
    if (status == STATUS_OK)
        status = read_state(buf_str(&answer), state, error);
    buf_deinit(&rest);
    if (body)
        *body = answer;
    else
        buf_deinit(&answer);
    return status;
}

enum status updates_await(const struct pod_call *call, const char *event_id, int64_t patience_ms,
                          struct update_state *state, struct buf *body, struct error *error)
{
    int64_t deadline_ns = clock_deadline_ms(patience_ms), pause = ASK_MIN_MS;
    for (;;) {
        int64_t left_ms = clock_ms_left(deadline_ns);
        enum status status = updates_ask(call, event_id, left_ms, state, body, error);
        if (status != STATUS_OK || state->status != UPDATE_PENDING || left_ms == 0)
            return status;
        if (body)
            buf_deinit(body);
        pause_ms(pause < left_ms ? pause : left_ms);
        pause = pause * 2 < ASK_MAX_MS ? pause * 2 : ASK_MAX_MS;
    }
}
