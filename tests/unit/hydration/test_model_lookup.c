/* Lookups and their waiters against a plain world (H2–H5): whoever asks is called once, in time, with what it may know of that entity in
 * that version, and never with a version that is older than one this loop has received, unless the owner has lost that one since. Callbacks
 * free their waiter, ask and cancel. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "model.h"
#include "model_world.h"

enum { PEOPLE_MAX = 24, STORES_MAX = 16, VERSION_MS = 60000 };

struct person {
    struct hydration_waiter waiter;
    struct hydration_policy policy;
    size_t entity, caller;
    enum hydration_mode mode;
    int64_t deadline_ns;
};

static struct hydration hydration;
static struct hydration_shard *shards[1], *shard;
static struct hydration_settings settings;
static struct loop *loop;
static struct person *people[PEOPLE_MAX]; /* those that wait */
static size_t people_count;
static struct { /* the newest version that arrived here, and when it did */
    int64_t version, since_ns;
} received[ENTITIES];
static struct hydration_event stores[STORES_MAX]; /* events that the ledger has not stored yet */
static int64_t store_asked_ns[STORES_MAX];
static char store_data[STORES_MAX][DATA_BYTES];
static size_t store_count;
static int64_t trouble_ns; /* when it began or ended */
static bool is_prompt;     /* jobs run at once, and time passes slowly */

static void ask(void);
static void cancel(void);

/* ---- who asks ---- */

static void forget_person(const struct person *person)
{
    size_t at = 0;
    while (at < people_count && people[at] != person)
        at++;
    MODEL_CHECK(at < people_count, "called twice, or after it was cancelled");
    people[at] = people[--people_count];
}

/* Jobs that began in the last moments may have read the ledger before the row was there. */
static void check_timeout(const struct person *person)
{
    const struct world_row *row = world_row_for(person->entity, person->caller, person->mode);
    int64_t wait_ns = TASK_MS(person->policy.wait_timeout_ms),
            since_ns = person->deadline_ns - wait_ns / 10 * 4;
    bool is_well = is_prompt && wait_ns >= TASK_MS(100) && trouble_ns < since_ns && !world.ledger_fails &&
                   !world.workers_are_full;
    MODEL_CHECK(person->deadline_ns <= model_now_ns(), "timed out too early");
    if (is_well && row == &world.rows[person->entity][0] && row->since_ns < since_ns)
        MODEL_CHECK(row->version < received[person->entity].version,
                    "timed out, but the ledger has version %lld", (long long)row->version);
}

static void check_outcome(const struct person *person, const struct hydration_outcome *outcome)
{
    bool is_answer = outcome->result == HYDRATION_UPDATED || outcome->result == HYDRATION_NOT_FOUND;
    if (outcome->result == HYDRATION_TIMEOUT)
        check_timeout(person);
    if (!is_answer && !outcome->data.len)
        return;
    MODEL_CHECK(outcome->version >= 1 && outcome->version <= world.highest[person->entity], "version %lld",
                (long long)outcome->version);
    enum view view = expected_view(person->entity, outcome->version, person->caller);
    MODEL_CHECK((outcome->result == HYDRATION_NOT_FOUND) == (view != VIEW_DATA),
                "%s is told %d of version %lld", world_callers[person->caller], (int)outcome->result,
                (long long)outcome->version);
    if (outcome->result == HYDRATION_NOT_FOUND)
        MODEL_CHECK((outcome->reason == HYDRATION_INACCESSIBLE) == (view == VIEW_HIDDEN), "the wrong reason");
    char data[DATA_BYTES];
    expected_data(person->entity, outcome->version, person->mode, data);
    if (outcome->result == HYDRATION_UPDATED)
        MODEL_CHECK(str_eq(outcome->data, str_from(data)), "data %.*s, not %s", STR_ARG(outcome->data), data);
    bool is_lost = world.lost_ns[person->entity] > 0 &&
                   world.lost_ns[person->entity] >= received[person->entity].since_ns;
    if (is_answer && !is_lost && model_now_ns() - received[person->entity].since_ns < TASK_MS(VERSION_MS))
        MODEL_CHECK(outcome->version >= received[person->entity].version,
                    "version %lld was received, %lld is told", (long long)received[person->entity].version,
                    (long long)outcome->version);
    if (is_answer && is_lost)
        received[person->entity].version = outcome->version;
}

