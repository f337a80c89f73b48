/* What the cgroup of the process lets it use, of version 1 or 2, and the processors that are left by it.
 *
 *     /proc/self/cgroup          "0::/a/b" (2), "4:memory:/a/b" or "2:cpu,cpuacct:/a/b" (1)
 *     /sys/fs/cgroup/a/b         the files of version 2; those of version 1 are below the name of their controller
 *
 * The limits of its parents hold too, so the least one counts. In a container the path may not exist below the mount: then the
 * root's limit holds. A file that is missing or cannot be read sets no limit. */
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "base/buf.h"
#include "kernel/kernel_inside.h"

enum { PATH_BYTES = 4096, NUMBER_BYTES = 64, THOUSAND = 1000 };

/* ---- files of one cgroup ---- */

/* The file's first line, without its end. */
static bool read_line(struct buf *text, const char *folder, const char *name, struct str *line)
{
    char path[PATH_BYTES];
    int len = snprintf(path, sizeof path, "%s/%s", folder, name);
    struct str rest;
    if (len < 0 || (size_t)len >= sizeof path || !buf_read_file(text, path, NUMBER_BYTES))
        return false;
    rest = buf_str(text);
    return str_split(&rest, '\n', line);
}

/* 0: there is none, as for "max" and "-1". */
static uint64_t number_in(const char *folder, const char *name)
{
    struct buf text = {0};
    struct str line;
    uint64_t number = 0;
    if (!read_line(&text, folder, name, &line) || !str_to_u64(line, &number))
        number = 0;
    buf_deinit(&text);
    return number;
}

static uint64_t thousandths(uint64_t quota_us, uint64_t period_us)
{
    if (quota_us == 0 || period_us == 0 || quota_us > UINT64_MAX / THOUSAND)
        return 0;
    uint64_t share = quota_us * THOUSAND / period_us;
    return share > 0 ? share : 1;
}

static uint64_t memory_of_v2(const char *folder)
{
    return number_in(folder, "memory.max");
}

static uint64_t memory_of_v1(const char *folder)
{
    return number_in(folder, "memory.limit_in_bytes");
}

/* "200000 100000": microseconds of processor time in each period; "max 100000": as much as there is. */
static uint64_t processors_of_v2(const char *folder)
{
    struct buf text = {0};
    struct str line, quota;
    uint64_t quota_us = 0, period_us = 0;
    bool has_both = read_line(&text, folder, "cpu.max", &line) && str_split(&line, ' ', &quota) &&
                    str_to_u64(quota, &quota_us) && str_to_u64(line, &period_us);
    buf_deinit(&text);
    return has_both ? thousandths(quota_us, period_us) : 0;
}

static uint64_t processors_of_v1(const char *folder)
{
    return thousandths(number_in(folder, "cpu.cfs_quota_us"), number_in(folder, "cpu.cfs_period_us"));
}

/* ---- the cgroup and its parents ---- */

struct resource {
    const char *controller; /* of version 1 */
    uint64_t (*of_v1)(const char *folder);
    uint64_t (*of_v2)(const char *folder);
};

static const struct resource memory = {"memory", memory_of_v1, memory_of_v2};
static const struct resource processors = {"cpu", processors_of_v1, processors_of_v2};

static uint64_t lesser(uint64_t limit, uint64_t found) /* 0: no limit */
{
    return found && (!limit || found < limit) ? found : limit;
}

static bool is_listed(struct str list, const char *name)
{
    struct str item;
    while (str_split(&list, ',', &item))
        if (str_eq(item, str_from(name)))
            return true;
    return false;
}

static uint64_t limit_below(const char *mount, struct str path, uint64_t (*read)(const char *folder))
{
    for (uint64_t least = 0;;) {
        char folder[PATH_BYTES];
        while (path.len && path.ptr[path.len - 1] == '/')
            path.len--;
        snprintf(folder, sizeof folder, "%s%.*s", mount, STR_ARG(path));
        least = lesser(least, read(folder));
        if (path.len == 0)
            return least;
        while (path.len && path.ptr[path.len - 1] != '/')
            path.len--;
    }
}

/* `root` is "" but in tests. */
static uint64_t limit_of(const struct resource *resource, const char *root)
{
    struct buf text = {0};
    struct str line, number, controllers;
    char mount[PATH_BYTES];
    uint64_t least = 0;
    snprintf(mount, sizeof mount, "%s/proc/self/cgroup", root);
    if (!buf_read_file(&text, mount, 65536))
        buf_clear(&text);
    for (struct str rest = buf_str(&text); str_split(&rest, '\n', &line);) {
        if (!str_split(&line, ':', &number) || !str_split(&line, ':', &controllers))
            continue;
        bool is_v2 = controllers.len == 0;
        if (!is_v2 && !is_listed(controllers, resource->controller))
            continue;
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s%s", root, is_v2 ? "" : "/",
                 is_v2 ? "" : resource->controller);
        least = lesser(least, limit_below(mount, line, is_v2 ? resource->of_v2 : resource->of_v1));
    }
    buf_deinit(&text);
    return least;
}

uint64_t kernel_cgroup_memory(const char *root)
{
    return limit_of(&memory, root);
}

uint64_t kernel_cgroup_processors(const char *root)
{
    uint64_t share = limit_of(&processors, root);
    return share / THOUSAND + (share % THOUSAND > 0);
}

/* ---- processors ---- */

unsigned kernel_processors(void)
{
    cpu_set_t allowed;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t count = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? (uint64_t)CPU_COUNT(&allowed)
                     : online > 0                                        ? (uint64_t)online
                                                                         : 1;
    uint64_t quota = kernel_cgroup_processors("");
    return (unsigned)(quota && quota < count ? quota : count);
}
