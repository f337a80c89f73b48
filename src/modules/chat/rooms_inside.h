/* What the files of rooms share: rooms.c is the table and who follows, news.c what they are told. The home loop's. */
#ifndef FRESHET_CHAT_ROOMS_INSIDE_H
#define FRESHET_CHAT_ROOMS_INSIDE_H

#include <stdatomic.h>

#include "modules/chat/rooms.h"

struct chat_channel { /* a room's streams of one format */
    struct chat_room *room;
    enum chat_format format;
    struct stream_topic *topic; /* NULL = nobody follows */
};

struct chat_room {
    struct chat_rooms *rooms;
    struct chat_room *next;
    unsigned refs;  /* the table, jobs */
    unsigned holds; /* who is about to follow */
    bool is_listed;
    uint64_t hash;
    int64_t position; /* all up to here was told; -1 = not known yet */
    int64_t heard;    /* the newest somebody spoke of since the log was last asked */
    bool is_reading;
    int64_t read_after, sought; /* of the question under way: behind what, because of what */
    struct worker_job job;      /* of reading the log */
    struct chat_page page;
    enum status status;
    struct error error;
    struct chat_channel channels[CHAT_FORMATS];
    struct chat_key key;
    char texts[];
};

struct chat_rooms {
    struct chat *chat;
    struct loop *home;
    struct chat_room **buckets;
    size_t bucket_count; /* a power of two */
    atomic_size_t count;
};

struct chat_room *chat_rooms_find(const struct chat_rooms *rooms, const struct chat_key *key);
void chat_room_unref(struct chat_room *room);
void chat_room_dissolve(struct chat_room *room); /* its streams end, in order */
/* Reads the log where somebody spoke of more than was told. */
void chat_room_read_on(struct chat_room *room);

#endif
