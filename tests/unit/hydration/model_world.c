/* The ledger, the wire and the workers of lookups under test, which the linker calls instead of those of src/. */
#include "model_world.h"

#include <stdio.h>

#include "base/memory.h"
#include "model.h"

enum { COPY_MS = 2000 };

struct world world;
const char *const world_callers[CALLERS] = {"", "ann", "bob", "eve"};
static const char *const tenants[ENTITIES] = {"acme", "acme", "evil"}, *const ids[ENTITIES] = {"a", "b", "a"};
static const struct str title = {"title", 5};
const struct hydration_cover world_covers[COVERS] = {
    {.mode = HYDRATION_EXISTENCE}, {HYDRATION_PARTIAL, &title, 1}, {.mode = HYDRATION_FULL}};

void world_begin(void)
{
    world = (struct world){.max_retries = (int64_t)model_below(3)};
    for (size_t i = 0; i < ENTITIES; i++)
        world.versions[i] = world.highest[i] = 1;
}

void world_change(size_t entity)
{
    if (world.versions[entity] < VERSIONS_MAX)
        world.versions[entity]++;
    if (world.versions[entity] > world.highest[entity])
        world.highest[entity] = world.versions[entity];
}

void world_lose(size_t entity)
{
    world.versions[entity] = 1 + (int64_t)model_below((uint64_t)world.versions[entity]);
    world.lost_ns[entity] = model_now_ns();
}

/* ---- entities ---- */

/* The state of a version is a function of it: every fifth is absent, every second of the others private. */
static uint64_t bits_of(size_t entity, int64_t version)
{
    return (uint64_t)version * UINT64_C(0x9e3779b97f4a7c15) >> (20 + entity);
}

bool world_is_private(size_t entity, int64_t version)
{
    return bits_of(entity, version) & 1;
}

enum view expected_view(size_t entity, int64_t version, size_t caller)
{
    uint64_t bits = bits_of(entity, version);
    if (bits / 16 % 5 == 0)
        return VIEW_ABSENT;
    if (!(bits & 1))
        return VIEW_DATA;
    return caller > 0 && bits & 1u << caller ? VIEW_DATA : VIEW_HIDDEN;
}

void expected_data(size_t entity, int64_t version, enum hydration_mode mode, char text[DATA_BYTES])
{
    const char *format = mode == HYDRATION_EXISTENCE ? "{}"
                         : mode == HYDRATION_PARTIAL ? "{\"title\":\"%s/%s %lld\"}"
                                                     : "{\"title\":\"%s/%s %lld\",\"price\":1}";
    snprintf(text, DATA_BYTES, format, tenants[entity], ids[entity], (long long)version);
}

struct hydration_need world_need(size_t entity, size_t caller, enum hydration_mode mode)
{
    return (struct hydration_need){.tenant = str_from(tenants[entity]),
                                   .caller = str_from(world_callers[caller]),
                                   .entity_type = STR("item"),
                                   .entity_id = str_from(ids[entity]),
                                   .cover = world_covers[mode]};
}

static size_t entity_of(struct str tenant, struct str id)
{
    size_t entity = 0;
    while (!str_eq(tenant, str_from(tenants[entity])) || !str_eq(id, str_from(ids[entity])))
        entity++;
    return entity;
}

static size_t caller_of(struct str text)
{
    size_t caller = 0;
    while (!str_eq(text, str_from(world_callers[caller])))
        caller++;
    return caller;
}

struct hydration_event world_event(size_t entity, int64_t version, size_t caller, enum hydration_mode mode)
{
    static char data[DATA_BYTES];
    enum view view = expected_view(entity, version, caller);
    bool is_private = view != VIEW_ABSENT && world_is_private(entity, version);
    expected_data(entity, version, mode, data);
    return (struct hydration_event){
        .kind = view == VIEW_DATA ? HYDRATION_EVENT_UPDATED : HYDRATION_EVENT_NOT_FOUND,
        .tenant = str_from(tenants[entity]),
        .caller = is_private ? str_from(world_callers[caller]) : STR_NONE,
        .entity_type = STR("item"),
        .entity_id = str_from(ids[entity]),
        .module = STR("owner"),
        .has_cover = view == VIEW_DATA,
        .cover = view == VIEW_DATA ? world_covers[mode] : (struct hydration_cover){0},
        .data = view == VIEW_DATA ? str_from(data) : STR_NONE,
        .reason = view == VIEW_HIDDEN ? HYDRATION_INACCESSIBLE : HYDRATION_ABSENT,
        .version = version,
        .is_private = is_private};
}

