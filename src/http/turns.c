/* Turns between tenants on one loop.
 *
 *     event ──▶ its turn, at once              while the tick is short: everything but a flood
 *       └─────▶ waits in its group ──▶ turn    when the tick has taken HTTP_TICK_US_MAX, until no connection waits
 *
 * A group is the connections of one tenant, or of one address while no request on them has had a tenant. Groups take turns: one
 * connection of the first, for at most HTTP_SHORT_TURN_US or HTTP_REQUESTS_IN_LONG_TICK requests, then the next group. After
 * HTTP_TICK_US_MAX the loop looks for events again, which then all wait in their groups. So a connection whose tenant does little
 * waits for the rest of a tick and one turn of each other group, however many connections and requests a flood has. Without a flood
 * a turn costs a comparison, and one look at the clock in HTTP_TURNS_PER_CHECK.
 *
 * Steps of TLS handshakes wait in groups of their own, by address, and have at most HTTP_HANDSHAKES_US_MAX of a tick, or one step. */
#include <stdlib.h>

#include "base/memory.h"
#include "http/tls.h"

static void init_queue(struct http_queue *queue)
{
    TAILQ_INIT(&queue->waiting);
    for (unsigned i = 0; i < HTTP_GROUPS; i++)
        TAILQ_INIT(&queue->groups[i].connections);
}

void http_turns_init(struct http_home *home)
{
    init_queue(&home->turns);
    if (home->tls) {
        home->handshakes = memory_alloc(sizeof *home->handshakes);
        init_queue(home->handshakes);
    }
}

void http_turns_deinit(struct http_home *home)
{
    free(home->handshakes);
}

/* ---- groups ---- */

void http_turns_join(struct http_connection *connection)
{
    connection->group = http_peer_hash(&connection->peer) % HTTP_GROUPS;
    connection->is_ungrouped = true;
}

void http_turns_group(struct http_exchange *exchange)
{
    const struct http_server_config *config = &exchange->home->server->config;
    struct http_connection *connection = exchange->connection;
    uint64_t share = config->share_of ? config->share_of(&exchange->request) : 0;

    if (share)
        connection->group = share % HTTP_GROUPS;
    connection->is_ungrouped = share == 0;
}

static struct http_queue *queue_of(const struct http_connection *connection)
{
    struct http_home *home = connection->home;
    return http_tls_is_opening(connection) ? home->handshakes : &home->turns;
}

void http_turns_leave(struct http_connection *connection)
{
    if (!connection->is_waiting)
        return;
    struct http_queue *queue = queue_of(connection);
    struct http_group *group = &queue->groups[connection->group];
    connection->is_waiting = false;
    TAILQ_REMOVE(&group->connections, connection, waiting);
    if (TAILQ_EMPTY(&group->connections))
        TAILQ_REMOVE(&queue->waiting, group, entry);
}

static void queue_put(struct http_connection *connection)
{
    struct http_queue *queue = queue_of(connection);
    struct http_group *group = &queue->groups[connection->group];

    connection->is_waiting = true;
    if (TAILQ_EMPTY(&group->connections))
        TAILQ_INSERT_TAIL(&queue->waiting, group, entry);
    TAILQ_INSERT_TAIL(&group->connections, connection, waiting);
}

/* The first connection of the first group; the group's next turn comes after those of all others. */
static struct http_connection *queue_take(struct http_queue *queue)
{
    struct http_group *group = TAILQ_FIRST(&queue->waiting);
    struct http_connection *connection = TAILQ_FIRST(&group->connections);

    TAILQ_REMOVE(&queue->waiting, group, entry);
    TAILQ_INSERT_TAIL(&queue->waiting, group, entry);
    http_turns_leave(connection);
    return connection;
}

/* ---- turns ---- */

static int64_t look_at_clock(struct http_home *home)
{
    return home->clock_ns = clock_mono_ns();
}

bool http_turn_is_over(const struct http_turn *turn, struct http_home *home)
{
    return look_at_clock(home) >= turn->until_ns;
}