/* A row of the ledger is delivered by the machine itself: then its version has been received. */
static void on_done(struct hydration_waiter *waiter, const struct hydration_outcome *outcome)
{
    struct person *person = (struct person *)waiter;
    size_t entity = person->entity;
    check_outcome(person, outcome);
    model_note("%s has %s of %zu, version %lld", world_callers[person->caller],
               hydration_result_name(outcome->result), entity, (long long)outcome->version);
    if (outcome->result <= HYDRATION_NOT_FOUND && outcome->version > received[entity].version) {
        received[entity].version = outcome->version;
        received[entity].since_ns = model_now_ns();
    }
    forget_person(person);
    free(person);
    if (model_one_in(4))
        ask();
    if (model_one_in(4))
        cancel();
}

static void ask(void)
{
    if (people_count == PEOPLE_MAX)
        return;
    struct person *person = malloc(sizeof *person);
    *person = (struct person){.entity = model_below(ENTITIES),
                              .caller = model_below(CALLERS),
                              .mode = (enum hydration_mode)model_below(COVERS),
                              .policy = {.module = "model",
                                         .wait_timeout_ms = 10 + (int64_t)model_below(500),
                                         .negative_cache_ttl_ms = 10 + (int64_t)model_below(3000),
                                         .in_flight_window_ms = 20 + (int64_t)model_below(5000),
                                         .max_retries = world.max_retries,
                                         .retry_backoff_ms = 5 + (int64_t)model_below(100)}};
    person->deadline_ns = loop_now_ns(loop) + TASK_MS(person->policy.wait_timeout_ms);
    people[people_count++] = person;
    model_note("%s asks for %zu, mode %d, %lld ms", world_callers[person->caller], person->entity,
               person->mode, (long long)person->policy.wait_timeout_ms);
    struct hydration_need need = world_need(person->entity, person->caller, person->mode);
    hydration_ask(&hydration, &person->policy, &need, model_one_in(4), loop, &person->waiter, on_done);
}

static void cancel(void)
{
    if (people_count == 0)
        return;
    struct person *person = people[model_below(people_count)];
    model_note("%s cancels %zu", world_callers[person->caller], person->entity);
    forget_person(person);
    hydration_waiter_cancel(&person->waiter);
    free(person);
}

/* ---- what arrives ---- */

static void store_later(const struct hydration_event *event, int64_t asked_ns)
{
    if (store_count == STORES_MAX)
        return;
    stores[store_count] = *event;
    store_asked_ns[store_count] = asked_ns;
    str_copy(store_data[store_count], DATA_BYTES, event->data);
    stores[store_count].data = str_from(store_data[store_count]);
    stores[store_count++].correlation_id = STR_NONE;
}

static void store_event(void)
{
    if (store_count == 0)
        return;
    size_t at = model_below(store_count);
    model_note("of version %lld", (long long)stores[at].version);
    world_store(&stores[at], store_asked_ns[at]);
    stores[at] = stores[--store_count];
    store_asked_ns[at] = store_asked_ns[store_count];
    memcpy(store_data[at], store_data[store_count], DATA_BYTES);
    stores[at].data = str_from(store_data[at]);
}

