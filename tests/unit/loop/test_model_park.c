/* Parked work against a list (C7): an owner is taken or timed out, exactly once, and references that are older find nothing. A timeout's
 * callback parks, takes and peeks itself. */
#include "model.h"

#include "base/clock.h"
#include "loop/loop.h"

enum { OWNERS = 400, SLOTS_MAX = 300 /* more than a page of slots */, OLD = 64 };

struct owner {
    bool is_parked;
    int64_t deadline_ns;
    struct loop_park_ref ref;
};

static struct loop *loop;
static struct owner owners[OWNERS];
static struct loop_park_ref old[OLD]; /* of owners that were taken or timed out */
static size_t old_count, parked, slots_max;
static int64_t last_due_ns;

static void begin(void)
{
    slots_max = model_one_in(3) ? SLOTS_MAX : 1 + model_below(8);
    loop = loop_create(0, (unsigned)slots_max);
    old_count = parked = 0;
    for (size_t i = 0; i < OWNERS; i++)
        owners[i] = (struct owner){0};
}

static void end_parking(struct owner *owner)
{
    owner->is_parked = false;
    old[old_count++ % OLD] = owner->ref;
    parked--;
}

static void act_within_callback(void);

static void on_timeout(void *context)
{
    struct owner *owner = context;
    MODEL_CHECK(owner->is_parked, "a timeout of an owner that is not parked");
    MODEL_CHECK(owner->deadline_ns <= model_now_ns(), "timed out %lld ns too early",
                (long long)(owner->deadline_ns - model_now_ns()));
    MODEL_CHECK(owner->deadline_ns >= last_due_ns, "timed out after one with a later deadline");
    last_due_ns = owner->deadline_ns;
    end_parking(owner);
    model_note("timeout of %td", owner - owners);
    MODEL_CHECK(!loop_park_peek(owner->ref), "is parked within its timeout");
    if (model_one_in(2))
        act_within_callback();
}

static void park(void)
{
    struct owner *owner = &owners[model_below(OWNERS)];
    if (owner->is_parked)
        return;
    owner->deadline_ns = model_one_in(5) ? CLOCK_NEVER : model_now_ns() + (int64_t)model_below(40) * 1000000;
    bool has_parked = loop_park(loop, owner, owner->deadline_ns,
                                owner->deadline_ns == CLOCK_NEVER ? NULL : on_timeout, &owner->ref);
    model_note("%td: %s", owner - owners, has_parked ? "parked" : "refused");
    MODEL_CHECK(has_parked == (parked < slots_max), "%zu of %zu are parked", parked, slots_max);
    owner->is_parked = has_parked;
    parked += has_parked;
    if (owner->deadline_ns < last_due_ns) /* a deadline that is over when it is set */
        last_due_ns = 0;
}

static void park_many(void)
{
    for (uint64_t i = model_below(100); i > 0; i--)
        park();
}

static struct owner *random_parked(void)
{
    size_t first = model_below(OWNERS);
    for (size_t i = 0; i < OWNERS; i++)
        if (owners[(first + i) % OWNERS].is_parked)
            return &owners[(first + i) % OWNERS];
    return NULL;
}

static void take(void)
{
    struct owner *owner = random_parked();
    if (!owner)
        return;
    model_note("%td", owner - owners);
    MODEL_CHECK(loop_park_peek(owner->ref) == owner, "another owner is parked there");
    MODEL_CHECK(loop_park_take(owner->ref) == owner, "another owner was taken");
    end_parking(owner);
}

static void take_old(void)
{
    if (old_count == 0)
        return;
    struct loop_park_ref ref = old[model_below(old_count < OLD ? old_count : OLD)];
    MODEL_CHECK(!loop_park_peek(ref), "an old reference finds an owner");
    MODEL_CHECK(!loop_park_take(ref), "an old reference takes an owner");
}

static void act_within_callback(void)
{
    static void (*const acts[])(void) = {park, take, take_old, park_many};
    acts[model_below(4)]();
}

static void pass_time(void)
{
    model_pass_ms((int64_t)model_below(15));
    last_due_ns = 0;
    loop_run_once(loop, 0);
    for (size_t i = 0; i < OWNERS; i++)
        MODEL_CHECK(!owners[i].is_parked || owners[i].deadline_ns > model_now_ns(), "%zu did not time out",
                    i);
}

static void check(void)
{
    const struct owner *owner = random_parked();
    MODEL_CHECK(!owner || loop_park_peek(owner->ref) == owner, "an owner is lost");
    MODEL_CHECK(!loop_park_peek((struct loop_park_ref){.loop = loop}), "no reference finds an owner");
}

static void end(void)
{
    loop_destroy(loop);
}

int main(void)
{
    static const struct model_operation operations[] = {{"park", 30, park},
                                                        {"park many", 5, park_many},
                                                        {"take", 20, take},
                                                        {"take old", 10, take_old},
                                                        {"pass time", 20, pass_time}};
    return model_main(&(struct model){.name = "parked work",
                                      .seeds = 4000,
                                      .steps = 80,
                                      .begin = begin,
                                      .check = check,
                                      .end = end,
                                      MODEL_OPERATIONS(operations)});
}
