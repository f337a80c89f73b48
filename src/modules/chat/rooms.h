/* Rooms: one for each session that is followed in this process, and the pages of chat.event_log that its streams begin with.
 * A room belongs to the home loop; functions for other threads are marked.
 *
 *   event (published here, or received from the bus) ── sequence = position + 1: goes to the streams
 *                                                    ── sequence <= position:    a repetition, dropped
 *                                                    ── beyond:                  the room reads the log
 *
 * A room is created before a follower reads the log, so that an event published meanwhile is on the follower's page or
 * reaches the room. */
#ifndef FRESHET_CHAT_ROOMS_H
#define FRESHET_CHAT_ROOMS_H

#include "modules/chat/chat.h"
#include "stream/stream.h"

/* ---- pages.c: a page of the log, and events as lines of a stream ---- */
struct chat_page {
    struct db_result *rows; /* chat_page_deinit() */
    bool is_found;          /* the session exists and belongs to the caller */
    int64_t last;           /* the newest sequence committed in the session */
    int64_t forgotten;      /* retention deleted the log up to this sequence */
    int64_t logged;         /* the newest sequence in the log */
    size_t count;           /* events on this page */
};

/* On a worker: the events after `after` (-1 = from the oldest), bounded in number and bytes. */
enum status chat_page_read(struct chat *chat, const struct chat_key *key, int64_t after,
                           struct chat_page *page, struct error *error) MUST_CHECK;
void chat_page_deinit(struct chat_page *page);
int64_t chat_page_sequence(const struct chat_page *page, size_t at);
struct str chat_page_line(const struct chat_page *page, size_t at);
/* The whole page, which leads on from `after`; NULL when it is empty. */
struct stream_segment *chat_page_segment(const struct chat_page *page, int64_t after,
                                         enum stream_format format);

/* ---- rooms.c ---- */
struct chat_room;

struct chat_rooms *chat_rooms_create(struct chat *chat);
void chat_rooms_destroy(struct chat_rooms *rooms); /* after the loops have ended */

/* An event that is in the log: goes to the streams, is dropped as a repetition, or makes its room read the log. */
void chat_rooms_event(struct chat_rooms *rooms, const struct chat_key *key, int64_t sequence,
                      struct str line);
void chat_rooms_catch_up(struct chat_rooms *rooms); /* events may be missing: every room reads the log */
bool chat_rooms_are_empty(const struct chat_rooms *rooms);    /* any thread */
struct loop *chat_rooms_home(const struct chat_rooms *rooms); /* any thread */

/* For the process's own row (kernel.h): the streams that are open. */
void chat_rooms_report(const struct chat_rooms *rooms, struct buf *out);

/* The session's room, created when it is missing, and held until chat_room_release(). */
struct chat_room *chat_room_hold(struct chat_rooms *rooms, const struct chat_key *key);
void chat_room_release(struct chat_room *room);
/* A parked request that has read `page`, which brings it to `after`, becomes a follower. Takes a reference of its own to
 * `opening`. False: the room was closed meanwhile, since the log could not be read. */
bool chat_room_admit(struct chat_room *room, const struct chat_page *page, enum stream_format format,
                     struct loop_park_ref ref, int64_t after, struct stream_segment *opening);

/* ---- delivery.c: events on their way to the rooms. Any thread; everything is copied ---- */
struct chat_delivery;
struct chat_delivery *chat_delivery_create(struct chat_rooms *rooms); /* NULL: there is no room */
void chat_delivery_add(struct chat_delivery *delivery, const struct chat_key *key, struct str sequence,
                       struct str line);
void chat_delivery_send(struct chat_delivery *delivery);
void chat_rooms_reread(struct chat_rooms *rooms); /* chat_rooms_catch_up() from any thread */

extern struct metric_family chat_streams_family, chat_stream_lines_family, chat_stream_cuts_family;

#endif
