/* The Redis protocol without sockets: replies out of hiredis's reader, commands by its formatter, and what replies mean: ids
 * and entries of streams, redirects, addresses of nodes. A reply lives in the caller's arena; one that is larger than the
 * caller's limit is an error, so that a server cannot make us hold more. */
#ifndef FRESHET_BUS_REDIS_REPLY_H
#define FRESHET_BUS_REDIS_REPLY_H

#include <stdarg.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "bus/bus.h"

/* ---- replies ---- */
enum redis_kind { REDIS_NIL, REDIS_TEXT, REDIS_ERROR, REDIS_INTEGER, REDIS_ARRAY };

struct redis_reply {
    enum redis_kind kind;
    struct str text; /* of a text or an error */
    int64_t integer;
    struct redis_reply *items;
    size_t count;
};

/* Never NULL: a nil where there is no such item, or `reply` is not an array. */
const struct redis_reply *redis_reply_at(const struct redis_reply *reply, size_t at);
bool redis_reply_is_error(const struct redis_reply *reply, const char *prefix);
/* The value after a name in [name, value, name, value …]. */
const struct redis_reply *redis_reply_field(const struct redis_reply *reply, struct str name);

struct redisReader;
struct redis_parser {
    struct redisReader *reader;
    struct arena *arena; /* of the reply that is being read */
    size_t bytes, bytes_max;
};

void redis_parser_init(struct redis_parser *parser, size_t reply_bytes_max);
void redis_parser_deinit(struct redis_parser *parser);
void redis_parser_feed(struct redis_parser *parser, struct str bytes);
/* *reply is NULL while the next one is incomplete: call again with the same arena. IO: not the Redis protocol, or over the
 * limit. */
enum status redis_parser_next(struct redis_parser *parser, struct arena *arena,
                              const struct redis_reply **reply, struct error *error) MUST_CHECK;

/* ---- commands ---- */
void redis_command_put(struct buf *out, const struct str *arguments, size_t count);
/* Spaces of the format separate the arguments; texts that are put in have no NUL and may have spaces. */
void redis_command_vprintf(struct buf *out, const char *format, va_list arguments);

/* ---- streams ---- */
struct redis_id { /* MS-SEQ, ascending */
    uint64_t ms, seq;
};
#define REDIS_ID_BYTES 44

bool redis_id_parse(struct str text, struct redis_id *id);
struct str redis_id_put(struct redis_id id, char out[REDIS_ID_BYTES]);
int redis_id_compare(struct redis_id a, struct redis_id b);
/* MS << 20 | SEQ, at most INT64_MAX; exact for ids that Redis generates. */
int64_t redis_id_offset(struct redis_id id);

struct redis_stream_info { /* of XINFO STREAM */
    int64_t added, length; /* added: since the stream was created; -1: not known before Redis 7 */
    struct redis_id last;
};
bool redis_stream_info_parse(const struct redis_reply *reply, struct redis_stream_info *info);

struct redis_entries {
    struct bus_message *messages; /* without topic */
    struct redis_id *ids;         /* of the messages */
    size_t count;
    struct redis_id *deleted; /* pending entries whose content is deleted */
    size_t deleted_count;
};
/* [[id, [field, value …]] …] into the arena; texts stay in the reply. An entry without the field `event` is a message
 * without payload, which the handler refuses. IO: not a list of entries. */
enum status redis_entries_parse(const struct redis_reply *reply, struct arena *arena,
                                struct redis_entries *entries, struct error *error) MUST_CHECK;

/* ---- nodes ---- */
struct redis_address {
    char host[256];
    uint16_t port;
};
/* HOST:PORT; the last colon counts, so that an IPv6 address needs no brackets (and may have them). */
bool redis_address_parse(struct str text, struct redis_address *address);
/* A node of CLUSTER SLOTS: [host, port, …]. One without a host is at the host that was asked. */
bool redis_address_of_node(const struct redis_reply *node, const struct redis_address *asked,
                           struct redis_address *address);

struct redis_redirect {
    bool is_ask;             /* for this request only; otherwise the stream has moved */
    struct redis_address to; /* host "": the host that answered */
};
bool redis_redirect_parse(struct str error, struct redis_redirect *redirect); /* false: not a redirect */

#endif
