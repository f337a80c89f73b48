/* Reads from the primary: the version alone, or version and keys in one REPEATABLE READ transaction. */
#include "modules/refdata/query/primary.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "modules/refdata/provider.h"

static enum status read_keys(const struct refdata_dictionary *dictionary, struct str tenant, struct str keys,
                             struct db_conn *conn, int64_t deadline_ns, struct refdata_primary_answer *answer)
{
    struct cache_builder *builder = cache_builder_create(NULL, 0);
    enum status status =
        refdata_provider_load(dictionary, tenant, keys, conn, deadline_ns, builder, &answer->error);
    if (status == STATUS_OK)
        answer->snapshot = cache_builder_finish(builder, answer->committed.version);
    else
        cache_builder_abandon(builder);
    return status;
}

static enum status read_in_transaction(const struct refdata_dictionary *dictionary, struct str tenant,
                                       struct str keys, struct db_conn *conn, int64_t deadline_ns,
                                       struct refdata_primary_answer *answer)
{
    enum status status = db_begin(conn, DB_REPEATABLE_READ_ONLY, deadline_ns, &answer->error);
    if (status == STATUS_OK)
        status = refdata_loader_version(conn, tenant, dictionary->code, deadline_ns, &answer->committed,
                                        &answer->error);
    if (status == STATUS_OK)
        status = read_keys(dictionary, tenant, keys, conn, deadline_ns, answer);
    db_rollback(conn); /* read only: nothing to commit */
    return status;
}

void refdata_primary_read(const struct refdata_dictionary *dictionary, struct str tenant, struct str keys,
                          int64_t deadline_ns, struct refdata_primary_answer *answer)
{
    struct db_conn *conn = NULL;
    answer->status = db_acquire_long(dictionary->database->site.pool, deadline_ns, &conn, &answer->error);
    if (answer->status == STATUS_OK && keys.len)
        answer->status = read_in_transaction(dictionary, tenant, keys, conn, deadline_ns, answer);
    else if (answer->status == STATUS_OK)
        answer->status = refdata_loader_version(conn, tenant, dictionary->code, deadline_ns,
                                                &answer->committed, &answer->error);
    if (conn)
        db_release(conn);
}

/* ---- on behalf of readers ---- */

struct question {
    struct worker_job job;
    struct refdata_dictionary *dictionary; /* referenced */
    struct arena arena;
    struct str tenant, keys;
    int64_t timeout_ms;
    struct refdata_primary_answer answer;
    void (*on_answer)(void *context, struct refdata_primary_answer *answer);
    void *context;
};

static void run_question(struct worker_job *job)
{
    struct question *question = (struct question *)job;
    refdata_primary_read(question->dictionary, question->tenant, question->keys,
                         clock_deadline_ms(question->timeout_ms), &question->answer);
}

static void question_done(struct worker_job *job)
{
    struct question *question = (struct question *)job;
    if (job->cancelled)
        question->answer.status =
            error_set(&question->answer.error, STATUS_CANCELLED, "the process is stopping");
    question->on_answer(question->context, &question->answer);
    refdata_dictionary_unref(question->dictionary);
    arena_deinit(&question->arena);
    free(question);
}

bool refdata_primary_ask(struct refdata *refdata, struct refdata_dictionary *dictionary, struct str tenant,
                         struct str keys,
                         void (*on_answer)(void *context, struct refdata_primary_answer *answer),
                         void *context)
{
    struct question *question = memory_zalloc(sizeof *question);
    question->job = (struct worker_job){.loop = refdata->home, .run = run_question, .done = question_done};
    question->dictionary = refdata_dictionary_ref(dictionary);
    arena_init(&question->arena, 512);
    question->tenant = arena_str(&question->arena, tenant);
    question->keys = arena_str(&question->arena, keys);
    question->timeout_ms = refdata->barrier.timeout_ms;
    question->on_answer = on_answer;
    question->context = context;
    if (worker_pool_submit(refdata->readers, &question->job))
        return true;
    refdata_dictionary_unref(dictionary);
    arena_deinit(&question->arena);
    free(question);
    return false;
}
