/* The memory of connections: their requests, bodies and unsent answers, charged to the accounts of base/budget.h by the
 * capacity of their buffers. A request whose exchange is pooled, whose body arrives whole with its head and whose answer the
 * socket takes charges nothing.
 *   - A request for which there is no room is served if its turn ends with its answer, as that of most reads does; else it is
 *     answered 503, after heads that arrive slowly were cut. Requests that wait (parked, or for a worker) are bounded by tenant,
 *     and so are long answers of workers until they are written; the first ones of a tenant have their room in the account's
 *     reserve. Until a token was checked, the client's address stands for the tenant. Heads that are not complete have at most
 *     half of the account's share.
 *   - Bodies past their account are refused with 503; they are bounded by tenant too.
 *   - Past the account of unsent answers a loop cuts connections of the tenant that holds most of them there, first the one whose
 *     client has not read for longest, while the loop holds more than its part. The one that is being written is spared. */
#include "base/budget.h"

#include "http/tls.h"

enum {
    HEAD_PATIENCE_MS = 1000, /* for a head, when there is no room for another request */
    HEAD_CUTS_PAUSE_MS = 100,
};

/* Its address stands for it while its tenant is not known. */
static uint64_t tenant_of(const struct http_exchange *exchange)
{
    const struct http_server_config *config = &exchange->home->server->config;
    uint64_t tenant = config->share_of ? config->share_of(&exchange->request) : 0;
    return tenant ? tenant : http_request_sender(&exchange->request);
}

/* ---- requests ---- */

/* Connections that have been sending a head for a while, or do not read their answers. A walk over all, so not for each
 * refusal. */
static void cut_slow_heads(struct http_home *home, const struct http_connection *spared)
{
    struct http_connection *connection, *next;
    int64_t now_ns = loop_now_ns(home->loop);

    if (now_ns < home->next_cuts_ns)
        return;
    home->next_cuts_ns = now_ns + HEAD_CUTS_PAUSE_MS * CLOCK_NS_PER_MS;
    LIST_FOREACH_SAFE(connection, &home->connections, entry, next) {
        int64_t since_ns = connection->is_behind ? connection->reading_since_ns : connection->state_since_ns;
        bool has_begun =
            connection->exchange || http_tls_is_opening(connection) || http_tls_has_input(connection);
        if (connection->state != HTTP_STATE_HEAD || !has_begun || connection == spared ||
            now_ns - since_ns < HEAD_PATIENCE_MS * CLOCK_NS_PER_MS)
            continue;
        metric_add(home->server->full_cuts, 1);
        http_connection_cut(connection);
    }
}

/* Each loop has its part of what heads may take. */
static bool charge_head(struct http_home *home, size_t bytes)
{
    if (home->head_bytes + bytes > budget_share(BUDGET_REQUESTS) / 2 / home->server->home_count) {
        budget_count_refusal(BUDGET_REQUESTS);
        return false;
    }
    if (!budget_charge(BUDGET_REQUESTS, bytes))
        return false;
    home->head_bytes += bytes;
    return true;
}

static void end_head(struct http_exchange *exchange)
{
    exchange->home->head_bytes -= exchange->head_bytes;
    exchange->head_bytes = 0;
}

bool http_budget_charge_head(struct http_exchange *exchange, size_t bytes)
{
    size_t more = bytes - exchange->charged;

    if (!charge_head(exchange->home, more)) {
        cut_slow_heads(exchange->home, exchange->connection);
        if (!charge_head(exchange->home, more))
            return false;
    }
    exchange->head_bytes += more;
    exchange->charged = bytes;
    return true;
}

/* Handshakes are heads that are not complete: together they have half of the account's share. */
bool http_budget_charge_handshake(struct http_connection *connection, size_t bytes)
{
    if (charge_head(connection->home, bytes))
        return true;
    cut_slow_heads(connection->home, connection);
    return charge_head(connection->home, bytes);
}

void http_budget_end_handshake(struct http_connection *connection, size_t bytes, size_t kept)
{
    connection->home->head_bytes -= bytes;
    budget_release(BUDGET_REQUESTS, bytes - kept);
}

