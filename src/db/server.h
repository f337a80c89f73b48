/* What server.c, listener.c and notifier.c know of a server. */
#ifndef FRESHET_DB_SERVER_H
#define FRESHET_DB_SERVER_H

#include <pthread.h>

#include "db/db_inside.h"

struct db_server {
    struct db_server *next; /* of its list */
    struct db_parsed parsed;
    pthread_mutex_t lock; /* for what follows */
    struct db_shelf *shelves;
    struct db_hub *hubs; /* LISTEN connections, one per loop */
    struct db_notifier *notifiers;
};

#endif
