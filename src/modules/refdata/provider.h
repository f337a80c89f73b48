/* Where a dictionary's items come from and go to (the specification's DictionaryProvider): the built-in table, or where its SQL templates read and write.
 * All functions are called on a worker, inside the transaction the caller opened. */
#ifndef FRESHET_REFDATA_PROVIDER_H
#define FRESHET_REFDATA_PROVIDER_H

#include "cache/cache.h"
#include "modules/refdata/dictionary.h"
#include "modules/refdata/update.h"
#include "modules/refdata/writer.h"

/* What one update does to a pair's data. */
struct refdata_write {
    const struct refdata_dictionary *dictionary;
    struct str tenant;
    struct str snapshot_id;     /* of a snapshot */
    int64_t version, epoch_ms;  /* the one being committed; when the update occurred */
    struct refdata_item *items; /* each key once */
    size_t item_count;
    int64_t begun_version; /* of a staged snapshot: deltas since then go on top of it */
};

/* ---- writing: what is refused is the writer's failure, DB_ERROR ---- */

/* In the order they are to be applied. */
void refdata_write_deltas(const struct refdata_write *changes, size_t count, struct refdata_writer *writer);
/* Exactly these items. */
void refdata_write_snapshot(const struct refdata_write *change, struct refdata_writer *writer);
/* Exactly what refdata.snapshot_chunk has, and refdata.snapshot_delta on top of it. */
void refdata_write_staged(const struct refdata_write *change, struct refdata_writer *writer);

/* ---- reading ---- */

/* Does PostgreSQL agree with the templates? DB_ERROR = no, with the field and position in the message; anything else = could not
 * be asked. */
enum status refdata_provider_check(struct refdata_dictionary *dictionary, struct db_conn *conn,
                                   int64_t deadline_ns, struct error *error) MUST_CHECK;
/* The same of one template, where there is one. refdata_provider_check() leaves out driftCheckSql. */
enum status refdata_provider_check_field(const struct refdata_dictionary *dictionary,
                                         enum refdata_field field, struct db_conn *conn, int64_t deadline_ns,
                                         struct error *error) MUST_CHECK;
/* The same, with the byte of the template that a refusal is about instead of its place in the message. */
#define REFDATA_NO_OFFSET SIZE_MAX
enum status refdata_provider_describe_field(const struct refdata_sql *sql, enum refdata_field field,
                                            struct db_conn *conn, int64_t deadline_ns, size_t *offset,
                                            struct error *error) MUST_CHECK;
/* Puts the tenant's items into the builder: with `keys` (a text[]) those of them that are there, and perhaps others; without
 * (ptr NULL) all; the caller has then let the server plan freely (DB_PLAN_FREELY_SQL). */
enum status refdata_provider_load(const struct refdata_dictionary *dictionary, struct str tenant,
                                  struct str keys, struct db_conn *conn, int64_t deadline_ns,
                                  struct cache_builder *builder, struct error *error) MUST_CHECK;
/* Inside a transaction: what follows is planned as the server sees fit (db.h: fixed_plans). For whole dictionaries, and
 * for SQL that is not ours. */
enum status refdata_provider_plan_freely(struct db_conn *conn, int64_t deadline_ns,
                                         struct error *error) MUST_CHECK;

/* ---- the last item of each key, out of any number of updates ---- */

struct refdata_merged {
    const struct refdata_write *change; /* whose pair it belongs to; may be NULL where there is only one */
    const struct refdata_item *item;
};

/* All memory is the arena's. */
struct refdata_merge {
    struct refdata_merged *at; /* in the order keys came first */
    size_t count;
    uint32_t *slots; /* 1 + index into `at`; 0 = free */
    size_t mask;
};

void refdata_merge_begin(struct refdata_merge *merge, size_t items_max, struct arena *arena);
/* A key that is there already gets this item instead. Item and change are borrowed. */
void refdata_merge_put(struct refdata_merge *merge, const struct refdata_write *change,
                       const struct refdata_item *item);

#endif
