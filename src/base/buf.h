/* A growable byte buffer; {0} is an empty one. Owned by the holder of the struct; one thread at a time. */
#ifndef FRESHET_BASE_BUF_H
#define FRESHET_BASE_BUF_H

#include "base/status.h"
#include "base/str.h"

/*  data            data+start      data+end        data+capacity
 *   |  consumed     |   content     |   free        |            */
struct buf {
    char *data;
    size_t start, end, capacity;
};

void buf_deinit(struct buf *buf); /* empty again */
void buf_clear(struct buf *buf);  /* keeps the memory */

static inline size_t buf_len(const struct buf *buf)
{
    return buf->end - buf->start;
}

static inline struct str buf_str(const struct buf *buf)
{
    if (!buf->data) /* NULL + 0 is undefined */
        return STR_NONE;
    return str_of(buf->data + buf->start, buf->end - buf->start);
}

/* Makes room for `len` more bytes and returns where they go; buf_commit() adds those that were written. */
char *buf_reserve(struct buf *buf, size_t len);
void buf_commit(struct buf *buf, size_t len);
void buf_consume(struct buf *buf, size_t len); /* drops from the front; rewinds when it becomes empty */

void buf_put(struct buf *buf, const void *bytes, size_t len);
void buf_put_char(struct buf *buf, char c);
void buf_put_u64(struct buf *buf, uint64_t value); /* decimal */
/* The shortest decimal that reads back as the same double: 0.005, 1, 1e+21; NaN, +Inf, -Inf. */
void buf_put_double(struct buf *buf, double value);
/* Appends the whole file, or somewhat more than bytes_max of it; false: errno. */
bool buf_read_file(struct buf *buf, const char *path, size_t bytes_max);
void buf_printf(struct buf *buf, const char *format, ...) PRINTF_LIKE(2, 3);

static inline void buf_put_str(struct buf *buf, struct str s)
{
    buf_put(buf, s.ptr, s.len);
}

#endif
