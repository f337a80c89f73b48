/* One PostgreSQL as this process uses it: idle connections on shelves, one per kind of session settings, and the lists
 * of the LISTEN connections and notifiers (listener.c and notices.c make them, one per loop).
 *
 * A pool limits how many connections its users have at once; the connections themselves are the server's. A burst in
 * one pool leaves connections that the next pool uses, and those that no pool needs are closed after a moment. Opening one
 * takes longer than most statements, so a caller first waits a moment for one that comes back: background work that
 * is due in many places at once shares a few connections. */
#include "db/link.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"

enum {
    KEPT_IDLE = 2,         /* of a shelf: these stay for the pool's idle_timeout_ms … */
    SPARE_IDLE_MS = 10000, /* … and the others for this long */
    OPENED_AT_ONCE = 4,    /* of a shelf that pools share: past these, opening another one … */
    RETURN_MS = 10,        /* … waits this long for one in use … */
    OPENING_MAX = 2,  /* … and while these are being opened, so that a start does not open dozens, … */
    OPENING_MS = 200, /* … this long: an unreachable server is noticed by every pool */
};

struct db_shelf {
    LIST_ENTRY(db_shelf) entry; /* of its server */
    struct db_server *server;   /* NULL: the shelf of one pool */
    char *options;              /* the session settings */
    unsigned refs;              /* under the server's lock */
    struct metric_series *gauge;
    int64_t idle_timeout_ms;

    pthread_mutex_t lock; /* a leaf: taken inside a pool's */
    pthread_cond_t returned;
    struct db_conn *idle; /* most recently used first */
    unsigned count;       /* of them */
    unsigned opened;      /* connections that are idle, in use or being opened */
    unsigned opening;     /* of them, being opened */
    /* The server has not crashed in between. A connection that answered after it was lent was open from its opening till
     * then; such times that overlap are one. */
    int64_t uncrashed_from_ns, uncrashed_to_ns;
};

/* ---- servers ---- */

static bool is_same_login(const struct db_parsed *a, const struct db_parsed *b)
{
    if (a->host_count != b->host_count || a->keyword_count != b->keyword_count)
        return false;
    if (strcmp(a->password_file ? a->password_file : "", b->password_file ? b->password_file : "") != 0)
        return false;
    for (unsigned i = 0; i < a->host_count; i++)
        if (strcmp(a->hosts[i].name, b->hosts[i].name) != 0 ||
            strcmp(a->hosts[i].port, b->hosts[i].port) != 0)
            return false;
    for (unsigned i = 0; i < a->keyword_count; i++) {
        const char *other = db_keyword_get(b, a->keywords[i]);
        if (strcmp(a->keywords[i], "options") != 0 && (!other || strcmp(a->values[i], other) != 0))
            return false;
    }
    return true;
}

struct db_server *db_server_find(struct db_server **list, const struct db_target *target)
{
    struct db_parsed parsed;

    if (db_parsed_init(&parsed, target, NULL) != STATUS_OK)
        return NULL;
    struct db_server *server = *list;
    while (server && !is_same_login(&server->parsed, &parsed))
        server = server->next;
    if (server) {
        db_parsed_deinit(&parsed);
        return server;
    }
    server = memory_zalloc(sizeof *server);
    server->parsed = parsed;
    pthread_mutex_init(&server->lock, NULL);
    server->next = *list;
    return *list = server;
}

void db_servers_destroy(struct db_server *list)
{
    while (list) {
        struct db_server *next = list->next;
        pthread_mutex_destroy(&list->lock);
        db_parsed_deinit(&list->parsed);
        free(list);
        list = next;
    }
}

/* ---- shelves ---- */

static struct db_shelf *shelf_create(struct db_server *server, const struct db_parsed *parsed)
{
    struct db_shelf *shelf = memory_zalloc(sizeof *shelf);

    shelf->server = server;
    shelf->options = str_dup(str_from(db_keyword_get(parsed, "options")));
    shelf->gauge = db_metric_connections(parsed->name, "idle");
    shelf->idle_timeout_ms = parsed->idle_timeout_ms;
    shelf->refs = 1;
    pthread_mutex_init(&shelf->lock, NULL);
    pthread_cond_init(&shelf->returned, NULL);
    return shelf;
}

struct db_shelf *db_shelf_ref(struct db_server *server, const struct db_parsed *parsed)
{
    if (!server)
        return shelf_create(NULL, parsed);
    pthread_mutex_lock(&server->lock);
    struct db_shelf *shelf;
    LIST_FOREACH(shelf, &server->shelves, entry)
        if (strcmp(shelf->options, db_keyword_get(parsed, "options")) == 0)
            break;
    if (shelf) {
        shelf->refs++;
    } else {
        shelf = shelf_create(server, parsed);
        LIST_INSERT_HEAD(&server->shelves, shelf, entry);
    }
    pthread_mutex_unlock(&server->lock);
    return shelf;
}

static void destroy_all(struct db_conn *conn)
{
    while (conn) {
        struct db_conn *next = conn->next;
        db_conn_destroy(conn);
        conn = next;
    }
}

