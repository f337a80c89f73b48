/* The barrier's two halves: a reader's own loop parks and answers it, the home loop knows the waiting requests. They speak
 * by messages; neither touches the other's memory. */
#include "modules/refdata/query/barrier.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "modules/refdata/query/primary.h"

/* ---- from a reader to the home loop ---- */

struct demand_message {
    struct loop_message message;
    struct refdata *refdata;
    struct loop_park_ref ref;
    int64_t version, expires_ns;
    size_t tenant_len, code_len, keys_len;
    char text[]; /* tenant, code, keys */
};

static void post_demand(struct http_request *request, loop_message_fn *on_message, struct loop_park_ref ref,
                        int64_t expires_ns)
{
    struct refdata *refdata = request->context;
    const struct refdata_demand *demand = refdata_demand_of(request);
    struct str tenant = kernel_identity(request)->tenant, code = demand->code, keys = demand->keys;
    struct demand_message *message = memory_alloc(sizeof *message + tenant.len + code.len + keys.len);
    *message = (struct demand_message){
        .message.on_message = on_message,
        .refdata = refdata,
        .ref = ref,
        .version = demand->version,
        .expires_ns = expires_ns,
        .tenant_len = tenant.len,
        .code_len = code.len,
        .keys_len = keys.len,
    };
    memcpy(message->text, tenant.ptr, tenant.len);
    memcpy(message->text + tenant.len, code.ptr, code.len);
    memcpy(message->text + tenant.len + code.len, keys.ptr ? keys.ptr : "", keys.len);
    loop_post(refdata->home, &message->message);
}

static struct refdata_holding *find_demanded(const struct demand_message *message)
{
    return refdata_table_find(message->refdata->own, str_of(message->text, message->tenant_len),
                              str_of(message->text + message->tenant_len, message->code_len));
}

/* ---- from the home loop back to a reader ---- */

struct verdict_message {
    struct loop_message message;
    struct loop_park_ref ref;
    struct error error;          /* status OK: start over */
    int64_t demanded, committed; /* of a 409 */
    bool from_primary;
    struct cache_snapshot *snapshot; /* referenced, or NULL */
};

static void send_not_committed(struct http_request *request, const struct verdict_message *verdict)
{
    char members[96];
    snprintf(members, sizeof members, ",\"requestedVersion\":%lld,\"committedVersion\":%lld",
             (long long)verdict->demanded, (long long)verdict->committed);
    http_send_error_with(request, &verdict->error, STR_NONE, str_from(members));
}

static void start_over(struct http_request *request, const struct verdict_message *verdict)
{
    struct refdata_demand *demand = refdata_demand_of(request);
    demand->from_primary = verdict->from_primary;
    demand->answer =
        verdict->snapshot; /* the handler does not outlive this call; a stream takes its own reference */
    request->route->handler(request);
}

static void on_verdict(struct loop *loop, struct loop_message *message)
{
    (void)loop;
    struct verdict_message *verdict = (struct verdict_message *)message;
    struct http_request *request = http_request_unpark(verdict->ref);
    if (request && verdict->error.status == STATUS_OK)
        start_over(request, verdict);
    else if (request && verdict->error.status == STATUS_VERSION_NOT_COMMITTED)
        send_not_committed(request, verdict);
    else if (request)
        http_send_error(request, &verdict->error);
    if (verdict->snapshot)
        cache_snapshot_unref(verdict->snapshot);
    free(verdict);
}

static struct verdict_message *new_verdict(struct loop_park_ref ref)
{
    struct verdict_message *verdict = memory_zalloc(sizeof *verdict);
    verdict->message.on_message = on_verdict;
    verdict->ref = ref;
    return verdict;
}

static void post_start_over(struct loop_park_ref ref, bool from_primary)
{
    struct verdict_message *verdict = new_verdict(ref);
    verdict->from_primary = from_primary;
    loop_post(ref.loop, &verdict->message);
}

static void post_error(struct loop_park_ref ref, enum status status, const char *text)
{
    struct verdict_message *verdict = new_verdict(ref);
    error_set(&verdict->error, status, "%s", text);
    loop_post(ref.loop, &verdict->message);
}

static const char refused_text[] = "the dictionary's configuration was refused by PostgreSQL";

/* ---- home: waiting for a reload ---- */

static int64_t local_version(const struct refdata_holding *holding)
{
    const struct cache_snapshot *snapshot = cache_slot_read(&holding->slot);
    return snapshot ? cache_snapshot_info(snapshot)->version : -1;
}