/* In a tick that was long before, or that left events to the next one, for a short while only. */
static void run_waiting(struct loop_tick *tick)
{
    struct http_home *home = CONTAINER_OF(tick, struct http_home, waiting_tick);
    int64_t until_ns = look_at_clock(home) + HTTP_SHORT_PHASE_US * 1000;
    int64_t tick_until_ns = loop_now_ns(home->loop) + HTTP_TICK_US_MAX * 1000;

    if (until_ns < tick_until_ns && !loop_has_more(home->loop))
        until_ns = tick_until_ns;
    while (!TAILQ_EMPTY(&home->turns.waiting) && home->clock_ns < until_ns) {
        struct http_connection *connection = queue_take(&home->turns);
        const struct http_turn turn = {HTTP_REQUESTS_IN_LONG_TICK, HTTP_REQUESTS_PER_SHORT_CHECK - 1,
                                       home->clock_ns + HTTP_SHORT_TURN_US * 1000};
        bool is_readable = connection->is_readable;
        connection->is_readable = false;
        connection->is_ungrouped = true; /* its next request may be another tenant's */
        http_connection_serve(connection, is_readable, &turn);
        look_at_clock(home);
    }
    if (!TAILQ_EMPTY(&home->turns.waiting))
        loop_at_tick_end(home->loop, tick, run_waiting);
}

static void wait_for_turn(struct http_connection *connection, bool is_readable)
{
    struct http_home *home = connection->home;

    connection->is_readable |= is_readable;
    if (connection->is_waiting)
        return;
    queue_put(connection);
    loop_at_tick_end(home->loop, &home->waiting_tick, run_waiting);
}

/* While some wait, all do: a connection has no turn outside of its group's, also where a tick left run_waiting() to the next. */
void http_turns_take(struct http_connection *connection, bool is_readable)
{
    struct http_home *home = connection->home;
    const struct http_turn turn = {HTTP_REQUESTS_PER_TURN, HTTP_REQUESTS_PER_CHECK - 1,
                                   loop_now_ns(home->loop) + HTTP_TICK_US_MAX * 1000};

    if (!TAILQ_EMPTY(&home->turns.waiting) || home->clock_ns >= turn.until_ns ||
        (++home->turn_count % HTTP_TURNS_PER_CHECK == 0 && look_at_clock(home) >= turn.until_ns))
        wait_for_turn(connection, is_readable);
    else
        http_connection_serve(connection, is_readable, &turn);
}

static void on_tick_end(struct loop_tick *tick)
{
    http_turns_take(CONTAINER_OF(tick, struct http_connection, tick), false);
}

void http_turns_again(struct http_connection *connection)
{
    loop_at_tick_end(connection->home->loop, &connection->tick, on_tick_end);
}

void http_connection_resume(struct http_connection *connection)
{
    if (!connection->running && connection->state != HTTP_STATE_DEAD)
        http_turns_again(connection);
}

/* ---- handshakes ---- */

/* At least one step, so that they go on beside any load; at most as many as leave most of the tick to requests. */
static void run_handshakes(struct loop_tick *tick)
{
    struct http_home *home = CONTAINER_OF(tick, struct http_home, handshake_tick);
    int64_t until_ns = look_at_clock(home) + HTTP_HANDSHAKES_US_MAX * 1000;

    while (!TAILQ_EMPTY(&home->handshakes->waiting) && home->clock_ns < until_ns) {
        http_tls_shake(queue_take(home->handshakes));
        look_at_clock(home);
    }
    if (!TAILQ_EMPTY(&home->handshakes->waiting))
        loop_at_tick_end(home->loop, tick, run_handshakes);
}

void http_turns_take_handshake(struct http_connection *connection)
{
    if (connection->is_waiting)
        return;
    queue_put(connection);
    loop_at_tick_end(connection->home->loop, &connection->home->handshake_tick, run_handshakes);
}
