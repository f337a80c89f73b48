/* Allocation that ends the process instead of failing. */
#include "base/memory.h"

#include <stdint.h>
#include <stdlib.h>

#include "base/log.h"

/* The log's line buffer is thread-local and static, so this line needs no memory. */
static _Noreturn void out_of_memory(size_t size)
{
    log_error("out_of_memory", LOG_INT("bytes", size < INT64_MAX ? size : INT64_MAX));
    abort();
}

/* malloc(0) may be NULL, and our callers are promised a pointer. */
static size_t at_least_one(size_t size)
{
    return size ? size : 1;
}

void *memory_alloc(size_t size)
{
    void *memory = malloc(at_least_one(size));

    if (!memory)
        out_of_memory(size);
    return memory;
}

void *memory_zalloc(size_t size)
{
    void *memory = calloc(1, at_least_one(size));

    if (!memory)
        out_of_memory(size);
    return memory;
}

void *memory_realloc(void *old, size_t size)
{
    void *memory = realloc(old, at_least_one(size));

    if (!memory)
        out_of_memory(size);
    return memory;
}

void *memory_realloc_array(void *old, size_t count, size_t size)
{
    size_t total;

    if (__builtin_mul_overflow(count, size, &total))
        out_of_memory(SIZE_MAX);
    return memory_realloc(old, total);
}

void *memory_aligned(size_t alignment, size_t size)
{
    void *memory = NULL;

    if (posix_memalign(&memory, alignment, at_least_one(size)) != 0)
        out_of_memory(size);
    return memory;
}
