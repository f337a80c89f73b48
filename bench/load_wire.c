/*
 * Framing of answers: HTTP/1.1 by Content-Length, RESP2 by its first line.
 *
 * The generator must not be what is measured, so a head of the same shape as the last one (ends at the same
 * place, Content-Length at the same place) is taken at a glance. A wrong guess cannot pass unseen: the bytes
 * after it would not begin with a status line.
 */
#include "load_wire.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

static const char length_name[] = "content-length:";
enum { LENGTH_NAME_BYTES = sizeof length_name - 1, STATUS_LINE_MIN = 13 };

static bool digits_read(const char *at, const char *end, size_t *value)
{
    while (at < end && *at == ' ') {
        at++;
    }
    if (at == end || !isdigit((unsigned char)*at)) {
        return false;
    }
    size_t sum = 0;
    for (; at < end && isdigit((unsigned char)*at); at++) {
        if (sum > (1U << 30)) {
            return false;
        }
        sum = sum * 10 + (size_t)(*at - '0');
    }
    *value = sum;
    return at < end && *at == '\r';
}

static bool is_length_field(const char *at, const char *end)
{
    return (size_t)(end - at) > LENGTH_NAME_BYTES && strncasecmp(at, length_name, LENGTH_NAME_BYTES) == 0;
}

static bool hint_holds(const struct bench_wire_hint *hint, const char *bytes, size_t length)
{
    return hint->head_bytes != 0 && length >= hint->head_bytes &&
           memcmp(bytes + hint->head_bytes - 4, "\r\n\r\n", 4) == 0 && bytes[hint->length_at - 1] == '\n' &&
           is_length_field(bytes + hint->length_at, bytes + hint->head_bytes);
}

/* Fills the hint from a whole head. False when there is no Content-Length to go by. */
static bool head_scan(struct bench_wire_hint *hint, const char *bytes, size_t head_bytes)
{
    const char *end = bytes + head_bytes;
    for (const char *line = bytes; line < end;) {
        if (is_length_field(line, end)) {
            hint->head_bytes = head_bytes;
            hint->length_at = (size_t)(line - bytes);
            return true;
        }
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        line = newline == NULL ? end : newline + 1;
    }
    return false;
}

ssize_t bench_wire_http_head(struct bench_wire_hint *hint, const char *bytes, size_t length,
                             struct bench_answer *answer)
{
    size_t compared = length < 7 ? length : 7;
    if (memcmp(bytes, "HTTP/1.", compared) != 0) {
        return -1;
    }
    if (!hint_holds(hint, bytes, length)) {
        const char *end = memmem(bytes, length, "\r\n\r\n", 4);
        if (end == NULL) {
            return length > BENCH_HEAD_BYTES_MAX ? -1 : 0;
        }
        if (!head_scan(hint, bytes, (size_t)(end - bytes) + 4)) {
            return -1;
        }
    }
    const char *value = bytes + hint->length_at + LENGTH_NAME_BYTES;
    if (hint->head_bytes < STATUS_LINE_MIN ||
        !digits_read(value, bytes + hint->head_bytes, &answer->body_bytes)) {
        return -1;
    }
    answer->status = (bytes[9] - '0') * 100 + (bytes[10] - '0') * 10 + (bytes[11] - '0');
    return (ssize_t)hint->head_bytes;
}

ssize_t bench_wire_resp_head(struct bench_wire_hint *hint, const char *bytes, size_t length,
                             struct bench_answer *answer)
{
    (void)hint;
    const char *newline = memchr(bytes, '\n', length);
    if (newline == NULL) {
        return length > BENCH_HEAD_BYTES_MAX ? -1 : 0;
    }
    answer->body_bytes = 0;
    switch (bytes[0]) {
    case '+':
    case ':': answer->status = 200; break;
    case '-': answer->status = 500; break;
    case '$':
        answer->status = bytes[1] == '-' ? 404 : 200;
        if (answer->status == 200) {
            if (!digits_read(bytes + 1, newline, &answer->body_bytes)) {
                return -1;
            }
            answer->body_bytes += 2;
        }
        break;
    default: return -1;
    }
    return newline - bytes + 1;
}
