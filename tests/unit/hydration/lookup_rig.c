/* The ledger and the wire of the test: a script, a gate and counters, under one lock. */
#include "lookup_rig.h"

#include <pthread.h>
#include <stdio.h>

#include "base/clock.h"

struct hydration rig;
struct loop *rig_loop;
struct hydration_shard *rig_shard;
struct hydration_policy rig_policy;
struct rig_script script;
const struct hydration_finding in_ledger = {.kind = HYDRATION_LEDGER_COPY,
                                            .event = {.data = {DATA, sizeof DATA - 1},
                                                      .module = {"intake", 6},
                                                      .cover = {.mode = HYDRATION_FULL},
                                                      .version = 7},
                                            .ttl_ms = 300000},
                               not_in_ledger = {.kind = HYDRATION_LEDGER_ABSENT, .ttl_ms = 300000},
                               join_others = {.kind = HYDRATION_LEDGER_JOIN, .ttl_ms = 60000};

static const struct hydration_policy default_policy = {.module = "hydration",
                                                       .wait_timeout_ms = 500,
                                                       .negative_cache_ttl_ms = 300000,
                                                       .in_flight_window_ms = 5000,
                                                       .max_retries = 1,
                                                       .retry_backoff_ms = 200};
static struct hydration_settings settings;
static const struct str title = {"title", 5};
const struct hydration_cover rig_existence = {.mode = HYDRATION_EXISTENCE},
                             rig_title = {HYDRATION_PARTIAL, &title, 1}, rig_full = {.mode = HYDRATION_FULL};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static bool is_held;
static bool holds_owner_alone;
static const char *held_tenant; /* NULL: every one */
static unsigned held, finds, looks, retries, questions, answers, owner_looks;
static struct rig_question question;

/* ---- instead of ledger.c and wire.c ---- */

static void pass_gate(unsigned *count, struct str tenant)
{
    pthread_mutex_lock(&lock);
    ++*count;
    bool stops = (!held_tenant || str_eq(tenant, str_from(held_tenant))) &&
                 (!holds_owner_alone || count == &owner_looks);
    held += stops;
    while (is_held && stops)
        pthread_cond_wait(&moved, &lock);
    held -= stops;
    pthread_mutex_unlock(&lock);
}

static enum status verdict(struct error *error)
{
    return script.fails ? error_set(error, STATUS_DB_DOWN, "no database") : STATUS_OK;
}

enum status hydration_ledger_find(struct db_pool *pool, const struct hydration_need *need,
                                  const struct hydration_policy *policy, struct str correlation_id,
                                  int64_t copy_ttl_ms, int64_t deadline_ns, struct arena *arena,
                                  struct hydration_finding *finding, struct error *error)
{
    static const struct hydration_finding nothing = {.kind = HYDRATION_LEDGER_JOIN, .ttl_ms = 5000};
    bool looks_only = correlation_id.len == 0;
    (void)pool, (void)policy, (void)copy_ttl_ms, (void)deadline_ns;
    pass_gate(looks_only ? &looks : &finds, need->tenant);
    *finding = !looks_only ? script.find : script.look_is_set ? script.look : nothing;
    struct hydration_event *event = &finding->event;
    event->kind =
        finding->kind == HYDRATION_LEDGER_COPY ? HYDRATION_EVENT_UPDATED : HYDRATION_EVENT_NOT_FOUND;
    event->data = arena_str(arena, event->data);
    event->tenant = need->tenant;
    event->entity_type = need->entity_type;
    event->entity_id = need->entity_id;
    event->is_private = event->caller.len > 0;
    event->has_cover = true;
    if (finding->kind == HYDRATION_LEDGER_ASK)
        event->cover = need->cover;
    return verdict(error);
}

