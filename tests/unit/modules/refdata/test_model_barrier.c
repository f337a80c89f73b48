/* The barrier (R7) against the versions themselves: readers on two loops demand versions, while versions are committed and loaded, the
 * primary is asked and answers late or not at all, dictionaries are redefined and refused, and clients disconnect. A reader never gets
 * a version before the one it demands, and is told that a version is not committed only if it was not. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "harness.h"
#include "load.h"
#include "model.h"
#include "modules/refdata/query/reading.h"

enum { LOOPS = 2, CLIENTS = 10, QUESTIONS_MAX = 64, WAIT_MS = 50, TIMEOUT_MS = 100 };

struct reader {
    struct client client;
    bool is_open, is_asking;
    int64_t demands, committed; /* committed: when it asked, or less where a version was lost since */
    bool had_trouble;           /* while it waited: then 503 is an answer */
};

struct question {
    void (*on_answer)(void *context, struct refdata_primary_answer *answer);
    void *context;
    struct refdata_dictionary *dictionary;
    bool has_keys;
};

static struct refdata refdata;
static struct refdata_catalog *catalog;
static struct refdata_dictionary *others[2]; /* definitions of the same code, besides the catalog's own */
static struct refdata_holding *holding;
static struct http_router *router;
static struct http_server *server;
static struct reader readers[CLIENTS];
static struct question questions[QUESTIONS_MAX];
static size_t question_count;
static int64_t committed;
static bool primary_is_full;

static void have_trouble(void)
{
    for (size_t i = 0; i < CLIENTS; i++)
        readers[i].had_trouble = true;
}

/* ---- instead of primary.c, schedule.c, keeper.c and the kernel ---- */

bool __wrap_refdata_primary_ask(struct refdata *own, struct refdata_dictionary *dictionary, struct str tenant,
                                struct str keys,
                                void (*on_answer)(void *context, struct refdata_primary_answer *answer),
                                void *context);
bool __wrap_refdata_primary_ask(struct refdata *own, struct refdata_dictionary *dictionary, struct str tenant,
                                struct str keys,
                                void (*on_answer)(void *context, struct refdata_primary_answer *answer),
                                void *context)
{
    (void)own, (void)tenant;
    if (primary_is_full || question_count == QUESTIONS_MAX) {
        have_trouble();
        return false;
    }
    for (size_t i = 0; i < question_count && !keys.len; i++)
        MODEL_CHECK(questions[i].has_keys, "two questions for the version at once");
    questions[question_count++] =
        (struct question){on_answer, context, refdata_dictionary_ref(dictionary), keys.len > 0};
    return true;
}

void __wrap_refdata_schedule_want(struct refdata_holding *own, int64_t due_ns);
void __wrap_refdata_schedule_want(struct refdata_holding *own, int64_t due_ns)
{
    (void)own, (void)due_ns;
}

void __wrap_refdata_schedule_urge(struct refdata_holding *own, int64_t version);
void __wrap_refdata_schedule_urge(struct refdata_holding *own, int64_t version)
{
    (void)own;
    MODEL_CHECK(version <= committed || readers[0].had_trouble,
                "version %lld is loaded before it is committed", (long long)version);
}

void __wrap_refdata_keeper_unref(struct refdata_holding *own);
void __wrap_refdata_keeper_unref(struct refdata_holding *own)
{
    own->refs--;
}

void __wrap_refdata_metrics_count(enum refdata_metric counter, struct str label);
void __wrap_refdata_metrics_count(enum refdata_metric counter, struct str label)
{
    (void)counter, (void)label;
}

void __wrap_kernel_identity_keep(struct http_request *request);
void __wrap_kernel_identity_keep(struct http_request *request)
{
    (void)request;
}

/* ---- versions ---- */

static struct cache_snapshot *snapshot_of(int64_t version)
{
    return cache_builder_finish(cache_builder_create(NULL, 0), version);
}

static void commit(void)
{
    committed++;
    model_note("%lld", (long long)committed);
}

/* After a failover: what is held may be lost. */
static void lose(void)
{
    if (committed <= 1)
        return;
    committed--;
    have_trouble();
    for (size_t i = 0; i < CLIENTS; i++)
        if (readers[i].committed > committed)
            readers[i].committed = committed;
}

static void load_version(void)
{
    if (atomic_load(&holding->dictionary->state) != REFDATA_READY)
        return;
    model_note("%lld", (long long)committed);
    cache_slot_publish(&holding->slot, snapshot_of(committed), refdata.loops);
    refdata_barrier_loaded(holding, committed);
}

static void answer_question(void)
{
    if (question_count == 0)
        return;
    size_t at = model_below(question_count);
    struct question question = questions[at];
    questions[at] = questions[--question_count];
    struct refdata_primary_answer answer = {.committed.version = committed};
    if (model_one_in(8)) {
        answer.status = error_set(&answer.error, STATUS_DB_DOWN, "no database");
        have_trouble();
    } else if (question.has_keys) {
        answer.snapshot = snapshot_of(committed);
    }
    model_note("%s: %lld", question.has_keys ? "keys" : "version", (long long)committed);
    question.on_answer(question.context, &answer);
    refdata_dictionary_unref(question.dictionary);
}

