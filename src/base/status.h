/* Status codes: one table for the whole program.
 *
 * A function that can fail returns `enum status` and must be checked. Details travel in a caller-owned
 * `struct error`; each layer may add context on the way up, and it is logged once, where it is decided.
 * A row knows the HTTP status and the public `code` an API answers with, so no handler invents its own. */
#ifndef FRESHET_BASE_STATUS_H
#define FRESHET_BASE_STATUS_H

#include <stdbool.h>
#include <stddef.h>

/* X(name, public code, default message, HTTP status, retryable) */
#define STATUS_TABLE(X)                                                                                      \
    X(OK, "OK", "ok", 200, false)                                                                            \
    X(BAD_REQUEST, "BAD_REQUEST", "the request is not valid", 400, false)                                    \
    X(INVALID_IDEMPOTENCY_KEY, "INVALID_IDEMPOTENCY_KEY",                                                    \
      "Invalid idempotency key format. Key must be 1-255 characters long and contain only letters, "         \
      "numbers, hyphens, and underscores",                                                                   \
      400, false)                                                                                            \
    X(UNAUTHENTICATED, "UNAUTHENTICATED", "a valid bearer token is required", 401, false)                    \
    X(TENANT_MISMATCH, "TENANT_MISMATCH", "the token does not belong to this tenant", 403, false)            \
    X(INSUFFICIENT_SCOPE, "INSUFFICIENT_SCOPE", "the token lacks the scope this needs", 403, false)          \
    X(NOT_FOUND, "NOT_FOUND", "there is nothing at this path", 404, false)                                   \
    X(UNKNOWN_DICTIONARY, "UNKNOWN_DICTIONARY", "no such dictionary", 404, false)                            \
    X(ITEM_NOT_FOUND, "ITEM_NOT_FOUND", "no item with this key", 404, false)                                 \
    X(UNKNOWN_UPDATE, "UNKNOWN_UPDATE", "no update with this eventId", 404, false)                           \
    X(SESSION_NOT_FOUND, "SESSION_NOT_FOUND", "no such session", 404, false)                                 \
    X(ENTITY_NOT_FOUND, "ENTITY_NOT_FOUND", "no such entity", 404, false)                                    \
    X(METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", "this path does not take that method", 405, false)           \
    X(NOT_ACCEPTABLE, "NOT_ACCEPTABLE", "none of the accepted types can be produced", 406, false)            \
    X(REQUEST_TIMEOUT, "REQUEST_TIMEOUT", "the request took too long to arrive", 408, true)                  \
    X(CONFLICT, "CONFLICT", "the state does not allow this", 409, false)                                     \
    X(VERSION_NOT_COMMITTED, "VERSION_NOT_COMMITTED", "that version is not committed", 409, true)            \
    X(EVENT_ID_CONFLICT, "EVENT_ID_CONFLICT", "this eventId belongs to another update", 409, false)          \
    X(CHUNK_CONFLICT, "CHUNK_CONFLICT", "this chunk came before with other content", 409, false)             \
    X(DICTIONARY_READ_ONLY, "DICTIONARY_READ_ONLY", "the dictionary takes no such updates", 409, false)      \
    X(STALE_SOURCE_REVISION, "STALE_SOURCE_REVISION", "a later sourceRevision was applied", 409, false)      \
    X(IDEMPOTENCY_KEY_CONFLICT, "IDEMPOTENCY_KEY_CONFLICT",                                                  \
      "Idempotency key already used with different request body", 409, false)                                \
    X(IDEMPOTENCY_KEY_PROCESSING, "IDEMPOTENCY_KEY_PROCESSING",                                              \
      "Request with this idempotency key is already being processed", 409, true)                             \
    X(SKU_TAKEN, "SKU_TAKEN", "an item with this sku exists", 409, false)                                    \
    X(ENTITLEMENT_STATE_CONFLICT, "ENTITLEMENT_STATE_CONFLICT", "it is in that state already", 409, false)   \
    X(VERSION_TOO_OLD, "VERSION_TOO_OLD", "changes since that version are no longer kept", 410, false)       \
    X(SEQUENCE_TOO_OLD, "SEQUENCE_TOO_OLD", "events since that sequence are not kept", 410, false)           \
    X(LENGTH_REQUIRED, "LENGTH_REQUIRED", "the body needs a length", 411, false)                             \
    X(PAYLOAD_TOO_LARGE, "PAYLOAD_TOO_LARGE", "the body is over the limit", 413, false)                      \
    X(URI_TOO_LONG, "URI_TOO_LONG", "the request target is over the limit", 414, false)                      \
    X(UNSUPPORTED_MEDIA_TYPE, "UNSUPPORTED_MEDIA_TYPE", "the body must be application/json", 415, false)     \
    X(EXPECTATION_FAILED, "EXPECTATION_FAILED", "only 100-continue can be expected", 417, false)             \
    X(UPDATE_REFUSED, "UPDATE_REFUSED", "the database refused the update", 422, false)                       \
    X(SNAPSHOT_INCOMPLETE, "SNAPSHOT_INCOMPLETE", "not all chunks of the snapshot came in time", 422, false) \
    X(COMMAND_LOST, "COMMAND_LOST", "the command of the update was lost before it was applied", 422, false)  \
    X(RATE_LIMITED, "RATE_LIMITED", "the tenant has sent too many requests", 429, true)                      \
    X(HEADERS_TOO_LARGE, "HEADERS_TOO_LARGE", "the header section is over the limit", 431, false)            \
    X(INTERNAL, "INTERNAL_ERROR", "something went wrong on our side", 500, true)                             \
    X(NOT_IMPLEMENTED, "NOT_IMPLEMENTED", "the method or coding is not supported", 501, false)               \
    X(UNAVAILABLE, "UNAVAILABLE", "not available right now, try again", 503, true)                           \
    X(OVERLOADED, "OVERLOADED", "too much at once, try again", 503, true)                                    \
    X(DICTIONARY_UNAVAILABLE, "DICTIONARY_UNAVAILABLE", "this dictionary cannot be served now", 503, true)   \
    X(HYDRATION_TIMEOUT, "HYDRATION_TIMEOUT", "its owner did not answer in time, try again", 503, true)      \
    X(HTTP_VERSION, "HTTP_VERSION_NOT_SUPPORTED", "only HTTP/1.x is supported", 505, false)                  \
    /* inside the program only; an API answers INTERNAL or UNAVAILABLE for them */                           \
    X(TIMEOUT, "UNAVAILABLE", "the deadline passed", 503, true)                                              \
    X(CANCELLED, "UNAVAILABLE", "stopped before it finished", 503, true)                                     \
    X(NO_MEMORY, "UNAVAILABLE", "out of memory", 503, true)                                                  \
    X(IO, "UNAVAILABLE", "input or output failed", 503, true)                                                \
    X(CONFIG, "INTERNAL_ERROR", "the configuration is not valid", 500, false)                                \
    X(DB_DOWN, "UNAVAILABLE", "the database cannot be reached", 503, true)                                   \
    X(DB_ERROR, "INTERNAL_ERROR", "the database refused a statement", 500, false)                            \
    X(DB_RETRY, "UNAVAILABLE", "the database asked to try the transaction again", 503, true)

enum status {
#define STATUS_ENUM(name, code, text, http, retryable) STATUS_##name,
    STATUS_TABLE(STATUS_ENUM)
#undef STATUS_ENUM
        STATUS_COUNT
};

#define MUST_CHECK __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt_at, args_at) __attribute__((format(printf, fmt_at, args_at)))

const char *status_name(enum status status);    /* the enum's own name, for logs */
const char *status_code(enum status status);    /* the public code, for API answers */
const char *status_message(enum status status); /* a default sentence, safe to show to anyone */
int status_http(enum status status);
bool status_retryable(enum status status);

/* Caller-owned details of one failure. `message` is for logs and, only where the status is a 4xx, for the
 * client; `field` names the input at fault, empty when none. */
struct error {
    enum status status;
    char field[64];
    char message[512];
};

/* Fills *error (which may be NULL) and returns `status`, so that a failure is one return statement. */
enum status error_set_field(struct error *error, enum status status, const char *field, const char *format,
                            ...) PRINTF_LIKE(4, 5);
#define error_set(error, status, ...) error_set_field((error), (status), "", __VA_ARGS__)
/* Puts "context: " before the message that is there. Returns the error's status. */
enum status error_context(struct error *error, const char *format, ...) PRINTF_LIKE(2, 3);

#endif