void http_budget_set_exchange(struct http_exchange *exchange, size_t bytes)
{
    end_head(exchange);
    if (bytes < exchange->held_bytes) {
        budget_leave_tenant(BUDGET_REQUESTS, exchange->held_tenant, exchange->held_bytes - bytes);
        exchange->held_bytes = bytes;
    }
    if (bytes < exchange->charged)
        budget_release(BUDGET_REQUESTS, exchange->charged - bytes);
    else
        budget_add(BUDGET_REQUESTS, bytes - exchange->charged);
    exchange->charged = bytes;
}

/* What is charged already becomes the tenant's, and what the exchange takes beyond that is charged to it. */
static bool hold_waiting(struct http_exchange *exchange, uint64_t tenant)
{
    size_t bytes = exchange->block ? http_exchange_bytes(exchange) : 0, charged = exchange->charged;

    if (charged > exchange->held_bytes) {
        if (!budget_hold_tenant(BUDGET_REQUESTS, tenant, charged - exchange->held_bytes))
            return false;
        exchange->held_bytes = charged;
        exchange->held_tenant = tenant;
        exchange->has_waited = true;
    }
    if (bytes <= charged)
        return true;
    if (!budget_charge_tenant(BUDGET_REQUESTS, tenant, bytes - charged))
        return false;
    exchange->charged = exchange->held_bytes = bytes;
    exchange->held_tenant = tenant;
    exchange->has_waited = exchange->has_arena_charged = true;
    return true;
}

/* One that waits for its token's check has no tenant yet, and may wait again. */
bool http_budget_hold_waiting(struct http_exchange *exchange)
{
    uint64_t tenant = tenant_of(exchange);

    if (exchange->held_tenant != tenant)
        http_budget_leave_waiting(exchange);
    if (!hold_waiting(exchange, tenant)) {
        cut_slow_heads(exchange->home, exchange->connection);
        if (!hold_waiting(exchange, tenant))
            return false;
    }
    end_head(exchange);
    return true;
}

void http_budget_leave_waiting(struct http_exchange *exchange)
{
    if (exchange->held_bytes > 0)
        budget_leave_tenant(BUDGET_REQUESTS, exchange->held_tenant, exchange->held_bytes);
    exchange->held_bytes = 0;
}

bool http_budget_may_stay(struct http_exchange *exchange)
{
    if (!exchange->has_waited)
        return true;
    http_budget_leave_waiting(exchange);
    exchange->has_waited = budget_is_full(BUDGET_REQUESTS);
    return !exchange->has_waited;
}

/* ---- bodies ---- */

bool http_budget_has_room(const struct http_exchange *exchange, uint64_t content_length)
{
    if (content_length <= HTTP_BLOCK_BYTES || budget_used(BUDGET_BODIES) == 0)
        return true;
    return budget_has_room(BUDGET_BODIES, tenant_of(exchange), content_length);
}

bool http_budget_charge_body(struct http_exchange *exchange)
{
    size_t more = exchange->body_bytes.capacity - exchange->body_charged;

    if (more == 0)
        return true;
    if (exchange->body_charged == 0)
        exchange->body_tenant = tenant_of(exchange);
    if (!budget_charge_tenant(BUDGET_BODIES, exchange->body_tenant, more))
        return false;
    exchange->body_charged += more;
    return true;
}

void http_budget_free_body(struct http_exchange *exchange)
{
    size_t charged = exchange->body_charged;

    buf_deinit(&exchange->body_bytes);
    exchange->body_charged = 0;
    if (charged > 0)
        budget_release_tenant(BUDGET_BODIES, exchange->body_tenant, charged);
}

/* ---- answers of workers ---- */

/* Many of them may wait for the loop at once, each in its request's arena, and then beside it in the connection's buffer. An answer
 * that reads gave can be refused; another one tells what was done. */
bool http_budget_charge_answer(struct http_exchange *exchange, size_t bytes)
{
    size_t most = budget_most(BUDGET_REQUESTS) / 4; /* one that is longer passes alone */
    bool is_read = exchange->request.method == HTTP_GET || exchange->request.method == HTTP_HEAD;

    if (bytes <= HTTP_BLOCK_BYTES)
        return true;
    bytes = bytes < most / 3 ? 3 * bytes : most;
    if (!is_read)
        budget_add_tenant(BUDGET_REQUESTS, exchange->held_tenant, bytes);
    else if (!budget_charge_tenant(BUDGET_REQUESTS, exchange->held_tenant, bytes))
        return false;
    exchange->answer_charged = bytes;
    return true;
}

