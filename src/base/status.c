/* The status table's accessors, and the errors that travel with a status.
 *
 * Nothing here allocates: an error is the caller's memory, and a message that does not fit is cut. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct row {
    const char *name, *code, *message;
    int http;
    bool retryable;
};

static const struct row rows[STATUS_COUNT] = {
#define STATUS_ROW(n, c, text, h, r) \
    [STATUS_##n] = {.name = #n, .code = c, .message = text, .http = h, .retryable = r},
    STATUS_TABLE(STATUS_ROW)
#undef STATUS_ROW
};

/* A number that is not in the table is a bug elsewhere; it must still read as a failure. */
static const struct row *row_of(enum status status)
{
    return (unsigned)status < STATUS_COUNT ? &rows[status] : &rows[STATUS_INTERNAL];
}

const char *status_name(enum status status)
{
    return row_of(status)->name;
}

const char *status_code(enum status status)
{
    return row_of(status)->code;
}

const char *status_message(enum status status)
{
    return row_of(status)->message;
}

int status_http(enum status status)
{
    return row_of(status)->http;
}

bool status_retryable(enum status status)
{
    return row_of(status)->retryable;
}

/* Formats into a scratch first, so that the arguments may point into the error being replaced. */
enum status error_set_field(struct error *error, enum status status, const char *field, const char *format,
                            ...)
{
    char message[sizeof(error->message)];
    char name[sizeof(error->field)];
    va_list args;

    if (!error)
        return status;
    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    snprintf(name, sizeof(name), "%s", field ? field : "");
    error->status = status;
    memcpy(error->message, message, sizeof(message));
    memcpy(error->field, name, sizeof(name));
    return status;
}

enum status error_context(struct error *error, const char *format, ...)
{
    char context[sizeof(error->message)], message[sizeof(error->message)];
    va_list args;

    if (!error)
        return STATUS_INTERNAL;
    va_start(args, format);
    vsnprintf(context, sizeof(context) - 2, format, args);
    va_end(args);
    memcpy(message, error->message, sizeof(message));
    strcat(context, ": ");
    *stpncpy(stpcpy(error->message, context), message, sizeof(message) - 1 - strlen(context)) = '\0';
    return error->status;
}
