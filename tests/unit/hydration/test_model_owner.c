/* Places of an owner (issue 13, bulkheads) against a plain list of questions: tenants ask, and looks hang for some of them. While looks
 * hang, the other tasks go on within them, so that every order can be had on one thread. Whatever hangs, one tenant leaves a place, a
 * question that could be looked up does not wait, and each is answered once. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "hydration/inside.h"
#include "model.h"

enum { TENANTS = 4, QUESTIONS_MAX = 256, NESTED_STEPS = 6 };

struct asked {
    size_t tenant;
    int64_t expires_ns;
    unsigned looks, answers; /* answers: to other processes */
};

static const char *const tenants[TENANTS] = {"greedy", "modest", "third", "fourth"};
static struct hydration hydration;
static struct hydration_settings settings;
static struct hydration_owner_slot *slot;
static struct loop *loop;
static struct asked questions[QUESTIONS_MAX];
static size_t question_count;
static bool hangs[TENANTS];
static unsigned looking[TENANTS], looks; /* under way */
static struct worker_job *queued[HYDRATION_LOOK_PLACES];
static size_t queued_count;

/* ---- the wire and the workers ---- */

bool __wrap_worker_pool_submit(struct worker_pool *pool, struct worker_job *job);
bool __wrap_worker_pool_submit(struct worker_pool *pool, struct worker_job *job)
{
    (void)pool;
    MODEL_CHECK(queued_count < HYDRATION_LOOK_PLACES, "a task is queued twice");
    queued[queued_count++] = job;
    return true;
}

enum status __wrap_hydration_wire_send(struct hydration *of, const struct hydration_event *events,
                                       size_t count, int64_t deadline_ns, struct error *error);
enum status __wrap_hydration_wire_send(struct hydration *of, const struct hydration_event *events,
                                       size_t count, int64_t deadline_ns, struct error *error)
{
    (void)of, (void)deadline_ns;
    for (size_t i = 0; i < count; i++) {
        int64_t number = -1;
        MODEL_CHECK(str_to_i64(events[i].entity_id, &number), "an answer to nothing");
        MODEL_CHECK(questions[number].looks == 1 && questions[number].answers++ == 0, "answered twice");
    }
    return model_one_in(8) ? error_set(error, STATUS_IO, "no bus") : STATUS_OK;
}

void __wrap_hydration_post(struct hydration *of, struct hydration_shard *asker,
                           const struct hydration_event *event);
void __wrap_hydration_post(struct hydration *of, struct hydration_shard *asker,
                           const struct hydration_event *event)
{
    (void)of, (void)event;
    MODEL_CHECK(asker, "posted to nobody");
}

/* ---- operations ---- */

static void ask(void)
{
    char id[16];
    if (question_count == QUESTIONS_MAX)
        return;
    size_t tenant = model_one_in(2) ? 0 : model_below(TENANTS);
    int64_t wait_ms = 1 + (int64_t)model_below(model_one_in(4) ? 20 : 5000);
    snprintf(id, sizeof id, "%zu", question_count);
    questions[question_count++] = (struct asked){.tenant = tenant, .expires_ns = clock_deadline_ms(wait_ms)};
    model_note("%s asks for %s, %lld ms", tenants[tenant], id, (long long)wait_ms);
    const struct hydration_event question = {.kind = HYDRATION_EVENT_UNKNOWN,
                                             .tenant = str_from(tenants[tenant]),
                                             .entity_type = STR("item"),
                                             .entity_id = str_from(id),
                                             .correlation_id = str_from(id),
                                             .has_cover = true,
                                             .cover = {.mode = HYDRATION_FULL},
                                             .wait_ms = wait_ms};
    hydration_owner_ask(slot, &question, model_one_in(2) ? (struct hydration_shard *)&settings : NULL);
}

static void run_job(void)
{
    if (queued_count == 0)
        return;
    size_t at = model_below(queued_count);
    struct worker_job *job = queued[at];
    queued[at] = queued[--queued_count];
    job->run(job);
    job->done(job);
}

static void run_all_jobs(void)
{
    while (queued_count > 0)
        run_job();
}

