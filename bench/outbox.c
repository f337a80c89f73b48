/*
 * What publishing an event costs, when publishing itself costs nothing.
 *
 *     outbox POSTGRES_URL events|deliveries BATCH COUNT     the engine, until COUNT verdicts are committed
 *     outbox POSTGRES_URL bare TABLE BATCH COUNT            seed 004's claim and finalize, one connection
 *
 * Prints one line of JSON. Both do the same to as many rows: claimed, then marked as published, BATCH at a time, in
 * transactions that wait for no disk. The bare one keeps no order, has no fence and knows no bad event: it is the least
 * that the database can be asked for.
 */
#include <libpq-fe.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "outbox/outbox.h"

/* ---- the engine ---- */

#define CLAIM_COLUMNS                                                                                    \
    .published_at = "published_at", .created_at = "created_at", .attempts = "attempt_count",             \
    .claims = "claim_count", .claim_id = "claim_id", .locked_by = "locked_by", .locked_at = "locked_at", \
    .locked_until = "lease_until", .next_attempt_at = "next_retry_at", .last_error = "last_error"

static const struct outbox_table tables[] = {
    {.module = "events",
     .name = "bench.events",
     .id = {"event_id", "uuid"},
     .aggregate = {{"aggregate_key", "text"}},
     .sequence = "sequence",
     .turn = "aggregate_key",
     .turn_end = "/",
     .event_type = "e.event_type",
     .payload = "e.payload",
     .size = "pg_column_size(e.payload)",
     .extra = {"e.tenant_id", "e.traceparent"},
     .words = {"status", "PENDING", "IN_FLIGHT", "PUBLISHED", "FAILED"},
     CLAIM_COLUMNS},
    {.module = "deliveries",
     .name = "bench.deliveries",
     .id = {"event_id", "uuid"},
     .event_type = "e.event_type",
     .payload = "e.payload",
     .size = "pg_column_size(e.payload)",
     .extra = {"e.tenant_id", "e.traceparent"},
     .words = {"status", "PENDING", "IN_FLIGHT", "PUBLISHED", "FAILED"},
     CLAIM_COLUMNS},
};

struct drain {
    pthread_mutex_t lock;
    pthread_cond_t done;
    size_t published, wanted, batches;
};

static void publish(void *context, struct outbox_batch *batch)
{
    struct drain *drain = context; /* the results are OUTBOX_DONE initially */
    pthread_mutex_lock(&drain->lock);
    drain->batches++;
    drain->published += batch->count;
    if (drain->published >= drain->wanted)
        pthread_cond_signal(&drain->done);
    pthread_mutex_unlock(&drain->lock);
}

static void *run_loop(void *loop)
{
    loop_run(loop);
    return NULL;
}

static void print(size_t events, size_t batches, int64_t took_ns)
{
    printf("{\"events\":%zu,\"batches\":%zu,\"seconds\":%.4f,\"rate\":%.0f}\n", events, batches,
           (double)took_ns / 1e9, (double)events * 1e9 / (double)took_ns);
}

static int drain_by_engine(const char *url, const struct outbox_table *table, int64_t batch, size_t count)
{
    struct drain drain = {
        .lock = PTHREAD_MUTEX_INITIALIZER, .done = PTHREAD_COND_INITIALIZER, .wanted = count};
    const struct outbox_settings settings = {
        .poll_ms = 1000, .batch = batch, .lease_ms = 30000, .attempts_max = 10};
    const struct db_target target = {.name = "bench",
                                     .url = str_from(url),
                                     .connections_max = 2,
                                     .connect_timeout_ms = 5000,
                                     .statement_timeout_ms = 30000,
                                     .idle_timeout_ms = 60000,
                                     .backoff_min_ms = 100,
                                     .backoff_max_ms = 1000,
                                     .fixed_plans = true};
    struct loop *loop = loop_create(0, 0);
    struct worker_pool *workers = worker_pool_create("outbox", 2, 64);
    struct error error = {0};
    struct outbox *outbox;
    pthread_t thread;
    if (outbox_create(&(struct outbox_config){.table = table,
                                              .settings = &settings,
                                              .loop = loop,
                                              .workers = workers,
                                              .target = &target,
                                              .context = &drain,
                                              .publish = publish},
                      &outbox, &error) != STATUS_OK) {
        fprintf(stderr, "outbox: %s\n", error.message);
        return 1;
    }
    int64_t began_ns = clock_mono_ns();
    outbox_start(outbox);
    pthread_create(&thread, NULL, run_loop, loop);
    pthread_mutex_lock(&drain.lock);
    while (drain.published < drain.wanted)
        pthread_cond_wait(&drain.done, &drain.lock);
    pthread_mutex_unlock(&drain.lock);
    outbox_stop(outbox, 10000); /* settles the last batch */
    print(drain.published, drain.batches, clock_mono_ns() - began_ns);
    worker_pool_stop(workers);
    loop_stop(loop);
    pthread_join(thread, NULL);
    outbox_destroy(outbox);
    worker_pool_destroy(workers);
    loop_destroy(loop);
    return 0;
}

