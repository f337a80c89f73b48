/* Shared by the files of `freshet dlq`: dlq.c (the call, dead letters of notification) and dlq_letters.c (those of topics and outboxes). */
#ifndef FRESHET_APP_DLQ_H
#define FRESHET_APP_DLQ_H

#include "app/admin.h"
#include "kernel/dead_letters.h"
#include "modules/notification/dlq.h"

struct dlq_command {
    struct admin admin;
    const char *status, *kind, *reason, *tenant, *source_name;
    /* notification's */
    struct notification_dlq_selection selection;
    struct buf messages, deliveries;
    /* of a topic or outbox: what the call names, by --source or by IDs as SOURCE/ID */
    bool has_letter_store;
    struct dead_letter_store letter_store;
    struct dead_position *places;
    struct buf outbox_ids; /* text[] */
    size_t id_count;
    enum dead_state state; /* of a list */
    /* of the call */
    struct config *config;
    struct arena arena;
    struct kernel_dead_topic *topics;
    size_t topic_count;
    struct db_server *servers;  /* to recognise databases that two names stand for */
    const char *kafka_database; /* that has the decisions about letters of Kafka */
    size_t listed;
};

/* dlq_letters.c: in one database; the first lists what is there, at most as many as are left of the limit. */
enum status dlq_letters_list(struct dlq_command *command, struct db_conn *conn,
                             struct error *error) MUST_CHECK;
enum status dlq_letters_show(struct dlq_command *command, struct db_conn *conn,
                             struct error *error) MUST_CHECK;
enum status dlq_letters_change(struct dlq_command *command, struct db_conn *conn,
                               struct error *error) MUST_CHECK;
/* The IDs of the call, without their source. False: they are not of that source. */
bool dlq_letters_take_ids(struct dlq_command *command);

#endif
