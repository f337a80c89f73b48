/* Places of webhook calls against a plain list of calls (issue 13, bulkheads): tenants begin whatever they may, calls last or end in any
 * order, and what slow and new tenants have stays bounded. Whatever slow tenants do, a quick one can begin; so can a new one while fewer
 * new ones have a call than there are places for them. */
#include "model.h"

#include <stdio.h>

#include "modules/notification/places.h"

enum { TENANTS = 12, CALLS = 64 };

struct call {
    struct places_tenant *tenant;
    unsigned number; /* of the tenant */
    bool lasts;
};

static struct places places;
static struct call calls[CALLS];
static size_t call_count;
static bool is_slow[TENANTS], is_quick[TENANTS]; /* neither: new */
static unsigned quick_in_a_row[TENANTS];

static void begin(void)
{
    places_init(&places, 1 + model_below(CALLS));
    call_count = 0;
    for (unsigned i = 0; i < TENANTS; i++)
        is_slow[i] = is_quick[i] = false, quick_in_a_row[i] = 0;
}

static void end(void)
{
    for (size_t i = 0; i < call_count; i++)
        places_unuse(&places, calls[i].tenant);
    places_deinit(&places);
}

static struct places_tenant *use(unsigned number)
{
    char name[16];
    snprintf(name, sizeof name, "t%u", number);
    return places_use(&places, str_from(name));
}

static size_t calls_of(unsigned number)
{
    size_t count = 0;
    for (size_t i = 0; i < call_count; i++)
        count += calls[i].number == number;
    return count;
}

static size_t calls_of_kind(bool slow, bool quick)
{
    size_t count = 0;
    for (size_t i = 0; i < call_count; i++)
        count += is_slow[calls[i].number] == slow && is_quick[calls[i].number] == quick;
    return count;
}

/* All that one tenant may, as a batch does. */
static void begin_calls(void)
{
    unsigned number = (unsigned)model_below(TENANTS), begun = 0;
    struct places_tenant *tenant = use(number);
    while (places_may_begin(&places, tenant)) {
        MODEL_CHECK(call_count < places.count, "more calls than %zu places", places.count);
        MODEL_CHECK(is_slow[number] || is_quick[number] || calls_of(number) == 0,
                    "a second call of a new tenant");
        places_begin(&places, tenant);
        calls[call_count++] = (struct call){use(number), number, false};
        begun++;
    }
    places_unuse(&places, tenant);
    model_note("t%u begins %u, %zu of %zu", number, begun, call_count, places.count);
    size_t kept = (places.count + 7) / 8, slow = calls_of_kind(true, false),
           unknown = calls_of_kind(false, false);
    size_t alone = calls_of(number);
    MODEL_CHECK(begun == 0 || places.count == 1 || alone == 1 || alone <= 5 * (places.count - alone),
                "%zu of %zu are one tenant's", alone, places.count);
    MODEL_CHECK(begun == 0 || !is_slow[number] ||
                    slow <= (places.count > 2 * kept ? places.count - 2 * kept : 1),
                "%zu of %zu are slow tenants'", slow, places.count);
    MODEL_CHECK(begun == 0 || is_slow[number] || is_quick[number] || places.count < 3 ||
                    slow + unknown <= places.count - kept,
                "%zu of %zu are new and slow tenants'", slow + unknown, places.count);
}

static void last(void)
{
    if (call_count == 0)
        return;
    struct call *call = &calls[model_below(call_count)];
    call->lasts = true;
    places_lasts(&places, call->tenant);
    is_slow[call->number] = true;
    is_quick[call->number] = false;
    quick_in_a_row[call->number] = 0;
    model_note("a call of t%u lasts", call->number);
}

static void end_call(void)
{
    if (call_count == 0)
        return;
    struct call *at = &calls[model_below(call_count)], call = *at;
    *at = calls[--call_count];
    places_end(&places, call.tenant, !call.lasts);
    places_unuse(&places, call.tenant);
    model_note("a call of t%u ends%s", call.number, call.lasts ? ", late" : "");
    quick_in_a_row[call.number] = call.lasts ? 0 : quick_in_a_row[call.number] + 1;
    if (call.lasts)
        is_slow[call.number] = true, is_quick[call.number] = false;
    else if (!is_slow[call.number] || quick_in_a_row[call.number] >= PLACES_QUICK)
        is_slow[call.number] = false, is_quick[call.number] = true;
}

static void end_many(void)
{
    for (uint64_t i = model_below(CALLS); i > 0; i--)
        end_call();
}

static bool may_begin(unsigned number)
{
    struct places_tenant *tenant = use(number);
    bool may = places_may_begin(&places, tenant);
    places_unuse(&places, tenant);
    return may;
}

/* The names that a claim leaves out are those that may not begin. */
static void check(void)
{
    struct buf names = {0};
    bool may_any = places_left_out(&places, &names);
    buf_put_char(&names, '\0');
    MODEL_CHECK(may_any == (call_count < places.count), "%zu of %zu are used", call_count, places.count);
    size_t quick = calls_of_kind(false, true), unknown = calls_of_kind(false, false);
    for (unsigned i = 0; i < TENANTS; i++) {
        char quoted[16];
        bool may = may_begin(i), is_known = is_slow[i] || is_quick[i];
        snprintf(quoted, sizeof quoted, "\"t%u\"", i);
        bool is_left_out = strstr(buf_str(&names).ptr, quoted) != NULL;
        MODEL_CHECK(may || is_left_out || !is_known, "t%u may not begin and is not left out", i);
        MODEL_CHECK(!may || !is_left_out, "t%u may begin and is left out", i);
        /* Not one call of a quick tenant, and of new ones that became slow only now fewer than an eighth. */
        if (is_quick[i] && places.count > 2 && quick == 0 && unknown == 0 &&
            call_count <= places.count - 2 * ((places.count + 7) / 8))
            MODEL_CHECK(may, "a quick tenant has no place beside slow ones");
    }
    buf_deinit(&names);
}

static const struct model_operation operations[] = {
    {"begin", 6, begin_calls}, {"last", 3, last}, {"end", 5, end_call}, {"end many", 1, end_many}};

int main(void)
{
    return model_main(&(struct model){.name = "places",
                                      .seeds = 2000,
                                      .steps = 120,
                                      .begin = begin,
                                      .check = check,
                                      .end = end,
                                      MODEL_OPERATIONS(operations)});
}
