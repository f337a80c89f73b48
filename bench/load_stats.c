/* Latency histogram and processor time of other processes; see the header. */
#include "load_stats.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STEP_BITS = 5, STEPS = 1 << STEP_BITS };

/* Values below 32 have a slot each; above, the top five bits after the leading one pick the step. */
static unsigned slot_of(uint64_t value)
{
    if (value < STEPS) {
        return (unsigned)value;
    }
    unsigned top = 63U - (unsigned)__builtin_clzll(value);
    unsigned shift = top - STEP_BITS;
    unsigned slot = (shift + 1) * STEPS + (unsigned)((value >> shift) & (STEPS - 1));
    return slot < BENCH_HISTOGRAM_SLOTS ? slot : BENCH_HISTOGRAM_SLOTS - 1;
}

static uint64_t slot_top(unsigned slot)
{
    if (slot < STEPS) {
        return slot;
    }
    unsigned shift = slot / STEPS - 1;
    return ((uint64_t)(STEPS + slot % STEPS + 1) << shift) - 1;
}

void bench_histogram_add(struct bench_histogram *histogram, uint64_t value, uint64_t times)
{
    histogram->counts[slot_of(value)] += times;
    histogram->total += times;
}

void bench_histogram_merge(struct bench_histogram *into, const struct bench_histogram *from)
{
    for (int i = 0; i < BENCH_HISTOGRAM_SLOTS; i++) {
        into->counts[i] += from->counts[i];
    }
    into->total += from->total;
}

uint64_t bench_histogram_quantile(const struct bench_histogram *histogram, double share)
{
    uint64_t wanted = (uint64_t)(share * (double)histogram->total);
    uint64_t seen = 0;
    for (unsigned i = 0; i < BENCH_HISTOGRAM_SLOTS; i++) {
        seen += histogram->counts[i];
        if (seen > wanted || (seen == histogram->total && seen > 0)) {
            return slot_top(i);
        }
    }
    return 0;
}

int bench_pids_parse(struct bench_pids *pids, const char *text)
{
    pids->count = 0;
    for (const char *at = text;;) {
        char *end = NULL;
        long pid = strtol(at, &end, 10);
        if (end == at || pid <= 0 || pid > 1 << 30 || pids->count == BENCH_PIDS_MAX) {
            return -1;
        }
        pids->pids[pids->count++] = (int)pid;
        if (*end == '\0') {
            return 0;
        }
        if (*end != ',') {
            return -1;
        }
        at = end + 1;
    }
}

int bench_pids_cpu(const struct bench_pids *pids, uint64_t *ns)
{
    *ns = 0;
    for (int i = 0; i < pids->count; i++) {
        clockid_t clock;
        struct timespec time;
        int error = clock_getcpuclockid(pids->pids[i], &clock);
        if (error == 0 && clock_gettime(clock, &time) != 0) {
            error = errno;
        }
        if (error != 0) {
            fprintf(stderr, "load: processor time of process %d: %s\n", pids->pids[i], strerror(error));
            return -1;
        }
        *ns += (uint64_t)time.tv_sec * 1000000000U + (uint64_t)time.tv_nsec;
    }
    return 0;
}
