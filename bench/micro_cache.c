/* Micro-benchmark of src/cache: bytes an item, load, lookups hot and cold, deltas. Prints one figure a line;
 * ratios between lines of one run mean something, the figures alone depend on the machine.
 *
 *     micro_cache [largest item count, 5000000] */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "cache/internal.h"

#define KEY_BYTES 32
#define PAYLOAD_BYTES 160
#define LOOKUPS 2000000
#define MANY 100

static uint64_t random_state = 88172645463325252u;

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static double cpu_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double resident_bytes(void)
{
    unsigned long total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    if (!file || fscanf(file, "%lu %lu", &total, &resident) != 2)
        exit(1);
    fclose(file);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

static struct str make_key(char out[KEY_BYTES], uint64_t number)
{
    return str_of(out, (size_t)snprintf(out, KEY_BYTES, "item-%08llu", (unsigned long long)number));
}

static struct str make_payload(char out[PAYLOAD_BYTES], uint64_t number)
{
    return str_of(out, (size_t)snprintf(out, PAYLOAD_BYTES,
                                        "{\"name\": \"Item number %llu\", \"active\": true, \"rank\": %llu}",
                                        (unsigned long long)number, (unsigned long long)number % 1000));
}

static void put(struct cache_builder *builder, uint64_t number, uint64_t payload_number)
{
    char key[KEY_BYTES], payload[PAYLOAD_BYTES];

    if (cache_builder_put(builder, make_key(key, number), make_payload(payload, payload_number), NULL))
        exit(1);
}

/* Rows are made ahead of time in blocks, so that only the cache is measured. */
struct row {
    char key[KEY_BYTES], payload[PAYLOAD_BYTES];
    struct str key_str, payload_str;
};

static uint64_t shuffled(uint64_t i, uint64_t count)
{
    return i * 2654435761u % count; /* a prime above any count here, so every number comes once */
}

static struct cache_snapshot *load(uint64_t count, bool in_order, double *put_seconds, double *finish_seconds)
{
    enum { BLOCK = 4096 };
    struct row *rows = malloc(BLOCK * sizeof(*rows));
    struct cache_builder *builder = cache_builder_create(NULL, 0);
    struct cache_snapshot *snapshot;
    double started;

    *put_seconds = 0;
    for (uint64_t at = 0; at < count; at += BLOCK) {
        uint64_t end = at + BLOCK < count ? at + BLOCK : count;
        for (uint64_t i = at; i < end; i++) {
            struct row *row = &rows[i - at];
            uint64_t number = in_order ? i : shuffled(i, count);
            row->key_str = make_key(row->key, number);
            row->payload_str = make_payload(row->payload, number);
        }
        started = cpu_seconds();
        for (uint64_t i = at; i < end; i++)
            if (cache_builder_put(builder, rows[i - at].key_str, rows[i - at].payload_str, NULL))
                exit(1);
        *put_seconds += cpu_seconds() - started;
    }
    started = cpu_seconds();
    snapshot = cache_builder_finish(builder, 1);
    *finish_seconds = cpu_seconds() - started;
    free(rows);
    return snapshot;
}

/* ns a lookup of `distinct` keys spread over the dictionary, again and again: few stay in the CPU's caches,
 * many miss. The price of making the key is measured alone and taken off. */
static double find_ns(const struct cache_snapshot *snapshot, uint64_t count, size_t distinct)
{
    char(*keys)[KEY_BYTES] = malloc(distinct * KEY_BYTES);
    struct str *strs = malloc(distinct * sizeof(*strs));
    uint64_t found = 0;
    double started;

    for (size_t i = 0; i < distinct; i++)
        strs[i] = make_key(keys[i], next_random() % count);
    started = cpu_seconds();
    for (size_t i = 0; i < LOOKUPS; i++)
        found += cache_find(snapshot, strs[i % distinct]) != NULL;
    started = cpu_seconds() - started;
    if (found != LOOKUPS)
        exit(1);
    free(keys);
    free(strs);
    return started / LOOKUPS * 1e9;
}

static double find_many_ns(const struct cache_snapshot *snapshot, uint64_t count)
{
    enum { ROUNDS = 10000 };
    static char keys[MANY][KEY_BYTES];
    struct str strs[MANY];
    const struct cache_record *found[MANY];
    double spent = 0;

    for (int round = 0; round < ROUNDS; round++) {
        double started;
        for (size_t i = 0; i < MANY; i++)
            strs[i] = make_key(keys[i], next_random() % count);
        started = cpu_seconds();
        cache_find_many(snapshot, strs, MANY, found);
        spent += cpu_seconds() - started;
        if (!found[round % MANY])
            exit(1);
    }
    return spent / ROUNDS / MANY * 1e9;
}

static double walk_ns(const struct cache_snapshot *snapshot, uint64_t count)
{
    struct cache_cursor cursor;
    const struct cache_record *record;
    uint64_t bytes = 0;
    double started = cpu_seconds();

    cache_cursor_init(&cursor, snapshot, STR_NONE);
    while ((record = cache_cursor_next(&cursor)))
        bytes += cache_record_body(record).len;
    if (bytes != cache_snapshot_info(snapshot)->body_bytes)
        exit(1);
    return (cpu_seconds() - started) / (double)count * 1e9;
}

static void print_delta(struct cache_snapshot **snapshot, uint64_t count, unsigned changes)
{
    enum { ROUNDS = 50 };
    double spent = 0, copied = 0;

    for (unsigned round = 0; round < ROUNDS; round++) {
        double started = cpu_seconds();
        struct cache_builder *builder = cache_builder_create(*snapshot, 0);
        struct cache_snapshot *next;
        for (unsigned i = 0; i < changes; i++)
            put(builder, next_random() % count, next_random());
        copied += (double)cache_builder_copied_bytes(builder);
        next = cache_builder_finish(builder, 2);
        cache_snapshot_unref(*snapshot);
        *snapshot = next;
        spent += cpu_seconds() - started;
    }
    printf("delta of %u: %.1f us, %.1f KB copied\n", changes, spent / ROUNDS * 1e6, copied / ROUNDS / 1024);
}

static void print_size(uint64_t count)
{
    double before, growth, put_s, finish_s, bytes;
    struct cache_snapshot *snapshot;

    malloc_trim(0);
    before = resident_bytes();
    snapshot = load(count, false, &put_s, &finish_s);
    growth = resident_bytes() - before;
    bytes = (double)cache_snapshot_info(snapshot)->body_bytes;
    printf("\n%llu items, bodies of %.1f bytes\n", (unsigned long long)count, bytes / (double)count);
    printf("overhead: %.1f bytes an item resident, %.1f by its own account\n",
           (growth - bytes) / (double)count,
           ((double)cache_snapshot_info(snapshot)->memory_bytes - bytes) / (double)count);
    printf("load: %.3f s CPU = put %.3f + finish %.3f\n", put_s + finish_s, put_s, finish_s);
    printf("find: %.1f ns hot (100 keys), %.1f ns cold (all keys)\n", find_ns(snapshot, count, 100),
           find_ns(snapshot, count, LOOKUPS));
    printf("find_many of %d: %.1f ns a key cold\n", MANY, find_many_ns(snapshot, count));
    printf("cursor: %.1f ns a step\n", walk_ns(snapshot, count));
    print_delta(&snapshot, count, 1);
    print_delta(&snapshot, count, 10);
    print_delta(&snapshot, count, 1000);
    put_s = cpu_seconds();
    cache_snapshot_unref(snapshot);
    while (cache_chunks_mapped() > 0)
        usleep(1000);
    printf("free: %.3f s CPU\n", cpu_seconds() - put_s);
    snapshot = load(count, true, &put_s, &finish_s);
    printf("load in key order: %.3f s CPU = put %.3f + finish %.3f\n", put_s + finish_s, put_s, finish_s);
    cache_snapshot_unref(snapshot);
    while (cache_chunks_mapped() > 0)
        usleep(1000);
}

int main(int argc, char **argv)
{
    static const uint64_t counts[] = {10000, 1000000, 5000000};
    uint64_t largest = argc > 1 ? strtoull(argv[1], NULL, 10) : UINT64_MAX;

    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        if (counts[i] <= largest)
            print_size(counts[i]);
    return 0;
}
