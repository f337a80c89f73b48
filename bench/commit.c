/*
 * What a commit costs without freshet: one connection by libpq, one row a transaction, one after the other.
 *
 *     commit POSTGRES_URL SECONDS        prints one line of JSON
 *
 * The table is `bench_commit`, made when it is not there; each commit updates one of its rows by a prepared
 * statement, so the round trip is as short as libpq makes it.
 */
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "load_stats.h"

enum { ROWS = 1000 };

static const char setup[] =
    "set client_min_messages = warning;"
    "create table if not exists bench_commit (id integer primary key, n bigint not null);"
    "insert into bench_commit select i, 0 from generate_series(0, 999) i on conflict do nothing";

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000U + (uint64_t)time.tv_nsec;
}

static void check(PGconn *conn, PGresult *result)
{
    ExecStatusType status = PQresultStatus(result);
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) {
        fprintf(stderr, "commit: %s", PQerrorMessage(conn));
        exit(1);
    }
    PQclear(result);
}

static void commit_one(PGconn *conn, int number)
{
    char id[16];
    const char *values[] = {id};
    snprintf(id, sizeof id, "%d", number % ROWS);
    check(conn, PQexecPrepared(conn, "one", 1, values, NULL, NULL, 0));
}

int main(int argc, char **argv)
{
    static struct bench_histogram latency;
    if (argc != 3) {
        fputs("usage: commit POSTGRES_URL SECONDS\n", stderr);
        return 2;
    }
    PGconn *conn = PQconnectdb(argv[1]);
    check(conn, PQexec(conn, setup));
    check(conn, PQprepare(conn, "one", "update bench_commit set n = n + 1 where id = $1::integer", 1, NULL));
    uint64_t start = now_ns();
    uint64_t end = start + (uint64_t)(atof(argv[2]) * 1e9);
    uint64_t before = start;
    for (int i = 0; before < end; i++) {
        commit_one(conn, i);
        uint64_t after = now_ns();
        bench_histogram_add(&latency, after - before, 1);
        before = after;
    }
    printf("{\"commits\":%llu,\"p50_us\":%.1f,\"p99_us\":%.1f,\"rps\":%.0f}\n",
           (unsigned long long)latency.total, (double)bench_histogram_quantile(&latency, 0.5) / 1e3,
           (double)bench_histogram_quantile(&latency, 0.99) / 1e3,
           (double)latency.total * 1e9 / (double)(before - start));
    PQfinish(conn);
    return 0;
}