/* ---- the bare statements ---- */

static PGresult *must(PGconn *conn, PGresult *result)
{
    ExecStatusType status = PQresultStatus(result);
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) {
        fprintf(stderr, "outbox: %s", PQerrorMessage(conn));
        exit(1);
    }
    return result;
}

static void prepare(PGconn *conn, const char *table, long batch)
{
    char text[2048];
    PQclear(must(conn, PQexec(conn, "set synchronous_commit = off")));
    snprintf(
        text, sizeof text,
        "with cte as (select event_id from %s where (status = 'PENDING' and (next_retry_at is null or"
        " next_retry_at <= now())) or (status = 'IN_FLIGHT' and (lease_until is null or lease_until <= now()))"
        " order by created_at limit %ld for update skip locked)"
        " update %s e set status = 'IN_FLIGHT', locked_by = $1, locked_at = now(),"
        " lease_until = now() + interval '30 seconds', last_error = null"
        " from cte where e.event_id = cte.event_id"
        " returning e.event_id, e.event_type, e.payload, e.attempt_count",
        table, batch, table);
    PQclear(must(conn, PQprepare(conn, "claim", text, 0, NULL)));
    snprintf(text, sizeof text,
             "update %s set status = 'PUBLISHED', published_at = now(), lease_until = null"
             " where event_id = any($1::uuid[]) and locked_by = $2",
             table);
    PQclear(must(conn, PQprepare(conn, "finalize", text, 0, NULL)));
}

/* How many it were. */
static size_t claim_and_finalize(PGconn *conn, char *ids)
{
    const char *worker[] = {"bench"};
    PGresult *rows = must(conn, PQexecPrepared(conn, "claim", 1, worker, NULL, NULL, 0));
    size_t count = (size_t)PQntuples(rows), at = 0;
    ids[at++] = '{';
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            ids[at++] = ',';
        memcpy(ids + at, PQgetvalue(rows, (int)i, 0), 36);
        at += 36;
    }
    memcpy(ids + at, "}", 2);
    PQclear(rows);
    const char *values[] = {ids, "bench"};
    PQclear(must(conn, PQexecPrepared(conn, "finalize", 2, values, NULL, NULL, 0)));
    return count;
}

static int drain_bare(const char *url, const char *table, long batch, size_t wanted)
{
    PGconn *conn = PQconnectdb(url);
    char *ids = malloc((size_t)batch * 37 + 3);
    size_t count = 0, batches = 0, found = 1;
    if (PQstatus(conn) != CONNECTION_OK || !ids)
        return 1;
    int64_t began_ns = clock_mono_ns();
    prepare(conn, table, batch);
    for (; count < wanted && found > 0; batches++)
        count += found = claim_and_finalize(conn, ids);
    print(count, batches, clock_mono_ns() - began_ns);
    free(ids);
    PQfinish(conn);
    return 0;
}

int main(int argc, char **argv)
{
    log_set_level(LOG_LEVEL_WARN);
    if (argc == 6 && strcmp(argv[2], "bare") == 0)
        return drain_bare(argv[1], argv[3], atol(argv[4]), (size_t)atol(argv[5]));
    for (size_t i = 0; argc == 5 && i < sizeof tables / sizeof *tables; i++)
        if (strcmp(argv[2], tables[i].module) == 0)
            return drain_by_engine(argv[1], &tables[i], atol(argv[3]), (size_t)atol(argv[4]));
    fputs("usage: outbox POSTGRES_URL events|deliveries BATCH COUNT\n"
          "       outbox POSTGRES_URL bare TABLE BATCH COUNT\n",
          stderr);
    return 2;
}