void http_budget_free_answer(struct http_exchange *exchange)
{
    if (exchange->answer_charged > 0)
        budget_release_tenant(BUDGET_REQUESTS, exchange->held_tenant, exchange->answer_charged);
    exchange->answer_charged = 0;
}

/* ---- unsent answers ---- */

static void charge_unsent(struct http_connection *connection, size_t capacity)
{
    struct http_home *home = connection->home;
    size_t before = connection->unsent_charged;

    connection->unsent_charged = capacity;
    home->unsent_bytes += capacity - before; /* unsigned: a difference below 0 wraps, and back */
    home->unsent[connection->unsent_group].bytes += capacity - before;
    if (capacity > before)
        budget_add(BUDGET_UNSENT, capacity - before);
    else if (capacity < before)
        budget_release(BUDGET_UNSENT, before - capacity);
}

/* Its group may have changed since it joined: it leaves with what it has. */
static void leave_unsent(struct http_connection *connection)
{
    struct http_unsent *unsent = &connection->home->unsent[connection->unsent_group];

    connection->is_unsent = false;
    TAILQ_REMOVE(&unsent->connections, connection, unsent);
    unsent->bytes -= connection->unsent_charged;
}

static void join_unsent(struct http_connection *connection)
{
    struct http_unsent *unsent = &connection->home->unsent[connection->group];

    connection->is_unsent = true;
    connection->unsent_group = connection->group;
    TAILQ_INSERT_TAIL(&unsent->connections, connection, unsent);
    unsent->bytes += connection->unsent_charged;
}

static bool holds_too_much(const struct http_home *home)
{
    return home->unsent_bytes > budget_share(BUDGET_UNSENT) / home->server->home_count;
}

/* Of the tenant that holds most here, the connection whose client has not read for longest. */
static struct http_connection *find_to_cut(const struct http_home *home, const struct http_connection *spared)
{
    struct http_connection *found = NULL;
    size_t most = 0;

    for (unsigned i = 0; i < HTTP_GROUPS; i++) {
        struct http_connection *longest = TAILQ_FIRST(&home->unsent[i].connections);
        if (home->unsent[i].bytes <= most)
            continue;
        if (longest == spared)
            longest = TAILQ_NEXT(longest, unsent);
        if (longest)
            found = longest, most = home->unsent[i].bytes;
    }
    return found;
}

static void cut_readers(struct http_home *home, const struct http_connection *spared)
{
    while (holds_too_much(home) && budget_is_full(BUDGET_UNSENT)) {
        struct http_connection *connection = find_to_cut(home, spared);
        if (!connection)
            break;
        budget_count_refusal(BUDGET_UNSENT);
        metric_add(home->server->full_cuts, 1);
        http_connection_cut(connection);
    }
}

static void cut_on_loop(struct loop *loop, void *arg)
{
    struct http_server *server = arg;

    if (!server->is_destroyed)
        cut_readers(&server->homes[loop_index(loop)], NULL);
    atomic_fetch_sub(&server->homes_to_cut, 1);
    http_server_unref(server);
}

/* The account is full, and other loops hold more than their part. */
static void cut_elsewhere(struct http_server *server)
{
    unsigned none = 0;

    if (!atomic_compare_exchange_strong(&server->homes_to_cut, &none, server->home_count))
        return;
    atomic_fetch_add(&server->refs, server->home_count);
    loop_group_broadcast(server->config.group, cut_on_loop, server);
}

void http_budget_keep_unsent(struct http_connection *connection, bool has_progress)
{
    struct http_home *home = connection->home;

    if (connection->is_unsent && has_progress)
        leave_unsent(connection);
    if (!connection->is_unsent)
        join_unsent(connection);
    charge_unsent(connection, connection->own_out.capacity);
    cut_readers(home, connection);
    if (home->server->home_count > 1 && !holds_too_much(home) && budget_is_full(BUDGET_UNSENT))
        cut_elsewhere(home->server);
}

void http_budget_free_unsent(struct http_connection *connection)
{
    buf_deinit(&connection->own_out);
    if (!connection->is_unsent)
        return;
    charge_unsent(connection, 0);
    leave_unsent(connection);
}
