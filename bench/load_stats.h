/*
 * What a run measures beside counts: a latency histogram (32 steps per power of two, so within 3 %), and the
 * processor time of other processes to the nanosecond. One thread writes a histogram; merge when it stopped.
 */
#ifndef BENCH_LOAD_STATS_H
#define BENCH_LOAD_STATS_H

#include <stdint.h>

enum { BENCH_HISTOGRAM_SLOTS = 60 * 32, BENCH_PIDS_MAX = 64 };

struct bench_histogram {
    uint64_t counts[BENCH_HISTOGRAM_SLOTS];
    uint64_t total;
};

void bench_histogram_add(struct bench_histogram *histogram, uint64_t value, uint64_t times);
void bench_histogram_merge(struct bench_histogram *into, const struct bench_histogram *from);

/* The value that `share` (0 to 1) of all values do not exceed; 0 when there are none. */
uint64_t bench_histogram_quantile(const struct bench_histogram *histogram, double share);

/* Processes whose time is summed, such as nginx's workers. */
struct bench_pids {
    int pids[BENCH_PIDS_MAX];
    int count;
};

/* Reads "12,34". Returns 0, or -1 when that is not a list of process ids. */
int bench_pids_parse(struct bench_pids *pids, const char *text);

/* User and system time of all of them so far. Returns 0, or -1 with a line on stderr when one is gone. */
int bench_pids_cpu(const struct bench_pids *pids, uint64_t *ns);

#endif
