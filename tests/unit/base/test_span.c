/* C9: spans are recorded for sampled traces alone, in rings that are bounded. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/span.h"

#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"
#define PARENT "00f067aa0ba902b7"
#define SAMPLED STR("00-" TRACE "-" PARENT "-01")
#define NOT_SAMPLED STR("00-" TRACE "-" PARENT "-00")

enum { RING = 8, ALL = 100000, TAKEN_MAX = 1000 };

static struct span taken[TAKEN_MAX];
static size_t taken_count;
static atomic_uint half_full; /* any thread may find its ring half full */

static void keep(void *context, const struct span *span)
{
    (void)context;
    taken[taken_count++] = *span;
}

static size_t take(size_t max)
{
    taken_count = 0;
    return span_take(max, keep, NULL);
}

static void on_half_full(void *context)
{
    atomic_fetch_add((atomic_uint *)context, 1);
}

static int open_all(void **state)
{
    (void)state;
    half_full = 0;
    span_open(&(struct span_settings){
        .ring_spans = RING, .sample_share = ALL, .on_half_full = on_half_full, .context = &half_full});
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    take(TAKEN_MAX);
    span_close();
    return 0;
}

static struct trace trace_of(struct str text)
{
    struct trace trace;
    assert_true(trace_parse(text, &trace));
    return trace;
}

static void record(const char *name)
{
    struct trace parent = trace_of(SAMPLED);
    struct span span;
    span_begin(&span, SPAN_CLIENT, name, &parent);
    span_end(&span);
}

static void a_span_is_the_child_of_its_parent(void **state)
{
    (void)state;
    struct trace parent = trace_of(SAMPLED);
    struct span span;
    span_begin(&span, SPAN_CLIENT, "call", &parent);
    assert_memory_equal(span.trace.trace_id, parent.trace_id, sizeof parent.trace_id);
    assert_memory_not_equal(span.trace.span_id, parent.span_id, sizeof parent.span_id);
    assert_memory_equal(span.parent_id, parent.span_id, sizeof parent.span_id);
    span_put_str(&span, "text", STR("value"));
    span_put_str(&span, "empty", STR(""));
    span_put_int(&span, "number", -7);
    span_fail(&span, STR("timeout"));
    span_end(&span);
    span_end(&span); /* once */
    assert_int_equal(take(10), 1);
    const struct span *found = &taken[0];
    assert_string_equal(found->name, "call");
    assert_int_equal(found->kind, SPAN_CLIENT);
    assert_true(found->is_failed && found->start_us > 0 && found->end_us >= found->start_us);
    assert_int_equal(found->attribute_count, 3);
    assert_string_equal(found->attributes[0].name, "text");
    assert_memory_equal(found->text + found->attributes[0].text_at, "value", 5);
    assert_int_equal(found->attributes[1].number, -7);
    assert_string_equal(found->attributes[2].name, "error.type");
    assert_int_equal(take(10), 0);
}

static void what_is_not_sampled_is_passed_on_as_it_came(void **state)
{
    (void)state;
    struct trace parent = trace_of(NOT_SAMPLED), none = {0};
    struct arena arena = ARENA(1024);
    struct span span, *followed;
    span_begin(&span, SPAN_SERVER, "request", &parent);
    assert_false(span.is_recorded);
    assert_memory_equal(&span.trace, &parent, sizeof parent);
    span_put_str(&span, "text", STR("value"));
    span_end(&span);
    span_begin_root(&span, SPAN_SERVER, "request", &parent); /* its flag decides, not the share */
    assert_false(span.is_recorded);
    span_begin(&span, SPAN_SERVER, "request", &none);
    assert_false(span.is_recorded);
    struct str passed = span_follow(&followed, SPAN_CONSUMER, "message", NOT_SAMPLED, &arena);
    assert_true(!followed && str_eq(passed, NOT_SAMPLED));
    passed = span_follow(&followed, SPAN_CONSUMER, "message", STR("junk"), &arena);
    assert_true(!followed && str_eq(passed, STR("junk")));
    passed = span_follow(&followed, SPAN_CONSUMER, "message", STR_NONE, &arena);
    assert_true(!followed && passed.len == 0);
    span_put_int(NULL, "number", 1);
    span_fail(NULL, STR("x"));
    span_end(NULL);
    assert_int_equal(take(10), 0);
    arena_deinit(&arena);
}

