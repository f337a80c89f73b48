/* The table of rooms, and who follows in them. */
#include <stdlib.h>

#include "base/hash.h"
#include "base/memory.h"
#include "modules/chat/rooms_inside.h"

struct metric_family chat_streams_family = {
    .name = "chat_streams",
    .help = "Streams of sessions that are open.",
    .type = METRIC_GAUGE,
    .labels = {"format", NULL},
};
struct metric_family chat_stream_lines_family = {
    .name = "chat_stream_lines_total",
    .help = "Events given to streams, each counted for each of them.",
    .type = METRIC_COUNTER,
    .labels = {"format", NULL},
};
struct metric_family chat_stream_cuts_family = {
    .name = "chat_stream_cuts_total",
    .help = "Streams cut off because their reader fell too far behind.",
    .type = METRIC_COUNTER,
    .labels = {"format", NULL},
};

static const struct str format_names[CHAT_FORMATS] = {{"ndjson", 6}, {"sse", 3}};

enum { BUCKETS_MIN = 64 };

/* ---- the table ---- */

static uint64_t hash_of(const struct chat_key *key)
{
    return hash_seeded(key->session) ^ hash_seeded(key->tenant) * 3;
}

static bool is_key(const struct chat_key *a, const struct chat_key *b)
{
    return str_eq(a->session, b->session) && str_eq(a->tenant, b->tenant) && str_eq(a->user, b->user) &&
           str_eq(a->project, b->project);
}

struct chat_room *chat_rooms_find(const struct chat_rooms *rooms, const struct chat_key *key)
{
    struct chat_room *room = rooms->buckets[hash_of(key) & (rooms->bucket_count - 1)];
    while (room && !is_key(&room->key, key))
        room = room->next;
    return room;
}

static void link_room(struct chat_rooms *rooms, struct chat_room *room)
{
    struct chat_room **bucket = &rooms->buckets[room->hash & (rooms->bucket_count - 1)];
    room->next = *bucket;
    *bucket = room;
}

static void grow(struct chat_rooms *rooms)
{
    struct chat_room **old = rooms->buckets;
    size_t old_count = rooms->bucket_count;
    rooms->bucket_count *= 2;
    rooms->buckets = memory_zalloc(rooms->bucket_count * sizeof(struct chat_room *));
    for (size_t i = 0; i < old_count; i++)
        while (old[i]) {
            struct chat_room *room = old[i];
            old[i] = room->next;
            link_room(rooms, room);
        }
    free(old);
}

static struct str copy(char **at, struct str text)
{
    struct str result = str_of(*at, text.len);
    memcpy(*at, text.ptr, text.len);
    (*at)[text.len] = '\0';
    *at += text.len + 1;
    return result;
}

static struct chat_room *make(struct chat_rooms *rooms, const struct chat_key *key)
{
    size_t bytes = key->tenant.len + key->project.len + key->session.len + key->user.len + 4;
    struct chat_room *room = memory_zalloc(sizeof *room + bytes);
    char *at = room->texts;
    room->rooms = rooms;
    room->refs = 1;
    room->is_listed = true;
    room->position = room->heard = -1;
    room->key = (struct chat_key){copy(&at, key->tenant), copy(&at, key->project), copy(&at, key->session),
                                  copy(&at, key->user)};
    room->hash = hash_of(key);
    for (int i = 0; i < CHAT_FORMATS; i++)
        room->channels[i] = (struct chat_channel){.room = room, .format = (enum chat_format)i};
    if (atomic_fetch_add(&rooms->count, 1) >= rooms->bucket_count)
        grow(rooms);
    link_room(rooms, room);
    return room;
}

static void drop(struct chat_room *room, unsigned refs)
{
    room->refs -= refs;
    if (room->refs == 0)
        free(room);
}

void chat_room_unref(struct chat_room *room)
{
    drop(room, 1);
}

/* The references that the table had of it. */
static unsigned unlist(struct chat_room *room)
{
    if (!room->is_listed)
        return 0;

    struct chat_rooms *rooms = room->rooms;
    struct chat_room **link = &rooms->buckets[room->hash & (rooms->bucket_count - 1)];
    while (*link != room)
        link = &(*link)->next;
    *link = room->next;
    room->is_listed = false;
    atomic_fetch_sub(&rooms->count, 1);
    return 1;
}

void chat_room_dissolve(struct chat_room *room)
{
    for (int i = 0; i < CHAT_FORMATS; i++) {
        if (room->channels[i].topic)
            stream_topic_close(room->channels[i].topic);
        room->channels[i].topic = NULL;
    }
    drop(room, unlist(room));
}

/* Nobody is left: it goes off the table, whose references are to be dropped. */
static unsigned settle(struct chat_room *room)
{
    bool is_used = room->holds;
    for (int i = 0; i < CHAT_FORMATS; i++)
        is_used |= room->channels[i].topic != NULL;
    return is_used ? 0 : unlist(room);
}

/* ---- who follows ---- */

static void on_admitted(struct http_request *request, struct stream_subscriber *subscriber,
                        enum chat_format format)
{
    stream_send(
        subscriber, request,
        &(struct http_response){.status = 200,
                                .content_type = chat_lines[format].content_type,
                                .headers = STR("Cache-Control: no-store\r\nX-Accel-Buffering: no\r\n")},
        kernel_identity(request)->expires_at_s);
}

static void on_ndjson_admitted(struct http_request *request, struct stream_subscriber *subscriber,
                               int64_t position)
{
    (void)position;
    on_admitted(request, subscriber, CHAT_NDJSON);
}

