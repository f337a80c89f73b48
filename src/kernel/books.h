/* The books: everything that was accepted, and what became of it (`freshet verify --books`).
 *
 * A kind of accepted things has one line for each database: how many were accepted and are still kept, how many of them are decided, and
 * how many wait with a carrier (GLOSSARY.md). The rest are named one by one: those without a carrier, and those with several. */
#ifndef FRESHET_KERNEL_BOOKS_H
#define FRESHET_KERNEL_BOOKS_H

#include "db/db.h"
#include "kernel/config.h"
#include "outbox/outbox.h"

struct module;

struct books_line {
    const char *kind; /* "update"; a table's name where its rows carry themselves */
    int64_t accepted, decided;
    int64_t lost, doubled; /* without a carrier; with several. The others are carried */
};

/* The argument of a module's books(), with the functions that it calls. */
struct books {
    struct config *config;
    const struct module *const *modules; /* of the program */
    const struct db_target *target;
    int64_t patience_ms; /* how long to wait for consumers of Kafka and NATS */
    int64_t deadline_ns; /* of statements */
    void (*on_line)(struct books *books, const struct books_line *line);
    /* Names one that is lost or doubled, before its line. */
    void (*on_culprit)(struct books *books, const char *kind, struct str id, const char *why);
};

/* Counts the rows of an outbox, and names those that no process can claim for hours; `remedy` says what to do. */
enum status kernel_books_count_rows(struct books *books, struct db_conn *conn,
                                    const struct outbox_table *table, const char *remedy,
                                    struct error *error) MUST_CHECK;

struct kernel_audit;
/* A line for events that must have arrived: those created in the last keep_ms, and those of them that did not. */
enum status kernel_books_count_lost(struct books *books, struct db_conn *conn,
                                    const struct kernel_audit *audit, int64_t keep_ms, const char *why,
                                    struct error *error) MUST_CHECK;
/* On the embedded bus: a line for each owner that follows the events of a topic (hydration), "TOPIC:GROUP". Offsets have no holes: a
 * message between a group's position and the end that is not there is lost. */
enum status kernel_books_count_followers(struct books *books, struct db_conn *conn, const char *topic,
                                         struct error *error) MUST_CHECK;

#endif