static void pass_time(void)
{
    model_pass_ms((int64_t)model_below(model_one_in(4) ? 2000 : 10));
    loop_run_once(loop, 0);
}

static void change_owner(void)
{
    size_t tenant = model_below(TENANTS);
    hangs[tenant] = !hangs[tenant];
    model_note("looks of %s %s", tenants[tenant], hangs[tenant] ? "hang" : "end");
}

/* No task has anything to do: so each question that waits has no place. */
static void check_waiting(void)
{
    for (size_t i = 0; i < question_count; i++) {
        const struct asked *question = &questions[i];
        if (question->looks > 0 || question->expires_ns <= model_now_ns())
            continue;
        unsigned of_tenant = looking[question->tenant];
        MODEL_CHECK(of_tenant > 0 || looks == HYDRATION_LOOK_PLACES, "%s has no place, and %u looks hang",
                    tenants[question->tenant], looks);
        MODEL_CHECK(of_tenant >= HYDRATION_PARALLEL || looks + 1 >= HYDRATION_LOOK_PLACES,
                    "%s has %u places, and %u looks hang", tenants[question->tenant], of_tenant, looks);
    }
}

/* ---- the owner ---- */

static enum status look(void *context, const struct hydration_need *need, int64_t deadline_ns,
                        struct hydration_entity *entity, struct error *error)
{
    static void (*const steps[])(void) = {ask, ask, ask, run_job, run_job, pass_time};
    int64_t number = -1;
    (void)context, (void)deadline_ns;
    MODEL_CHECK(str_to_i64(need->entity_id, &number) && questions[number].looks++ == 0, "looked up twice");
    size_t tenant = questions[number].tenant;
    model_note("looks up %lld for %s", (long long)number, tenants[tenant]);
    looking[tenant]++;
    looks++;
    MODEL_CHECK(looks <= HYDRATION_LOOK_PLACES, "%u looks at once", looks);
    MODEL_CHECK(looking[tenant] <= HYDRATION_PARALLEL, "%s has %u places", tenants[tenant], looking[tenant]);
    for (size_t i = model_below(NESTED_STEPS); hangs[tenant] && i > 0; i--)
        steps[model_below(sizeof steps / sizeof *steps)]();
    if (hangs[tenant]) {
        run_all_jobs();
        check_waiting();
    }
    looking[tenant]--;
    looks--;
    entity->found = HYDRATION_ENTITY_ABSENT;
    return model_one_in(8) ? error_set(error, STATUS_UNAVAILABLE, "not now") : STATUS_OK;
}

/* ---- life ---- */

static void begin(void)
{
    memset(questions, 0, sizeof questions);
    memset(looking, 0, sizeof looking);
    question_count = queued_count = looks = 0;
    for (size_t i = 0; i < TENANTS; i++)
        hangs[i] = model_one_in(2);
    hydration = (struct hydration){.config = {.loops = loop_group_create(1, 0), .settings = &settings}};
    loop = loop_group_loop(hydration.config.loops, 0);
    hydration_provide(&hydration,
                      &(struct hydration_owner){.entity_type = "item", .module = "intake", .look = look});
    slot = &hydration.owners[0];
}

static void check(void)
{
    MODEL_CHECK(slot->looks == 0 && slot->busy == 0, "%u looks are left", slot->looks);
}

static void end(void)
{
    run_all_jobs();
    check_waiting();
    hydration_owner_close(slot);
    for (int i = 0; i < 3; i++)
        loop_run_once(loop, 0);
    loop_group_destroy(hydration.config.loops);
}

static void open_model(void)
{
    hydration_metrics_register();
    log_set_fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
}

int main(void)
{
    static const struct model_operation operations[] = {
        {"ask", 10, ask}, {"run job", 6, run_job}, {"pass time", 3, pass_time}, {"owner", 2, change_owner}};
    return model_main(&(struct model){.name = "owner",
                                      .seeds = 4000,
                                      .steps = 60,
                                      .open = open_model,
                                      .begin = begin,
                                      .check = check,
                                      .end = end,
                                      MODEL_OPERATIONS(operations)});
}
