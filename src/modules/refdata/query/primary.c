/* Reads from the primary: the version alone, or version and keys in one REPEATABLE READ transaction. What the keys hold is a snapshot
 * that counts as an old version: nothing but its readers keeps it. */
#include "modules/refdata/query/query.h"

#include <stdlib.h>

#include "base/budget.h"
#include "base/clock.h"
#include "base/memory.h"
#include "modules/refdata/provider.h"

enum { ITEM_EXTRA_BYTES = 64 * 1024 }; /* of the largest item, beside its payload: it can always be read */

void refdata_primary_read(const struct refdata_dictionary *dictionary, struct str tenant, struct str keys,
                          size_t payload_bytes_max, int64_t deadline_ns,
                          struct refdata_primary_answer *answer)
{
    struct db_conn *conn = NULL;
    struct error *error = &answer->error;
    enum status status = db_acquire_long(dictionary->database->site.pool, deadline_ns, &conn, error);
    if (status == STATUS_OK && keys.len)
        status = db_begin(conn, DB_REPEATABLE_READ_ONLY, deadline_ns, error);
    if (status == STATUS_OK)
        status =
            refdata_loader_version(conn, tenant, dictionary->code, deadline_ns, &answer->committed, error);
    if (status == STATUS_OK && keys.len) {
        size_t share = budget_share(BUDGET_VERSIONS), one = payload_bytes_max + ITEM_EXTRA_BYTES;
        struct cache_builder *builder = cache_builder_create(NULL, share > one ? share : one);
        cache_builder_limit_payloads(builder, payload_bytes_max);
        status = refdata_provider_load(dictionary, tenant, keys, conn, deadline_ns, builder, error);
        if (status == STATUS_OK) {
            answer->snapshot = cache_builder_finish(builder, answer->committed.version);
            cache_snapshot_retire(answer->snapshot);
        } else {
            cache_builder_abandon(builder);
        }
    }
    db_release(conn); /* rolls back: nothing to commit */
    answer->status = status;
}

/* ---- on behalf of readers ---- */

struct question {
    struct worker_job job;
    struct refdata_dictionary *dictionary; /* referenced */
    struct arena arena;
    struct str tenant, keys;
    size_t payload_bytes_max;
    int64_t timeout_ms;
    struct refdata_primary_answer answer;
    void (*on_answer)(void *context, struct refdata_primary_answer *answer);
    void *context;
};

static void run_question(struct worker_job *job)
{
    struct question *question = (struct question *)job;
    refdata_primary_read(question->dictionary, question->tenant, question->keys, question->payload_bytes_max,
                         clock_deadline_ms(question->timeout_ms), &question->answer);
}

static void free_question(struct question *question)
{
    refdata_dictionary_unref(question->dictionary);
    arena_deinit(&question->arena);
    free(question);
}

static void question_done(struct worker_job *job)
{
    struct question *question = (struct question *)job;
    if (job->displaced)
        question->answer.status =
            error_set(&question->answer.error, STATUS_OVERLOADED, "too many reads from the primary at once");
    else if (job->cancelled)
        question->answer.status =
            error_set(&question->answer.error, STATUS_CANCELLED, "the process is stopping");
    question->on_answer(question->context, &question->answer);
    free_question(question);
}

bool refdata_primary_ask(struct refdata *refdata, struct refdata_dictionary *dictionary, struct str tenant,
                         struct str keys,
                         void (*on_answer)(void *context, struct refdata_primary_answer *answer),
                         void *context)
{
    struct question *question = memory_zalloc(sizeof *question);
    question->job = (struct worker_job){
        .loop = refdata->home, .share = hash_seeded(tenant), .run = run_question, .done = question_done};
    question->dictionary = refdata_dictionary_ref(dictionary);
    question->arena = ARENA(512);
    question->tenant = arena_str(&question->arena, tenant);
    question->keys = arena_str(&question->arena, keys);
    question->payload_bytes_max = refdata_payload_bytes_max(atomic_load(&refdata->catalog));
    question->timeout_ms = atomic_load(&refdata->catalog)->barrier.timeout_ms;
    question->on_answer = on_answer;
    question->context = context;
    if (worker_pool_submit(refdata->readers, &question->job))
        return true;
    free_question(question);
    return false;
}
