/* Dead letters of topics, for operators: which topics have them, pages of them with what was decided about each, and decisions.
 *
 * The letters stay where their engine keeps them (bus_dead.h) until its retention deletes them; platform.dead_letter_decision records what
 * became of each. The decisions about letters of PostgreSQL are in their own database; those of Kafka in the first database of refdata, of
 * NATS in the store.
 *
 * Every function blocks: on a worker, or in a command. */
#ifndef FRESHET_KERNEL_DEAD_LETTERS_H
#define FRESHET_KERNEL_DEAD_LETTERS_H

#include "bus/bus_dead.h"
#include "db/db.h"
#include "kernel/kernel.h"

/* ---- topics ---- */
enum kernel_engine { KERNEL_ON_POSTGRES, KERNEL_ON_KAFKA, KERNEL_ON_NATS };
const char *kernel_engine_name(enum kernel_engine engine); /* "postgres" */

/* A topic whose dead letters are in TOPIC.dlq. */
struct kernel_dead_topic {
    const char *topic;
    enum kernel_engine engine;
    /* Ends the tenant at the beginning of its keys; 0 = only the header tenant_id names it. */
    char key_tenant_end;
    const char *group; /* moves its letters to a table of a module, once it has handled them; NULL = none */
};
/* What the configuration names: the topics of Kafka and NATS, and what is known of those of PostgreSQL. In the arena. */
void kernel_dead_topics(const struct config *config, const struct module *const *modules, struct arena *arena,
                        struct kernel_dead_topic **topics, size_t *count);
/* `conn`: of PostgreSQL's own, borrowed. */
enum status kernel_dead_open(const struct config *config, const struct module *const *modules,
                             enum kernel_engine engine, struct db_conn *conn, int64_t deadline_ns,
                             struct bus_dead **dead, struct error *error) MUST_CHECK;

/* Where letters are looked for: one topic on one engine, with the connection that has the decisions. */
struct dead_place {
    struct bus_dead *dead;
    struct db_conn *conn;
    const struct kernel_dead_topic *topic;
    const char *name; /* "refdata.commands.dlq" */
    int64_t deadline_ns;
};

/* Visits the dead letters on one engine, topic by topic: on PostgreSQL the topics that this database has dead letters of, or could have;
 * on another engine those of the configuration, which is connected to only where there are any. */
struct dead_letter_store;
struct dead_walk {
    const struct config *config;
    const struct module *const *modules;
    const struct kernel_dead_topic *topics; /* of kernel_dead_topics() */
    size_t topic_count;
    const struct dead_letter_store *only; /* NULL = all */
    struct db_conn *conn;
    int64_t deadline_ns;
    struct arena *arena;
    /* `is_elsewhere`: of PostgreSQL, where the configuration has the topic on another engine. */
    enum status (*visit)(void *arg, const struct dead_place *place, bool is_elsewhere, struct error *error);
    void *arg;
};
enum status kernel_dead_each(const struct dead_walk *walk, enum kernel_engine engine,
                             struct error *error) MUST_CHECK;

/* ---- pages ---- */
enum dead_state { DEAD_OPEN, DEAD_REQUEUED, DEAD_DISCARDED, DEAD_ANY };
const char *dead_state_name(enum dead_state state); /* "open" */

struct dead_filter {
    enum dead_state state;
    struct str tenant;      /* ptr NULL = of all tenants, and of none */
    struct str reason;      /* is a part of it; ptr NULL = any */
    int64_t from_us, to_us; /* since 1970; 0 = open */
};
struct dead_item {
    const struct bus_message *letter;
    size_t bytes; /* of its payload */
    enum dead_state state;
    struct str decided_by, decided_at, decided_why; /* ptr NULL = not decided */
};
struct str dead_item_tenant(const struct kernel_dead_topic *topic,
                            const struct bus_message *letter); /* ptr NULL: none */

/* How far each partition was looked through. */
struct dead_position {
    unsigned partition;
    int64_t at; /* newest first: all from here on; oldest first: all before */
};
struct dead_scan {
    struct dead_place place;
    struct dead_filter filter;
    bool is_oldest_first;
    size_t limit;
    int64_t until_ns; /* it goes on for so long to fill a page; at least one read is made */
    struct arena *arena;
    /* Where it begins, and after it where the next one does; partitions that are not in it are done. NULL: at the beginning. */
    struct dead_position *positions;
    size_t position_count;
    /* what was found, by time */
    struct dead_item *items;
    size_t count;
    bool is_complete; /* there are no more */
};
enum status kernel_dead_scan(struct dead_scan *scan, struct error *error) MUST_CHECK;
/* "3:120,7:55", and back. */
void dead_positions_put(struct buf *out, const struct dead_position *positions, size_t count);
bool dead_positions_read(struct str text, struct arena *arena, struct dead_position **positions,
                         size_t *count);

