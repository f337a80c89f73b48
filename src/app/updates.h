/* Updates as the commands that write use them: posted, then asked about until they are decided. The sender chooses the eventId,
 * so that sending an update again has no second effect. */
#ifndef FRESHET_APP_UPDATES_H
#define FRESHET_APP_UPDATES_H

#include "app/client.h"
#include "base/uuid.h"

enum { UPDATE_EXIT_PENDING = 3 };
enum update_status { UPDATE_PENDING, UPDATE_COMMITTED, UPDATE_FAILED };

struct update_state {
    enum update_status status;
    int64_t version;             /* of COMMITTED */
    char code[64], message[512]; /* of FAILED */
};

/* POST …/updates, with `query` ("?consistencyMode=…", or ""). Fails as pod_post(). */
enum status updates_post(const struct pod_call *call, const char *query, struct str json,
                         struct update_state *state, struct error *error) MUST_CHECK;
/* GET …/updates/{eventId}. `body` (may be NULL) gets the answer. */
enum status updates_ask(const struct pod_call *call, const char *event_id, struct update_state *state,
                        struct buf *body, struct error *error) MUST_CHECK;
/* Asks until it is decided, at growing intervals; after `wait_ms` it is still PENDING and OK. */
enum status updates_await(const struct pod_call *call, const char *event_id, int64_t wait_ms,
                          struct update_state *state, struct buf *body, struct error *error) MUST_CHECK;

#endif
