/* A Kafka for tests: a private broker (KRaft) in a temporary directory on free ports of 127.0.0.1, behind a proxy that can
 * cut connections and leave them half-open; both die with the test. FRESHET_KAFKA_JARS names the folder of its jars. Where
 * that is not set, librdkafka's mock cluster inside this process takes its place: it can be neither killed nor frozen, and
 * makes topics only by kafka_fixture_make_topic(). */
#ifndef FRESHET_TESTS_KAFKA_FIXTURE_H
#define FRESHET_TESTS_KAFKA_FIXTURE_H

#include <stdbool.h>

void kafka_fixture_start(void); /* exits with a message when it cannot; before any thread */
void kafka_fixture_stop(void);  /* also removes its directory */
bool kafka_fixture_is_real(void);
const char *kafka_fixture_brokers(void);
/* The broker's only: another listener, which asks for the user freshet with a password (PLAIN), "sesame" at first. */
const char *kafka_fixture_login_brokers(void);
void kafka_fixture_set_password(const char *password); /* from the next kafka_fixture_resume() on */

void kafka_fixture_cut(void);
void kafka_fixture_halt(void);   /* as if the machine had lost power */
void kafka_fixture_resume(void); /* and came back: same port, same data */
void kafka_fixture_freeze(void); /* connections stay open, nobody answers */
void kafka_fixture_thaw(void);
/* The mock's only; it has it then, also if it was there. */
void kafka_fixture_make_topic(const char *name, unsigned partitions);

#endif