/* ---- definitions ---- */

static void redefine(void)
{
    struct refdata_dictionary *next = others[0];
    others[0] = others[1];
    others[1] = catalog->dictionaries[0];
    atomic_store(&next->state, REFDATA_READY);
    catalog->dictionaries[0] = next;
    refdata_dictionary_unref(holding->dictionary);
    holding->dictionary = refdata_dictionary_ref(next);
    have_trouble();
}

static void refuse_definition(void)
{
    bool is_ready = atomic_load(&holding->dictionary->state) == REFDATA_READY;
    if (is_ready && !model_one_in(3))
        return;
    have_trouble();
    atomic_store(&holding->dictionary->state, is_ready ? REFDATA_DISABLED : REFDATA_READY);
    if (is_ready)
        refdata_barrier_refuse(holding);
}

static void fill_primary(void)
{
    primary_is_full = !primary_is_full && model_one_in(2);
}

/* ---- readers ---- */

static enum http_step gate(struct http_request *request, void *context)
{
    static const struct auth_identity identity = {.tenant = {"t", 1}};
    (void)context;
    request->identity = &identity;
    return HTTP_STEP_PASS;
}

static void handle(struct http_request *request)
{
    static const char *const known[] = {"keys", NULL};
    const struct str keys[] = {STR("k")};
    struct refdata_reading reading;
    char text[32];
    if (!refdata_reading_begin(request, known, &reading) ||
        !refdata_barrier_pass(request, &reading, keys, request->query.len > 0))
        return;
    snprintf(text, sizeof text, "%lld", (long long)reading.info->version);
    http_send(request, &(struct http_response){.status = 200, .body = str_from(text)});
}

static const struct http_route routes[] = {{.method = HTTP_GET, .path = "/d/{dictCode}", .handler = handle},
                                           {0}};

static void ask_version(void)
{
    struct reader *reader = &readers[model_below(CLIENTS)];
    int pair[2];
    char text[128];
    if (reader->is_asking)
        return;
    if (!reader->is_open) {
        MODEL_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0,
                    "no sockets");
        *reader = (struct reader){.client.fd = pair[0], .is_open = true};
        http_server_adopt(server, loop_group_loop(refdata.loops, (unsigned)model_below(LOOPS)), pair[1]);
    }
    reader->is_asking = true;
    reader->had_trouble = primary_is_full || atomic_load(&holding->dictionary->state) != REFDATA_READY;
    reader->committed = committed;
    reader->demands = committed - 2 + (int64_t)model_below(5);
    reader->demands = reader->demands < 0 ? 0 : reader->demands;
    model_note("reader %td demands %lld", reader - readers, (long long)reader->demands);
    int len = snprintf(text, sizeof text, "GET /d/D%s HTTP/1.1\r\nHost: a\r\nX-Min-Version: %lld\r\n\r\n",
                       model_one_in(2) ? "?keys=k" : "", (long long)reader->demands);
    MODEL_CHECK(send(reader->client.fd, text, (size_t)len, 0) == len, "cannot send");
}

static void forget_reader(struct reader *reader)
{
    close(reader->client.fd);
    buf_deinit(&reader->client.in);
    *reader = (struct reader){0};
}

static void disconnect(void)
{
    struct reader *reader = &readers[model_below(CLIENTS)];
    if (reader->is_open)
        forget_reader(reader);
}

static void check_answer(struct reader *reader, const struct answer *answer)
{
    int64_t version = -1;
    model_note("reader %td has %d %.*s", reader - readers, answer->status,
               (int)(answer->body.len < 40 ? answer->body.len : 40), answer->body.ptr);
    switch (answer->status) {
    case 200:
        MODEL_CHECK(str_to_i64(answer->body, &version) && version >= reader->demands,
                    "%lld, but %lld was demanded", (long long)version, (long long)reader->demands);
        break;
    case 409:
        MODEL_CHECK(reader->demands > reader->committed, "%lld is committed, but said not to be",
                    (long long)reader->demands);
        break;
    default: MODEL_CHECK(answer->status == 503 && reader->had_trouble, "status %d", answer->status);
    }
    reader->is_asking = false;
}

static void read_answers(void)
{
    for (size_t i = 0; i < CLIENTS; i++) {
        struct reader *reader = &readers[i];
        if (!reader->is_open)
            continue;
        ssize_t got = recv(reader->client.fd, buf_reserve(&reader->client.in, 65536), 65536, 0);
        MODEL_CHECK(got > 0 || (got < 0 && errno == EAGAIN), "reader %zu was disconnected", i);
        if (got < 0)
            continue;
        buf_commit(&reader->client.in, (size_t)got);
        MODEL_CHECK(reader->is_asking, "an answer too many");
        struct answer answer = client_take(&reader->client);
        check_answer(reader, &answer);
    }
}

/* ---- turns ---- */

static void turn(void)
{
    loop_run_once(loop_group_loop(refdata.loops, (unsigned)model_below(LOOPS)), 0);
    read_answers();
}

