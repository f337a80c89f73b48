/* limits.memory: how much memory clients may make the process hold, by default a quarter of what the machine or the cgroup of the
 * process has. What the process itself has taken by the end of its start is part of it; dictionaries are not. Memory that was freed
 * after a burst is returned to the system a second later. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/budget.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "kernel/kernel_inside.h"
#include "loop/task.h"

enum {
    TRIM_DELAY_MS = 1000,
    DEFAULT_PART = 4,               /* a quarter */
    ARENAS_MAX = 4,                 /* of the allocator: memory that one has freed is not used by another */
    MAPPED_BYTES_MIN = 1024 * 1024, /* larger blocks are returned to the system when they are freed */
};
#define MIB ((uint64_t)1024 * 1024)
#define OWN_BYTES_LATER \
    (16 * MIB) /* that the process takes for itself after its start: stacks, connections */
#define LIMIT_MIN (64 * MIB)

/* ---- how much there is ---- */

/* To this process: the machine's, or its cgroup's if that is less. */
static uint64_t memory_available(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    uint64_t available = pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : 1024 * MIB;
    uint64_t limit = kernel_cgroup_memory("");
    return limit && limit < available ? limit : available;
}

/* The anonymous memory of the process in bytes: without mapped files, such as the program. */
static uint64_t resident_bytes(void)
{
    struct buf text = {0};
    struct str line, name;
    uint64_t kib = 0;
    if (buf_read_file(&text, "/proc/self/status", 65536))
        for (struct str rest = buf_str(&text); str_split(&rest, '\n', &line);)
            if (str_split(&line, ':', &name) && str_eq(name, STR("RssAnon"))) {
                line = str_trim(line);
                (void)(str_split(&line, ' ', &name) && str_to_u64(name, &kib));
            }
    buf_deinit(&text);
    return kib * 1024;
}

/* ---- settings ---- */

/* The part of the bodies that one tenant may have must hold one body. */
static uint64_t least_limit(const struct config *config)
{
    const struct kernel_http_settings *http = config_section(config, "http");
    /* A third of the limit, half of that for a tenant. */
    uint64_t bodies = 8 * (uint64_t)http->limits.body_bytes_max;
    return bodies > LIMIT_MIN ? bodies : LIMIT_MIN;
}

enum status kernel_memory_check(const struct config *config, struct error *error)
{
    const struct kernel_limit_settings *limits = config_section(config, "limits");
    if (limits->memory_bytes && (uint64_t)limits->memory_bytes < least_limit(config))
        return config_error_at(
            config, limits->memory_place, "limits.memory", error,
            "must be at least %llu MiB: the larger of %d MiB and eight times http.limits.body",
            (unsigned long long)((least_limit(config) + MIB - 1) / MIB), (int)(LIMIT_MIN / MIB));
    return STATUS_OK;
}

/* ---- giving memory back ---- */

struct kernel_memory {
    struct task *trim;
    bool is_due; /* the task's */
};

static struct metric_family trims_family = {
    .name = "freshet_memory_trims_total",
    .help = "Times that memory was returned to the system after a burst."};

/* Woken when much memory was freed; trims TRIM_DELAY_MS later, when the rest of a burst is freed too. */
static int64_t trim_step(struct task *task, void *context)
{
    struct kernel_memory *memory = context;
    memory->is_due = !memory->is_due;
    if (memory->is_due) {
        task_hold(task, TASK_MS(TRIM_DELAY_MS));
        return TASK_MS(TRIM_DELAY_MS);
    }
    budget_freed_reset();
    malloc_trim(0);
    metric_add(metric_series_get(&trims_family, NULL), 1);
    return TASK_IDLE;
}

static void on_freed(void *context)
{
    struct kernel_memory *memory = context;
    task_wake(memory->trim);
}

void kernel_memory_prepare(void)
{
    (void)mallopt(M_ARENA_MAX, ARENAS_MAX);
    /* By default the allocator raises its limit to the largest block that was freed, up to 32 MiB. Such blocks then lie between small
     * ones. */
    (void)mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES_MIN);
    (void)mallopt(M_TRIM_THRESHOLD, 2 * MAPPED_BYTES_MIN);
}

struct kernel_memory *kernel_memory_create(struct kernel *kernel)
{
    const struct kernel_limit_settings *limits = config_section(kernel->config, "limits");
    uint64_t bytes = (uint64_t)limits->memory_bytes, own = resident_bytes() + OWN_BYTES_LATER;
    struct kernel_memory *memory = memory_zalloc(sizeof *memory);
    if (!bytes)
        bytes = memory_available() / DEFAULT_PART;
    if (bytes < least_limit(kernel->config))
        bytes = least_limit(kernel->config);
    budget_metrics_register();
    metrics_register(&trims_family);
    (void)metric_series_get(&trims_family, NULL);
    budget_set_limit(bytes - (own < bytes / 2 ? own : bytes / 2));
    log_info("memory_budget", LOG_INT("bytes", bytes), LOG_INT("own", own));
    memory->trim = task_create(&(struct task_config){.name = "memory_trim",
                                                     .loop = loop_group_loop(kernel->loops, 0),
                                                     .pool = kernel->workers,
                                                     .run = trim_step,
                                                     .context = memory});
    task_start(memory->trim, TASK_IDLE);
    budget_on_freed(on_freed, memory);
    return memory;
}

void kernel_memory_stop(struct kernel_memory *memory)
{
    if (!memory)
        return;
    (void)task_stop(memory->trim, TASK_FOREVER);
}

void kernel_memory_destroy(struct kernel_memory *memory)
{
    if (!memory)
        return;
    budget_on_freed(NULL, NULL);
    task_destroy(memory->trim);
    free(memory);
}
