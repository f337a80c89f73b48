/* A private PostgreSQL for the tests of a driver, with the table in which their handlers leave effects. */
#ifndef FRESHET_TESTS_BUS_SQL_RIG_H
#define FRESHET_TESTS_BUS_SQL_RIG_H

#include "../db/pg_fixture.h"
#include "db/db.h"

extern struct db_pool *sql_pool; /* the tests' own */

void sql_rig_start(void); /* exits where it cannot */
void sql_rig_stop(void);
struct db_target sql_target(unsigned connections_max);

/* Runs SQL without parameters; the first field as a number. -1: it failed. Any thread. */
int64_t sql(const char *text);
void await_sql(const char *text, int64_t wanted);

/* As a table of the conformance suite has them. */
bool sql_write_effect(struct db_conn *conn, int number, int64_t deadline_ns);
size_t sql_count_effects(int number);

#endif
