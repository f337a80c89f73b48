/* An arena: allocations of one lifetime, freed together. Used for requests, configurations and builds.
 * arena_reset() keeps the first block, so that a request that fits in it costs no malloc. */
#ifndef FRESHET_BASE_ARENA_H
#define FRESHET_BASE_ARENA_H

#include "base/status.h"
#include "base/str.h"

struct arena_block;

struct arena {
    struct arena_block *first, *current;
    size_t block_bytes;
};

enum { ARENA_HEAD_BYTES = 32 }; /* of a block, beside its bytes */
/* An empty arena: allocates nothing yet, and then blocks of so many bytes. */
#define ARENA(bytes) ((struct arena){.block_bytes = (bytes)})
void arena_deinit(struct arena *arena);
void arena_reset(struct arena *arena);
size_t arena_bytes(const struct arena *arena); /* that it takes */

void *arena_alloc(struct arena *arena, size_t size) __attribute__((returns_nonnull)); /* 16-byte aligned */
void *arena_zalloc(struct arena *arena, size_t size) __attribute__((returns_nonnull));
struct str arena_str(struct arena *arena, struct str s); /* a copy, NUL-terminated after its length */
struct str arena_printf(struct arena *arena, const char *format, ...) PRINTF_LIKE(2, 3);

#endif
