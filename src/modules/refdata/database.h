/* One PostgreSQL that dictionaries live in: a site (kernel/site.h), shared by the catalogs that name it, so that a reload of
 * the configuration keeps its connections. */
#ifndef FRESHET_REFDATA_DATABASE_H
#define FRESHET_REFDATA_DATABASE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/hash.h"
#include "kernel/kernel.h"
#include "kernel/site.h"

extern const struct db_migration refdata_migrations[];

struct refdata_flow;

/* Pairs that this process has marked as hydrated a moment ago (command/owner.c). One that loses its place to another is
 * marked again. */
enum { REFDATA_MARKS = 256 };
struct refdata_marks {
    pthread_mutex_t lock;
    struct refdata_mark {
        struct hash128 pair;
        int64_t until_ns;
    } at[REFDATA_MARKS];
};

struct refdata_database {
    atomic_uint refs;
    struct kernel_site site;
    struct str name;
    _Atomic(struct refdata_flow *) flow; /* flow.h; NULL = not started */
    uint64_t fingerprint;                /* of its settings: the same block is kept over a reload */
    struct refdata_marks marks;
};

enum status refdata_database_create(const struct kernel_postgres *settings, struct kernel *kernel,
                                    struct refdata_database **database, struct error *error) MUST_CHECK;
uint64_t refdata_database_fingerprint(const struct kernel_postgres *settings);
struct refdata_database *refdata_database_ref(struct refdata_database *database);
void refdata_database_unref(struct refdata_database *database);
/* On a worker: as kernel_site_prepare(). */
enum status refdata_database_prepare(struct refdata_database *database, int64_t deadline_ns,
                                     struct error *error) MUST_CHECK;

#endif