/* ---- the ledger ---- */

/* A newer version replaces all rows of the entity, and so does what was asked for after they were stored; of one version the wider copy
 * stays. */
void world_store(const struct hydration_event *event, int64_t asked_ns)
{
    size_t entity = entity_of(event->tenant, event->entity_id), caller = caller_of(event->caller);
    struct world_row *rows = world.rows[entity], *row = &rows[caller];
    int64_t heard_ns = 0;
    for (size_t i = 0; i < CALLERS; i++)
        if (rows[i].is_set && rows[i].since_ns > heard_ns)
            heard_ns = rows[i].since_ns;
    for (size_t i = 0; i < CALLERS; i++)
        if (rows[i].is_set && rows[i].version > event->version && asked_ns <= heard_ns)
            return;
    for (size_t i = 0; i < CALLERS; i++)
        rows[i].is_set = rows[i].is_set && rows[i].version == event->version;
    if (event->is_private && caller == 0)
        return;
    if (row->is_set && row->mode >= event->cover.mode && row->until_ns > model_now_ns())
        return;
    *row = (struct world_row){true,     event->version,   model_now_ns(), model_now_ns() + TASK_MS(COPY_MS),
                              asked_ns, event->cover.mode};
}

const struct world_row *world_row_for(size_t entity, size_t caller, enum hydration_mode mode)
{
    const struct world_row *row = &world.rows[entity][caller];
    if (!row->is_set)
        row = &world.rows[entity][0];
    bool is_enough = expected_view(entity, row->version, caller) != VIEW_DATA || row->mode >= mode;
    return row->is_set && row->until_ns > model_now_ns() && is_enough ? row : NULL;
}

/* Without a row it begins a flight or joins one, as if other processes asked, too. */
enum status __wrap_hydration_ledger_find(struct db_pool *pool, const struct hydration_need *need,
                                         const struct hydration_policy *policy, struct str correlation_id,
                                         int64_t copy_ttl_ms, int64_t deadline_ns, struct arena *arena,
                                         struct hydration_finding *finding, struct error *error);
enum status __wrap_hydration_ledger_find(struct db_pool *pool, const struct hydration_need *need,
                                         const struct hydration_policy *policy, struct str correlation_id,
                                         int64_t copy_ttl_ms, int64_t deadline_ns, struct arena *arena,
                                         struct hydration_finding *finding, struct error *error)
{
    size_t entity = entity_of(need->tenant, need->entity_id), caller = caller_of(need->caller);
    const struct world_row *row = world_row_for(entity, caller, need->cover.mode),
                           *stale = &world.rows[entity][world.rows[entity][caller].is_set ? caller : 0];
    (void)pool, (void)copy_ttl_ms, (void)deadline_ns;
    model_note("%s reads the ledger for %zu, mode %d: %s", world_callers[caller], entity, need->cover.mode,
               row ? "found" : "nothing");
    if (world.ledger_fails)
        return error_set(error, STATUS_DB_DOWN, "no database");
    if (!row && (!stale->is_set || expected_view(entity, stale->version, caller) != VIEW_DATA))
        stale = NULL;
    if (row || stale) {
        const struct world_row *found = row ? row : stale;
        finding->event = world_event(entity, found->version, caller, found->mode);
        finding->event.data = arena_str(arena, finding->event.data);
    }
    finding->event.tenant = need->tenant;
    finding->event.entity_type = need->entity_type;
    finding->event.entity_id = need->entity_id;
    if (row) {
        finding->kind =
            finding->event.kind == HYDRATION_EVENT_UPDATED ? HYDRATION_LEDGER_COPY : HYDRATION_LEDGER_ABSENT;
        finding->ttl_ms = (row->until_ns - model_now_ns()) / CLOCK_NS_PER_MS + 1;
        finding->asked_ns = row->asked_ns;
        return STATUS_OK;
    }
    bool asks = correlation_id.len > 0 && !model_one_in(3);
    finding->kind = asks ? HYDRATION_LEDGER_ASK : HYDRATION_LEDGER_JOIN;
    finding->ttl_ms = (int64_t)model_below((uint64_t)policy->in_flight_window_ms);
    if (asks)
        finding->event.cover = world_covers[model_one_in(3) ? HYDRATION_FULL : need->cover.mode];
    return STATUS_OK;
}

