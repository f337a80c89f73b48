/* Rooms: the sessions that are followed in this process, each with a stream per format.
 *
 *   OPENING ── first follower ──▶ LIVE ── an event is missing ──▶ READING
 *                                  ▲                                │ page delivered
 *                                  └────────────────────────────────┘
 *   any state ── no follower left, or the log cannot be read ──▶ CLOSED
 *
 * A database that has lost its last commits gives their sequences again. A room whose last events are not those of the session
 * any more is closed, so that its followers come back and read the log.
 *
 * A closed room is off the table; it is freed with its last reference. A follower that comes back begins with a page of the
 * log, so a closed room loses nothing. */
#include "modules/chat/rooms.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/log.h"
#include "base/map.h"
#include "base/memory.h"

struct metric_family chat_streams_family = {
    .name = "chat_streams",
    .help = "Open streams of sessions.",
    .type = METRIC_GAUGE,
    .labels = {"format", NULL},
};
struct metric_family chat_stream_lines_family = {
    .name = "chat_stream_lines_total",
    .help = "Events sent to streams, counted once for each stream.",
    .type = METRIC_COUNTER,
    .labels = {"format", NULL},
};
struct metric_family chat_stream_cuts_family = {
    .name = "chat_stream_cuts_total",
    .help = "Streams that were disconnected because their reader was too slow.",
    .type = METRIC_COUNTER,
    .labels = {"format", NULL},
};

struct channel { /* a room's stream of one format */
    struct chat_room *room;
    enum stream_format format;
    struct stream_topic *topic; /* NULL = without a follower */
};

enum {
    EVENTS_KNOWN = 8,    /* the last ones of a room, by the hash of their ids */
    EVENT_ID_BYTES = 49, /* of a line: {"event_id":"…36…" */
};

enum room_state { ROOM_OPENING, ROOM_LIVE, ROOM_READING, ROOM_CLOSED };

struct chat_room {
    struct chat_rooms *rooms;
    struct map_node node;
    enum room_state state;
    unsigned refs;                /* of the table, of jobs, of holders */
    unsigned holds;               /* requests that are about to follow */
    int64_t position;             /* delivered up to this sequence; -1 while OPENING */
    int64_t announced;            /* the newest sequence announced since the log was last read */
    uint32_t known[EVENTS_KNOWN]; /* at its sequence modulo EVENTS_KNOWN; 0 = not known */

    struct channel channels[STREAM_FORMATS];
    struct chat_key key;
    char texts[];
};

struct chat_rooms {
    struct chat *chat;
    struct loop *home;
    struct map map;
    atomic_size_t count; /* of the map, for other threads */
};

/* ---- the table ---- */

static struct chat_room *room_find(const struct chat_rooms *rooms, const struct chat_key *key)
{
    struct map_node *node;
    MAP_MATCH(node, &rooms->map, map_hash_pair(key->session, key->tenant)) {
        struct chat_room *room = CONTAINER_OF(node, struct chat_room, node);
        if (str_eq(room->key.session, key->session) && str_eq(room->key.tenant, key->tenant) &&
            str_eq(room->key.user, key->user) && str_eq(room->key.project, key->project))
            return room;
    }
    return NULL;
}

static void room_unref(struct chat_room *room)
{
    if (--room->refs == 0)
        free(room);
}

/* The streams end in order, and the table's reference goes. */
static void room_close(struct chat_room *room)
{
    struct chat_rooms *rooms = room->rooms;
    if (room->state == ROOM_CLOSED)
        return;
    room->state = ROOM_CLOSED;
    for (int i = 0; i < STREAM_FORMATS; i++) {
        if (room->channels[i].topic)
            stream_topic_close(room->channels[i].topic);
        room->channels[i].topic = NULL;
    }
    map_remove(&rooms->map, &room->node);
    atomic_store(&rooms->count, rooms->map.count);
    room_unref(room);
}

static void room_close_unused(struct chat_room *room)
{
    bool is_used = room->holds;
    for (int i = 0; i < STREAM_FORMATS; i++)
        is_used |= room->channels[i].topic != NULL;
    if (!is_used)
        room_close(room);
}

/* ---- delivering events ---- */

