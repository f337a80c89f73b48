/* A group of loops, one thread each, and the one grace period built on them.
 *
 * Readers on loops use shared immutable data without locks or counters. The thread that replaces such data calls
 * loop_group_synchronize(): the callback runs once every loop has passed its inbox, that is, when no callback that
 * could have seen the old pointer is still running. */
#ifndef FRESHET_LOOP_GROUP_H
#define FRESHET_LOOP_GROUP_H

#include "loop/loop.h"

struct loop_group;

struct loop_group *loop_group_create(unsigned count, unsigned parked_max);
void loop_group_start(struct loop_group *group); /* one thread per loop */
void loop_group_stop(struct loop_group *group);  /* any thread but a loop's: ends every loop and joins them */
void loop_group_destroy(struct loop_group *group);
bool loop_group_is_running(const struct loop_group *group); /* between start and the end of stop */
unsigned loop_group_count(const struct loop_group *group);
struct loop *loop_group_loop(const struct loop_group *group, unsigned index);

/* Any thread. `fn(arg)` runs on some loop's thread (on the caller's when no loop is running) after the grace period. */
void loop_group_synchronize(struct loop_group *group, void (*fn)(void *arg), void *arg);

/* Main thread: waits until every loop has passed its inbox. */
void loop_group_wait(struct loop_group *group);
/* Main thread: runs fn(arg) on the thread of the first loop (on its own when no loop is running), and waits for it. */
void loop_group_call(struct loop_group *group, void (*fn)(void *arg), void *arg);

/* Runs fn(loop, arg) on every loop's thread, in no order; returns at once. */
void loop_group_broadcast(struct loop_group *group, void (*fn)(struct loop *loop, void *arg), void *arg);

#endif