enum status hydration_ledger_retry(struct db_pool *pool, const struct hydration_need *need,
                                   const struct hydration_policy *policy, struct str correlation_id,
                                   int64_t deadline_ns, bool *granted, struct error *error)
{
    (void)pool, (void)policy, (void)correlation_id, (void)deadline_ns;
    pass_gate(&retries, need->tenant);
    *granted = script.grants;
    return verdict(error);
}

enum status hydration_wire_send(struct hydration *hydration, const struct hydration_event *events,
                                size_t count, int64_t deadline_ns, struct error *error)
{
    (void)hydration, (void)deadline_ns;
    if (script.publish_fails)
        return error_set(error, STATUS_IO, "no bus");
    pthread_mutex_lock(&lock);
    for (const struct hydration_event *event = events; event < events + count; event++) {
        *(event->kind == HYDRATION_EVENT_UNKNOWN ? &questions : &answers) += 1;
        snprintf(question.correlation_id, sizeof question.correlation_id, "%.*s",
                 STR_ARG(event->correlation_id));
        if (event->kind != HYDRATION_EVENT_UNKNOWN)
            continue;
        snprintf(question.caller, sizeof question.caller, "%.*s", STR_ARG(event->caller));
        question.mode = event->cover.mode;
    }
    pthread_mutex_unlock(&lock);
    return STATUS_OK;
}

/* Not called: no bus, no ledger. */
enum status hydration_wire_subscribe(struct hydration *hydration, struct bus *events, bool consumes,
                                     struct error *error)
{
    (void)hydration, (void)events, (void)consumes;
    return error_set(error, STATUS_INTERNAL, "not here");
}

enum status hydration_ledger_store(struct db_conn *conn, const struct hydration_event *events, size_t count,
                                   int64_t deadline_ns, struct error *error)
{
    (void)conn, (void)events, (void)count, (void)deadline_ns;
    return error_set(error, STATUS_INTERNAL, "not here");
}

enum status hydration_ledger_find_held(struct db_pool *pool, struct str entity_type,
                                       const struct hydration_ref *refs, size_t count, int64_t deadline_ns,
                                       bool *is_held_of, struct error *error)
{
    (void)pool, (void)entity_type, (void)refs, (void)count, (void)deadline_ns, (void)is_held_of;
    return error_set(error, STATUS_INTERNAL, "not here");
}

enum status hydration_list_held(struct hydration *hydration, const char *entity_type, struct str tenant,
                                struct str id_prefix, int64_t deadline_ns, struct arena *arena,
                                struct hydration_ref **refs, size_t *count, struct error *error)
{
    (void)hydration, (void)entity_type, (void)tenant, (void)id_prefix, (void)deadline_ns, (void)arena,
        (void)refs, (void)count;
    return error_set(error, STATUS_INTERNAL, "not here");
}

/* ---- an owner in this process ---- */

static enum status look(void *context, const struct hydration_need *asked, int64_t deadline_ns,
                        struct hydration_entity *entity, struct error *error)
{
    (void)context, (void)deadline_ns;
    pass_gate(&owner_looks, asked->tenant);
    if (script.owner_fails)
        return error_set(error, STATUS_UNAVAILABLE, "not now");
    entity->found = str_eq(asked->entity_id, STR("a")) ? HYDRATION_ENTITY_EXISTS : HYDRATION_ENTITY_ABSENT;
    entity->version = 3;
    buf_put_str(entity->data, STR(DATA));
    return STATUS_OK;
}

void rig_provide(void)
{
    hydration_provide(&rig,
                      &(struct hydration_owner){.entity_type = "item", .module = "intake", .look = look});
}

/* ---- what is allocated: the linker leads our own calls here ---- */

static _Thread_local unsigned allocations;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);

void *__wrap_malloc(size_t size)
{
    allocations++;
    return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    allocations++;
    return __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    allocations++;
    return __real_realloc(old, size);
}

unsigned rig_allocations(void)
{
    return allocations;
}

/* ---- looking at it ---- */

