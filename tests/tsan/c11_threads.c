/* C11 threads over POSIX threads, for ThreadSanitizer; in no other build. The sanitizer knows pthread_* only, and librdkafka uses
 * <threads.h>, which glibc does not implement by them: a thread that the sanitizer does not know crashes in its first malloc(),
 * and what a mutex orders would be reported as a race. librdkafka, a shared library, finds these definitions before those of
 * libc. Functions that it does not call are left out. */
#include <errno.h>
#include <pthread.h>
#include <sanitizer/tsan_interface.h>
#include <stdint.h>
#include <stdlib.h>
#include <threads.h>

/* In glibc they are the same things under two names. */
_Static_assert(sizeof(mtx_t) == sizeof(pthread_mutex_t), "a mtx_t is a pthread_mutex_t");
_Static_assert(sizeof(cnd_t) == sizeof(pthread_cond_t), "a cnd_t is a pthread_cond_t");
_Static_assert(sizeof(once_flag) == sizeof(pthread_once_t), "a once_flag is a pthread_once_t");
_Static_assert(sizeof(thrd_t) == sizeof(pthread_t), "a thrd_t is a pthread_t");

/* The library is compiled without the sanitizer, which does not see its atomic counters: reports about memory that the library
 * frees or copies itself are wrong. Our code is still checked, also where the library calls it. The threads belong to a handle
 * that never ends (bus_kafka_client_close()): only the library could join them. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "called_from_lib:librdkafka.so\n"
           "thread:librdkafka.so\n";
}

static int as_thrd(int error)
{
    switch (error) {
    case 0: return thrd_success;
    case ENOMEM: return thrd_nomem;
    case ETIMEDOUT: return thrd_timedout;
    case EBUSY: return thrd_busy;
    default: return thrd_error;
    }
}

/* ---- threads ---- */

struct start {
    thrd_start_t run;
    void *arg;
};

static void *begin(void *arg)
{
    struct start start = *(struct start *)arg;

    free(arg);
    return (void *)(intptr_t)start.run(start.arg);
}

int thrd_create(thrd_t *thread, thrd_start_t run, void *arg)
{
    struct start *start = malloc(sizeof *start);

    if (!start)
        return thrd_nomem;
    *start = (struct start){run, arg};
    int error = pthread_create(thread, NULL, begin, start);
    if (error)
        free(start);
    return as_thrd(error);
}

int thrd_join(thrd_t thread, int *result)
{
    void *value;
    int error = pthread_join(thread, &value);

    if (!error && result)
        *result = (int)(intptr_t)value;
    return as_thrd(error);
}

void call_once(once_flag *flag, void (*run)(void))
{
    pthread_once((pthread_once_t *)flag, run);
}

/* ---- mutexes ---- */

/* A mutex is made before it is handed on, by a lock inside the library that is not seen either. */
int mtx_init(mtx_t *mutex, int type)
{
    pthread_mutexattr_t kind;

    pthread_mutexattr_init(&kind);
    if (type & mtx_recursive)
        pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
    int error = pthread_mutex_init((pthread_mutex_t *)mutex, &kind);
    pthread_mutexattr_destroy(&kind);
    __tsan_release(mutex);
    return as_thrd(error);
}

int mtx_lock(mtx_t *mutex)
{
    __tsan_acquire(mutex);
    return as_thrd(pthread_mutex_lock((pthread_mutex_t *)mutex));
}

int mtx_unlock(mtx_t *mutex)
{
    return as_thrd(pthread_mutex_unlock((pthread_mutex_t *)mutex));
}

void mtx_destroy(mtx_t *mutex)
{
    pthread_mutex_destroy((pthread_mutex_t *)mutex);
}

/* ---- conditions ---- */

int cnd_init(cnd_t *condition)
{
    return as_thrd(pthread_cond_init((pthread_cond_t *)condition, NULL));
}

int cnd_signal(cnd_t *condition)
{
    return as_thrd(pthread_cond_signal((pthread_cond_t *)condition));
}

int cnd_broadcast(cnd_t *condition)
{
    return as_thrd(pthread_cond_broadcast((pthread_cond_t *)condition));
}

int cnd_wait(cnd_t *condition, mtx_t *mutex)
{
    return as_thrd(pthread_cond_wait((pthread_cond_t *)condition, (pthread_mutex_t *)mutex));
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex, const struct timespec *restrict until)
{
    return as_thrd(pthread_cond_timedwait((pthread_cond_t *)condition, (pthread_mutex_t *)mutex, until));
}

void cnd_destroy(cnd_t *condition)
{
    pthread_cond_destroy((pthread_cond_t *)condition);
}
