/* Log lines: built in a fixed buffer of the thread, written at once.
 *
 * A line never allocates, so that running out of memory can be logged; what does not fit is cut or left
 * out. A write that fails is forgotten: a program that cannot log must go on serving. */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"

#define LINE_BYTES 32768
#define VALUE_BYTES_MAX 8192
#define TAIL_BYTES 2 /* "}\n" */
#define REQUEST_ID_BYTES_MAX 128
#define NUMBER_BYTES 32 /* longest number or boolean */

static const char *const level_names[] = {
    [LOG_LEVEL_DEBUG] = "debug",
    [LOG_LEVEL_INFO] = "info",
    [LOG_LEVEL_WARN] = "warn",
    [LOG_LEVEL_ERROR] = "error",
};

static atomic_int level_min = LOG_LEVEL_INFO;
static atomic_int log_fd = STDERR_FILENO;
static atomic_bool is_socket;  /* and not to be waited for */
static atomic_uint lost_lines; /* since the last that was written */
static _Thread_local char line_bytes[LINE_BYTES];
static _Thread_local struct { /* copies: what they belong to may end before log_leave() */
    char trace_id[TRACE_ID_TEXT_BYTES], request_id[REQUEST_ID_BYTES_MAX];
    size_t trace_len, request_len;
} ids;

void log_enter(const struct trace *trace, struct str request_id)
{
    ids.trace_len = trace_id_text(trace, ids.trace_id).len;
    ids.request_len = request_id.len < REQUEST_ID_BYTES_MAX ? request_id.len : REQUEST_ID_BYTES_MAX;
    if (ids.request_len > 0)
        memcpy(ids.request_id, request_id.ptr, ids.request_len);
}

bool log_is_entered(void)
{
    return ids.trace_len > 0 || ids.request_len > 0;
}

void log_leave(void)
{
    ids.trace_len = ids.request_len = 0;
}

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&level_min, (int)level, memory_order_relaxed);
}

void log_set_fd(int fd)
{
    atomic_store_explicit(&log_fd, fd, memory_order_relaxed);
}

/* A pipe is opened again: O_NONBLOCK on the old description would hold for every process that shares it. A file is not,
 * lest its end is lost. A pipe of another user cannot be opened, as in a container that does not run as root: then the old
 * description is set, since a reader that stops would stop every loop. */
void log_never_wait(void)
{
    int fd = atomic_load_explicit(&log_fd, memory_order_relaxed), own;
    struct stat info;
    char path[32];

    if (fstat(fd, &info) != 0)
        return;
    atomic_store_explicit(&is_socket, S_ISSOCK(info.st_mode), memory_order_relaxed);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (!S_ISFIFO(info.st_mode))
        return;
    if ((own = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC)) >= 0)
        log_set_fd(own);
    else if ((own = fcntl(fd, F_GETFL)) >= 0)
        fcntl(fd, F_SETFL, own | O_NONBLOCK);
}

bool log_enabled(enum log_level level)
{
    return (int)level >= atomic_load_explicit(&level_min, memory_order_relaxed);
}

/* `line` stands on fixed memory and must not grow: every put is checked against the room that is left
 * first. */
static size_t room_for_value(const struct buf *line, const char *name)
{
    size_t used = buf_len(line) + 1 + json_string_size(str_from(name)) + 1 + TAIL_BYTES;

    return used < line->capacity ? line->capacity - used : 0;
}

static void put_text(struct buf *line, const char *name, struct str text)
{
    size_t room = room_for_value(line, name);

    text = str_utf8_cut(text, VALUE_BYTES_MAX);
    while (text.len > 0 && json_string_size(text) > room)
        text = str_utf8_cut(text, text.len / 2);
    if (text.len > 0)
        json_put_member_str(line, name, text);
}

static void put_number(struct buf *line, const struct log_field *field)
{
    if (room_for_value(line, field->name) < NUMBER_BYTES)
        return;
    if (field->type == LOG_FIELD_INT) {
        json_put_member_i64(line, field->name, field->number);
    } else if (field->type == LOG_FIELD_BOOL) {
        json_put_member_bool(line, field->name, field->number != 0);
    } else {
        json_put_key(line, str_from(field->name));
        if (isfinite(field->real))
            buf_put_double(line, field->real);
        else
            buf_put_str(line, STR("null"));
    }
}

/* A write interrupted before its first byte is the only one that is repeated: the rest of a short one would follow a line
 * of another thread. */
void log_write(enum log_level level, const char *event, const struct log_field *fields)
{
    struct buf line = {.data = line_bytes, .capacity = sizeof(line_bytes)};
    char now[CLOCK_RFC3339_BYTES];
    int fd = atomic_load_explicit(&log_fd, memory_order_relaxed);
    bool no_wait = atomic_load_explicit(&is_socket, memory_order_relaxed);
    int saved_errno = errno; /* a caller may log before it looks at it */
    ssize_t written;

    if (!log_enabled(level))
        return;
    buf_put_char(&line, '{');
    put_text(&line, "ts", str_of(now, clock_rfc3339(clock_unix_us(), now)));
    put_text(&line, "level", str_from(level_names[level]));
    put_text(&line, "event", str_from(event));
    for (; fields->name; fields++) {
        if (fields->type == LOG_FIELD_STR)
            put_text(&line, fields->name, fields->text);
        else
            put_number(&line, fields);
    }
    put_text(&line, "traceId", str_of(ids.trace_id, ids.trace_len));
    put_text(&line, "requestId", str_of(ids.request_id, ids.request_len));
    buf_put(&line, "}\n", TAIL_BYTES);
    do
        written = no_wait ? send(fd, line.data, buf_len(&line), MSG_DONTWAIT | MSG_NOSIGNAL)
                          : write(fd, line.data, buf_len(&line));
    while (written < 0 && errno == EINTR);
    unsigned lost = 0;
    if (written < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        atomic_fetch_add_explicit(&lost_lines, 1, memory_order_relaxed);
    else if (written >= 0 && atomic_load_explicit(&lost_lines, memory_order_relaxed) > 0)
        lost = atomic_exchange_explicit(&lost_lines, 0, memory_order_relaxed);
    if (lost > 0)
        log_warn("log_lines_lost", LOG_INT("lines", lost));
    errno = saved_errno;
}
