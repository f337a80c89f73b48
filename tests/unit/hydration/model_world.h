/* What lookups are about, as plain tables: entities with all their versions, a ledger, questions, and jobs that wait for a worker.
 * What a caller may be told of an entity in a version is decided by expected_view() alone. */
#ifndef FRESHET_TESTS_HYDRATION_MODEL_WORLD_H
#define FRESHET_TESTS_HYDRATION_MODEL_WORLD_H

#include "hydration/inside.h"

enum { ENTITIES = 3, CALLERS = 4, COVERS = 3, VERSIONS_MAX = 256, QUESTIONS_MAX = 64, DATA_BYTES = 64 };

enum view { VIEW_DATA, VIEW_ABSENT, VIEW_HIDDEN };

struct question {
    size_t entity, caller;
    enum hydration_mode mode;
    int64_t version, asked_ns; /* the owner answers with this version or a later one, unless it loses it */
    unsigned times;
    char correlation_id[UUID_TEXT_BYTES];
};

struct world_row { /* of the ledger */
    bool is_set;
    int64_t version, since_ns, until_ns, asked_ns;
    enum hydration_mode mode; /* of a copy */
};

struct world {
    int64_t versions[ENTITIES];               /* the newest ones */
    int64_t highest[ENTITIES];                /* with those that were lost */
    int64_t lost_ns[ENTITIES];                /* when the owner last lost versions; 0: never */
    struct world_row rows[ENTITIES][CALLERS]; /* caller 0: every caller */
    struct question questions[QUESTIONS_MAX]; /* the latest ones */
    size_t question_count;
    int64_t max_retries;
    bool ledger_fails, wire_fails, refuses_retries, workers_are_full;
    struct worker_job *queued[HYDRATION_JOB_PLACES], *ran[HYDRATION_JOB_PLACES];
    size_t queued_count, ran_count;
};
extern struct world world;
extern const char *const world_callers[CALLERS];          /* "", ann, bob, eve */
extern const struct hydration_cover world_covers[COVERS]; /* by hydration_mode */

void world_begin(void);
void world_change(size_t entity); /* a new version */
void world_lose(size_t entity);   /* the last versions, as in a failover */
enum view expected_view(size_t entity, int64_t version, size_t caller);
bool world_is_private(size_t entity, int64_t version);
void expected_data(size_t entity, int64_t version, enum hydration_mode mode, char text[DATA_BYTES]);
struct hydration_need world_need(size_t entity, size_t caller, enum hydration_mode mode);
/* An event of the entity in a version, for this caller where it is private. Texts are static, until the next call. */
struct hydration_event world_event(size_t entity, int64_t version, size_t caller, enum hydration_mode mode);
/* Into the ledger; when the question began that it answers, 0: it is a change. */
void world_store(const struct hydration_event *event, int64_t asked_ns);
/* What it has for this caller, or NULL. */
const struct world_row *world_row_for(size_t entity, size_t caller, enum hydration_mode mode);
void world_run_job(void);  /* one, on a worker … */
void world_job_done(void); /* … and its result, to the loop */

#endif
