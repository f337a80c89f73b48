/* A trial of the SQL that the configuration has for one database (`freshet config --connect`): the database parses, plans and checks it,
 * and runs nothing of it. */
#ifndef FRESHET_KERNEL_TRIAL_H
#define FRESHET_KERNEL_TRIAL_H

#include "db/db.h"
#include "kernel/config.h"

/* The argument of a module's try_sql(), with the functions that it calls. */
struct trial {
    const struct config *config;
    const struct db_target *target;
    int64_t timeout_ms;      /* for each template: a long file takes longer */
    unsigned template_count; /* raised by the module: those the database has answered for */
    /* What is wrong at this place of the file, and what to do. `what` is "dictionary COUNTRY, loadSql". */
    void (*on_mistake)(struct trial *trial, struct setting_place place, const char *what,
                       const char *message);
    /* Not wrong, but the reader should know. */
    void (*on_note)(struct trial *trial, struct setting_place place, const char *what, const char *message);
};

#endif
