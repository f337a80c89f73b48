/* What rooms are told: events as they are published, and the log's word where one was missed. */
#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "modules/chat/rooms_inside.h"

/* ---- telling ---- */

static void publish(struct chat_room *room, int64_t sequence, struct str line)
{
    for (int i = 0; i < CHAT_FORMATS; i++) {
        struct chat_channel *channel = &room->channels[i];
        struct buf bytes;
        if (!channel->topic)
            continue;
        buf_init(&bytes);
        chat_line_put(&bytes, channel->format, sequence, line);
        stream_topic_publish(
            channel->topic,
            stream_segment_create(&(struct stream_step){
                .from = room->position, .to = sequence, .lines = 1, .bytes = buf_str(&bytes)}));
        buf_deinit(&bytes);
    }
    room->position = sequence;
}

/* ---- reading the log ---- */

static void run_read(struct worker_job *job)
{
    struct chat_room *room = (struct chat_room *)((char *)job - offsetof(struct chat_room, job));
    room->error = (struct error){0};
    room->status = chat_page_read(room->rooms->chat, &room->key, room->read_after, &room->page, &room->error);
}

/* An empty page: what was spoken of was told meanwhile, or is not there any more. */
static void take_page(struct chat_room *room)
{
    for (size_t i = 0; i < room->page.count; i++)
        if (chat_page_sequence(&room->page, i) > room->position)
            publish(room, chat_page_sequence(&room->page, i), chat_page_line(&room->page, i));
    if (room->page.count && room->sought > room->heard)
        room->heard = room->sought;
}

static void read_done(struct worker_job *job)
{
    struct chat_room *room = (struct chat_room *)((char *)job - offsetof(struct chat_room, job));
    bool is_read = !job->cancelled && room->status == STATUS_OK && room->page.is_found;
    room->is_reading = false;
    if (is_read && room->is_listed)
        take_page(room);
    chat_page_deinit(&room->page);
    if (is_read && room->is_listed) {
        chat_room_read_on(room);
    } else if (!is_read) { /* whoever comes back begins with what the log has then */
        log_warn("chat_room_closed", LOG_STR("sessionId", room->key.session), LOG_ERROR_FIELDS(&room->error));
        chat_room_dissolve(room);
    }
    chat_room_unref(room);
}

void chat_room_read_on(struct chat_room *room)
{
    if (room->is_reading || room->position < 0 || room->heard <= room->position)
        return;
    room->read_after = room->position;
    room->sought = room->heard;
    room->heard = -1;
    room->job = (struct worker_job){.loop = room->rooms->home, .run = run_read, .done = read_done};
    room->is_reading = worker_pool_submit(kernel_store_workers(room->rooms->chat->kernel), &room->job);
    if (room->is_reading)
        room->refs++;
    else
        chat_room_dissolve(room); /* the process is stopping */
}

/* ---- news ---- */

struct item {
    struct item *next;
    struct chat_key key;
    int64_t sequence;
    struct str line;
};

struct chat_news {
    struct loop_message message;
    struct chat_rooms *rooms;
    struct arena arena;
    struct item *first, **last;
    bool is_gap;
};

struct chat_news *chat_news_create(struct chat_rooms *rooms)
{
    struct chat_news *news = memory_zalloc(sizeof *news);
    news->rooms = rooms;
    news->last = &news->first;
    arena_init(&news->arena, 4096);
    return news;
}

void chat_news_add(struct chat_news *news, const struct chat_key *key, int64_t sequence, struct str line)
{
    struct item *item = arena_zalloc(&news->arena, sizeof *item);
    item->key = (struct chat_key){arena_str(&news->arena, key->tenant), arena_str(&news->arena, key->project),
                                  arena_str(&news->arena, key->session), arena_str(&news->arena, key->user)};
    item->sequence = sequence;
    item->line = arena_str(&news->arena, line);
    *news->last = item;
    news->last = &item->next;
}

static void take(struct chat_rooms *rooms, const struct item *item)
{
    struct chat_room *room = chat_rooms_find(rooms, &item->key);
    if (!room)
        return;
    if (item->sequence == room->position + 1 && room->position >= 0) {
        publish(room, item->sequence, item->line);
    } else if (item->sequence > room->heard) {
        room->heard = item->sequence;
        chat_room_read_on(room);
    }
}

static void look_everywhere(struct chat_rooms *rooms)
{
    for (size_t i = 0; i < rooms->bucket_count; i++)
        for (struct chat_room *room = rooms->buckets[i], *next; room; room = next) {
            next = room->next;
            room->heard = INT64_MAX;
            chat_room_read_on(room);
        }
}

static void on_news(struct loop *loop, struct loop_message *message)
{
    (void)loop;
    struct chat_news *news = (struct chat_news *)message;
    for (const struct item *item = news->first; item; item = item->next)
        take(news->rooms, item);
    if (news->is_gap)
        look_everywhere(news->rooms);
    arena_deinit(&news->arena);
    free(news);
}

void chat_news_tell(struct chat_news *news)
{
    news->message.on_message = on_news;
    loop_post(news->rooms->home, &news->message);
}

void chat_rooms_look(struct chat_rooms *rooms)
{
    struct chat_news *news = chat_news_create(rooms);
    news->is_gap = true;
    chat_news_tell(news);
}
