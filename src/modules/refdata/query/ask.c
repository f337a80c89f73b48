/* Asks: messages between a parked request's loop and the home loop. */
#include "modules/refdata/query/ask.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/budget.h"
#include "base/clock.h"
#include "base/memory.h"
#include "modules/refdata/query/versions.h"
#include "modules/refdata/refdata.h"
#include "stream/stream.h"

/* ---- on the request's loop ---- */

static void on_message(struct loop *loop, struct loop_message *message)
{
    struct refdata_ask *ask = CONTAINER_OF(message, struct refdata_ask, message);
    (void)loop;
    ask->on_ask(ask);
}

void refdata_ask_post(struct http_request *request, int64_t timeout_ms, http_timeout_fn *on_timeout,
                      refdata_ask_fn *on_ask, const struct refdata_demand *demand)
{
    struct refdata *refdata = request->context;
    struct str tenant = kernel_identity(request)->tenant;
    size_t bytes = sizeof(struct refdata_ask) + tenant.len + demand->code.len + demand->keys.len + 3;
    uint64_t sender = hash_seeded(tenant);
    if (!budget_charge_tenant(BUDGET_REQUESTS, sender, bytes + demand->keys.len)) {
        http_send_error(request, &(struct error){.status = STATUS_OVERLOADED});
        return;
    }
    struct refdata_ask *ask = memory_zalloc(bytes);
    char *at = ask->names;
    ask->sender = sender;
    ask->charged = bytes + demand->keys.len;
    ask->message.on_message = on_message;
    ask->on_ask = on_ask;
    ask->refdata = refdata;
    ask->may_be_kept = demand->may_be_kept;
    ask->version = demand->version;
    ask->format = demand->format;
    ask->expires_ns = loop_now_ns(request->loop) + timeout_ms * CLOCK_NS_PER_MS;
    ask->tenant = str_pack(&at, tenant);
    ask->code = str_pack(&at, demand->code);
    ask->keys = str_pack(&at, demand->keys);
    kernel_identity_keep(request);
    if (http_request_park(request, ask->expires_ns, on_timeout, refdata, &ask->ref))
        loop_post(refdata->home, &ask->message);
    else
        refdata_ask_free(ask);
}

void refdata_ask_late(struct http_request *request, void *context)
{
    struct error error;
    (void)context;
    error_set(&error, STATUS_UNAVAILABLE, "PostgreSQL did not answer in time");
    http_send_error(request, &error);
}

static void on_reply(struct loop *loop, struct loop_message *message)
{
    struct refdata_ask *ask = CONTAINER_OF(message, struct refdata_ask, message);
    struct http_request *request = http_request_unpark(ask->ref);
    struct refdata_demand *demand = request ? request->handler_data : NULL;
    struct error error;
    char members[96] = "";
    (void)loop;
    if (request && ask->status == STATUS_OK) {
        if (demand) {
            demand->from_primary = ask->from_primary;
            demand->answer = ask->snapshot; /* a stream takes its own reference */
            demand->versions = ask->versions;
        }
        request->route->handler(request);
    } else if (request) {
        error_set(&error, ask->status, "%s", ask->text);
        if (ask->status == STATUS_VERSION_NOT_COMMITTED)
            error_set(&error, ask->status, "version %lld is not committed; the last one is %lld",
                      (long long)ask->version, (long long)ask->current);
        else if (ask->status == STATUS_VERSION_TOO_OLD)
            error_set(&error, ask->status, "changes since version %lld are no longer kept",
                      (long long)ask->version);
        if (ask->status == STATUS_VERSION_NOT_COMMITTED || ask->status == STATUS_VERSION_TOO_OLD)
            snprintf(members, sizeof members, ",\"requestedVersion\":%lld,\"%s\":%lld",
                     (long long)ask->version,
                     ask->status == STATUS_VERSION_TOO_OLD ? "currentVersion" : "committedVersion",
                     (long long)ask->current);
        http_send_error_with(request, &error, STR_NONE, str_from(members));
    }
    refdata_ask_free(ask);
}

/* ---- on the home loop ---- */

struct refdata_holding *refdata_ask_holding(const struct refdata_ask *ask)
{
    return refdata_table_find(ask->refdata->own, ask->tenant, ask->code);
}

void refdata_ask_refuse(struct refdata_ask *ask, enum status status, const char *text)
{
    ask->status = status;
    ask->text = text;
    ask->message.on_message = on_reply;
    loop_post(ask->ref.loop, &ask->message);
}

void refdata_ask_again(struct refdata_ask *ask)
{
    refdata_ask_refuse(ask, STATUS_OK, "");
}

void refdata_ask_free(struct refdata_ask *ask)
{
    cache_snapshot_unref(ask->snapshot);
    refdata_versions_unref(ask->versions);
    stream_segment_unref(ask->opening);
    budget_release_tenant(BUDGET_REQUESTS, ask->sender, ask->charged);
    free(ask);
}

struct refdata_ask *refdata_asks_take(struct refdata_asks *asks)
{
    struct refdata_ask *ask = STAILQ_FIRST(asks);
    if (ask)
        STAILQ_REMOVE_HEAD(asks, next);
    return ask;
}

void refdata_asks_refuse(struct refdata_asks *asks, enum status status, const char *text)
{
    for (struct refdata_ask *ask; (ask = refdata_asks_take(asks)) != NULL;)
        refdata_ask_refuse(ask, status, text);
}

void refdata_asks_again(struct refdata_asks *asks)
{
    refdata_asks_refuse(asks, STATUS_OK, "");
}

void refdata_asks_expire(struct refdata_asks *asks, int64_t now_ns)
{
    while (!STAILQ_EMPTY(asks) && STAILQ_FIRST(asks)->expires_ns <= now_ns)
        refdata_ask_free(refdata_asks_take(asks));
}

void refdata_asks_add(struct refdata_asks *asks, struct refdata_ask *ask, int64_t now_ns)
{
    refdata_asks_expire(asks, now_ns);
    STAILQ_INSERT_TAIL(asks, ask, next);
}
