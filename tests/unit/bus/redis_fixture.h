/* Redis for tests: private servers in a temporary directory on free ports of 127.0.0.1, as a cluster or alone, which tests
 * may kill and freeze, and which die with them whatever happens. Everything acknowledged is on disk. */
#ifndef FRESHET_TESTS_REDIS_FIXTURE_H
#define FRESHET_TESTS_REDIS_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>

#define REDIS_FIXTURE_NODES_MAX 8

/* Each exits with a message when it cannot. */
void redis_fixture_start_cluster(unsigned masters, unsigned replicas); /* replicas: of master 0 */
void redis_fixture_start_single(const char *const *options); /* more of redis-server's; NULL-ended, or NULL */
void redis_fixture_stop(void);

const char *redis_fixture_directory(void);
unsigned redis_fixture_count(void);
unsigned redis_fixture_port(unsigned node);
const char *const *redis_fixture_addresses(void); /* HOST:PORT of each */

void redis_fixture_kill(unsigned node);   /* as if its machine had lost power */
void redis_fixture_run(unsigned node);    /* and came back: same port, same data */
void redis_fixture_wipe(unsigned node);   /* of a dead one: its data is gone, not who it is */
void redis_fixture_freeze(unsigned node); /* SIGSTOP: sockets stay open, nobody answers */
void redis_fixture_thaw(unsigned node);
void redis_fixture_halt(void);   /* all of them */
void redis_fixture_resume(void); /* returns when they are of one mind again */

/* One command; the answer as a number (a text's, or an array's length), -1: an error. */
long long redis_fixture_ask(unsigned node, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same as text: the first bytes of it. */
const char *redis_fixture_text(unsigned node, const char *format, ...) __attribute__((format(printf, 2, 3)));
void redis_fixture_ask_all(const char *command);
/* A key of the slot. */
void redis_fixture_first_key(unsigned node, unsigned slot, char *key, size_t size);
unsigned redis_fixture_owner(const char *key); /* the node that has it */

#endif
