/* Rooms: one for each session that somebody follows in this process. The home loop's alone, but for what is said.
 *
 *   news (publisher here, bus) ── sequence = position + 1: to the streams · known: dropped · beyond: the log is read
 *
 * A room knows up to where its streams have been told. It is made before the first question to the log is asked, so that
 * what is published meanwhile is either in the answer or heard of. */
#ifndef FRESHET_CHAT_ROOMS_H
#define FRESHET_CHAT_ROOMS_H

#include "modules/chat/pages.h"

struct chat_rooms;
struct chat_room;

struct chat_rooms *chat_rooms_create(struct chat *chat);
void chat_rooms_destroy(struct chat_rooms *rooms); /* the loops have ended */

/* ---- news: any thread ---- */
struct chat_news;
bool chat_rooms_are_empty(const struct chat_rooms *rooms); /* then nobody need be told */
struct chat_news *chat_news_create(struct chat_rooms *rooms);
/* An event that is in the log. All is copied. */
void chat_news_add(struct chat_news *news, const struct chat_key *key, int64_t sequence, struct str line);
void chat_news_tell(struct chat_news *news);
void chat_rooms_look(struct chat_rooms *rooms); /* something may have been missed: all read the log */

/* ---- followers: home loop ---- */
/* The room of this session, made where there is none, and held: it is there until chat_room_release(). */
struct chat_room *chat_room_hold(struct chat_rooms *rooms, const struct chat_key *key);
const struct chat_key *chat_room_key(const struct chat_room *room); /* any thread while held */
void chat_room_release(struct chat_room *room);
/* A parked request that has read `page`, which brings it to `after`, becomes a follower. The opening is referenced anew.
 * False: the room was given up meanwhile, since the log could not be read. */
bool chat_room_admit(struct chat_room *room, const struct chat_page *page, enum chat_format format,
                     struct loop_park_ref ref, int64_t after, struct stream_segment *opening);

extern struct metric_family chat_streams_family, chat_stream_lines_family, chat_stream_cuts_family;

#endif
