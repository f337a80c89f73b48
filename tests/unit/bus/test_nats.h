/* What the files of the NATS driver's test share. */
#ifndef FRESHET_TESTS_BUS_TEST_NATS_H
#define FRESHET_TESTS_BUS_TEST_NATS_H

#include "bus/bus_nats.h"
#include "conformance.h"

extern struct bus_security nats_next_security; /* of the next bus */
extern struct nats_next {
    const struct bus_nats_names *names;
    size_t name_count;
    const char *advisory_stream, *terminated_stream;
    bool with_database;
} nats_next; /* the same */

#define NATS_ACK_WAIT "NATS_ACK_WAIT_MS" /* of the environment, for all members; else 1 s */
void nats_open_with(struct process *process, const struct bus_topic *topics, size_t count);

int nats_run_names(void); /* number of failed tests */
int nats_run_letters(void);
int nats_run_deliveries(void);
int nats_run_members(void);
int nats_run_member(const char *url); /* this is the process that dies */
int nats_run_security(void);          /* ends with no server */

#endif
