/* A PostgreSQL for tests: a private server in a temporary directory on a free port of 127.0.0.1, which tests
 * may kill and freeze, and which dies with them whatever happens. As root it runs as user postgres. */
#ifndef FRESHET_TESTS_PG_FIXTURE_H
#define FRESHET_TESTS_PG_FIXTURE_H

#include <sys/types.h>

#include "db/db.h"

void pg_fixture_start(void); /* exits with a message when it cannot */
void pg_fixture_stop(void);  /* also removes its directory */

const char *pg_fixture_url(void);
void pg_fixture_borrow(const char *url); /* another test process started it and ends it */

void pg_fixture_halt(void);            /* as if the machine had lost power */
void pg_fixture_resume(void);          /* and came back: same port, same data */
void pg_fixture_freeze(pid_t backend); /* SIGSTOP: sockets stay open, nobody answers */
void pg_fixture_thaw(pid_t backend);

const char *pg_fixture_socket_url(void);  /* the same server by its socket's directory */
struct db_target pg_fixture_target(void); /* small limits, short timeouts: change what the test is about */

#endif
