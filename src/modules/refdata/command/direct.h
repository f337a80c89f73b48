/* Updates applied in the transaction that accepts them. */
#ifndef FRESHET_REFDATA_DIRECT_H
#define FRESHET_REFDATA_DIRECT_H

#include "modules/refdata/apply/apply.h"
#include "modules/refdata/command/command.h"

struct refdata_direct {
    struct refdata_command *commands; /* in the arena */
    size_t count;
};

/* Is it worth trying? Then `owning` names the partitions to be asked for with the claims. */
void refdata_direct_consider(struct refdata_owning *owning, struct refdata_flow *flow,
                             struct refdata_post *const *posts, size_t count, struct arena *arena);
/* After the claims, in their transaction, when the partitions were granted. Any failure: roll back, and take the ordinary
 * way. */
enum status refdata_direct_apply(struct refdata_direct *direct, struct refdata_flow *flow,
                                 struct db_conn *conn, struct refdata_post *const *posts, size_t count,
                                 unsigned flags, int64_t deadline_ns, struct arena *arena,
                                 struct error *error) MUST_CHECK;
/* Adds a statement to the open pipeline: whoever else's lock is in the way, others are not kept waiting for it. */
enum status refdata_direct_add_limit(struct db_conn *conn, struct error *error) MUST_CHECK;
/* Commits and, when that is done, tells whoever waits. */
enum status refdata_direct_commit(const struct refdata_direct *direct, struct refdata_flow *flow,
                                  struct db_conn *conn, uint64_t mark, int64_t deadline_ns,
                                  struct error *error) MUST_CHECK;

#endif
