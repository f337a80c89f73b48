/* Updates as the commands that write see them: posted until somebody has them, asked about until they are
 * decided. Every one goes out under an eventId of the sender's, so that sending it again has no second effect. */
#ifndef FRESHET_APP_UPDATES_H
#define FRESHET_APP_UPDATES_H

#include "app/pod.h"
#include "base/uuid.h"

enum update_status { UPDATE_PENDING, UPDATE_COMMITTED, UPDATE_FAILED };

struct update_state {
    enum update_status status;
    int64_t version;                /* of COMMITTED */
    char code[64], message[512];    /* of FAILED */
    char event_id[UUID_TEXT_BYTES]; /* as the pod has it */
};

/* POST …/updates, `query` behind it ("?consistencyMode=…", or ""). No answer and 503 are tried again for
 * `patience_ms`, with the same bytes and hence the same eventId. A refusal is as pod_post() says. */
enum status updates_post(const struct pod_call *call, const char *query, struct str json, int64_t patience_ms,
                         struct update_state *state, struct error *error) MUST_CHECK;
/* GET …/updates/{eventId}, with the same patience. `body` (may be NULL) gets the answer. */
enum status updates_ask(const struct pod_call *call, const char *event_id, int64_t patience_ms,
                        struct update_state *state, struct buf *body, struct error *error) MUST_CHECK;

/* Asks again and again, ever more slowly, until it is decided or `patience_ms` have passed: then it is still
 * PENDING and OK. */
enum status updates_await(const struct pod_call *call, const char *event_id, int64_t patience_ms,
                          struct update_state *state, struct buf *body, struct error *error) MUST_CHECK;

#endif
