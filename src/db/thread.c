/* Detached threads for the two calls that know no deadline: getaddrinfo() and PQcancel(). Signals are for
 * others. */
#include <pthread.h>
#include <signal.h>

#include "db/db_inside.h"

bool db_thread_start(void *(*run)(void *arg), void *arg)
{
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all;

    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setsigmask_np(&attributes, &all);
    int rc = pthread_create(&thread, &attributes, run, arg);
    pthread_attr_destroy(&attributes);
    return rc == 0;
}