static void hold(const char *tenant, bool owner_alone)
{
    pthread_mutex_lock(&lock);
    is_held = true;
    held_tenant = tenant;
    holds_owner_alone = owner_alone;
    pthread_mutex_unlock(&lock);
}

void rig_hold(void)
{
    hold(NULL, false);
}

void rig_hold_tenant(const char *tenant)
{
    hold(tenant, false);
}

void rig_hold_owner(const char *tenant)
{
    hold(tenant, true);
}

void rig_let_go(void)
{
    pthread_mutex_lock(&lock);
    is_held = false;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&lock);
}

static unsigned read_count(const unsigned *count)
{
    pthread_mutex_lock(&lock);
    unsigned value = *count;
    pthread_mutex_unlock(&lock);
    return value;
}

unsigned rig_finds(void)
{
    return read_count(&finds);
}

unsigned rig_looks(void)
{
    return read_count(&looks);
}

unsigned rig_retries(void)
{
    return read_count(&retries);
}

unsigned rig_questions(void)
{
    return read_count(&questions);
}

unsigned rig_answers(void)
{
    return read_count(&answers);
}

unsigned rig_owner_looks(void)
{
    return read_count(&owner_looks);
}

unsigned rig_held(void)
{
    return read_count(&held);
}

struct rig_question rig_question(void)
{
    pthread_mutex_lock(&lock);
    struct rig_question copy = question;
    pthread_mutex_unlock(&lock);
    return copy;
}

/* ---- who waits ---- */

static void on_done(struct hydration_waiter *waiter, const struct hydration_outcome *outcome)
{
    struct person *person = (struct person *)waiter;
    person->times++;
    person->result = outcome->result;
    person->way = outcome->way;
    person->reason = outcome->reason;
    person->is_negative_hit = outcome->is_negative_hit;
    snprintf(person->data, sizeof person->data, "%.*s", STR_ARG(outcome->data));
    snprintf(person->source_module, sizeof person->source_module, "%.*s", STR_ARG(outcome->source_module));
    if (person->cancels)
        hydration_waiter_cancel(&person->cancels->waiter);
    if (person->asks)
        ask(person->asks, "ann", rig_title);
}

struct hydration_need rig_need(const char *caller, struct hydration_cover cover)
{
    return (struct hydration_need){.tenant = STR("acme"),
                                   .caller = str_from(caller),
                                   .entity_type = STR("item"),
                                   .entity_id = STR("a"),
                                   .cover = cover};
}

void ask_need(struct person *person, struct hydration_need need, bool defers)
{
    struct person *cancels = person->cancels, *asks = person->asks;
    *person = (struct person){.cancels = cancels, .asks = asks};
    hydration_ask(&rig, &rig_policy, &need, defers, rig_loop, &person->waiter, on_done);
}

void ask(struct person *person, const char *caller, struct hydration_cover cover)
{
    ask_need(person, rig_need(caller, cover), false);
}

/* ---- what is heard ---- */

struct hydration_event answer_of(enum hydration_kind kind, int64_t version)
{
    static struct rig_question asked;
    asked = rig_question();
    return (struct hydration_event){.kind = kind,
                                    .tenant = STR("acme"),
                                    .entity_type = STR("item"),
                                    .entity_id = STR("a"),
                                    .correlation_id = str_from(asked.correlation_id),
                                    .module = STR("intake"),
                                    .has_cover = true,
                                    .cover = rig_full,
                                    .data = kind == HYDRATION_EVENT_UPDATED ? STR(DATA) : STR_NONE,
                                    .version = version};
}

void hear(struct hydration_event event)
{
    hydration_deliver(rig_shard, &event, false);
}

void hear_updated(int64_t version)
{
    hear(answer_of(HYDRATION_EVENT_UPDATED, version));
}

void hear_not_found(int64_t version)
{
    hear(answer_of(HYDRATION_EVENT_NOT_FOUND, version));
}

