/* The metrics of the process as a whole: the standard process_*, the build, the configuration, and the health of roles and
 * components. Those that the system counts are read for each scrape, on its thread. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "kernel/kernel_inside.h"

enum {
    CPU_SECONDS,
    START_TIME,
    RESIDENT,
    VIRTUAL,
    OPEN_FDS,
    MAX_FDS,
    THREADS,
    BUILD,
    RELOADS,
    RELOAD_IS_GOOD,
    RELOAD_TIME,
    ROLE_UP,
    COMPONENT_UP,
    FAMILIES
};
static struct metric_family families[FAMILIES] = {
    [CPU_SECONDS] = {.name = "process_cpu_seconds_total",
                     .help = "Processor time of the process, user and system, in seconds.",
                     .type = METRIC_COUNTER_READ},
    [START_TIME] = {.name = "process_start_time_seconds",
                    .help = "When the process started, in seconds since 1970.",
                    .type = METRIC_GAUGE},
    [RESIDENT] = {.name = "process_resident_memory_bytes",
                  .help = "Memory of the process that is in RAM, in bytes.",
                  .type = METRIC_GAUGE},
    [VIRTUAL] = {.name = "process_virtual_memory_bytes",
                 .help = "Address space of the process, in bytes.",
                 .type = METRIC_GAUGE},
    [OPEN_FDS] = {.name = "process_open_fds", .help = "Open file descriptors.", .type = METRIC_GAUGE},
    [MAX_FDS] = {.name = "process_max_fds",
                 .help = "File descriptors that the process may open.",
                 .type = METRIC_GAUGE},
    [THREADS] = {.name = "process_threads", .help = "Threads of the process.", .type = METRIC_GAUGE},
    [BUILD] = {.name = "freshet_build_info",
               .help = "1, with the version of the program and the commit it was built from.",
               .type = METRIC_GAUGE,
               .labels = {"version", "commit"}},
    [RELOADS] = {.name = "freshet_config_reloads_total",
                 .help = "Times the configuration file was read again, by result: accepted, refused.",
                 .type = METRIC_COUNTER,
                 .labels = {"result"}},
    [RELOAD_IS_GOOD] =
        {.name = "freshet_config_last_reload_successful",
         .help = "1 when the configuration file, as it was read last, is in force; 0 when it was refused.",
         .type = METRIC_GAUGE},
    [RELOAD_TIME] = {.name = "freshet_config_last_reload_success_timestamp_seconds",
                     .help = "When the configuration in force was read, in seconds since 1970.",
                     .type = METRIC_GAUGE},
    [ROLE_UP] = {.name = "freshet_role_up",
                 .help = "1 while the role can work, else 0, as in GET /actuator/health.",
                 .type = METRIC_GAUGE,
                 .labels = {"role"}},
    [COMPONENT_UP] = {.name = "freshet_component_up",
                      .help = "1 while the database, the engine or the keys can be used, else 0, as in GET"
                              " /actuator/health.",
                      .type = METRIC_GAUGE,
                      .labels = {"component"}},
};

static void set(int family, double value)
{
    metric_set(metric_series_get(&families[family], NULL), value);
}

void kernel_host_name(char *name, size_t bytes)
{
    char own[256] = "";
    const char *host = getenv("HOSTNAME");
    if (!host || !*host || !str_is_utf8(str_from(host)))
        host = gethostname(own, sizeof own - 1) == 0 ? own : "unknown";
    str_copy(name, bytes, str_from(host));
}

/* ---- what the program knows ---- */

static struct metric_series *reloads(struct str result)
{
    return metric_series_get(&families[RELOADS], &result);
}

static void note_config_in_force(void)
{
    set(RELOAD_IS_GOOD, 1);
    set(RELOAD_TIME, (double)(clock_unix_us() / 1000) / 1000);
}

