/* Inside http: what connections and their requests charge to the memory budget (budget.c). On their loop, but for one call. */
#ifndef FRESHET_HTTP_BUDGET_H
#define FRESHET_HTTP_BUDGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct http_connection;
struct http_exchange;

/* The exchange is to take so many bytes, more than before, for a head that is not complete. False: there is no room for heads. */
bool http_budget_charge_head(struct http_exchange *exchange, size_t bytes) MUST_CHECK;
void http_budget_set_exchange(struct http_exchange *exchange, size_t bytes); /* it takes them already */
/* A handshake begins, for which the same room is there, and ends: so many of its bytes are kept. */
bool http_budget_charge_handshake(struct http_connection *connection, size_t bytes) MUST_CHECK;
void http_budget_end_handshake(struct http_connection *connection, size_t bytes, size_t kept);
/* Its request begins to wait or to stream, or ends. Charges the exchange, if it is not yet, and what its arena has grown to. False: its
 * tenant has as many of them as it may have. */
bool http_budget_hold_waiting(struct http_exchange *exchange) MUST_CHECK;
void http_budget_leave_waiting(struct http_exchange *exchange);
/* After its request: is there room for it beside the reserve, too? */
bool http_budget_may_stay(struct http_exchange *exchange) MUST_CHECK;
/* Would a body of this length have room now? Nothing is reserved. */
bool http_budget_has_room(const struct http_exchange *exchange, uint64_t content_length);
bool http_budget_charge_body(struct http_exchange *exchange); /* after it grew; false: no room, answer 503 */
void http_budget_free_body(struct http_exchange *exchange);
/* A worker is to record an answer of so many bytes. On its thread. False: no room, answer 503. */
bool http_budget_charge_answer(struct http_exchange *exchange, size_t bytes) MUST_CHECK;
void http_budget_free_answer(struct http_exchange *exchange);
/* At the end of a turn: own_out is not empty. May cut other connections. */
void http_budget_keep_unsent(struct http_connection *connection, bool has_progress);
void http_budget_free_unsent(struct http_connection *connection); /* own_out, with whatever is in it */

#endif
