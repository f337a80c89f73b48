/* Keys find their partition as Kafka's Java client finds it: its own test vectors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "bus/bus.h"

static const struct {
    struct str key;
    int32_t hash;
} vectors[] = {
    {STR("21"), -973932308},
    {STR("foobar"), -790332482},
    {STR("a-little-bit-long-string"), -985981536},
    {STR("a-little-bit-longer-string"), -1486304829},
    {STR("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8"), -58897971},
    {STR("abc"), 479470107},
};

static void test_murmur2_agrees_with_java(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++)
        assert_int_equal((int32_t)bus_murmur2(vectors[i].key), vectors[i].hash);
}

static void test_the_sign_is_dropped_not_negated(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++)
        for (unsigned partitions = 1; partitions < 20; partitions++)
            assert_int_equal(bus_partition_of(vectors[i].key, partitions),
                             (vectors[i].hash & INT32_MAX) % (int32_t)partitions);
}

static void test_any_bytes_are_a_key(void **state)
{
    (void)state;
    char bytes[256];
    bool hit[7] = {false};
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        hit[bus_partition_of(str_of(bytes, (size_t)i), 7)] = true;
    }
    for (int i = 0; i < 7; i++)
        assert_true(hit[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_murmur2_agrees_with_java),
        cmocka_unit_test(test_the_sign_is_dropped_not_negated),
        cmocka_unit_test(test_any_bytes_are_a_key),
    };
    return cmocka_run_group_tests_name("partition", tests, NULL, NULL);
}
