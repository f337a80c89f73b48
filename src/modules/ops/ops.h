/* The operator's API under /v1/ops (docs/OPS.md). What can be listed is described by rows of the modules (kernel/ops.h); this module
 * reads the request, decides about the tenant, asks each database with a deadline of its own, and writes the answer.
 *
 * Handlers run on threads of this module, with connections of its own: operators and requests do not wait for each other. */
#ifndef FRESHET_MODULES_OPS_OPS_H
#define FRESHET_MODULES_OPS_OPS_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/json.h"
#include "kernel/kernel.h"
#include "kernel/ops.h"

struct ops_settings {
    bool enabled, console;
    int64_t database_timeout_ms;
};

/* A database, as the configuration names it: "store", or a block of refdata.postgres. */
struct ops_site {
    const char *name;
    struct db_pool *pool;
    bool is_store; /* else one of refdata's */
    bool is_twin;  /* of the same database as one before it in the list */
};

/* Immutable, counted: a reload replaces it. */
struct ops_sites {
    atomic_uint refs;
    struct arena arena;
    struct ops_site *items;
    size_t count;
};

struct ops {
    struct kernel *kernel;
    const struct ops_settings *settings; /* as at the start */
    const struct module *const *modules; /* of the program */
    struct worker_pool *workers;         /* of handlers */
    struct worker_pool *askers;          /* of the databases after the first that a handler asks */
    pthread_mutex_t lock;                /* of the next two */
    struct ops_sites *sites;
    struct buf config; /* members of GET /v1/ops/config */
};

/* ---- ask.c: databases ---- */
struct ops_sites *ops_sites_create(struct ops *ops, struct config *config); /* main thread */
struct ops_sites *ops_sites_hold(struct ops *ops);
void ops_sites_unref(struct ops_sites *sites);

/* One database's part of an answer. */
struct ops_ask {
    struct worker_job job;
    const struct ops_site *site;
    void *context; /* of all */
    void *own;     /* the caller's, for this database */
    int64_t deadline_ns;
    enum status (*run)(struct ops_ask *ask, struct db_conn *conn, struct error *error);
    enum status status; /* of the connection, or of run() */
    struct error error;
    struct ops_latch *latch; /* inside */
};
/* The databases of a place, into `asks`, which has room for all sites. `only` (ptr NULL = all): BAD_REQUEST where there is none of that
 * name. */
enum status ops_asks_init(const struct ops_sites *sites, enum ops_place place, struct str only,
                          struct ops_ask *asks, size_t *count, struct error *error) MUST_CHECK;
/* On a worker of `workers`: asks all at once; returns when each has answered or its time is over. */
void ops_ask_all(struct ops *ops, struct ops_ask *asks, size_t count,
                 enum status (*run)(struct ops_ask *ask, struct db_conn *conn, struct error *error),
                 void *context);
/* ,"unavailable":[{"database","error"}…]: those that failed. */
void ops_put_unavailable(struct buf *out, const struct ops_ask *asks, size_t count);
/* "name":{"count","more"} */
void ops_put_count(struct buf *out, const char *name, int64_t count, bool has_more);
void ops_put_oldest_age(struct buf *out,
                        int64_t age_s); /* "oldest_pending_age_seconds"; < 0 = nothing is pending */
/* Appends items to a list, with a comma between them. */
void ops_add_items(struct buf *list, struct str items);
/* Answers with a page: the items, as JSON with commas between them, the cursor of the next page (empty = there is none), and those that
 * failed. */
void ops_send_items(struct http_request *request, const struct buf *items, const struct buf *cursor,
                    const struct ops_ask *asks, size_t count);

/* ---- question.c: what a request asks for ---- */
/* The one place that decides about tenants. Whose rows: *tenant, ptr NULL = of all and of none. `named` is the tenant that the request
 * names in its path or body, ptr NULL = none; then `tenant=` of the query counts, and without it the token's own. Another tenant than
 * the token's, or "*", needs the scope ops:all-tenants: 403 TENANT_MISMATCH. */
enum status ops_tenant_read(const struct http_request *request, struct str named, struct str *tenant,
                            struct error *error) MUST_CHECK;