static uint32_t event_hash(struct str line)
{
    return (uint32_t)hash_seeded(str_of(line.ptr, line.len < EVENT_ID_BYTES ? line.len : EVENT_ID_BYTES)) | 1;
}

/* Another event has the sequence of one that was delivered. */
static bool is_replaced(const struct chat_room *room, int64_t sequence, struct str line)
{
    uint32_t known = room->known[sequence % EVENTS_KNOWN];
    return sequence <= room->position && sequence > room->position - EVENTS_KNOWN && known != 0 &&
           known != event_hash(line);
}

static void room_close_replaced(struct chat_room *room)
{
    log_warn("chat_history_replaced", LOG_STR("sessionId", room->key.session),
             LOG_INT("sequence", room->position));
    room_close(room);
}

static void room_publish(struct chat_room *room, int64_t sequence, struct str line)
{
    for (int i = 0; i < STREAM_FORMATS; i++) {
        struct channel *channel = &room->channels[i];
        struct buf bytes = {0};
        if (!channel->topic)
            continue;
        stream_line_put(&bytes, channel->format, sequence, line);
        stream_topic_publish(
            channel->topic,
            stream_segment_create(&(struct stream_step){
                .from = room->position, .to = sequence, .lines = 1, .bytes = buf_str(&bytes)}));
        buf_deinit(&bytes);
    }
    for (int64_t gone = room->position + 1; gone < sequence && gone <= room->position + EVENTS_KNOWN; gone++)
        room->known[gone % EVENTS_KNOWN] = 0;
    room->known[sequence % EVENTS_KNOWN] = event_hash(line);
    room->position = sequence;
}

/* A read of a room's log. Apart, since most rooms wait for events and read nothing. */
struct room_read {
    struct worker_job job;
    struct chat_room *room; /* referenced */
    int64_t after, wanted;  /* the position when it began, the sequence that the log is read for */
    struct chat_page page;
    struct error error;
};

static void on_room_read(struct worker_job *job);

static void run_room_read(struct worker_job *job)
{
    struct room_read *read = CONTAINER_OF(job, struct room_read, job);
    read->error.status =
        chat_page_read(read->room->rooms->chat, &read->room->key, read->after, &read->page, &read->error);
}

/* A live room reads the log when a later sequence than its position was announced. */
static void room_catch_up(struct chat_room *room)
{
    if (room->state != ROOM_LIVE || room->announced <= room->position)
        return;
    struct room_read *read = memory_zalloc(sizeof *read);
    *read = (struct room_read){
        .job = {.loop = room->rooms->home,
                .share = hash_seeded(room->key.tenant),
                .run = run_room_read,
                .done = on_room_read},
        .room = room,
        .after = room->position,
        .wanted = room->announced,
    };
    room->announced = -1;
    room->refs++;
    room->state = ROOM_READING;
    if (worker_pool_submit(kernel_store(room->rooms->chat->kernel)->workers, &read->job))
        return;
    free(read);
    room_close(room); /* the process is stopping */
    room_unref(room);
}

static void on_room_read(struct worker_job *job)
{
    struct room_read *read = CONTAINER_OF(job, struct room_read, job);
    struct chat_room *room = read->room;
    bool is_read = !job->cancelled && read->error.status == STATUS_OK && read->page.is_found;
    if (!is_read) {
        log_warn("chat_room_closed", LOG_STR("sessionId", room->key.session), LOG_ERROR_FIELDS(&read->error));
        room_close(room);
    } else if (room->state == ROOM_READING && read->page.last < read->after) {
        room_close_replaced(room);
    } else if (room->state == ROOM_READING) {
        for (size_t i = 0; i < read->page.count; i++)
            if (chat_page_sequence(&read->page, i) > room->position)
                room_publish(room, chat_page_sequence(&read->page, i), chat_page_line(&read->page, i));
        /* After an empty page the wanted event was delivered meanwhile, or retention deleted it. */
        if (read->page.count && read->wanted > room->announced)
            room->announced = read->wanted;
        room->state = ROOM_LIVE;
    }
    chat_page_deinit(&read->page);
    free(read);
    room_catch_up(room);
    room_unref(room);
}

