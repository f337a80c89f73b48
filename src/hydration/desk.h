/* A desk: what one loop asks for, waits for and remembers. Only its loop touches it: no lock, no counter.
 *
 * memory.c   bounded, oldest out: absences and copies, each handed out for at most HYDRATION_MEMORY_MS, behind which the
 *            ledger is asked again; and the versions heard of, for longer: one keeps a late not-found from being believed.
 * desk.c     who waits: joins an asking or opens one, hears answers, runs out of time; every way out of a waiter.
 * asking.c   what an asking does about it: claim, publish, retry, look, on a worker, a few at once.
 *
 * Memory is looked at and the waiter registered in one turn of the loop, and only then the ledger: an answer that comes at
 * any moment finds one or the other. */
#ifndef FRESHET_HYDRATION_DESK_H
#define FRESHET_HYDRATION_DESK_H

#include "hydration/event.h"
#include "hydration/hydration.h"

/* ---- keep.c: an entity's name, and texts that are kept in one block with their owner ---- */
uint64_t hydration_entity_hash(struct str tenant, struct str entity_type, struct str entity_id);
size_t hydration_cover_bytes(const struct hydration_cover *cover);
/* Copies to *at, which moves on. Fields come first in a block: they are aligned. */
struct hydration_cover hydration_cover_keep(const struct hydration_cover *cover, char **at);
struct str hydration_text_keep(struct str text, char **at);
bool hydration_cover_equal(const struct hydration_cover *a, const struct hydration_cover *b);
/* Is `data` enough for who needs `need`? `cover` NULL: nobody said how much it is, so what is in it counts. */
bool hydration_data_includes(const struct hydration_cover *cover, struct str data,
                             const struct hydration_cover *need);

/* ---- memory.c ---- */
struct hydration_memory;
#define HYDRATION_MEMORY_MS 5000
enum hydration_known { HYDRATION_KNOWN_NOT, HYDRATION_KNOWN_COPY, HYDRATION_KNOWN_ABSENT };
struct hydration_known_entity { /* borrowed until the memory is next written */
    enum hydration_known known;
    struct str data, source_module; /* NOT: of a copy that is less than needed, or too old, if there is one */
    enum hydration_reason reason;
    int64_t version;
    bool is_private; /* was the matter of single callers when last heard of */
    bool
        was_heard; /* an event told of it that nobody here needed: the ledger may have it, or will in a moment */
};
struct hydration_memory *hydration_memory_create(size_t entries_max, size_t bytes_max);
void hydration_memory_destroy(struct hydration_memory *memory);
/* Allocates nothing. */
struct hydration_known_entity hydration_memory_look(struct hydration_memory *memory,
                                                    const struct hydration_need *need, int64_t now_ns);
/* Something heard of the bus or read in the ledger: what it makes known for `ttl_ms`, unless newer is known. False: it is
 * older, take no notice of it. `cover` as above. Not `is_wanted`: nobody asked for it, so only a copy that is held is
 * renewed, and else no more than the version is remembered. */
bool hydration_memory_hear(struct hydration_memory *memory, const struct hydration_event *event,
                           const struct hydration_cover *cover, bool is_wanted, int64_t ttl_ms,
                           int64_t now_ns);
size_t hydration_memory_count(const struct hydration_memory *memory),
    hydration_memory_bytes(const struct hydration_memory *memory);

/* ---- desk.c ---- */
struct hydration_desk;
struct hydration_desk *hydration_desk_create(struct hydration *hydration, struct loop *loop);
void hydration_desk_hear(struct hydration_desk *desk, const struct hydration_event *event); /* on its loop */
size_t hydration_desk_waiters(const struct hydration_desk *desk),
    hydration_desk_askings(const struct hydration_desk *desk);
/* On its loop: who waits is told UNAVAILABLE, and so is who comes. Jobs under way end by themselves. */
void hydration_desk_stop(struct hydration_desk *desk);
void hydration_desk_destroy(struct hydration_desk *desk); /* stopped; its loop and the workers have ended */

#endif
