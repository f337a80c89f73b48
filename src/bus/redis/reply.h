/* What a Redis server answers, and what it is asked: replies out of hiredis's reader, commands by its formatter, and the
 * ids of stream entries. Replies live in an arena of the caller's; a server that sends more than was bargained for is cut
 * off, so that its memory is bounded by us. No sockets here. */
#ifndef FRESHET_BUS_REDIS_REPLY_H
#define FRESHET_BUS_REDIS_REPLY_H

#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"

/* ---- replies ---- */
enum redis_kind { REDIS_NIL, REDIS_TEXT, REDIS_ERROR, REDIS_INTEGER, REDIS_ARRAY };

struct redis_reply {
    enum redis_kind kind;
    struct str text; /* of a text or an error */
    int64_t integer;
    struct redis_reply *items;
    size_t count;
};

/* Never NULL: what is not there, or in something that is no array, is a nil. */
const struct redis_reply *redis_reply_at(const struct redis_reply *reply, size_t at);
bool redis_reply_is_error(const struct redis_reply *reply, const char *prefix);
/* The value behind a name in [name, value, name, value …]. */
const struct redis_reply *redis_reply_field(const struct redis_reply *reply, struct str name);

/* ---- the reader: bytes in, replies out ---- */
struct redisReader;
struct redis_parser {
    struct redisReader *reader;
    struct arena *arena; /* of the reply under way */
    size_t bytes, bytes_max;
};

void redis_parser_init(struct redis_parser *parser, size_t reply_bytes_max);
void redis_parser_deinit(struct redis_parser *parser);
void redis_parser_feed(struct redis_parser *parser, struct str bytes);
/* *reply is NULL when the next one is not whole yet: then call with the same arena again. IO: this is no Redis, or it
 * sends too much. */
enum status redis_parser_next(struct redis_parser *parser, struct arena *arena,
                              const struct redis_reply **reply, struct error *error) MUST_CHECK;

/* ---- commands ---- */
void redis_command_put(struct buf *out, const struct str *arguments, size_t count);
#define REDIS_COMMAND(out, ...)                               \
    redis_command_put(out, (const struct str[]){__VA_ARGS__}, \
                      sizeof((const struct str[]){__VA_ARGS__}) / sizeof(struct str))

struct redis_number {
    char text[24];
};
struct str redis_number_str(struct redis_number *number, int64_t value);

/* ---- ids of entries: MS-SEQ, ascending ---- */
struct redis_id {
    uint64_t ms, seq;
};
#define REDIS_ID_BYTES 44

bool redis_id_parse(struct str text, struct redis_id *id);
struct str redis_id_put(struct redis_id id, char out[REDIS_ID_BYTES]);
int redis_id_compare(struct redis_id a, struct redis_id b);
/* MS << 20 | SEQ, as far as that fits; ids that Redis makes by itself do. */
int64_t redis_id_offset(struct redis_id id);
struct redis_id redis_id_before(int64_t offset); /* the last one that has a smaller offset */

#endif
