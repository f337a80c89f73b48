/*
 * Reads the file of requests. A file that opens with a digit is a list of netstrings, anything else is one
 * request (no HTTP method and no RESP command begins with a digit).
 */
#include "load_requests.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct file {
    char *bytes;
    size_t length;
};

static int file_read(struct file *file, const char *path)
{
    FILE *in = fopen(path, "rb");
    if (in == NULL) {
        return -1;
    }
    long size = fseek(in, 0, SEEK_END) == 0 ? ftell(in) : -1;
    rewind(in);
    if (size > 0) {
        file->length = (size_t)size;
        file->bytes = malloc(file->length);
        if (file->bytes != NULL && fread(file->bytes, 1, file->length, in) == file->length) {
            fclose(in);
            return 0;
        }
        free(file->bytes);
    } else if (size == 0) {
        errno = ENODATA;
    }
    fclose(in);
    return -1;
}

/* Takes the netstring at *at and moves behind it. */
static bool netstring_next(const struct file *file, size_t *at, const char **start, size_t *length)
{
    size_t size = 0;
    size_t pos = *at;
    while (pos < file->length && isdigit((unsigned char)file->bytes[pos]) && size <= file->length) {
        size = size * 10 + (size_t)(file->bytes[pos++] - '0');
    }
    if (pos == *at || size == 0 || pos + 1 + size + 1 > file->length || file->bytes[pos] != ':' ||
        file->bytes[pos + 1 + size] != ',') {
        return false;
    }
    *start = file->bytes + pos + 1;
    *length = size;
    *at = pos + 1 + size + 1;
    return true;
}

/* Moves the requests together at the front of the file's own bytes, and notes where each begins. */
static bool netstrings_pack(struct file *file, struct bench_requests *requests, size_t *packed)
{
    size_t room = 0;
    size_t at = 0;
    *packed = 0;
    while (at < file->length) {
        const char *start;
        size_t length;
        if (!netstring_next(file, &at, &start, &length)) {
            return false;
        }
        if (requests->count == room) {
            room = room == 0 ? 1024 : room * 2;
            size_t *starts = realloc(requests->starts, room * sizeof *starts);
            if (starts == NULL) {
                return false;
            }
            requests->starts = starts;
        }
        requests->starts[requests->count++] = *packed;
        memmove(file->bytes + *packed, start, length);
        *packed += length;
    }
    return true;
}

static bool single_pack(const struct file *file, struct bench_requests *requests, size_t *packed)
{
    requests->starts = calloc(1, sizeof *requests->starts);
    requests->count = 1;
    *packed = file->length;
    return requests->starts != NULL;
}

/* Repeats the first `depth` requests behind the last, so that a batch never has to wrap. */
static bool extend(struct file *file, struct bench_requests *requests, size_t packed, size_t depth)
{
    size_t total = requests->count + depth;
    size_t *starts = realloc(requests->starts, (total + 1) * sizeof *starts);
    if (starts == NULL) {
        return false;
    }
    requests->starts = starts;
    starts[requests->count] = packed;
    for (size_t i = 0; i < depth; i++) {
        size_t from = i % requests->count;
        size_t length = starts[from + 1] - starts[from];
        starts[requests->count + i + 1] = starts[requests->count + i] + length;
    }
    char *bytes = realloc(file->bytes, starts[total]);
    if (bytes == NULL) {
        return false;
    }
    file->bytes = bytes;
    for (size_t i = requests->count; i < total; i++) {
        memcpy(bytes + starts[i], bytes + starts[i - requests->count], starts[i + 1] - starts[i]);
    }
    return true;
}

int bench_requests_read(struct bench_requests *requests, const char *path, size_t depth)
{
    struct file file = {0};
    memset(requests, 0, sizeof *requests);
    if (file_read(&file, path) != 0) {
        fprintf(stderr, "load: %s: %s\n", path, strerror(errno));
        return -1;
    }
    size_t packed = 0;
    bool many = isdigit((unsigned char)file.bytes[0]) != 0;
    bool whole = many ? netstrings_pack(&file, requests, &packed) : single_pack(&file, requests, &packed);
    if (!whole || !extend(&file, requests, packed, depth)) {
        fprintf(stderr, "load: %s: neither one request nor a list of netstrings\n", path);
        free(file.bytes);
        free(requests->starts);
        return -1;
    }
    requests->bytes = file.bytes;
    return 0;
}

void bench_requests_deinit(struct bench_requests *requests)
{
    free(requests->bytes);
    free(requests->starts);
}
