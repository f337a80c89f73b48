/* The databases of the configuration, for commands that need no server: the store, and those of modules that have their own. */
#ifndef FRESHET_APP_SITES_H
#define FRESHET_APP_SITES_H

#include "db/db.h"
#include "kernel/kernel.h"
#include "kernel/ops.h"

enum { APP_SITES_MAX = 65 }; /* those of refdata.postgres, at most 64, and the store */

struct app_site {
    struct db_target target;
    const struct module *module; /* that has it as its own; NULL = the store */
    bool is_twin;                /* the same database as one before it … */
    size_t twin_of;              /* … the first of them */
};

struct app_sites {
    struct app_site items[APP_SITES_MAX];
    size_t count;
    struct db_server *servers; /* inside */
};

/* Texts are the configuration's, which must stay. More than APP_SITES_MAX are left out. */
void app_sites_init(struct app_sites *sites, struct config *config);
void app_sites_deinit(struct app_sites *sites);
/* A pool of at most so many connections, each of which has `limit_ms` to open. */
enum status app_site_open(const struct app_site *site, unsigned connections_max, int64_t limit_ms,
                          struct db_pool **pool, struct error *error) MUST_CHECK;
/* "main at 127.0.0.1:5432/freshet", or its name alone where the pool could not be created. In the arena. */
const char *app_site_shown(const struct app_site *site, const struct db_pool *pool, struct arena *arena);
/* Are the module's own tables there? */
bool app_site_keeps(const struct app_site *site, const struct module *module);
/* Is the view's place there? */
bool app_site_has(const struct app_site *site, const struct module *module, enum ops_place place);
/* A view by its name, with its module. NULL: there is none. */
const struct ops_view *app_view_find(const char *name, const struct module **module);

#endif
