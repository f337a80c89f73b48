/* Asks: a request that cannot be answered from memory is parked on its own loop, and the home loop gets a message about it. There it
 * waits in a list until the home loop replies, once: the handler runs again from its first line, or the request gets an error. The
 * message itself goes to and fro; neither loop touches the other's memory. */
#ifndef FRESHET_REFDATA_ASK_H
#define FRESHET_REFDATA_ASK_H

#include "base/list.h"
#include "cache/cache.h"
#include "http/http.h"

struct refdata;
struct refdata_ask;
struct refdata_dictionary;
struct stream_segment;
struct refdata_versions;
typedef void refdata_ask_fn(struct refdata_ask *ask);

struct refdata_ask {
    struct loop_message message;
    STAILQ_ENTRY(refdata_ask) next; /* of the list it waits in */
    refdata_ask_fn *on_ask;
    struct refdata *refdata;
    struct loop_park_ref ref;
    struct str tenant, code;
    struct str keys;    /* text[] of what it would read from the primary; empty = the whole dictionary */
    bool may_be_kept;   /* what the keys hold may be streamed, and so kept while its client reads */
    int64_t version;    /* demanded; of a watch: the one the client has, -1 = from now on */
    uint64_t sender;    /* that `charged` is charged to */
    size_t charged;     /* for itself, and the copy of the keys that a read from the primary has */
    int64_t expires_ns; /* the request has timed out by then */
    const struct refdata_dictionary *definition; /* by which its keys are read from the primary */
    unsigned format;                             /* of a watch: enum stream_format */
    struct stream_segment *opening;              /* of a watch: referenced; what it missed, NULL = nothing */
    size_t opening_offset;
    /* the reply */
    enum status status; /* OK = the handler runs again */
    const char *text;
    int64_t current;                 /* the version there is: of VERSION_NOT_COMMITTED and VERSION_TOO_OLD */
    bool from_primary;               /* what the handler reads was read from the primary on its behalf */
    struct cache_snapshot *snapshot; /* and is this, referenced; NULL = what is held */
    struct refdata_versions *versions; /* of a list of dictionaries: referenced; NULL = not read */
    char names[];                      /* of tenant, code and keys */
};
STAILQ_HEAD(refdata_asks, refdata_ask);

/* What a waiting request demands: in its arena, kept in request->handler_data. */
struct refdata_demand {
    int64_t version;
    struct str code, keys;
    bool may_be_kept;                        /* as of the ask */
    unsigned format;                         /* of a watch */
    bool from_primary;                       /* as the last reply had it */
    struct cache_snapshot *answer;           /* the same; lives until the handler returns */
    const struct refdata_versions *versions; /* the same */
};

/* On the request's loop: parks it, or answers it where too many are, and asks. `on_ask` gets the ask on the home loop, and owns it. */
void refdata_ask_post(struct http_request *request, int64_t timeout_ms, http_timeout_fn *on_timeout,
                      refdata_ask_fn *on_ask, const struct refdata_demand *demand);

http_timeout_fn refdata_ask_late; /* a timeout that answers 503 */

/* ---- on the home loop ---- */
struct refdata_holding *refdata_ask_holding(const struct refdata_ask *ask); /* NULL = it is not held */
void refdata_ask_again(struct refdata_ask *ask);                            /* the handler runs again */
void refdata_ask_refuse(struct refdata_ask *ask, enum status status, const char *text);
void refdata_ask_free(struct refdata_ask *ask); /* without a reply */
/* All of a list, which is empty afterwards. */
void refdata_asks_again(struct refdata_asks *asks);
void refdata_asks_refuse(struct refdata_asks *asks, enum status status, const char *text);
struct refdata_ask *refdata_asks_take(struct refdata_asks *asks); /* the first one, out of it; NULL = none */
/* Removes those whose time is over from the list's beginning (they went on to the primary, or are gone), so that it has about the
 * size of the waiting requests. */
void refdata_asks_expire(struct refdata_asks *asks, int64_t now_ns);
/* The same, then adds this one. */
void refdata_asks_add(struct refdata_asks *asks, struct refdata_ask *ask, int64_t now_ns);

#endif