void refdata_barrier_loaded(struct refdata_holding *holding, int64_t version)
{
    struct refdata_barrier *barrier = &holding->barrier;
    size_t kept = 0;
    refdata_waiting_forget(barrier, loop_now_ns(holding->refdata->home));
    for (size_t i = 0; i < barrier->waiting_count; i++) {
        if (barrier->waiting[i].version <= version)
            post_start_over(barrier->waiting[i].ref, barrier->waiting[i].from_primary);
        else
            barrier->waiting[kept++] = barrier->waiting[i];
    }
    barrier->waiting_count = kept;
}

/* ---- home: questions to the primary ---- */

static void ask(struct refdata_holding *holding);

static void refuse_all(struct refdata_deciding *list, enum status status, const char *text)
{
    while (list) {
        struct refdata_deciding *next = list->next;
        post_error(list->ref, status, text);
        free(list);
        list = next;
    }
}

/* By now the dictionary may be defined otherwise, elsewhere even: then an answer by the old definition is none. */
static bool is_in_force(const struct refdata *refdata, const struct refdata_dictionary *dictionary)
{
    return refdata_catalog_find(atomic_load(&refdata->catalog), dictionary->code) == dictionary &&
           atomic_load(&dictionary->state) == REFDATA_READY;
}

struct keys_question {
    struct refdata *refdata;
    const struct refdata_dictionary *dictionary; /* the question under way references it */
    struct loop_park_ref ref;
    int64_t version;
};

static void on_keys(void *context, struct refdata_primary_answer *answer)
{
    struct keys_question question = *(struct keys_question *)context;
    bool in_force = is_in_force(question.refdata, question.dictionary);
    free(context);
    if (answer->status != STATUS_OK || answer->committed.version < question.version || !in_force) {
        if (answer->snapshot)
            cache_snapshot_unref(answer->snapshot);
        if (in_force)
            post_error(question.ref, STATUS_UNAVAILABLE, "the primary cannot be read");
        else
            post_start_over(question.ref, false);
        return;
    }
    struct verdict_message *verdict = new_verdict(question.ref);
    verdict->from_primary = true;
    verdict->snapshot = answer->snapshot;
    loop_post(question.ref.loop, &verdict->message);
}

static void read_from_primary(struct refdata_holding *holding, const struct refdata_deciding *deciding)
{
    struct refdata *refdata = holding->refdata;
    struct keys_question *question = memory_alloc(sizeof *question);
    *question = (struct keys_question){refdata, holding->dictionary, deciding->ref, deciding->version};
    refdata_metrics_count(REFDATA_FALLBACK_READS, holding->code);
    if (refdata_primary_ask(refdata, holding->dictionary, holding->tenant,
                            str_of(deciding->keys, deciding->keys_len), on_keys, question))
        return;
    free(question);
    post_error(deciding->ref, STATUS_OVERLOADED, "too many reads from the primary at once");
}

static void post_not_committed(const struct refdata_deciding *deciding, int64_t committed)
{
    struct verdict_message *verdict = new_verdict(deciding->ref);
    error_set(&verdict->error, STATUS_VERSION_NOT_COMMITTED,
              "version %lld is not committed; the last one is %lld", (long long)deciding->version,
              (long long)committed);
    verdict->demanded = deciding->version;
    verdict->committed = committed;
    loop_post(deciding->ref.loop, &verdict->message);
}

/* Was what is held lost: is its number committed by another event, or not at all? */
static bool is_lost(const struct refdata_holding *holding, const struct refdata_committed *committed)
{
    const struct cache_snapshot *held = cache_slot_read(&holding->slot);
    return held && cache_snapshot_info(held)->version >= committed->version &&
           !refdata_is_committed(held, committed);
}

static void decide(struct refdata_holding *holding, const struct refdata_deciding *deciding,
                   int64_t committed, bool lost)
{
    struct refdata *refdata = holding->refdata;
    if (local_version(holding) >= deciding->version && !lost)
        post_start_over(deciding->ref, false);
    else if (committed < deciding->version)
        post_not_committed(deciding, committed);
    else if (deciding->keys_len)
        read_from_primary(holding, deciding);
    else /* the whole dictionary: what the reload under way reads from the primary is the answer */
        refdata_waiting_add(
            &holding->barrier,
            (struct refdata_waiting){.ref = deciding->ref,
                                     .version = deciding->version,
                                     .expires_ns = clock_deadline_ms(refdata->barrier.timeout_ms),
                                     .from_primary = true},
            clock_mono_ns());
}