/* After an event that is newer than all before nobody waits for what it has. */
static void deliver(struct hydration_event event, size_t entity)
{
    bool is_newest = event.version > received[entity].version;
    if (is_newest) {
        received[entity].version = event.version;
        received[entity].since_ns = model_now_ns();
    }
    model_note("version %lld of %zu, %s, for %.*s", (long long)event.version, entity,
               event.is_private ? "private" : "public", STR_ARG(event.caller));
    hydration_deliver(shard, &event, model_one_in(3));
    for (size_t i = 0; i < people_count && is_newest; i++) {
        const struct person *person = people[i];
        bool is_for = !event.is_private ||
                      (person->caller > 0 && str_eq(event.caller, str_from(world_callers[person->caller])));
        bool is_enough =
            event.kind == HYDRATION_EVENT_NOT_FOUND || (event.has_cover && event.cover.mode >= person->mode);
        MODEL_CHECK(person->entity != entity || !is_for || !is_enough, "%s still waits for %zu",
                    world_callers[person->caller], entity);
    }
}

static int64_t some_version(size_t entity)
{
    int64_t newest = world.versions[entity];
    return model_one_in(4) ? 1 + (int64_t)model_below((uint64_t)newest) : newest;
}

static void answer(void)
{
    size_t known = world.question_count < QUESTIONS_MAX ? world.question_count : QUESTIONS_MAX;
    if (known == 0)
        return;
    size_t from_end = model_below(known < 6 ? known : 6);
    const struct question *question = &world.questions[(world.question_count - 1 - from_end) % QUESTIONS_MAX];
    enum hydration_mode mode = model_one_in(4) ? HYDRATION_FULL : question->mode;
    size_t entity = question->entity;
    int64_t version = some_version(entity);
    if (version < question->version && world.versions[entity] >= question->version)
        version = question->version;
    struct hydration_event event = world_event(entity, version, question->caller, mode);
    event.correlation_id = str_from(question->correlation_id);
    store_later(&event, question->asked_ns);
    if (mode == question->mode && model_one_in(4))
        event.has_cover = false; /* a program outside of freshet: that of the question counts */
    if (model_one_in(8))
        return; /* lost on its way here, but not to the ledger */
    deliver(event, entity);
}

/* Of another process's question, or a change that the owner publishes. */
static void hear(void)
{
    size_t entity = model_below(ENTITIES);
    if (model_one_in(2))
        world_change(entity);
    struct hydration_event event =
        world_event(entity, some_version(entity), model_below(CALLERS), HYDRATION_FULL);
    event.correlation_id = model_one_in(2) ? STR("another's") : STR_NONE;
    store_later(&event, 0);
    deliver(event, entity);
}

/* The ledger stores an answer that does not arrive here. */
static void miss(void)
{
    size_t entity = model_below(ENTITIES);
    struct hydration_event event =
        world_event(entity, world.versions[entity], model_below(CALLERS), HYDRATION_FULL);
    world_store(&event, model_now_ns());
}

static void change(void)
{
    world_change(model_below(ENTITIES));
}

static void lose(void)
{
    world_lose(model_below(ENTITIES));
}

/* ---- turns ---- */

static void check_deadlines(void)
{
    for (size_t i = 0; i < people_count; i++)
        MODEL_CHECK(people[i]->deadline_ns > model_now_ns(), "%s waits past its deadline",
                    world_callers[people[i]->caller]);
}

static void turn(void)
{
    loop_run_once(loop, 0);
    check_deadlines();
}

static void run_all_jobs(void)
{
    while (world.queued_count)
        world_run_job();
    while (world.ran_count)
        world_job_done();
}

static void pass_time(void)
{
    int64_t ms = (int64_t)model_below(model_one_in(4) ? 300 : 20);
    model_note("%lld ms", (long long)ms);
    if (!is_prompt) {
        model_pass_ms(ms);
        turn();
        return;
    }
    for (; ms > 0; ms--) {
        model_pass_ms(1);
        turn();
        run_all_jobs();
    }
}

static void have_trouble(void)
{
    bool *const troubles[] = {&world.ledger_fails, &world.wire_fails, &world.refuses_retries,
                              &world.workers_are_full};
    bool *trouble = troubles[model_below(4)];
    *trouble = !*trouble && model_one_in(2);
    trouble_ns = model_now_ns();
}

/* ---- life ---- */