static void room_announce(struct chat_room *room, int64_t sequence)
{
    if (sequence > room->announced)
        room->announced = sequence;
    room_catch_up(room);
}

void chat_rooms_event(struct chat_rooms *rooms, const struct chat_key *key, int64_t sequence, struct str line)
{
    struct chat_room *room = room_find(rooms, key);
    if (room && room->state != ROOM_OPENING && sequence == room->position + 1)
        room_publish(room, sequence, line);
    else if (room && is_replaced(room, sequence, line))
        room_close_replaced(room);
    else if (room)
        room_announce(room, sequence);
}

void chat_rooms_catch_up(struct chat_rooms *rooms)
{
    struct map_node *node;
    MAP_EACH(node, &rooms->map)
        room_announce(CONTAINER_OF(node, struct chat_room, node), INT64_MAX);
}

bool chat_rooms_are_empty(const struct chat_rooms *rooms)
{
    return atomic_load(&rooms->count) == 0;
}

struct loop *chat_rooms_home(const struct chat_rooms *rooms)
{
    return rooms->home;
}

/* ---- followers ---- */

static void on_follower_admitted(struct http_request *request, struct stream_subscriber *subscriber,
                                 int64_t position)
{
    (void)position;
    stream_send(subscriber, request,
                &(struct http_response){.status = 200,
                                        .content_type = stream_format_type(stream_format_of(request)),
                                        .headers = STR(STREAM_HEADERS)},
                kernel_identity(request)->expires_at_s);
}

static void on_channel_idle(void *context)
{
    struct channel *channel = context;
    stream_topic_close(channel->topic);
    channel->topic = NULL;
    room_close_unused(channel->room);
}

/* The next page of a follower that lags by more than its stream keeps. */
struct page_job {
    struct worker_job job;
    struct chat_room *room; /* referenced */
    struct stream_subscriber *subscriber;
    enum stream_format format;
    int64_t after;
    struct stream_segment *segment;
};

static void run_page_read(struct worker_job *job)
{
    struct page_job *page_job = (struct page_job *)job;
    struct chat_page page;
    struct error error = {0};
    enum status status =
        chat_page_read(page_job->room->rooms->chat, &page_job->room->key, page_job->after, &page, &error);
    bool is_whole = page.is_found && page.forgotten <= page_job->after; /* retention deleted none of it */
    if (status == STATUS_OK && is_whole)
        page_job->segment = chat_page_segment(&page, page_job->after, page_job->format);
    chat_page_deinit(&page);
}

static void on_page_read(struct worker_job *job)
{
    struct page_job *page_job = (struct page_job *)job;
    stream_page_give(page_job->subscriber, page_job->segment); /* NULL ends the stream */
    room_unref(page_job->room);
    free(page_job);
}

static void read_next_page(void *context, struct stream_subscriber *subscriber, int64_t after)
{
    struct channel *channel = context;
    struct chat_rooms *rooms = channel->room->rooms;
    struct page_job *page_job = memory_zalloc(sizeof *page_job);
    *page_job = (struct page_job){
        .job = {.loop = rooms->home,
                .share = hash_seeded(channel->room->key.tenant),
                .run = run_page_read,
                .done = on_page_read},
        .room = channel->room,
        .subscriber = subscriber,
        .format = channel->format,
        .after = after,
    };
    channel->room->refs++;
    if (worker_pool_submit(kernel_workers(rooms->chat->kernel), &page_job->job))
        return;
    stream_page_give(subscriber, NULL);
    room_unref(channel->room);
    free(page_job);
}

