/* Auth on one loop that the test itself turns, with real workers and a clock the test sets. */
#ifndef FRESHET_TESTS_AUTH_RIG_H
#define FRESHET_TESTS_AUTH_RIG_H

#include "auth/state.h"
#include "forge.h"

#define RIG_NOW_S INT64_C(1700000000)

struct rig {
    struct loop_group *group;
    struct loop *loop;
    struct worker_pool *workers;
    struct auth *auth;
    struct auth_settings settings;
    struct error error;                   /* of the latest question */
    const struct auth_identity *identity; /* of the latest question */
    char folder[64], jwks_path[96];
};

extern int64_t rig_now_us; /* what the clock says */

void rig_init(struct rig *rig); /* settings as by default, key file not written yet */
void rig_write_jwks(struct rig *rig, const struct forge_key *const *keys, size_t count); /* by rename */
void rig_write_text(struct rig *rig, struct str text);
void rig_start(struct rig *rig); /* auth_create() must succeed */
void rig_deinit(struct rig *rig);

/* The rig of tests that need one key: rig_key, in the key file. Setup and teardown of cmocka. */
extern struct rig rig_keyed;
extern struct forge_key rig_key;
int rig_keyed_start(void **state);
int rig_keyed_stop(void **state);
void rig_honest(struct buf *token, int64_t seconds); /* by rig_key, valid so long */
void rig_expect(enum auth_answer answer, enum status status, enum auth_answer got); /* `status` of a denial */

/* One tick; waits a little for a message when there is none. */
void rig_turn(struct rig *rig);
struct auth_question rig_question(struct str authorization); /* tenant acme in the path, no scope */
/* Asks, verifying where that is needed. */
enum auth_answer rig_ask(struct rig *rig, const struct auth_question *question);
enum auth_answer rig_ask_token(struct rig *rig, struct str token);
/* The same until it is answered so, at most some seconds. */
bool rig_comes_to(struct rig *rig, struct str token, enum auth_answer answer);

#endif
