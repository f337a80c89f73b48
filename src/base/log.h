/* Logs: one JSON object a line on standard error (C9). Never a token, a payload or a secret.
 *
 *     log_info("dictionary_loaded", LOG_STR("dictCode", code), LOG_INT("version", version));
 *
 * A line is built in one thread-local buffer and written by a single write(), so lines of threads never
 * mix. */
#ifndef FRESHET_BASE_LOG_H
#define FRESHET_BASE_LOG_H

#include <stdint.h>

#include "base/status.h"
#include "base/str.h"
#include "base/trace.h"

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR, LOG_LEVEL_OFF };

struct log_field {
    const char *name; /* NULL ends the list */
    enum { LOG_FIELD_STR, LOG_FIELD_INT, LOG_FIELD_DOUBLE, LOG_FIELD_BOOL } type;
    struct str text;
    int64_t number;
    double real;
};

#define LOG_STR(n, s) ((struct log_field){.name = (n), .type = LOG_FIELD_STR, .text = (s)})
#define LOG_CSTR(n, z) ((struct log_field){.name = (n), .type = LOG_FIELD_STR, .text = str_from(z)})
#define LOG_INT(n, i) ((struct log_field){.name = (n), .type = LOG_FIELD_INT, .number = (int64_t)(i)})
#define LOG_DOUBLE(n, d) ((struct log_field){.name = (n), .type = LOG_FIELD_DOUBLE, .real = (d)})
#define LOG_BOOL(n, b) ((struct log_field){.name = (n), .type = LOG_FIELD_BOOL, .number = (b)})
/* of a message or row: the trace of its traceparent, left out where it has none */
#define LOG_TRACE(traceparent) LOG_STR("traceId", trace_id_of(traceparent))
/* an error's status, field and message */
#define LOG_ERROR_FIELDS(e)                                                      \
    LOG_CSTR("status", status_name((e)->status)), LOG_CSTR("field", (e)->field), \
        LOG_CSTR("error", (e)->message)

/* Fields with empty text are left out. `event` is a short snake_case name that can be searched for. */
void log_write(enum log_level level, const char *event, const struct log_field *fields);
/* From now on until log_leave(), lines of this thread have `traceId`, unless it is none, and `requestId`, unless it is empty. */
void log_enter(const struct trace *trace, struct str request_id);
void log_leave(void);
bool log_is_entered(void);
void log_set_level(enum log_level level); /* OFF: no line at all */
void log_set_fd(int fd);                  /* standard error by default; for tests */
/* From now on lines are dropped while the log is a pipe or socket that is full, so that logging never blocks. Their number is
 * logged when it accepts lines again. */
void log_never_wait(void);
bool log_enabled(enum log_level level);

#define LOG_FIELDS(...) ((const struct log_field[]){__VA_ARGS__ __VA_OPT__(, ){.name = NULL}})
#define log_debug(event, ...) \
    (log_enabled(LOG_LEVEL_DEBUG) ? log_write(LOG_LEVEL_DEBUG, event, LOG_FIELDS(__VA_ARGS__)) : (void)0)
#define log_info(event, ...) log_write(LOG_LEVEL_INFO, event, LOG_FIELDS(__VA_ARGS__))
#define log_warn(event, ...) log_write(LOG_LEVEL_WARN, event, LOG_FIELDS(__VA_ARGS__))
#define log_error(event, ...) log_write(LOG_LEVEL_ERROR, event, LOG_FIELDS(__VA_ARGS__))

#endif
