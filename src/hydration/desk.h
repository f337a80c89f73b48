/* A desk: what one loop asks for, waits for and remembers. Only its loop touches it: no lock, no counter.
 *
 * memory.c   bounded, oldest out: absences, copies, and versions heard of, each at most MEMORY_AGE_MS old, behind which the
 *            ledger is asked again. A version heard keeps a late not-found from being believed.
 * desk.c     askings: one for each (tenant, type, id, subject-or-everybody, cover) that is being found out; its waiters; its
 *            worker job (claim, publish, retry). A waiter is registered first, then memory is looked at, then the ledger: an
 *            answer that comes at any moment finds one or the other. */
#ifndef FRESHET_HYDRATION_DESK_H
#define FRESHET_HYDRATION_DESK_H

#include "hydration/event.h"
#include "hydration/hydration.h"

/* ---- memory.c ---- */
struct hydration_memory;
enum hydration_known { HYDRATION_KNOWN_NOT, HYDRATION_KNOWN_COPY, HYDRATION_KNOWN_ABSENT };
struct hydration_known_entity { /* borrowed until the memory is next written */
    enum hydration_known known;
    struct str data, source_module;
    enum hydration_reason reason;
    int64_t version;
};
struct hydration_memory *hydration_memory_create(size_t entries_max, size_t bytes_max);
void hydration_memory_destroy(struct hydration_memory *memory);
struct hydration_known_entity hydration_memory_look(struct hydration_memory *memory,
                                                    const struct hydration_need *need, int64_t now_ns);
/* Something heard of the bus: what it makes known, unless newer is known. False: it is older, take no notice of it. */
bool hydration_memory_hear(struct hydration_memory *memory, const struct hydration_event *event,
                           const struct hydration_cover *cover, int64_t ttl_ms, int64_t now_ns);
size_t hydration_memory_count(const struct hydration_memory *memory);

/* ---- desk.c ---- */
struct hydration_desk;
struct hydration_desk *hydration_desk_create(struct hydration *hydration, struct loop *loop);
void hydration_desk_hear(struct hydration_desk *desk, const struct hydration_event *event); /* on its loop */
size_t hydration_desk_waiters(const struct hydration_desk *desk),
    hydration_desk_askings(const struct hydration_desk *desk);
void hydration_desk_stop(struct hydration_desk *desk);
void hydration_desk_destroy(struct hydration_desk *desk);

#endif
