/* GET …/stream: the request is parked until the home loop holds a room for it and a worker has read the events that it missed. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/memory.h"
#include "modules/chat/rooms.h"

enum { OPEN_MS = 10000, KEY_BYTES = 512 };

/* A request on its way to its room: from its loop to the home loop, to a worker, to the home loop, and back when it is
 * refused. */
struct follower {
    union {
        struct loop_message message;
        struct worker_job job;
    };
    struct chat *chat;
    struct loop_park_ref ref;
    enum stream_format format;
    int64_t after; /* -1 = from the oldest */
    struct chat_room *room;
    struct chat_page page;
    struct stream_segment *opening;
    struct error error;
    struct arena arena;
    struct chat_key key; /* of the arena */
};

/* ---- on the request's loop: refused ---- */

static void follower_destroy(struct follower *follower)
{
    chat_page_deinit(&follower->page);
    stream_segment_unref(follower->opening);
    arena_deinit(&follower->arena);
    free(follower);
}

static void on_refused(struct loop *loop, struct loop_message *message)
{
    (void)loop;
    struct follower *follower = (struct follower *)message;
    struct http_request *request = http_request_unpark(follower->ref);
    char members[96] = "";
    if (follower->error.status == STATUS_SEQUENCE_TOO_OLD)
        snprintf(members, sizeof members, ",\"requested_sequence\":%lld,\"oldest_sequence\":%lld",
                 (long long)follower->after, (long long)follower->page.forgotten + 1);
    if (request)
        http_send_error_with(request, &follower->error, STR_NONE, str_from(members));
    follower_destroy(follower);
}

static void follower_refuse(struct follower *follower)
{
    follower->message.on_message = on_refused;
    loop_post(follower->ref.loop, &follower->message);
}

/* ---- on a worker ---- */

static void run_follower_read(struct worker_job *job)
{
    struct follower *follower = (struct follower *)job;
    enum status status =
        chat_page_read(follower->chat, &follower->key, follower->after, &follower->page, &follower->error);
    const struct chat_page *page = &follower->page;
    if (follower->after < 0) /* from the oldest event that is kept */
        follower->after = page->forgotten;
    if (status == STATUS_OK && !page->is_found)
        status = error_set(&follower->error, STATUS_SESSION_NOT_FOUND, "no such session");
    if (status == STATUS_OK && follower->after < page->forgotten)
        status = error_set_field(&follower->error, STATUS_SEQUENCE_TOO_OLD, "after",
                                 "events since sequence %lld are no longer kept", (long long)follower->after);
    if (status == STATUS_OK && follower->after > page->last)
        status = error_set_field(&follower->error, STATUS_BAD_REQUEST, "after",
                                 "sequence %lld is not in the session yet", (long long)follower->after);
    if (status == STATUS_OK)
        follower->opening = chat_page_segment(page, follower->after, follower->format);
    FAILPOINT("chat.stream_read");
}

/* ---- on the home loop ---- */

static void on_follower_read(struct worker_job *job)
{
    struct follower *follower = (struct follower *)job;
    struct chat_room *room = follower->room;
    const struct chat_page *page = &follower->page;
    int64_t to = page->count ? chat_page_sequence(page, page->count - 1) : follower->after;
    if (job->displaced)
        error_set(&follower->error, STATUS_OVERLOADED, "too many streams are being opened");
    else if (job->cancelled)
        error_set(&follower->error, STATUS_UNAVAILABLE, "the process is stopping");
    else if (follower->error.status == STATUS_OK &&
             !chat_room_admit(room, page, follower->format, follower->ref, to, follower->opening))
        error_set(&follower->error, STATUS_UNAVAILABLE, "the session's events could not be read");
    if (follower->error.status == STATUS_OK)
        follower_destroy(follower);
    else
        follower_refuse(follower);
    chat_room_release(room);
}

static void on_follow(struct loop *loop, struct loop_message *message)
{
    struct follower *follower = (struct follower *)message;
    struct chat *chat = follower->chat;
    follower->room = chat_room_hold(chat->rooms, &follower->key);
    follower->job = (struct worker_job){.loop = loop,
                                        .share = hash_seeded(follower->key.tenant),
                                        .run = run_follower_read,
                                        .done = on_follower_read};
    if (worker_pool_submit(kernel_workers(chat->kernel), &follower->job))
        return;
    chat_room_release(follower->room);
    error_set(&follower->error, STATUS_OVERLOADED, "too many streams are being opened");
    follower_refuse(follower);
}

/* ---- the request ---- */

void chat_get_stream(struct http_request *request)
{
    struct chat *chat = request->context;
    struct chat_key key;
    struct error error = {0};
    int64_t after = -1; /* from the oldest */
    static const char *const known[] = {"after", NULL};
    enum status status = chat_key_read(request, &key, &error);
    if (status == STATUS_OK)
        status = http_request_query_only(request, known, &error);
    if (status == STATUS_OK)
        status = stream_after_read(request, "sequence", &after, &error);
    if (status == STATUS_OK)
        status = kernel_store_require(chat->kernel, &error);
    if (status != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    kernel_identity_keep(request);
    static struct http_late late = {STATUS_UNAVAILABLE, "the session's events could not be read in time"};
    struct follower *follower = memory_zalloc(sizeof *follower);
    follower->message.on_message = on_follow;
    follower->chat = chat;
    follower->format = stream_format_of(request);
    follower->after = after;
    follower->arena = ARENA(KEY_BYTES);
    follower->key = chat_key_copy(&key, &follower->arena);
    int64_t deadline_ns = loop_now_ns(request->loop) + OPEN_MS * CLOCK_NS_PER_MS;
    if (http_request_park(request, deadline_ns, http_send_late, &late, &follower->ref))
        loop_post(kernel_store(chat->kernel)->home, &follower->message);
    else
        follower_destroy(follower);
}
