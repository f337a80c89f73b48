/* A nats-server for tests: private, with JetStream in a temporary directory, on a free port of 127.0.0.1. Tests may kill and
 * freeze it; it dies with them whatever happens. */
#ifndef FRESHET_TESTS_NATS_FIXTURE_H
#define FRESHET_TESTS_NATS_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>

void nats_fixture_start(const char *settings); /* more of its configuration, or ""; exits when it cannot */
void nats_fixture_stop(void);                  /* also removes its directory */
const char *nats_fixture_url(void);
void nats_fixture_borrow(const char *url); /* another test process started it and ends it */

void nats_fixture_configure(const char *settings); /* for the next time it comes up */
void nats_fixture_halt(void);                      /* SIGKILL */
void nats_fixture_resume(void);                    /* same port, same store */
void nats_fixture_forget(void);                    /* between the two: its store is gone */
/* Where the server keeps what a consumer has delivered; it writes the file some time after the delivery. */
void nats_fixture_consumer_file(const char *stream, const char *consumer, char *path, size_t size);
void nats_fixture_freeze(void); /* SIGSTOP: sockets stay open, nobody answers */
void nats_fixture_thaw(void);
void nats_fixture_cut(void); /* ends every connection that this process has to it */

#endif
