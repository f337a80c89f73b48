/* A site: one PostgreSQL with what belongs to it in this process: its address, its pool and the state of its schema. The store
 * of the modules and each database of refdata is one. Sites of the same server share connections (db_server). */
#ifndef FRESHET_KERNEL_SITE_H
#define FRESHET_KERNEL_SITE_H

#include <stdatomic.h>

#include "db/db.h"

struct kernel;

struct kernel_site {
    struct arena arena;      /* the target's texts, which outlive the configuration they came from */
    struct db_target target; /* for callers that open connections of their own */
    struct db_pool *pool;
    bool migrates;        /* creates and migrates the schema, or only checks that it is there (C10) */
    atomic_bool is_ready; /* the schema is in place; set once, by kernel_site_prepare() */
};

/* What must be in place, in this order; a NULL module ends the list. */
struct kernel_schema {
    const char *module;
    const struct db_migration *migrations;
};

/* Opens no connection. Without a kernel (NULL) the site shares no connections, and its schema is only checked. */
enum status kernel_site_init(struct kernel_site *site, struct kernel *kernel, const struct db_target *target,
                             struct error *error) MUST_CHECK;
void kernel_site_deinit(struct kernel_site *site); /* also after a failed init */
/* On a worker: brings the schemas to this build's state by connections of `pool`, or reports what is missing. */
enum status kernel_site_prepare(struct kernel_site *site, struct db_pool *pool,
                                const struct kernel_schema *schemas, int64_t deadline_ns,
                                struct error *error) MUST_CHECK;

#endif
