/* Failpoints: named places between two steps where a test lets the process die, stop or wait. Compiled into test builds
 * only (option `failpoints`); elsewhere a FAILPOINT() is nothing at all.
 *
 *     FRESHET_FAILPOINTS="apply.before_commit=kill:0.01,relay.after_publish=stop"
 *
 * kill = SIGKILL to itself, stop = SIGSTOP, abort = SIGABRT, sleep-250 = waits 250 ms; ":0.01" = with this probability,
 * "#7" = only the seventh time. Names are literals of the form role.place, each used once: tests find them in the
 * source. */
#ifndef FRESHET_BASE_FAILPOINT_H
#define FRESHET_BASE_FAILPOINT_H

#include <stdbool.h>

#ifdef FRESHET_WITH_FAILPOINTS
/* Any thread. The first one reads FRESHET_FAILPOINTS; rules that make no sense end the process, since a test that
 * waits for a failure would otherwise pass without one. */
void failpoint_hit(const char *name);
#define FAILPOINT(name) failpoint_hit(name)
/* Is there a rule for it? For what would otherwise be one step: only a test that asks for it takes two. */
bool failpoint_is_armed(const char *name);
#define FAILPOINT_IS_ARMED(name) failpoint_is_armed(name)
#else
#define FAILPOINT(name) ((void)0)
#define FAILPOINT_IS_ARMED(name) false
#endif

#endif