enum status __wrap_hydration_ledger_retry(struct db_pool *pool, const struct hydration_need *need,
                                          const struct hydration_policy *policy, struct str correlation_id,
                                          int64_t deadline_ns, bool *granted, struct error *error);
enum status __wrap_hydration_ledger_retry(struct db_pool *pool, const struct hydration_need *need,
                                          const struct hydration_policy *policy, struct str correlation_id,
                                          int64_t deadline_ns, bool *granted, struct error *error)
{
    (void)pool, (void)need, (void)policy, (void)correlation_id, (void)deadline_ns;
    model_note("a retry");
    *granted = !world.refuses_retries;
    return world.ledger_fails ? error_set(error, STATUS_DB_DOWN, "no database") : STATUS_OK;
}

/* ---- the wire ---- */

enum status __wrap_hydration_wire_send(struct hydration *hydration, const struct hydration_event *events,
                                       size_t count, int64_t deadline_ns, struct error *error);
enum status __wrap_hydration_wire_send(struct hydration *hydration, const struct hydration_event *events,
                                       size_t count, int64_t deadline_ns, struct error *error)
{
    (void)hydration, (void)count, (void)deadline_ns;
    struct question *question = world.questions;
    size_t known = world.question_count < QUESTIONS_MAX ? world.question_count : QUESTIONS_MAX, i = 0;
    while (i < known && !str_eq(str_from(question[i].correlation_id), events->correlation_id))
        i++;
    if (i == known) {
        i = world.question_count++ % QUESTIONS_MAX;
        question[i] = (struct question){.entity = entity_of(events->tenant, events->entity_id),
                                        .caller = caller_of(events->caller),
                                        .mode = events->cover.mode,
                                        .asked_ns = model_now_ns()};
        question[i].version = world.versions[question[i].entity];
        str_copy(question[i].correlation_id, UUID_TEXT_BYTES, events->correlation_id);
    }
    question[i].times++;
    MODEL_CHECK((int64_t)question[i].times <= 1 + world.max_retries, "asked %u times", question[i].times);
    return world.wire_fails ? error_set(error, STATUS_IO, "no bus") : STATUS_OK;
}

/* ---- the workers ---- */

bool __wrap_worker_pool_submit(struct worker_pool *pool, struct worker_job *job);
static size_t count_of_share(struct worker_job *const *jobs, size_t count, uint64_t share)
{
    size_t found = 0;
    for (size_t i = 0; i < count; i++)
        found += jobs[i]->share == share;
    return found;
}

/* One tenant leaves a place. */
bool __wrap_worker_pool_submit(struct worker_pool *pool, struct worker_job *job)
{
    (void)pool;
    MODEL_CHECK(world.workers_are_full || world.queued_count + world.ran_count < HYDRATION_JOB_PLACES,
                "too many jobs at once");
    MODEL_CHECK(world.workers_are_full || count_of_share(world.queued, world.queued_count, job->share) +
                                                  count_of_share(world.ran, world.ran_count, job->share) <
                                              HYDRATION_JOBS_MAX,
                "too many jobs of one tenant");
    if (!world.workers_are_full)
        world.queued[world.queued_count++] = job;
    return !world.workers_are_full;
}

static struct worker_job *take_job(struct worker_job **jobs, size_t *count)
{
    size_t at = model_below(*count);
    struct worker_job *job = jobs[at];
    jobs[at] = jobs[--*count];
    return job;
}

void world_run_job(void)
{
    if (world.queued_count == 0)
        return;
    struct worker_job *job = take_job(world.queued, &world.queued_count);
    job->run(job);
    world.ran[world.ran_count++] = job;
}

static void on_done(struct loop *loop, struct loop_message *message)
{
    struct worker_job *job = CONTAINER_OF(message, struct worker_job, message);
    (void)loop;
    job->done(job);
}

void world_job_done(void)
{
    if (world.ran_count == 0)
        return;
    struct worker_job *job = take_job(world.ran, &world.ran_count);
    job->message.on_message = on_done;
    loop_post(job->loop, &job->message);
}
