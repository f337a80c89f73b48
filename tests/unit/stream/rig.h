/* The rig of the tests of streams: a server whose one route parks, so that a test admits the request to a topic when and where
 * it likes, and clients that see what comes. */
#ifndef FRESHET_TESTS_STREAM_RIG_H
#define FRESHET_TESTS_STREAM_RIG_H

#include "harness.h"
#include "stream/stream.h"

extern struct rig {
    struct harness harness;
    struct stream_topic *topic;  /* at position 10 to begin with; NULL once a test has closed it */
    struct loop_park_ref parked; /* the request that came last */
    int idle;                    /* how often the owner heard that nobody is left */
    int64_t expires_at_s;        /* of whoever is admitted next */
    struct metric_series *lines, *cuts;
} rig;

/* What tests differ in: limits, and what is said and read beside greeting and heartbeat. The rest is filled in. */
void rig_start(struct stream_config config);
struct stream_topic *rig_another_topic(void); /* the same; the test's to close */
int rig_teardown(void **state);

struct stream_segment *rig_segment(int64_t from, int64_t to, const char *text, bool can_be_joined);
void rig_request(struct client *client);
/* What has come since, chunks taken apart; ends in "." when the stream is over as it should be. */
const char *rig_received(struct client *client);

#endif
