/* Updates applied in the transaction that accepts them. */
#ifndef FRESHET_REFDATA_DIRECT_H
#define FRESHET_REFDATA_DIRECT_H

#include "modules/refdata/apply/apply.h"
#include "modules/refdata/command/command.h"

struct refdata_direct {
    struct refdata_command *commands; /* in the arena */
    size_t count;
    bool owned; /* they were applied: refdata_direct_commit() follows. Else publish them */
};

/* Is it worth trying? */
bool refdata_direct_applies(const struct refdata_flow *flow, struct refdata_post *const *posts, size_t count);
/* After the claims, in their transaction. Any failure: roll back, and take the ordinary way. */
enum status refdata_direct_apply(struct refdata_direct *direct, struct refdata_flow *flow,
                                 struct db_conn *conn, struct refdata_post *const *posts, size_t count,
                                 int64_t deadline_ns, struct arena *arena, struct error *error) MUST_CHECK;
/* Commits and, when that is done, tells whoever waits. */
enum status refdata_direct_commit(const struct refdata_direct *direct, struct refdata_flow *flow,
                                  struct db_conn *conn, int64_t deadline_ns, struct error *error) MUST_CHECK;

#endif