static void turn_all(int times)
{
    for (int i = 0; i < times; i++)
        for (unsigned loop = 0; loop < LOOPS; loop++)
            loop_run_once(loop_group_loop(refdata.loops, loop), 0);
    read_answers();
}

/* A reader that waits for the primary too long is told so. */
static void pass_time(void)
{
    model_pass_ms((int64_t)model_below(60));
    if (question_count > 0)
        have_trouble();
    turn_all(2);
}

/* Once a version is here, nobody waits for it, but for those whose keys are being read from the primary. */
static void settle(void)
{
    turn_all(5);
    for (size_t i = 0; i < question_count; i++)
        if (questions[i].has_keys)
            return;
    for (size_t i = 0; i < CLIENTS; i++)
        MODEL_CHECK(!readers[i].is_asking || readers[i].demands > refdata_holding_version(holding),
                    "reader %zu waits for version %lld, which is here", i, (long long)readers[i].demands);
}

/* ---- life ---- */

static void begin(void)
{
    struct error error;
    refdata = (struct refdata){.loops = loop_group_create(LOOPS, 0), .own = refdata_table_create(4)};
    refdata.home = loop_group_loop(refdata.loops, 0);
    catalog->barrier.wait_ms = WAIT_MS;
    catalog->barrier.timeout_ms = TIMEOUT_MS;
    catalog->barrier.checks_per_second = 1000000;
    atomic_store(&refdata.catalog, catalog);
    atomic_store(&catalog->dictionaries[0]->state, REFDATA_READY);
    holding = refdata_holding_create(&refdata, STR("t"), catalog->dictionaries[0], LOOPS);
    refdata.own = refdata_table_add(refdata.own, holding);
    atomic_store(&refdata.table, refdata.own);
    committed = 1;
    question_count = 0;
    primary_is_full = false;
    cache_slot_publish(&holding->slot, snapshot_of(1), refdata.loops);
    router = http_router_create();
    struct http_server_config config = {
        .group = refdata.loops, .router = router, .limits = http_limits_default, .gate = gate};
    config.limits.idle_timeout_ms = 100000000;
    MODEL_CHECK(http_router_add(router, routes, &refdata, &error) == STATUS_OK, "no routes");
    MODEL_CHECK(http_server_create(&config, &server, &error) == STATUS_OK, "no server");
    memset(readers, 0, sizeof readers);
}

static void check(void)
{
    MODEL_CHECK(holding->barrier.definition ||
                    (STAILQ_EMPTY(&holding->barrier.asked) && STAILQ_EMPTY(&holding->barrier.queued)),
                "readers wait for a question that was not asked");
}

static void end(void)
{
    if (atomic_load(&holding->dictionary->state) != REFDATA_READY)
        refuse_definition();
    primary_is_full = false;
    for (int i = 0; i < 12; i++) {
        pass_time();
        while (question_count)
            answer_question();
        load_version();
        settle();
    }
    for (size_t i = 0; i < CLIENTS; i++) {
        MODEL_CHECK(!readers[i].is_asking, "reader %zu has no answer", i);
        if (readers[i].is_open)
            forget_reader(&readers[i]);
    }
    turn_all(4);
    while (question_count)
        answer_question();
    turn_all(4);
    MODEL_CHECK(holding->refs == 1, "%u references", holding->refs);
    MODEL_CHECK(STAILQ_EMPTY(&holding->barrier.queued) && STAILQ_EMPTY(&holding->barrier.asked),
                "asks are left");
    http_server_destroy(server);
    cache_slot_publish(&holding->slot, NULL, refdata.loops);
    refdata_holding_destroy(holding);
    loop_group_destroy(refdata.loops);
    http_router_destroy(router);
    free(refdata.own);
}

static void open_catalog(void)
{
    log_set_fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
    catalog = catalog_of(FILE_HEAD "    - code: D\n", NULL);
    for (size_t i = 0; i < 2; i++) {
        struct refdata_catalog *other = catalog_of(FILE_HEAD "    - code: D\n", NULL);
        others[i] = refdata_dictionary_ref(other->dictionaries[0]);
        refdata_catalog_unref(other);
    }
}

static void close_catalog(void)
{
    refdata_dictionary_unref(others[0]);
    refdata_dictionary_unref(others[1]);
    refdata_catalog_unref(catalog);
}

int main(void)
{
    static const struct model_operation operations[] = {
        {"demand", 30, ask_version},      {"disconnect", 4, disconnect},     {"turn", 40, turn},
        {"commit", 12, commit},           {"load", 10, load_version},        {"answer", 15, answer_question},
        {"pass time", 8, pass_time},      {"redefine", 2, redefine},         {"lose", 1, lose},
        {"refuse", 2, refuse_definition}, {"full primary", 2, fill_primary}, {"settle", 4, settle}};
    return model_main(&(struct model){.name = "barrier",
                                      .seeds = 2000,
                                      .steps = 100,
                                      .open = open_catalog,
                                      .close = close_catalog,
                                      .begin = begin,
                                      .check = check,
                                      .end = end,
                                      MODEL_OPERATIONS(operations)});
}
