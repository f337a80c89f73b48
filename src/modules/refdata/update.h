/* An update: the command of the specification §8.1 (R8), read strictly, kept as the slices that came, and written again for the bus.
 *
 * What a POST brings and what a message on the bus carries are the same contract with different demands: see
 * enum refdata_origin. Nothing here knows dictionaries, SQL or HTTP. */
#ifndef FRESHET_REFDATA_UPDATE_H
#define FRESHET_REFDATA_UPDATE_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/status.h"
#include "base/uuid.h"

enum refdata_event_type { REFDATA_DELTA, REFDATA_SNAPSHOT };
enum refdata_source { REFDATA_REST, REFDATA_KAFKA };
enum refdata_origin {
    REFDATA_FROM_CLIENT, /* eventId and occurredAt are optional; tenantId is optional, and must not differ;
                            `source` is ignored */
    REFDATA_FROM_BUS,    /* all of them required */
};

struct refdata_limits { /* C6 */
    int64_t items_max, key_bytes_max, payload_bytes_max, depth_max;
};

struct refdata_update {
    char event_id[UUID_TEXT_BYTES]; /* lower case */
    struct str tenant, dict_code;
    enum refdata_source source;
    enum refdata_event_type type;
    bool has_revision;
    int64_t source_revision;
    char snapshot_id[UUID_TEXT_BYTES]; /* "" = none */
    int32_t chunk_index, chunks_total; /* 1 and 1 where it is whole */
    int64_t occurred_at_us;
    struct json_value items; /* the array as it came, validated */
    size_t item_count;
    bool has_upsert, has_delete;
    /* Of what the sender sent: the same eventId (or chunk) with another one is a conflict. White space between tokens,
     * the order of members and what the server gave itself make no difference. */
    struct hash128 content, items_hash;
};

static inline bool refdata_update_is_chunk(const struct refdata_update *update)
{
    return update->type == REFDATA_SNAPSHOT && update->chunks_total > 1;
}

/* The first half: is it JSON, an object, and which dictionary does it name? (R1: the dictionary is checked before the
 * rest of the body.) */
enum status refdata_update_open(struct str text, const struct refdata_limits *limits, struct json_value *body,
                                struct str *dict_code, struct arena *arena, struct error *error) MUST_CHECK;
/* The second half. `tenant` is the path's (client) or empty (bus: the message's own). Slices point into the text and
 * the arena. BAD_REQUEST naming the field ("items[3].key"), or PAYLOAD_TOO_LARGE. */
enum status refdata_update_read(const struct json_value *body, enum refdata_origin origin, struct str tenant,
                                const struct refdata_limits *limits, struct arena *arena,
                                struct refdata_update *update, struct error *error) MUST_CHECK;
/* `content`: the items' hash, and that of the rest as one line that does not depend on the order of members. The time of a chunk is
 * not part of it, since a sender may stamp each retry of it, nor is a time that the sender did not give. */
struct hash128 refdata_update_hash(const struct refdata_update *update, bool is_timed, struct arena *arena);
/* Seed §8.1's JSON, for the bus. Payloads are the bytes that came. */
void refdata_update_put(struct buf *out, const struct refdata_update *update);

/* Its items in order. `key` is decoded (a copy in `arena` only where it had escapes). */
struct refdata_item {
    struct str key;
    struct str payload; /* raw JSON; empty for a deletion */
    bool is_delete;
};
struct refdata_items {
    struct json_iter iter;
    struct arena *arena;
};
void refdata_items_begin(struct refdata_items *items, const struct refdata_update *update,
                         struct arena *arena);
bool refdata_items_next(struct refdata_items *items, struct refdata_item *item);

/* Reads a JSON object whose members are all known: an unknown one, or one that comes twice, is refused by name. values[i] is the member names[i], or has no bytes where it is missing. `path` is what stands before a member's name in
 * errors ("items[3]."), "" for the outermost object. */
enum status refdata_members_read(const struct json_value *object, const char *path, const struct str *names,
                                 size_t count, struct json_value *values, struct arena *arena,
                                 struct error *error) MUST_CHECK;

static inline bool refdata_member_given(const struct json_value *value)
{
    return value->raw.len > 0;
}

/* ---- between update.c and update_items.c ---- */
/* A hash as the bytes that the next one is made of; the same on every machine. */
#define REFDATA_HASH_BYTES 16
struct str refdata_hash_bytes(struct hash128 hash, char out[REFDATA_HASH_BYTES]);
/* Checks update->items, an array, and counts what is in it. The update's type is known. */
enum status refdata_items_check(struct refdata_update *update, const struct refdata_limits *limits,
                                struct arena *arena, struct hash128 *content, struct error *error) MUST_CHECK;

/* ---- what became of it ---- */
enum refdata_decision { REFDATA_PENDING, REFDATA_COMMITTED, REFDATA_FAILED };
const char *refdata_decision_name(enum refdata_decision decision); /* as update_request.status */
enum refdata_decision refdata_decision_of(struct str name);        /* PENDING where it is another */
struct str refdata_source_name(enum refdata_source source);        /* as update_request.source */

#define REFDATA_CODE_BYTES 64
#define REFDATA_REASON_BYTES 400
/* As update_request has it. */
struct refdata_state {
    char event_id[UUID_TEXT_BYTES];
    enum refdata_decision decision;
    int64_t version;                   /* of COMMITTED */
    char code[REFDATA_CODE_BYTES];     /* of FAILED: errorCode */
    char reason[REFDATA_REASON_BYTES]; /* of FAILED: errorMessage; UTF-8, no SQL text */
};

struct refdata_outcome {
    struct str tenant, dict_code;
    struct refdata_state state;
    bool is_hydrated;       /* of COMMITTED by this process: refdata.item_change has a row of it */
    bool makes_version;     /* by this event now; not where another one did, or an earlier commit */
    struct str traceparent; /* of the update; empty = none. Set for refdata_database_decided() */
    bool is_published;      /* that version, in the same commit; until that has ended: it may be */
};

#endif
