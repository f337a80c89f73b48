/* One PostgreSQL that dictionaries live in: its pool, and whether its schema is in place. Shared by the catalogs that
 * name it, so that a configuration reload keeps its connections. */
#ifndef FRESHET_REFDATA_DATABASE_H
#define FRESHET_REFDATA_DATABASE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/hash.h"
#include "db/db.h"
#include "kernel/kernel.h"

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
    struct db_pool *pool;
    struct db_target target;             /* for those who open connections of their own */
    _Atomic(struct refdata_flow *) flow; /* flow.h; NULL = not started */
    struct arena arena; /* the target's strings, which outlive the configuration they came from */
    struct str name;
    uint64_t fingerprint;     /* of its settings: the same block is kept over a reload */
    bool migrates;            /* create and migrate the schema, or only check that somebody did (C10) */
    atomic_bool schema_ready; /* set once by the sweep */
    atomic_bool unreachable;  /* as the last sweep found it */
    bool drift_checking;      /* the home loop's: one drift job at a time */
    bool auditing;            /* and one audit */
    struct refdata_marks marks;
};

/* Without a kernel (NULL) it shares no connections, and its schema is only checked. */
enum status refdata_database_create(const struct kernel_postgres *settings, struct kernel *kernel,
                                    struct refdata_database **database, struct error *error) MUST_CHECK;
uint64_t refdata_database_fingerprint(const struct kernel_postgres *settings);
struct refdata_database *refdata_database_ref(struct refdata_database *database);
void refdata_database_unref(struct refdata_database *database);
/* On a worker: brings the schema to this build's state, or says what is missing. */
enum status refdata_database_prepare(struct refdata_database *database, int64_t deadline_ns,
                                     struct error *error) MUST_CHECK;

#endif