static void open_shard(void)
{
    shards[0] = shard = hydration_shard_create(&hydration, loop);
    for (size_t i = 0; i < ENTITIES; i++)
        received[i].version = 0;
}

static void close_shard(void)
{
    hydration_shard_stop(shard);
    MODEL_CHECK(people_count == 0, "%zu wait for a shard that was stopped", people_count);
    run_all_jobs();
    for (int i = 0; i < 3; i++)
        loop_run_once(loop, 0);
    MODEL_CHECK(shard->lookups.count == 0 && shard->waiter_count == 0 && shard->background_count == 0 &&
                    shard->job_turns.queued == 0 && shard->job_turns.shares.count == 0 &&
                    shard->turns.shares.count == 0 && shard->jobs == 0,
                "something is left of %zu lookups", shard->lookups.count);
    hydration_shard_destroy(shard);
}

static void restart(void)
{
    close_shard();
    open_shard();
}

static void begin(void)
{
    world_begin();
    people_count = store_count = 0;
    trouble_ns = 0;
    is_prompt = model_one_in(2);
    settings = (struct hydration_settings){.policy = {.negative_cache_ttl_ms = 1000},
                                           .copy_ttl_ms = 1 + (int64_t)model_below(3000),
                                           .memory_entries = 64,
                                           .memory_bytes = 65536};
    hydration = (struct hydration){.config = {.loops = loop_group_create(1, 0), .settings = &settings},
                                   .shards = shards};
    atomic_store(&hydration.bus, (struct bus *)&hydration); /* never looked into */
    loop = loop_group_loop(hydration.config.loops, 0);
    open_shard();
    turn();
}

static void check(void)
{
    MODEL_CHECK(shard->waiter_count == people_count + shard->background_count, "%zu waiters, not %zu",
                shard->waiter_count, people_count);
    MODEL_CHECK(TAILQ_EMPTY(&shard->leaving), "a waiter was not called");
    if (!model_one_in(8)) /* the walk is over thousands of buckets */
        return;
    struct map_node *node;
    MAP_EACH(node, &shard->lookups) {
        const struct hydration_lookup *lookup = CONTAINER_OF(node, struct hydration_lookup, node);
        if (lookup->state == LOOKUP_WAITING)
            MODEL_CHECK(lookup->timer.heap_at &&
                            (TAILQ_EMPTY(&lookup->waiters) || lookup->find_at_ns < CLOCK_NEVER),
                        "a lookup has no next step");
    }
}

/* What is left to itself ends: waiters by their deadlines, those in the background within a minute, lookups with them. */
static void end(void)
{
    if (model_one_in(4)) {
        world.workers_are_full = is_prompt = false;
        for (int i = 0; i < 200 && shard->waiter_count + shard->lookups.count; i++) {
            run_all_jobs();
            model_pass_ms(500);
            turn();
        }
        MODEL_CHECK(shard->waiter_count == 0 && shard->lookups.count == 0, "%zu lookups do not end",
                    shard->lookups.count);
    }
    close_shard();
    loop_group_destroy(hydration.config.loops);
}

static void be_silent(void)
{
    log_set_fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
}

int main(void)
{
    static const struct model_operation operations[] = {{"ask", 25, ask},
                                                        {"cancel", 6, cancel},
                                                        {"answer", 18, answer},
                                                        {"hear", 8, hear},
                                                        {"change", 4, change},
                                                        {"lose", 1, lose},
                                                        {"miss", 6, miss},
                                                        {"ledger stores", 8, store_event},
                                                        {"turn", 12, turn},
                                                        {"run job", 20, world_run_job},
                                                        {"job done", 20, world_job_done},
                                                        {"pass time", 10, pass_time},
                                                        {"trouble", 3, have_trouble},
                                                        {"restart", 1, restart}};
    return model_main(&(struct model){.name = "lookups",
                                      .seeds = 4000,
                                      .steps = 80,
                                      .open = be_silent,
                                      .begin = begin,
                                      .check = check,
                                      .end = end,
                                      MODEL_OPERATIONS(operations)});
}
