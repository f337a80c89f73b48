/* Limits of cgroups, out of files as the kernel writes them, each with a newline at its end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernel/kernel_inside.h"

enum { PATH_BYTES = 256, MADE_MAX = 64 };

static char root[64];
static char made[MADE_MAX][PATH_BYTES]; /* in the order of their making: removed from the end */
static size_t made_count;

static void remember(const char *path)
{
    assert_true(made_count < MADE_MAX);
    snprintf(made[made_count++], PATH_BYTES, "%s", path);
}

/* With the folders above it. */
static void write_file(const char *path, const char *text)
{
    char whole[PATH_BYTES];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    for (char *at = whole + strlen(root) + 1; (at = strchr(at, '/')); at++) {
        *at = '\0';
        if (mkdir(whole, 0700) == 0)
            remember(whole);
        *at = '/';
    }
    if (access(whole, F_OK) != 0)
        remember(whole);
    FILE *file = fopen(whole, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    fclose(file);
}

static int make_root(void **state)
{
    (void)state;
    made_count = 0;
    snprintf(root, sizeof root, "/tmp/freshet-cgroup-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    while (made_count > 0)
        (void)remove(made[--made_count]);
    return rmdir(root);
}

static void test_a_system_without_cgroups_sets_no_limit(void **state)
{
    (void)state;
    assert_int_equal(kernel_cgroup_processors(root), 0);
    assert_int_equal(kernel_cgroup_memory(root), 0);
    assert_true(kernel_processors() >= 1);
    assert_true(kernel_processors() <= (unsigned)sysconf(_SC_NPROCESSORS_CONF));
}

static void test_the_quota_of_version_2_is_rounded_up(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        unsigned processors;
    } rows[] = {
        {"200000 100000\n", 2},
        {"150000 100000\n", 2},
        {"1000 100000\n", 1},
        {"25000 50000\n", 1},
        {"1 1000000\n", 1},
        {"max 100000\n", 0},
        {"100000 0\n", 0},
        {"100000\n", 0},
        {"", 0},
        {"\n", 0},
        {"-1 100000\n", 0},
    };
    write_file("/proc/self/cgroup", "0::/\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_file("/sys/fs/cgroup/cpu.max", rows[i].text);
        assert_int_equal(kernel_cgroup_processors(root), rows[i].processors);
    }
}

static void test_the_quota_of_version_1_is_found_beside_other_controllers(void **state)
{
    (void)state;
    write_file("/proc/self/cgroup", "5:memory:/pod\n3:cpuset:/pod\n2:cpuacct,cpu:/pod\n0::/\n");
    write_file("/sys/fs/cgroup/cpu/pod/cpu.cfs_period_us", "100000\n");
    write_file("/sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us", "-1\n");
    write_file("/sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "268435456\n");
    assert_int_equal(kernel_cgroup_processors(root), 0);
    assert_int_equal(kernel_cgroup_memory(root), 268435456);
    write_file("/sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us", "250000\n");
    assert_int_equal(kernel_cgroup_processors(root), 3);
}

static void test_the_least_limit_of_a_cgroup_and_its_parents_holds(void **state)
{
    (void)state;
    write_file("/proc/self/cgroup", "0::/a/b/c\n");
    write_file("/sys/fs/cgroup/a/b/c/cpu.max", "800000 100000\n");
    write_file("/sys/fs/cgroup/a/b/cpu.max", "300000 100000\n");
    write_file("/sys/fs/cgroup/a/cpu.max", "max 100000\n");
    write_file("/sys/fs/cgroup/a/b/c/memory.max", "max\n");
    write_file("/sys/fs/cgroup/a/memory.max", "536870912\n");
    assert_int_equal(kernel_cgroup_processors(root), 3);
    assert_int_equal(kernel_cgroup_memory(root), 536870912);
}

/* A container without a namespace of its own sees the path of the machine, and its own cgroup as the root of the mount. */
static void test_a_path_that_is_not_mounted_has_the_limits_of_the_root(void **state)
{
    (void)state;
    write_file("/proc/self/cgroup", "0::/kubepods/pod1/x\n");
    write_file("/sys/fs/cgroup/cpu.max", "400000 100000\n");
    write_file("/sys/fs/cgroup/memory.max", "1073741824\n");
    assert_int_equal(kernel_cgroup_processors(root), 4);
    assert_int_equal(kernel_cgroup_memory(root), 1073741824);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, make_root, remove_root)
    const struct CMUnitTest tests[] = {
        T(test_a_system_without_cgroups_sets_no_limit),
        T(test_the_quota_of_version_2_is_rounded_up),
        T(test_the_quota_of_version_1_is_found_beside_other_controllers),
        T(test_the_least_limit_of_a_cgroup_and_its_parents_holds),
        T(test_a_path_that_is_not_mounted_has_the_limits_of_the_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
