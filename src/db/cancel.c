/* Cancel requests. A statement whose caller gave up must not go on at the server, holding locks until its
 * statement_timeout. libpq's PQcancel() connects anew and blocks as long as the server pleases, so it runs on
 * a detached thread; past a few at once the request is left out, and statement_timeout does the work. */
#include "db/db.h"

#include <stdatomic.h>

#include "db/db_inside.h"

#define CANCELS_MAX 8

static atomic_uint cancels_running;

static void *run_cancel(void *arg)
{
    char message[256]; /* nobody is left to tell */

    PQcancel(arg, message, sizeof message);
    PQfreeCancel(arg);
    atomic_fetch_sub(&cancels_running, 1);
    return NULL;
}

void db_cancel_later(PGconn *pg)
{
    PGcancel *cancel = PQgetCancel(pg);

    if (!cancel)
        return;
    if (atomic_fetch_add(&cancels_running, 1) < CANCELS_MAX && db_thread_start(run_cancel, cancel))
        return;
    atomic_fetch_sub(&cancels_running, 1);
    PQfreeCancel(cancel);
}