static void a_followed_message_has_the_new_span_as_its_parent(void **state)
{
    (void)state;
    struct arena arena = ARENA(1024);
    struct span *span;
    struct str passed = span_follow(&span, SPAN_CONSUMER, "message", SAMPLED, &arena);
    struct trace next = trace_of(passed), parent = trace_of(SAMPLED);
    assert_non_null(span);
    assert_memory_equal(next.trace_id, parent.trace_id, sizeof parent.trace_id);
    assert_memory_equal(next.span_id, span->trace.span_id, sizeof next.span_id);
    assert_memory_equal(span->parent_id, parent.span_id, sizeof next.span_id);
    passed = span_follow_root(&span, SPAN_CONSUMER, "message", STR("junk"), &arena);
    next = trace_of(passed); /* a new trace */
    assert_int_equal(next.flags, 1);
    arena_deinit(&arena);
}

static void a_share_of_the_roots_is_sampled(void **state)
{
    (void)state;
    const struct trace none = {0};
    static const int64_t shares[] = {0, ALL / 2, ALL};
    for (size_t i = 0; i < 3; i++) {
        unsigned recorded = 0;
        span_set_share(shares[i]);
        for (unsigned tries = 0; tries < 1000; tries++) {
            struct span span;
            span_begin_root(&span, SPAN_SERVER, "request", &none);
            recorded += span.is_recorded;
            if (span.is_recorded)
                assert_true(!trace_is_none(&span.trace) && span.trace.flags == 1);
        }
        assert_in_range(recorded, i == 0 ? 0 : i == 1 ? 300 : 1000, i == 0 ? 0 : i == 1 ? 700 : 1000);
    }
}

static void a_full_ring_drops_new_spans(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3 * RING; i++)
        record(i < RING ? "early" : "late");
    assert_int_equal(half_full, 1);
    assert_int_equal(take(3), 3); /* room for three */
    for (unsigned i = 0; i < RING; i++)
        record("later");
    assert_int_equal(take(TAKEN_MAX), RING);
    unsigned later = 0;
    for (size_t i = 0; i < RING; i++) {
        assert_string_not_equal(taken[i].name, "late");
        later += strcmp(taken[i].name, "later") == 0;
    }
    assert_int_equal(later, 3);
}

static void texts_and_attributes_are_bounded(void **state)
{
    (void)state;
    struct trace parent = trace_of(SAMPLED);
    char euros[600];
    struct span span;
    for (size_t i = 0; i < sizeof euros; i += 3)
        memcpy(euros + i, "\xe2\x82\xac", 3);
    span_begin(&span, SPAN_CLIENT, "call", &parent);
    span_put_str(&span, "long", str_of(euros, sizeof euros));
    for (int i = 0; i < 2 * SPAN_ATTRIBUTES_MAX; i++)
        span_put_str(&span, "more", STR("x"));
    span_end(&span);
    assert_int_equal(take(1), 1);
    assert_int_equal(taken[0].attribute_count, SPAN_ATTRIBUTES_MAX);
    assert_int_equal(taken[0].attributes[0].text_len, SPAN_TEXT_BYTES / 3 * 3); /* no character is split */
    assert_int_equal(taken[0].text_len, SPAN_TEXT_BYTES);
}

static void *record_many(void *arg)
{
    (void)arg;
    for (unsigned i = 0; i < 1000; i++)
        record("many");
    return NULL;
}

/* Threads record while another one reads; each has a ring, and rings of ended threads are used again. */
static void threads_record_and_one_reads(void **state)
{
    (void)state;
    size_t found = 0;
    for (unsigned round = 0; round < 3; round++) {
        pthread_t threads[4];
        for (size_t i = 0; i < 4; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, record_many, NULL), 0);
        for (unsigned i = 0; i < 1000; i++)
            found += take(TAKEN_MAX);
        for (size_t i = 0; i < 4; i++)
            assert_int_equal(pthread_join(threads[i], NULL), 0);
        found += take(TAKEN_MAX);
        assert_true(taken_count <= 5 * RING);
    }
    assert_true(found >= RING && found <= 12000);
    assert_int_equal(take(TAKEN_MAX), 0);
}

static void off_means_nothing(void **state)
{
    (void)state;
    span_close();
    record("off");
    span_open(&(struct span_settings){.ring_spans = RING, .sample_share = ALL});
    assert_int_equal(take(10), 0);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, open_all, close_all)
    const struct CMUnitTest tests[] = {
        T(a_span_is_the_child_of_its_parent),
        T(what_is_not_sampled_is_passed_on_as_it_came),
        T(a_followed_message_has_the_new_span_as_its_parent),
        T(a_share_of_the_roots_is_sampled),
        T(a_full_ring_drops_new_spans),
        T(texts_and_attributes_are_bounded),
        T(threads_record_and_one_reads),
        T(off_means_nothing),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    span_free();
    return failed;
}
