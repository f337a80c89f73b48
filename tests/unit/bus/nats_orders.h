/* A topic whose names in NATS are given, a reader of it, and a plain client of NATS beside it: what the tests of names,
 * letters and deliveries share. */
#ifndef FRESHET_TESTS_BUS_NATS_ORDERS_H
#define FRESHET_TESTS_BUS_NATS_ORDERS_H

#include <nats/nats.h>

#include "test_nats.h"

extern const struct bus_topic orders_topic;
extern const struct bus_nats_names orders_names;

/* Every test has streams of its own: what is told of one that was deleted would be taken for the next one's. */
extern struct orders {
    char stream[16], dead_stream[24], subject[16], dead_subject[24];
    natsConnection *connection; /* the other program's */
    jsCtx *js;
} orders;

#define TEST(name) cmocka_unit_test_setup_teardown(name, orders_open, orders_close)
int orders_open(void **state);
int orders_close(void **state);

struct reader {
    struct process process;
    struct recorder recorder;
};
void open_reader(struct reader *reader, unsigned attempts_max,
                 void (*behave)(struct recorder *recorder,
                                struct bus_batch *batch)); /* waits until it is ready */
void close_reader(struct reader *reader);

/* It has this subject alone, and this window for duplicates. */
bool stream_has(const char *name, const char *only, int64_t window_s);
/* Somebody else takes a message of our consumer's, and ends it or dies with it. */
bool take_one(bool terminate);
uint64_t letters(void); /* how many there are */

#endif
