/* Commands of an operator that list rows of a database and change them (`freshet outbox`, `freshet dlq`), whether or not anything
 * serves. The first word names the action, the others name rows. A command is a struct admin_command. */
#ifndef FRESHET_APP_ADMIN_H
#define FRESHET_APP_ADMIN_H

#include "app/commands.h"
#include "app/options.h"
#include "db/db.h"
#include "kernel/kernel.h"

struct admin;
typedef enum status admin_action_fn(struct admin *admin, struct db_conn *conn, struct error *error);

struct admin_action {
    const char *name;     /* NULL ends a table */
    const char *done;     /* what happened to the rows, for the result; NULL = they are only shown */
    admin_action_fn *run; /* one database */
    int change;           /* which, for `run` */
};

struct admin_command {
    const char *name, *summary;
    const struct admin_action *actions;
    const struct option_row *rows;
    const char *choose; /* the ways to choose rows, for a change that names none: "IDs, or --all" */
    /* The first mistake in the call, NULL = none; sets is_narrowed. */
    const char *(*check)(struct admin *admin);
    void (*find_targets)(struct admin *admin,
                         struct config *config); /* admin_add_target() for each database */
    /* May be NULL. Does the action first have to find out which database the call is about? Then it is run on all of them, settle() leaves
     * one target or returns an exit status, and it is run again. */
    bool (*searches)(struct admin *admin);
    int (*settle)(struct admin *admin);
};

struct admin {
    const char *config_path;
    const char *only_database; /* NULL = any */
    bool all, is_dry_run;
    const char *note; /* why rows are changed, for the audit; NULL = not given */
    int64_t rows_max; /* of --limit, or the default */

    const struct admin_command *command;
    const struct admin_action *action;
    char name[64]; /* "outbox retry", for messages */
    struct option_words ids;
    bool is_narrowed;           /* some rows are chosen, so that --all is a mistake */
    const struct admin_target { /* the current one */
        struct db_target target;
        const struct module *module;
    } * target;
    int64_t deadline_ns; /* of the current statement */

    /* its own */
    struct arena texts;
    struct admin_target *targets;
    size_t target_count;
};

int admin_main(int argc, char **argv, struct admin *admin, const struct admin_command *command);
/* A database that the call is about, unless --database names another; the configuration's texts stay. */
void admin_add_target(struct admin *admin, const struct db_target *target, const struct module *module);
/* After a list of `count` rows: where --limit cut it, this is printed. */
void admin_note_limit(const struct admin *admin, size_t count);
/* A column as text, `missing` where it is null. Control characters are spaces: those of senders must not reach a terminal. */
const char *admin_text(struct admin *admin, const struct db_result *rows, size_t row, unsigned column,
                       const char *missing);

/* In the transaction of a change: its row of platform.ops_audit (kernel/ops.h), with the IDs of the call, or else the filter. */
struct admin_filter {
    const char *name, *value; /* a NULL name ends them; a NULL value: it was not given */
};
enum status admin_audit(struct admin *admin, struct db_conn *conn, const char *action, const char *target,
                        const struct admin_filter *filter, int64_t count, struct error *error) MUST_CHECK;
/* "ann@host", as the system knows the user; $USER may be anything. */
const char *admin_user(struct admin *admin);
/* A message about a table that is missing: `freshet migrate`. */
enum status admin_explain(struct db_conn *conn, enum status status, struct error *error);

/* The rows that all such commands share; they end the table. */
#define ADMIN_ROWS(admin)                                                                    \
    APP_CONFIG_ROW((admin).config_path),                                                     \
        {"--limit",                                                                          \
         "N",                                                                                \
         "at most N rows, oldest first (default 100; for changes 100000)",                   \
         .number = &(admin).rows_max,                                                        \
         .min = 1,                                                                           \
         .max = 10000000},                                                                   \
        {"--all", NULL, "change all rows in that state", .flag = &(admin).all},              \
        {"--dry-run", NULL, "change nothing, and print how many rows would be changed",      \
         .flag = &(admin).is_dry_run},                                                       \
        {"--note", "TEXT", "a reason for the change, for the audit", .into = &(admin).note}, \
    {                                                                                        \
        .name = NULL                                                                         \
    }

#endif