static void on_sse_admitted(struct http_request *request, struct stream_subscriber *subscriber,
                            int64_t position)
{
    (void)position;
    on_admitted(request, subscriber, CHAT_SSE);
}

static void on_idle(void *context)
{
    struct chat_channel *channel = context;
    stream_topic_close(channel->topic);
    channel->topic = NULL;
    drop(channel->room, settle(channel->room));
}

/* What somebody who is led on has not read yet. */
struct page_job {
    struct worker_job job;
    struct chat_room *room; /* referenced */
    struct stream_subscriber *subscriber;
    enum chat_format format;
    int64_t after;
    enum status status;
    struct stream_segment *segment;
};

static void run_page(struct worker_job *job)
{
    struct page_job *page_job = (struct page_job *)job;
    struct chat_page page;
    struct error error = {0};
    page_job->status =
        chat_page_read(page_job->room->rooms->chat, &page_job->room->key, page_job->after, &page, &error);
    bool is_whole = page.is_found && page.forgotten <= page_job->after; /* nothing went that was to come */
    if (page_job->status == STATUS_OK && is_whole)
        page_job->segment = chat_page_segment(&page, page_job->after, page_job->format);
    chat_page_deinit(&page);
}

static void page_done(struct worker_job *job)
{
    struct page_job *page_job = (struct page_job *)job;
    stream_page_give(page_job->subscriber, page_job->segment); /* nothing read: the stream is cut */
    chat_room_unref(page_job->room);
    free(page_job);
}

static void read_page(void *context, struct stream_subscriber *subscriber, int64_t after)
{
    struct chat_channel *channel = context;
    struct chat_rooms *rooms = channel->room->rooms;
    struct page_job *page_job = memory_zalloc(sizeof *page_job);
    page_job->job = (struct worker_job){.loop = rooms->home, .run = run_page, .done = page_done};
    page_job->room = channel->room;
    page_job->subscriber = subscriber;
    page_job->format = channel->format;
    page_job->after = after;
    channel->room->refs++;
    if (worker_pool_submit(kernel_workers(rooms->chat->kernel), &page_job->job))
        return;
    stream_page_refuse(subscriber);
    chat_room_unref(channel->room);
    free(page_job);
}

static void open_channel(struct chat_channel *channel)
{
    struct chat_rooms *rooms = channel->room->rooms;
    const struct chat_settings *settings = rooms->chat->settings;
    const struct chat_lines *lines = &chat_lines[channel->format];
    const struct str *name = &format_names[channel->format];
    channel->topic = stream_topic_create(
        &(struct stream_config){
            .loops = kernel_loops(rooms->chat->kernel),
            .owner = rooms->home,
            .limits = {.positions_max = settings->stream.buffer_events,
                       .bytes_max = (size_t)settings->stream.buffer_bytes,
                       .heartbeat_ms = settings->stream.heartbeat_ms},
            .put_greeting = lines->put_up_to_date,
            .put_heartbeat = lines->put_heartbeat,
            .put_goodbye = lines->put_cut_off,
            .greets_all = true,
            .read_page = read_page,
            .on_admitted = channel->format == CHAT_SSE ? on_sse_admitted : on_ndjson_admitted,
            .on_idle = on_idle,
            .context = channel,
            .subscribers = metric_series_get(&chat_streams_family, name),
            .lines = metric_series_get(&chat_stream_lines_family, name),
            .cuts = metric_series_get(&chat_stream_cuts_family, name),
        },
        channel->room->position);
}

struct chat_room *chat_room_hold(struct chat_rooms *rooms, const struct chat_key *key)
{
    struct chat_room *room = chat_rooms_find(rooms, key);
    if (!room)
        room = make(rooms, key);
    room->holds++;
    room->refs++;
    return room;
}

const struct chat_key *chat_room_key(const struct chat_room *room)
{
    return &room->key;
}

void chat_room_release(struct chat_room *room)
{
    room->holds--;
    drop(room, 1 + settle(room));
}

bool chat_room_admit(struct chat_room *room, const struct chat_page *page, enum chat_format format,
                     struct loop_park_ref ref, int64_t after, struct stream_segment *opening)
{
    struct chat_channel *channel = &room->channels[format];
    if (!room->is_listed)
        return false;
    if (room->position < 0)
        room->position = page->logged;
    if (page->logged > room->heard)
        room->heard = page->logged;
    if (!channel->topic)
        open_channel(channel);
    stream_topic_admit(channel->topic, &(struct stream_entry){
                                           .ref = ref, .after = after, .opening = opening, .is_paged = true});
    chat_room_read_on(room);
    return true;
}

/* ---- life ---- */

struct chat_rooms *chat_rooms_create(struct chat *chat)
{
    struct chat_rooms *rooms = memory_zalloc(sizeof *rooms);
    rooms->chat = chat;
    rooms->home = kernel_store_loop(chat->kernel);
    rooms->bucket_count = BUCKETS_MIN;
    rooms->buckets = memory_zalloc(rooms->bucket_count * sizeof(struct chat_room *));
    return rooms;
}

bool chat_rooms_are_empty(const struct chat_rooms *rooms)
{
    return atomic_load(&rooms->count) == 0;
}

void chat_rooms_destroy(struct chat_rooms *rooms)
{
    for (size_t i = 0; i < rooms->bucket_count; i++)
        while (rooms->buckets[i])
            chat_room_dissolve(rooms->buckets[i]);
    free(rooms->buckets);
    free(rooms);
}
