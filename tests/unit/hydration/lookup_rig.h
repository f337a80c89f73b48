/* A shard on a loop that the test turns by hand, with a ledger and a wire that do as the test says: so every order of ledger reads,
 * answers, timeouts and cancellations can be had, and none is left to chance. */
#ifndef FRESHET_TESTS_HYDRATION_LOOKUP_RIG_H
#define FRESHET_TESTS_HYDRATION_LOOKUP_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "hydration/inside.h"

#define PATIENCE_MS 60000 /* long enough for a loaded machine; nothing waits for it to pass */
#define DATA "{\"title\":\"T\",\"price\":1}"

extern struct hydration rig;
extern struct loop *rig_loop;
extern struct hydration_shard *rig_shard;
extern struct hydration_policy rig_policy;

/* ---- the ledger's and the wire's part ---- */
struct rig_script {                /* set it while no job runs */
    struct hydration_finding find; /* of FIND jobs */
    struct hydration_finding look; /* of LAST_READ jobs */
    bool look_is_set;              /* else they find nothing */
    bool fails, publish_fails, owner_fails;
    bool grants; /* retries */
};
extern struct rig_script script;
extern const struct hydration_finding in_ledger, not_in_ledger, join_others;
void rig_provide(void);                   /* an owner of items in this process; it has "a" */
void rig_hold(void);                      /* jobs stop before the ledger, and the owner before it looks … */
void rig_hold_tenant(const char *tenant); /* … of this one alone */
void rig_hold_owner(const char *tenant);  /* … the owner alone, for this one */
void rig_let_go(void);
unsigned rig_finds(void), rig_looks(void), rig_retries(void), rig_questions(void), rig_held(void),
    rig_answers(void) /* published */, rig_owner_looks(void);
unsigned rig_allocations(void); /* of this thread */
struct rig_question {           /* the last one published */
    char correlation_id[UUID_TEXT_BYTES], caller[64];
    enum hydration_mode mode;
};
struct rig_question rig_question(void);

/* ---- who waits ---- */
struct person {
    struct hydration_waiter waiter;
    unsigned times;
    enum hydration_result result;
    enum hydration_way way;
    enum hydration_reason reason;
    bool is_negative_hit;
    char data[128], source_module[32];
    struct person *cancels, *asks; /* in the callback */
};
extern const struct hydration_cover rig_existence, rig_title, rig_full;
struct hydration_need rig_need(const char *caller, struct hydration_cover cover); /* of item a */
void ask(struct person *person, const char *caller, struct hydration_cover cover);
void ask_need(struct person *person, struct hydration_need need, bool defers);

/* ---- what is heard ---- */
struct hydration_event answer_of(enum hydration_kind kind, int64_t version); /* to the last question */
void hear(struct hydration_event event);
void hear_updated(int64_t version); /* all of it */
void hear_not_found(int64_t version);

/* ---- time ---- */
bool turn_until(bool (*is)(void *arg), void *arg);
bool turn_until_done(struct person *person);
bool turn_until_count(unsigned (*count)(void), unsigned wanted);
void turn_for_ms(int64_t ms);
bool turn_until_idle(void);  /* no job */
bool turn_until_empty(void); /* neither waiter nor lookup */
uint64_t ignored(const char *reason);

#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_open, rig_close)
int rig_open(void **state);
int rig_close(void **state);

#endif