/* Chosen letters that exist, with at most payload_max bytes of each payload. `places`: in any order. */
enum { DEAD_IDS_MAX = 1000 };
bool dead_id_read(struct str id, struct dead_position *place); /* "3-120" */
enum status kernel_dead_get(const struct dead_place *place, const struct dead_filter *filter,
                            const struct dead_position *places, size_t count, size_t payload_max,
                            struct arena *arena, struct dead_item **items, size_t *found,
                            struct error *error) MUST_CHECK;

struct dead_count {
    int64_t count; /* of open ones, at most KERNEL_DEAD_COUNT_MAX */
    bool has_more;
    int64_t oldest_us; /* 0 = there is none */
};
enum { KERNEL_DEAD_COUNT_MAX = 10000 };
enum status kernel_dead_count(const struct dead_place *place, struct str tenant, struct arena *arena,
                              struct dead_count *count, struct error *error) MUST_CHECK;

/* ---- decisions ---- */
enum { DEAD_CHANGE_MAX = 1000 /* letters of one transaction */ };
struct dead_change {
    struct dead_place place;
    bool requeues; /* else discards */
    bool is_dry_run;
    const struct dead_position *ids; /* NULL = by the filter, oldest first */
    size_t id_count;
    int64_t letters_max;       /* of a filter; 0 = DEAD_CHANGE_MAX, which is the most */
    struct dead_filter filter; /* of ids: the tenant only */
    struct str who, why;
    /* Of dead letters on PostgreSQL: decisions are kept twice as long and a month more; those of other engines as long as the letters. */
    int64_t keep_ms;
    struct arena *arena;
    int64_t matched, changed;
    int64_t without_content; /* of a requeue: matched, but their content was not kept */
    bool has_more;           /* the filter may fit more letters */
};
/* In the caller's transaction on place.conn: decisions, and on PostgreSQL the messages. On Kafka and NATS the messages are published when it
 * returns; a caller that does not commit then leaves letters that wait, and are published again by the next requeue. */
enum status kernel_dead_change(struct dead_change *change, struct error *error) MUST_CHECK;

/* ---- tables of modules that have dead letters of their own ---- */
struct ops_view;
enum { KERNEL_DEAD_VIEWS = 2 };
struct dead_choice {                     /* all conditions hold; ptr NULL = any */
    struct str ids;                      /* text[] literal of db_array_*() */
    struct str tenant, reason, from, to; /* a part of the reason; times as PostgreSQL reads them */
    int64_t rows_max;
};
struct kernel_dead_table {
    const char *name; /* "notification.notification_dlq"; in the store */
    const char *kind; /* "notification_delivery" */
    bool is_uuid;     /* its ids; else they are numbers */
    /* Lists of each state, one after the other, with filters state, reason, from, to; and one by the path's parameter `id`. */
    const struct ops_view *lists[DEAD_ANY][KERNEL_DEAD_VIEWS + 1];
    const struct ops_view *one;
    /* In the caller's transaction. */
    enum status (*change)(const struct kernel_dead_table *table, struct db_conn *conn, bool requeues,
                          bool is_dry_run, const struct dead_choice *choice, struct str who, struct str why,
                          int64_t deadline_ns, int64_t *count, struct error *error);
    /* $1 tenant or NULL, $2 rows at most: how many are open, and since when (microseconds since 1970). */
    struct db_statement count;
};

/* ---- dead letter stores: topics, tables and outboxes that have dead letters; "source" in the API and in commands ---- */
enum dead_letter_store_kind { DEAD_OF_TOPIC, DEAD_OF_TABLE, DEAD_OF_OUTBOX /* its failed events */ };
/* Stands after the name of a topic of PostgreSQL that the configuration has on another engine. */
#define DEAD_ELSEWHERE "@postgres"
struct dead_letter_store {
    enum dead_letter_store_kind kind;
    const char *name;               /* "refdata.commands.dlq", or the table's */
    struct kernel_dead_topic topic; /* of a topic */
    const struct kernel_dead_table *table;
    const struct outbox_table *outbox;
    const struct module *module; /* of an outbox */
};
/* False: there is none of that name. Every name that ends in ".dlq" is a topic's. Without a configuration it is taken to be on PostgreSQL. */
bool kernel_dead_letter_store(const struct config *config, const struct module *const *modules,
                              struct str name, struct arena *arena, struct dead_letter_store *letter_store);

#endif
