/* The arena: blocks in a list, the newest one being filled. A request for more than a quarter of a block
 * gets a block of its own, so that the rest of the current one stays usable. */
#include "base/arena.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"

#define ALIGNMENT ((size_t)16)

struct arena_block {
    struct arena_block *next;
    size_t used, size;
    size_t pad; /* keeps bytes[] at 16 */
    char bytes[];
};

_Static_assert(sizeof(struct arena_block) == ARENA_HEAD_BYTES, "what a block takes is known outside");
_Static_assert(offsetof(struct arena_block, bytes) % 16 == 0, "allocations are 16-byte aligned");

static void free_list(struct arena_block *block)
{
    while (block) {
        struct arena_block *next = block->next;
        free(block);
        block = next;
    }
}

void arena_deinit(struct arena *arena)
{
    free_list(arena->first);
    arena->first = arena->current = NULL;
}

void arena_reset(struct arena *arena)
{
    if (!arena->first)
        return;
    free_list(arena->first->next);
    arena->first->next = NULL;
    arena->first->used = 0;
    arena->current = arena->first;
}

size_t arena_bytes(const struct arena *arena)
{
    size_t bytes = 0;

    for (const struct arena_block *block = arena->first; block; block = block->next)
        bytes += sizeof *block + block->size;
    return bytes;
}

static struct arena_block *block_create(size_t size)
{
    size_t total;

    if (__builtin_add_overflow(size, sizeof(struct arena_block), &total))
        total = SIZE_MAX / 2; /* memory_alloc() ends the process, with its log line */
    struct arena_block *block = memory_alloc(total);
    block->next = NULL;
    block->used = 0;
    block->size = size;
    return block;
}

void *arena_alloc(struct arena *arena, size_t size)
{
    size_t rounded = size > SIZE_MAX - ALIGNMENT ? size : (size + ALIGNMENT - 1) & ~(ALIGNMENT - 1);
    struct arena_block *block = arena->current;

    if (!block)
        block = arena->first = arena->current = block_create(arena->block_bytes);
    if (block->size - block->used < rounded) {
        bool has_own_block = rounded > arena->block_bytes / 4;
        block = block_create(has_own_block ? rounded : arena->block_bytes);
        block->next = arena->current->next;
        arena->current->next = block;
        if (!has_own_block)
            arena->current = block;
    }
    void *memory = block->bytes + block->used;
    block->used += rounded;
    return memory;
}

void *arena_zalloc(struct arena *arena, size_t size)
{
    return memset(arena_alloc(arena, size), 0, size);
}

struct str arena_str(struct arena *arena, struct str s)
{
    char *copy = arena_alloc(arena, s.len + 1);

    return str_pack(&copy, s);
}

struct str arena_printf(struct arena *arena, const char *format, ...)
{
    va_list args, again;

    va_start(args, format);
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    size_t bytes = len > 0 ? (size_t)len : 0;
    char *text = arena_alloc(arena, bytes + 1);
    text[0] = '\0';
    if (bytes > 0)
        vsnprintf(text, bytes + 1, format, again);
    va_end(again);
    return str_of(text, bytes);
}