/* ---- time ---- */

bool turn_until(bool (*is)(void *arg), void *arg)
{
    int64_t deadline_ns = clock_deadline_ms(PATIENCE_MS);
    while (!is(arg)) {
        if (clock_mono_ns() > deadline_ns)
            return false;
        loop_run_once(rig_loop, 1);
    }
    return true;
}

static bool is_done(void *arg)
{
    return ((struct person *)arg)->times > 0;
}

bool turn_until_done(struct person *person)
{
    return turn_until(is_done, person);
}

struct counting {
    unsigned (*count)(void);
    unsigned wanted;
};

static bool is_counted(void *arg)
{
    const struct counting *counting = arg;
    return counting->count() >= counting->wanted;
}

/* And once more, so that what came of it is back. */
bool turn_until_count(unsigned (*count)(void), unsigned wanted)
{
    return turn_until(is_counted, &(struct counting){count, wanted});
}

void turn_for_ms(int64_t ms)
{
    int64_t until_ns = clock_deadline_ms(ms);
    while (clock_mono_ns() < until_ns)
        loop_run_once(rig_loop, 1);
}

static bool is_empty(void *arg)
{
    (void)arg;
    return rig_shard->waiter_count == 0 && rig_shard->lookups.count == 0;
}

static bool is_idle(void *arg)
{
    (void)arg;
    return rig_shard->jobs == 0 && rig_shard->job_turns.queued == 0;
}

bool turn_until_idle(void)
{
    return turn_until(is_idle, NULL);
}

bool turn_until_empty(void)
{
    return turn_until(is_empty, NULL);
}

uint64_t ignored(const char *reason)
{
    const struct str label = str_from(reason);
    struct metric_family *family = NULL;
    for (struct metric_family *const *at = hydration_metrics; *at; at++)
        if (strcmp((*at)->name, "hydration_ignored_total") == 0)
            family = *at;
    return metric_value(metric_series_get(family, &label));
}

/* ---- life ---- */

int rig_open(void **state)
{
    (void)state;
    static struct hydration_shard *shards[1];
    settings = (struct hydration_settings){
        .policy = default_policy, .copy_ttl_ms = 300000, .memory_entries = 1024, .memory_bytes = 1024 * 1024};
    rig_policy = default_policy;
    rig_policy.module = "test";
    rig_policy.wait_timeout_ms = PATIENCE_MS; /* tests of time say otherwise */
    rig_policy.retry_backoff_ms = PATIENCE_MS;
    script = (struct rig_script){.find = {.kind = HYDRATION_LEDGER_ASK, .ttl_ms = 60000}};
    finds = looks = retries = questions = answers = owner_looks = 0;
    question = (struct rig_question){0};
    struct loop_group *loops = loop_group_create(1, 0);
    rig_loop = loop_group_loop(loops, 0);
    rig = (struct hydration){
        .config = {.loops = loops,
                   .workers = worker_pool_create("test", (unsigned)turns_places(HYDRATION_JOB_PLACES), 64),
                   .settings = &settings},
        .shards = shards};
    atomic_store(&rig.bus, (struct bus *)&rig); /* never looked into */
    shards[0] = rig_shard = hydration_shard_create(&rig, rig_loop);
    loop_run_once(rig_loop, 0);
    return 0;
}

int rig_close(void **state)
{
    (void)state;
    rig_let_go();
    hydration_shard_stop(rig_shard);
    worker_pool_stop(rig.config.workers);
    for (size_t i = 0; i < rig.owner_count; i++)
        hydration_owner_close(&rig.owners[i]);
    while (loop_settle(rig_loop))
        ;
    bool is_left = !is_empty(NULL);
    hydration_shard_destroy(rig_shard);
    worker_pool_destroy(rig.config.workers);
    loop_group_destroy(rig.config.loops);
    return is_left; /* nothing is left of any test */
}