static void decide_all(struct refdata_holding *holding, struct refdata_deciding *asked,
                       const struct refdata_committed *committed)
{
    bool lost = is_lost(holding, committed);
    holding->committed_version = committed->version;
    if (lost)
        refdata_schedule_want(holding, 0);
    else if (committed->version > local_version(holding))
        refdata_schedule_urge(holding, committed->version); /* a request waits: neither jitter nor debounce */
    while (asked) {
        struct refdata_deciding *next = asked->next;
        decide(holding, asked, committed->version, lost);
        free(asked);
        asked = next;
    }
}

/* Those whose question was answered in vain: they start over, with what is in force now. */
static void send_back(struct refdata_deciding *asked)
{
    while (asked) {
        struct refdata_deciding *next = asked->next;
        post_start_over(asked->ref, false);
        free(asked);
        asked = next;
    }
}

static void on_version(void *context, struct refdata_primary_answer *answer)
{
    struct refdata_holding *holding = context;
    struct refdata_barrier *barrier = &holding->barrier;
    struct refdata_deciding *asked = barrier->asked;
    bool outdated = barrier->definition != holding->dictionary ||
                    atomic_load(&holding->dictionary->state) != REFDATA_READY;
    barrier->asked = NULL;
    barrier->asking = false;
    if (holding->dropped) {
        refuse_all(asked, STATUS_UNAVAILABLE, "the dictionary is being reloaded");
        if (!holding->loading)
            refdata_keeper_retire(holding);
        return;
    }
    if (atomic_load(&holding->dictionary->state) == REFDATA_DISABLED) /* what it has is served, no more */
        refuse_all(asked, STATUS_DICTIONARY_UNAVAILABLE, refused_text);
    else if (outdated)
        send_back(asked);
    else if (answer->status != STATUS_OK)
        refuse_all(asked, STATUS_UNAVAILABLE, "the primary cannot be read");
    else
        decide_all(holding, asked, &answer->committed);
    if (barrier->queued)
        ask(holding);
}

static bool within_rate(struct refdata_holding *holding)
{
    struct refdata_barrier *barrier = &holding->barrier;
    int64_t second = loop_now_ns(holding->refdata->home) / CLOCK_NS_PER_S;
    if (barrier->second != second)
        barrier->second = second, barrier->asked_this_second = 0;
    return barrier->asked_this_second++ < (unsigned)holding->refdata->barrier.checks_per_second;
}

/* One query at a time, for all requests that came before it begins. */
static void ask(struct refdata_holding *holding)
{
    struct refdata_barrier *barrier = &holding->barrier;
    if (barrier->asking)
        return;
    struct refdata_deciding *asked = barrier->queued;
    barrier->queued = NULL;
    if (!within_rate(holding)) {
        refuse_all(asked, STATUS_OVERLOADED, "too many readers demand versions that are not here");
        return;
    }
    barrier->asking = refdata_primary_ask(holding->refdata, holding->dictionary, holding->tenant, STR_NONE,
                                          on_version, holding);
    barrier->definition = holding->dictionary;
    if (barrier->asking)
        barrier->asked = asked;
    else
        refuse_all(asked, STATUS_OVERLOADED, "too many reads from the primary at once");
}

void refdata_barrier_refuse(struct refdata_holding *holding)
{
    struct refdata_barrier *barrier = &holding->barrier;
    for (size_t i = 0; i < barrier->waiting_count; i++)
        post_error(barrier->waiting[i].ref, STATUS_DICTIONARY_UNAVAILABLE, refused_text);
    barrier->waiting_count = 0;
    refuse_all(barrier->queued, STATUS_DICTIONARY_UNAVAILABLE, refused_text);
    barrier->queued = NULL;
}

void refdata_barrier_dissolve(struct refdata_holding *holding)
{
    struct refdata_barrier *barrier = &holding->barrier;
    refdata_barrier_loaded(holding, INT64_MAX);
    refuse_all(barrier->queued, STATUS_UNAVAILABLE, "the dictionary is being reloaded");
    barrier->queued = NULL;
    free(barrier->waiting);
    barrier->waiting = NULL;
    barrier->waiting_capacity = 0;
}

/* ---- home: what readers ask for ---- */

