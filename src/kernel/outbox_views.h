/* Outboxes as views of operators (ops.h), made of their descriptors: events by state, one event with its payload, and a table's counts. */
#ifndef FRESHET_KERNEL_OUTBOX_VIEWS_H
#define FRESHET_KERNEL_OUTBOX_VIEWS_H

#include "kernel/ops.h"
#include "outbox/outbox.h"

/* The list of a state's events; filters: state, event_type, aggregate, from, to. Published ones newest first, the others in the order of the
 * index that has them: by aggregate and sequence, as the database compares them. Stuck ones are two lists: failed ones first. Returns how
 * many; they are in the arena. */
enum { KERNEL_OUTBOX_VIEWS = 2 };
size_t kernel_outbox_events(const struct outbox_table *table, enum outbox_state state, struct arena *arena,
                            const struct ops_view *views[KERNEL_OUTBOX_VIEWS]);
/* One event by the path's parameter `id`, with its payload. */
const struct ops_view *kernel_outbox_event(const struct outbox_table *table, struct arena *arena);
/* The failed events as dead letters (dead_letters.h); filters: state, reason, from, to. */
const struct ops_view *kernel_outbox_dead(const struct outbox_table *table, bool is_discarded,
                                          struct arena *arena);
const struct ops_view *kernel_outbox_dead_one(const struct outbox_table *table, struct arena *arena);

enum { KERNEL_COUNT_MAX = 10000, KERNEL_PAYLOAD_CHARS_MAX = 65536 };
struct kernel_outbox_counts {
    int64_t pending, in_flight, failed; /* at most KERNEL_COUNT_MAX each */
    bool has_more;                      /* one of them is not all */
    int64_t oldest_pending_age_s;       /* -1 = nothing is pending */
    int64_t oldest_failed_us;           /* since 1970; 0 = none failed */
    struct str last_error;              /* of the newest failed one, in the arena; ptr NULL = none */
};
/* `tenant`: ptr NULL = of all. */
enum status kernel_outbox_count(struct db_conn *conn, const struct outbox_table *table, struct str tenant,
                                struct arena *arena, int64_t deadline_ns, struct kernel_outbox_counts *counts,
                                struct error *error) MUST_CHECK;

/* Of all modules of the program; *module is its owner. NULL: there is none of that name. */
const struct outbox_table *kernel_outbox_find(const struct module *const *modules, struct str name,
                                              const struct module **module);

#endif
