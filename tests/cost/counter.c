/* Preloaded into the program under measurement. Counts allocations in a file that the test maps, and passes commands of
 * the test to callgrind: a thread of its own does that, since every other way into valgrind (vgdb) interrupts the program's
 * system calls. Without FRESHET_COST_COUNTS in the environment it only counts into its own memory.
 *
 * FRESHET_COST_COUNTS   a file of at least 8 bytes: allocations, a 64-bit number
 * FRESHET_COST_CONTROL  a Unix socket to connect to: a byte is a command, the same byte is the answer
 *                       i  turn instrumentation on     d  write the profile since the last one, and reset it */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <valgrind/callgrind.h>

/* The C library's own functions, under the names that nobody replaces. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static _Atomic uint64_t before_start;
static _Atomic uint64_t *allocations = &before_start;

static void count_allocation(void)
{
    atomic_fetch_add_explicit(allocations, 1, memory_order_relaxed);
}

void *malloc(size_t size)
{
    count_allocation();
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    count_allocation();
    return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
    count_allocation();
    return __libc_realloc(old, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    count_allocation();
    return __libc_memalign(alignment, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size)
{
    count_allocation();
    *memory = __libc_memalign(alignment, size);
    return *memory ? 0 : ENOMEM;
}

static void *serve_commands(void *context)
{
    int control = *(int *)context;
    char command;
    while (read(control, &command, 1) == 1) {
        if (command == 'i')
            CALLGRIND_START_INSTRUMENTATION;
        else if (command == 'd')
            CALLGRIND_DUMP_STATS;
        if (write(control, &command, 1) != 1)
            break;
    }
    return NULL;
}

/* The thread takes no signals: those are for the program's own threads. */
static void start_control(const char *path)
{
    static int control;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    sigset_t all, before;
    pthread_t thread;
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    control = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (control < 0 || connect(control, (struct sockaddr *)&address, sizeof address) != 0)
        abort();
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, serve_commands, &control) != 0)
        abort();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

__attribute__((constructor)) static void start_counter(void)
{
    const char *counts = getenv("FRESHET_COST_COUNTS"), *control = getenv("FRESHET_COST_CONTROL");
    if (!counts || strcmp(program_invocation_short_name, "freshet") != 0)
        return; /* a shell or a tool that starts the program */
    int fd = open(counts, O_RDWR | O_CLOEXEC);
    void *memory =
        fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *allocations, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        abort();
    close(fd);
    allocations = memory;
    if (control)
        start_control(control);
}