/* The same of a request that has no other parameter. False: it is answered. */
bool ops_tenant_only(struct http_request *request, struct str *tenant);
struct ops_request {
    const struct ops_view *view;
    struct ops_question question;
    struct str only;           /* ?database=, ptr NULL = all */
    struct str after_database; /* of the cursor: rows with its keys were shown up to this database */
};
enum status ops_request_read(const struct http_request *request, const struct ops_view *view,
                             struct ops_request *wanted, struct error *error) MUST_CHECK;
/* What is asked next begins after these keys, which are copied to the arena. */
void ops_request_go_on(struct ops_request *wanted, const struct str *keys, struct arena *arena);
void ops_put_hex(struct buf *out, struct str bytes); /* as all cursors are */
/* The cursor after these keys of that database ("" = of all). */
void ops_cursor_put(struct buf *out, const struct ops_view *view, const struct str *keys,
                    const char *database);

extern const struct ops_view ops_views[]; /* views.c */

/* ---- list.c ---- */
/* On a worker: answers with the page, or the single row, that the request asks for. */
void ops_send_view(struct http_request *request, const struct ops_view *view);
/* walk.c: the same for views whose keys only the database can compare: one database after the other, in each one view after the other.
 * Their names, filters and types of keys are the same. Every row has its database. */
void ops_send_walk(struct http_request *request, const struct ops_view *const *views, size_t count);
http_handler_fn ops_get_view; /* of the view that is named as the route's path after /v1/ops/ */

/* ---- change.c: POST, {"ids":[…]} or {"filter":{…}}, "database", "dry_run", "reason" ---- */
struct ops_text {     /* a member of the body that an action has instead of ids and filter; required */
    const char *name; /* NULL ends a table */
    struct str value;
};
struct ops_change {
    /* before ops_change_read() */
    struct ops_text *texts; /* NULL = ids or filter choose the rows */
    /* of the request */
    struct str tenant; /* whose rows; ptr NULL = of all tenants */
    struct json_value ids, filter;
    bool has_ids, has_filter, is_dry_run;
    struct str database, reason, who;
    /* before ops_send_change() */
    const char *action; /* "outbox.retry" */
    struct str target;  /* "refdata.outbox_event" */
    void *context;
    /* Within a transaction, which is rolled back after a dry run, and otherwise committed with its row of the audit. Sets matched and
     * changed; of a dry run it may change rows too, and `changed` is not shown. */
    enum status (*run)(struct ops_change *change, struct db_conn *conn, int64_t deadline_ns,
                       struct error *error);
    int64_t matched, changed;
    int64_t timeout_ms; /* 0 = as for every database; longer where an engine is asked too */
    bool has_more;      /* it stopped at its limit: "more" is shown */
    /* After the commit, or NULL. */
    void (*on_committed)(struct ops_change *change, struct db_conn *conn, int64_t deadline_ns);
};
/* On a worker. */
enum status ops_change_read(const struct http_request *request, struct ops_change *change,
                            struct error *error) MUST_CHECK;
/* `filter` of a change as the values of a view's filters: the same names, all of them texts. */
enum status ops_filter_read(const struct ops_view *view, const struct json_value *filter, struct arena *arena,
                            struct ops_question *question, struct error *error) MUST_CHECK;
/* Runs it in the one database of that place, or in the one that the body names, and answers. */
void ops_send_change(struct http_request *request, struct ops_change *change, enum ops_place place);

const struct ops_view *ops_view_find(const struct http_request *request,
                                     struct error *error); /* as ops_get_view does; NULL = *error */

http_handler_fn ops_get_overview;  /* overview.c */
http_handler_fn ops_get_keys;      /* keys.c */
http_handler_fn ops_forget_entity; /* forget.c */
/* config.c. Main thread: this configuration is in force. */
void ops_config_take(struct ops *ops, const struct config *config);
http_handler_fn ops_get_config;

/* ---- outboxes.c, dead_letters.c ---- */
http_handler_fn ops_get_outboxes, ops_get_outbox_events, ops_get_outbox_event;
http_handler_fn ops_get_dead_letter_stores, ops_get_dead_letters, ops_get_dead_letter;
http_handler_fn ops_change_dead_letters, ops_change_outbox; /* what is done is the last word of the path */

#endif
