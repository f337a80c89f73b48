/* Allocation that does not fail: a process of ours that is out of memory ends at once with a log line, and
 * its followers are rebuilt from PostgreSQL. Sizes that a peer decides are bounded before they get here. */
#ifndef FRESHET_BASE_MEMORY_H
#define FRESHET_BASE_MEMORY_H

#include <stddef.h>

void *memory_alloc(size_t size) __attribute__((malloc, returns_nonnull, alloc_size(1)));
void *memory_zalloc(size_t size) __attribute__((malloc, returns_nonnull, alloc_size(1)));
void *memory_realloc(void *old, size_t size) __attribute__((returns_nonnull, alloc_size(2)));
/* count * size with the overflow checked */
void *memory_realloc_array(void *old, size_t count, size_t size) __attribute__((returns_nonnull));
void *memory_aligned(size_t alignment, size_t size) __attribute__((returns_nonnull)); /* free() frees it */

/* The struct that holds `member`, given a pointer to that member. */
#define CONTAINER_OF(pointer, type, member) \
    ((type *)(void *)((char *)(1 ? (pointer) : &((type *)0)->member) - offsetof(type, member)))

#endif