void kernel_process_metrics_register(const char *commit)
{
    for (int i = 0; i < FAMILIES; i++)
        metrics_register(&families[i]);
    const struct str build[] = {STR(FRESHET_VERSION), str_from(commit ? commit : "unknown")};
    metric_set(metric_series_get(&families[BUILD], build), 1);
    (void)reloads(STR("accepted")), (void)reloads(STR("refused")); /* 0, not missing */
    note_config_in_force();
}

void kernel_process_reloaded(bool is_accepted)
{
    metric_add(reloads(is_accepted ? STR("accepted") : STR("refused")), 1);
    if (is_accepted)
        note_config_in_force();
    else
        set(RELOAD_IS_GOOD, 0);
}

/* ---- what the system knows ---- */

/* The content of a short file of /proc, ended by 0. */
static bool read_proc(const char *path, char *text, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t len = read(fd, text, bytes - 1);
    close(fd);
    text[len > 0 ? len : 0] = '\0';
    return len > 0;
}

/* In seconds since 1970. It is the same in each scrape, so it is read once. */
static double start_time(unsigned long long ticks_after_boot)
{
    static double start_s;
    struct timespec boot, wall;
    if (start_s == 0) {
        clock_gettime(CLOCK_BOOTTIME, &boot);
        clock_gettime(CLOCK_REALTIME, &wall);
        start_s = (double)(wall.tv_sec - boot.tv_sec) + (double)(wall.tv_nsec - boot.tv_nsec) / 1e9 +
                  (double)ticks_after_boot / (double)sysconf(_SC_CLK_TCK);
    }
    return start_s;
}

/* See proc(5): the name of the program may have spaces and parentheses, so fields are counted from the last one. */
static void update_stat(void)
{
    char text[1024];
    unsigned long user, system, bytes;
    unsigned long long started;
    long threads, pages;
    if (!read_proc("/proc/self/stat", text, sizeof text))
        return;
    const char *rest = strrchr(text, ')');
    if (!rest ||
        sscanf(rest + 1,
               " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %*d %*d %*d %*d %ld %*d %llu %lu %ld",
               &user, &system, &threads, &started, &bytes, &pages) != 6)
        return;
    set(CPU_SECONDS, (double)(user + system) / (double)sysconf(_SC_CLK_TCK));
    set(START_TIME, start_time(started));
    set(THREADS, (double)threads);
    set(VIRTUAL, (double)bytes);
    set(RESIDENT, (double)pages * (double)sysconf(_SC_PAGESIZE));
}

static void update_descriptors(void)
{
    struct rlimit limit;
    DIR *folder = opendir("/proc/self/fd");
    int count = -3; /* ".", ".." and its own */
    while (folder && readdir(folder))
        count++;
    if (folder)
        set(OPEN_FDS, count);
    if (folder)
        closedir(folder);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        set(MAX_FDS, (double)limit.rlim_cur);
}

/* ---- health ---- */

/* Lines of kernel_health_lines(). */
static void show_health(struct str lines, bool is_listed)
{
    struct str line, state, kind;
    while (str_split(&lines, '\n', &line)) {
        if (!str_split(&line, '\t', &state) || !str_split(&line, '\t', &kind))
            continue;
        struct metric_family *family = &families[str_eq(kind, STR("role")) ? ROLE_UP : COMPONENT_UP];
        struct metric_series *series = metric_series_get(family, &line);
        metric_set(series, str_eq(state, STR("1")));
        if (!is_listed)
            metric_series_drop(series);
    }
}

/* Drops the series of components that are gone, such as a database that was removed from the configuration. */
static void update_health(struct str lines, struct buf *shown)
{
    if (lines.len == 0 || str_eq(buf_str(shown), lines))
        return;
    show_health(buf_str(shown), false);
    show_health(lines, true);
    buf_clear(shown);
    buf_put_str(shown, lines);
}

void kernel_process_metrics_update(struct str health_lines, struct buf *shown)
{
    update_stat();
    update_descriptors();
    update_health(health_lines, shown);
}