static void on_wait(struct loop *loop, struct loop_message *loop_message)
{
    struct demand_message *message = (struct demand_message *)loop_message;
    struct refdata_holding *holding = find_demanded(message);
    if (!holding || local_version(holding) >= message->version) {
        post_start_over(message->ref, false);
    } else if (atomic_load(&holding->dictionary->state) == REFDATA_DISABLED) {
        post_error(message->ref, STATUS_DICTIONARY_UNAVAILABLE, refused_text);
    } else {
        refdata_waiting_add(&holding->barrier,
                            (struct refdata_waiting){.ref = message->ref,
                                                     .version = message->version,
                                                     .expires_ns = message->expires_ns},
                            loop_now_ns(loop));
        if (holding->wanted_version >= message->version && holding->retry_at_ns <= loop_now_ns(loop))
            refdata_schedule_urge(holding,
                                  message->version); /* it is known to be committed, and was debounced */
        ask(holding);
    }
    free(message);
}

static void on_decide(struct loop *loop, struct loop_message *loop_message)
{
    (void)loop;
    struct demand_message *message = (struct demand_message *)loop_message;
    struct refdata_holding *holding = find_demanded(message);
    if (!holding) {
        post_start_over(message->ref, false);
        free(message);
        return;
    }
    struct refdata_deciding *deciding = memory_alloc(sizeof *deciding + message->keys_len);
    *deciding = (struct refdata_deciding){.next = holding->barrier.queued,
                                          .ref = message->ref,
                                          .version = message->version,
                                          .keys_len = message->keys_len};
    memcpy(deciding->keys, message->text + message->tenant_len + message->code_len, message->keys_len);
    holding->barrier.queued = deciding;
    free(message);
    ask(holding);
}

/* ---- the reader's own loop ---- */

static void on_primary_late(struct http_request *request, void *context)
{
    (void)context;
    struct error error;
    error_set(&error, STATUS_UNAVAILABLE, "the primary did not answer in time");
    http_send_error(request, &error);
}

static void on_wait_over(struct http_request *request, void *context)
{
    struct refdata *refdata = context;
    struct loop_park_ref ref;
    int64_t deadline_ns =
        loop_now_ns(request->loop) + atomic_load(&refdata->barrier_timeout_ms) * CLOCK_NS_PER_MS;
    if (http_request_park(request, deadline_ns, on_primary_late, NULL, &ref))
        post_demand(request, on_decide, ref, deadline_ns);
}

static struct str keys_as_array(struct http_request *request, const struct str *keys, size_t count)
{
    struct buf text;
    buf_init(&text);
    if (count) {
        db_array_begin(&text);
        for (size_t i = 0; i < count; i++)
            db_array_put(&text, keys[i]);
        db_array_end(&text);
    }
    struct str copy = arena_str(request->arena, buf_str(&text));
    buf_deinit(&text);
    return copy;
}

static enum status read_demand(const struct http_request *request, struct str text, int64_t *version,
                               struct error *error)
{
    uint64_t number;
    if (!str_to_u64(text, &number) || number > INT64_MAX ||
        http_request_header_count(request, STR("x-min-version")) != 1)
        return error_set_field(error, STATUS_BAD_REQUEST, "X-Min-Version", "one whole number, not negative");
    *version = (int64_t)number;
    return STATUS_OK;
}

static void wait_for(struct http_request *request, const struct refdata_reading *reading, int64_t version,
                     const struct str *keys, size_t count)
{
    struct refdata *refdata = request->context;
    struct refdata_demand *demand = arena_zalloc(request->arena, sizeof *demand);
    struct loop_park_ref ref;
    int64_t deadline_ns =
        loop_now_ns(request->loop) + atomic_load(&refdata->barrier_wait_ms) * CLOCK_NS_PER_MS;
    demand->version = version;
    demand->code = arena_str(request->arena, reading->holding->code);
    demand->keys = keys_as_array(request, keys, count);
    request->handler_data = demand;
    kernel_identity_keep(request);
    if (http_request_park(request, deadline_ns, on_wait_over, refdata, &ref))
        post_demand(request, on_wait, ref, deadline_ns);
}

bool refdata_barrier_reach(struct http_request *request, const struct refdata_reading *reading,
                           int64_t version, const struct str *keys, size_t count)
{
    if (version <= reading->info->version)
        return true;
    wait_for(request, reading, version, keys, count);
    return false;
}

bool refdata_barrier_pass(struct http_request *request, const struct refdata_reading *reading,
                          const struct str *keys, size_t count)
{
    struct str text = http_request_header(request, STR("x-min-version"));
    struct error error;
    int64_t version = 0;
    if (!text.ptr)
        return true;
    if (read_demand(request, text, &version, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return false;
    }
    return refdata_barrier_reach(request, reading, version, keys, count);
}
