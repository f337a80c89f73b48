/* The growable byte buffer. Doubles when it grows; what was consumed is reclaimed before it does. */
#include "base/buf.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/memory.h"

#define FIRST_BYTES 256
#define READ_BYTES 16384

void buf_deinit(struct buf *buf)
{
    free(buf->data);
    *buf = (struct buf){0};
}

void buf_clear(struct buf *buf)
{
    buf->start = buf->end = 0;
}

char *buf_reserve(struct buf *buf, size_t len)
{
    if (buf->data && buf->capacity - buf->end >= len)
        return buf->data + buf->end;

    size_t used = buf_len(buf), capacity = buf->capacity ? buf->capacity : FIRST_BYTES / 2, need;
    if (__builtin_add_overflow(used, len, &need))
        need = SIZE_MAX; /* memory_realloc() ends the process, with its log line */
    if (buf->start > 0)
        memmove(buf->data, buf->data + buf->start, used);
    buf->start = 0;
    buf->end = used;
    /* Moving alone is enough only while it moves the smaller half, else a stream would be moved byte by
     * byte. */
    if (!buf->data || need > buf->capacity || used > buf->capacity / 2) {
        do {
            capacity = capacity <= SIZE_MAX / 2 ? capacity * 2 : SIZE_MAX;
        } while (capacity < need);
        buf->data = memory_realloc(buf->data, capacity);
        buf->capacity = capacity;
    }
    return buf->data + used;
}

void buf_commit(struct buf *buf, size_t len)
{
    buf->end += len;
}

void buf_consume(struct buf *buf, size_t len)
{
    buf->start += len;
    if (buf->start == buf->end)
        buf->start = buf->end = 0;
}

void buf_put(struct buf *buf, const void *bytes, size_t len)
{
    if (len == 0)
        return;
    memcpy(buf_reserve(buf, len), bytes, len);
    buf->end += len;
}

void buf_put_char(struct buf *buf, char c)
{
    *buf_reserve(buf, 1) = c;
    buf->end++;
}

void buf_put_u64(struct buf *buf, uint64_t value)
{
    char *at = buf_reserve(buf, STR_U64_BYTES);

    buf->end += (size_t)(str_put_u64(at, value) - at);
}

void buf_put_double(struct buf *buf, double value)
{
    char text[32];
    int len = 0;

    if (isnan(value)) {
        buf_put(buf, "NaN", 3);
        return;
    }
    if (isinf(value)) {
        buf_put(buf, value > 0 ? "+Inf" : "-Inf", 4);
        return;
    }
    /* 15 digits always survive from text to double, 17 always survive from double to text. */
    for (int digits = 15; digits <= 17; digits++) {
        len = snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    buf_put(buf, text, (size_t)len);
}

bool buf_read_file(struct buf *buf, const char *path, size_t bytes_max)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO without a writer must not hold us */
    ssize_t got = fd >= 0 && fcntl(fd, F_SETFL, 0) == 0 ? 1 : -1;

    while (got > 0 && buf_len(buf) <= bytes_max) {
        do
            got = read(fd, buf_reserve(buf, READ_BYTES), READ_BYTES);
        while (got < 0 && errno == EINTR);
        buf->end += got > 0 ? (size_t)got : 0;
    }
    int failed_errno = errno;
    if (fd >= 0)
        close(fd);
    errno = failed_errno;
    return got >= 0;
}

void buf_printf(struct buf *buf, const char *format, ...)
{
    va_list args, again;

    va_start(args, format);
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (len > 0) {
        char *at = buf_reserve(buf, (size_t)len + 1); /* vsnprintf() ends in a NUL that is not content */
        vsnprintf(at, (size_t)len + 1, format, again);
        buf_commit(buf, (size_t)len);
    }
    va_end(again);
}
