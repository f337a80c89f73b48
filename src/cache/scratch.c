/* Scratch arrays of a full load. Mapped, for a heap keeps what it once grew to; grown by moving pages, not
 * bytes. */
#include "cache/internal.h"

#include <sys/mman.h>

#include "base/memory.h"

static void *checked(void *mapping)
{
    return mapping == MAP_FAILED ? memory_alloc(SIZE_MAX / 2)
                                 : mapping; /* ends the process, with a log line */
}

void *cache_scratch_alloc(size_t size)
{
    return checked(mmap(NULL, size ? size : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

void *cache_scratch_grow(void *old, size_t old_size, size_t size)
{
    return old ? checked(mremap(old, old_size, size, MREMAP_MAYMOVE)) : cache_scratch_alloc(size);
}

void cache_scratch_free(void *scratch, size_t size)
{
    if (scratch)
        munmap(scratch, size ? size : 1);
}