void db_shelf_unref(struct db_shelf *shelf)
{
    struct db_server *server = shelf->server;

    if (server) {
        pthread_mutex_lock(&server->lock);
        bool is_last = --shelf->refs == 0;
        if (is_last)
            LIST_REMOVE(shelf, entry);
        pthread_mutex_unlock(&server->lock);
        if (!is_last)
            return;
    }
    destroy_all(shelf->idle);
    metric_set(shelf->gauge, 0);
    pthread_cond_destroy(&shelf->returned);
    pthread_mutex_destroy(&shelf->lock);
    free(shelf->options);
    free(shelf);
}

static struct db_conn *pop(struct db_shelf *shelf)
{
    struct db_conn *conn = shelf->idle;

    if (conn) {
        shelf->idle = conn->next;
        metric_set(shelf->gauge, --shelf->count);
    }
    return conn;
}

struct db_conn *db_shelf_take(struct db_shelf *shelf)
{
    pthread_mutex_lock(&shelf->lock);
    struct db_conn *conn = pop(shelf);
    pthread_mutex_unlock(&shelf->lock);
    return conn;
}

struct db_conn *db_shelf_open(struct db_shelf *shelf, int64_t deadline_ns)
{
    int64_t begun_ns = clock_mono_ns();

    pthread_mutex_lock(&shelf->lock);
    struct db_conn *conn = pop(shelf);
    while (!conn && shelf->server && shelf->opened >= OPENED_AT_ONCE) {
        int64_t wait_ms = shelf->opening < OPENING_MAX ? RETURN_MS : OPENING_MS;
        int64_t until_ns = begun_ns + wait_ms * CLOCK_NS_PER_MS;
        until_ns = until_ns < deadline_ns ? until_ns : deadline_ns;
        if (clock_mono_ns() >= until_ns)
            break;
        clock_cond_wait(&shelf->returned, &shelf->lock, until_ns);
        conn = pop(shelf);
    }
    shelf->opened += !conn;
    shelf->opening += !conn;
    pthread_mutex_unlock(&shelf->lock);
    return conn;
}

void db_shelf_opened(struct db_shelf *shelf, bool is_open)
{
    pthread_mutex_lock(&shelf->lock);
    shelf->opening--;
    shelf->opened -= !is_open;
    pthread_cond_broadcast(&shelf->returned); /* the next one may be opened */
    pthread_mutex_unlock(&shelf->lock);
}

void db_shelf_closed(struct db_shelf *shelf)
{
    pthread_mutex_lock(&shelf->lock);
    shelf->opened--;
    pthread_mutex_unlock(&shelf->lock);
}

void db_shelf_lend(struct db_shelf *shelf, struct db_conn *conn)
{
    pthread_mutex_lock(&shelf->lock);
    bool is_covered =
        conn->opened_ns >= shelf->uncrashed_from_ns && conn->opened_ns <= shelf->uncrashed_to_ns;
    conn->uncrashed_ns = is_covered ? shelf->uncrashed_from_ns : conn->opened_ns;
    conn->lent_ns = clock_mono_ns();
    pthread_mutex_unlock(&shelf->lock);
}

void db_shelf_put(struct db_shelf *shelf, struct db_conn *conn)
{
    pthread_mutex_lock(&shelf->lock);
    if (conn->answered && conn->lent_ns >= shelf->uncrashed_from_ns) {
        bool overlaps = conn->opened_ns <= shelf->uncrashed_to_ns;
        if (!overlaps || conn->opened_ns < shelf->uncrashed_from_ns)
            shelf->uncrashed_from_ns = conn->opened_ns;
        if (conn->lent_ns > shelf->uncrashed_to_ns)
            shelf->uncrashed_to_ns = conn->lent_ns;
    }
    conn->idle_since_ns = clock_mono_ns();
    conn->next = shelf->idle;
    shelf->idle = conn;
    metric_set(shelf->gauge, ++shelf->count);
    pthread_cond_signal(&shelf->returned);
    pthread_mutex_unlock(&shelf->lock);
}

/* The tail of the list from the first connection that was unused for too long. */
void db_shelf_close_unused(struct db_shelf *shelf)
{
    int64_t now_ns = clock_mono_ns();
    unsigned kept = 0;

    pthread_mutex_lock(&shelf->lock);
    struct db_conn **at = &shelf->idle;
    for (; *at; at = &(*at)->next, kept++) {
        int64_t unused_ms = (now_ns - (*at)->idle_since_ns) / CLOCK_NS_PER_MS;
        bool is_expired = shelf->idle_timeout_ms > 0 && unused_ms >= shelf->idle_timeout_ms;
        if (is_expired || (kept >= KEPT_IDLE && unused_ms >= SPARE_IDLE_MS))
            break;
    }
    struct db_conn *unused = *at;
    *at = NULL;
    shelf->opened -= shelf->count - kept;
    shelf->count = kept;
    metric_set(shelf->gauge, kept);
    pthread_mutex_unlock(&shelf->lock);
    destroy_all(unused);
}
