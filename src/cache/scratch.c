/* Scratch arrays of a full load. Mapped, for a heap keeps what it once grew to; grown by moving pages, not
 * bytes. */
#include "cache/internal.h"

#include <string.h>
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

void cache_scratch_free(void *scratch, size_t size)
{
    if (scratch)
        munmap(scratch, size ? size : 1);
}

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NO_MREMAP
#endif
#elif defined(__SANITIZE_THREAD__)
#define NO_MREMAP
#endif

/* ThreadSanitizer does not see mremap(): it takes the pages for those of whoever had the address before. */
static void *move(void *old, size_t old_size, size_t size)
{
#ifdef NO_MREMAP
    void *larger = memcpy(cache_scratch_alloc(size), old, old_size);
    cache_scratch_free(old, old_size);
    return larger;
#else
    return checked(mremap(old, old_size, size, MREMAP_MAYMOVE));
#endif
}

void *cache_scratch_grow(void *old, size_t old_size, size_t size)
{
    return old ? move(old, old_size, size) : cache_scratch_alloc(size);
}