static void channel_open(struct channel *channel)
{
    struct chat_rooms *rooms = channel->room->rooms;
    const struct chat_settings *settings = rooms->chat->settings;
    const struct str *name = stream_format_name(channel->format);
    channel->topic = stream_topic_create(
        &(struct stream_config){
            .loops = kernel_loops(rooms->chat->kernel),
            .owner = rooms->home,
            .limits = {.positions_max = settings->stream.buffer_events,
                       .bytes_max = (size_t)settings->stream.buffer_bytes,
                       .heartbeat_ms = settings->stream.heartbeat_ms},
            .format = channel->format,
            .greeting = "{\"event_type\":\"up_to_date\",\"sequence\":%lld}",
            .heartbeat = "{\"event_type\":\"heartbeat\"}",
            .cut_off = "{\"event_type\":\"cut_off\",\"sequence\":%lld}",
            .stopping = "{\"event_type\":\"stopping\",\"sequence\":%lld}",
            .greets_all = true,
            .read_page = read_next_page,
            .on_admitted = on_follower_admitted,
            .on_idle = on_channel_idle,
            .context = channel,
            .subscribers = metric_series_get(&chat_streams_family, name),
            .lines = metric_series_get(&chat_stream_lines_family, name),
            .cuts = metric_series_get(&chat_stream_cuts_family, name),
        },
        channel->room->position);
}

struct chat_room *chat_room_hold(struct chat_rooms *rooms, const struct chat_key *key)
{
    struct chat_room *room = room_find(rooms, key);
    if (!room) {
        size_t bytes = key->tenant.len + key->project.len + key->session.len + key->user.len + 4;
        room = memory_zalloc(sizeof *room + bytes);
        char *at = room->texts;
        room->rooms = rooms;
        room->refs = 1;
        room->position = room->announced = -1;
        room->key = (struct chat_key){str_pack(&at, key->tenant), str_pack(&at, key->project),
                                      str_pack(&at, key->session), str_pack(&at, key->user)};
        for (int i = 0; i < STREAM_FORMATS; i++)
            room->channels[i] = (struct channel){.room = room, .format = (enum stream_format)i};
        map_add(&rooms->map, &room->node, map_hash_pair(key->session, key->tenant));
        atomic_store(&rooms->count, rooms->map.count);
    }
    room->holds++;
    room->refs++;
    return room;
}

void chat_room_release(struct chat_room *room)
{
    room->holds--;
    room_close_unused(room);
    room_unref(room);
}

bool chat_room_admit(struct chat_room *room, const struct chat_page *page, enum stream_format format,
                     struct loop_park_ref ref, int64_t after, struct stream_segment *opening)
{
    struct channel *channel = &room->channels[format];
    if (room->state == ROOM_CLOSED)
        return false;
    if (room->state == ROOM_OPENING) {
        room->position = page->logged;
        room->state = ROOM_LIVE;
    }
    if (!channel->topic)
        channel_open(channel);
    stream_topic_admit(channel->topic, &(struct stream_entry){
                                           .ref = ref, .after = after, .opening = opening, .is_paged = true});
    room_announce(room, page->logged);
    return true;
}

/* ---- life ---- */

struct chat_rooms *chat_rooms_create(struct chat *chat)
{
    struct chat_rooms *rooms = memory_zalloc(sizeof *rooms);
    rooms->chat = chat;
    rooms->home = kernel_store(chat->kernel)->home;
    return rooms;
}

void chat_rooms_destroy(struct chat_rooms *rooms)
{
    struct map_node *node;
    MAP_EACH(node, &rooms->map)
        room_close(CONTAINER_OF(node, struct chat_room, node));
    map_deinit(&rooms->map);
    free(rooms);
}

/* ---- for operators ---- */

enum { REPORT_BYTES_MAX = 8 * 1024 };

static void add_streams(void *arg, const struct str *labels, double value)
{
    (void)labels;
    *(double *)arg += value;
}

void chat_rooms_report(const struct chat_rooms *rooms, struct buf *out)
{
    struct map_node *node;
    size_t begin = buf_len(out);
    double open = 0;
    metrics_each(chat_streams_family.name, add_streams, &open);
    json_put_open(out, "streams", '[');
    MAP_EACH(node, &rooms->map) {
        const struct chat_room *room = CONTAINER_OF(node, struct chat_room, node);
        struct stream_report report = {.kind = STR("chat"),
                                       .tenant = room->key.tenant,
                                       .name = room->key.session,
                                       .position = room->position};
        if (buf_len(out) - begin > REPORT_BYTES_MAX)
            break;
        for (int i = 0; i < STREAM_FORMATS; i++)
            stream_report_add(&report, room->channels[i].topic);
        stream_report_put(&report, out);
    }
    buf_put_char(out, ']');
    json_put_member_i64(out, "streams_open", (int64_t)open);
}
