/* Polls: conditions that are checked about every second, in case a notice was lost. The polls of one server on one loop share a
 * connection and are evaluated together by one statement: an idle process makes one transaction per interval, however many
 * outboxes and readers it has.
 *
 * The statement is prepared again whenever a poll is created or destroyed. It always uses indexes, since its plan may be made while
 * tables are small or their statistics are old. If a condition cannot be evaluated, for example because its table is locked, the
 * statement fails; then every poll is called with DB_POLL_UNKNOWN, and its owner checks by itself. */
#include "db/db.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/memory.h"
#include "db/link.h"

static const char setup_sql[] =
    "SET enable_seqscan = off; SET enable_bitmapscan = off; SET lock_timeout = '250ms'";

struct db_poll {
    LIST_ENTRY(db_poll) entry;
    struct poll_hub *hub;
    struct db_poll_config config;
    int column; /* of the statement that is prepared; -1: not in it yet */
    bool destroyed;
};

struct poll_hub {
    struct db_link link; /* first: the two share their address; each poll is a user */
    LIST_HEAD(, db_poll) polls;
    struct loop_timer timer;
    enum { POLL_IDLE, POLL_SETS_UP, POLL_PREPARES, POLL_ASKS } state;
    bool is_prepared; /* with the polls that are in the list now */
    bool destroyed;
    _Atomic bool is_up;
};

static struct poll_hub *hub_of(struct db_link *link)
{
    return (struct poll_hub *)link;
}

static void on_timer(struct loop_timer *timer);

static void wait_for_turn(struct poll_hub *hub)
{
    const struct db_poll *poll;
    int64_t every_ms = INT64_MAX;

    hub->state = POLL_IDLE;
    LIST_FOREACH(poll, &hub->polls, entry)
        if (poll->config.every_ms < every_ms)
            every_ms = poll->config.every_ms;
    if (every_ms != INT64_MAX)
        loop_timer_start(hub->link.loop, &hub->timer, clock_deadline_ms(every_ms), on_timer);
}

static void prepare(struct poll_hub *hub)
{
    struct buf sql = {0};
    struct db_poll *poll;
    int columns = 0;

    buf_put_str(&sql, STR("DEALLOCATE ALL; PREPARE freshet_poll AS SELECT "));
    LIST_FOREACH(poll, &hub->polls, entry) {
        poll->column = columns++;
        buf_printf(&sql, "%s(%s)::bigint", poll->column ? ", " : "", poll->config.sql);
    }
    buf_put_char(&sql, '\0');
    hub->state = POLL_PREPARES;
    hub->is_prepared = true;
    db_link_sent(&hub->link, PQsendQuery(hub->link.pg, buf_str(&sql).ptr));
    buf_deinit(&sql);
}

static void on_timer(struct loop_timer *timer)
{
    struct poll_hub *hub = CONTAINER_OF(timer, struct poll_hub, timer);

    if (hub->link.state != DB_LINK_READY || hub->state != POLL_IDLE || LIST_EMPTY(&hub->polls))
        return;
    if (!hub->is_prepared) {
        prepare(hub);
        return;
    }
    hub->state = POLL_ASKS;
    db_link_sent(&hub->link, PQsendQuery(hub->link.pg, "EXECUTE freshet_poll"));
}

/* Callbacks may create and destroy polls. A destroyed poll leaves the list at once; its memory is freed at the end of the tick. */
static void call_all(struct poll_hub *hub, PGresult *row)
{
    struct db_poll *poll, *next;

    LIST_FOREACH_SAFE(poll, &hub->polls, entry, next) {
        int64_t value = DB_POLL_UNKNOWN;
        if (poll->destroyed || (row && poll->column < 0))
            continue;
        if (row && poll->column < PQnfields(row) &&
            !str_to_i64(str_from(PQgetvalue(row, 0, poll->column)), &value))
            value = 0; /* NULL */
        poll->config.on_value(poll->config.context, value);
    }
}

static void hub_answered(struct poll_hub *hub, bool failed, PGresult *row)
{
    bool asked = hub->state == POLL_ASKS;

    db_link_answered(&hub->link);
    hub->is_prepared &= !failed;
    hub->state = POLL_IDLE;
    if (failed || asked)
        call_all(hub, failed ? NULL : row);
    if (hub->destroyed || hub->link.state != DB_LINK_READY)
        return;
    if (failed || asked)
        wait_for_turn(hub);
    else /* set up or prepared: go on */
        on_timer(&hub->timer);
}

static void hub_on_input(struct db_link *link)
{
    struct poll_hub *hub = hub_of(link);
    PGresult *result, *row = NULL;
    bool failed = false;

    while (hub->state != POLL_IDLE && !PQisBusy(link->pg)) {
        result = PQgetResult(link->pg);
        if (!result) {
            hub_answered(hub, failed, row);
            break;
        }
        failed |= db_result_is_failure(result);
        PQclear(row);
        row = result;
    }
    PQclear(row);
}

static void hub_on_ready(struct db_link *link)
{
    struct poll_hub *hub = hub_of(link);

    hub->is_prepared = false;
    hub->state = POLL_SETS_UP;
    atomic_store(&hub->is_up, true);
    db_link_sent(link, PQsendQuery(link->pg, setup_sql));
}

/* Until the connection is back, the owner of each poll checks by itself. */
static void hub_on_down(struct db_link *link)
{
    struct poll_hub *hub = hub_of(link);

    hub->state = POLL_IDLE;
    atomic_store(&hub->is_up, false);
    loop_timer_stop(link->loop, &hub->timer);
    call_all(hub, NULL);
}

static const struct db_link_kind hub_kind = {.role = "poll",
                                             .size = sizeof(struct poll_hub),
                                             .on_ready = hub_on_ready,
                                             .on_input = hub_on_input,
                                             .on_down = hub_on_down};

/* ---- life ---- */

struct db_poll *db_poll_create(const struct db_poll_config *config)
{
    struct db_link *link = db_link_ref(config->loop, config->target, &hub_kind);

    if (!link)
        return NULL;
    struct poll_hub *hub = hub_of(link);
    struct db_poll *poll = memory_zalloc(sizeof *poll);
    poll->hub = hub;
    poll->config = *config;
    poll->config.target = NULL; /* borrowed for this call only */
    poll->config.sql = str_dup(str_from(config->sql));
    poll->column = -1;
    LIST_INSERT_HEAD(&hub->polls, poll, entry);
    hub->is_prepared = false;
    if (hub->state == POLL_IDLE && link->state == DB_LINK_READY)
        wait_for_turn(hub); /* its interval may be shorter than the others' */
    return poll;
}

static void free_poll(void *memory)
{
    struct db_poll *poll = memory;

    free((char *)poll->config.sql);
    free(poll);
}

bool db_poll_is_up(const struct db_poll *poll)
{
    return poll && atomic_load(&poll->hub->is_up);
}

void db_poll_destroy(struct db_poll *poll)
{
    if (!poll)
        return;
    struct poll_hub *hub = poll->hub;
    struct loop *loop = hub->link.loop;
    poll->destroyed = true;
    LIST_REMOVE(poll, entry);
    hub->is_prepared = false;
    if (db_link_unref(&hub->link)) {
        hub->destroyed = true;
        loop_timer_stop(loop, &hub->timer);
        loop_free_later(loop, hub, free);
    }
    loop_free_later(loop, poll, free_poll);
}
