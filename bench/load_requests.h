/*
 * The requests to send: one raw request, or many as netstrings (`5:hello,` one after another), held in one
 * run of bytes so that any `depth` consecutive ones are a single slice to write. Read once, then immutable
 * and shared by all threads; its owner deinits it.
 */
#ifndef BENCH_LOAD_REQUESTS_H
#define BENCH_LOAD_REQUESTS_H

#include <stddef.h>

struct bench_requests {
    char *bytes;
    size_t *starts; /* count + depth + 1 of them: the first `depth` requests stand again at the end */
    size_t count;
};

/* 0, or -1 with a line on stderr when the file cannot be read or is in neither form. */
int bench_requests_read(struct bench_requests *requests, const char *path, size_t depth);
void bench_requests_deinit(struct bench_requests *requests);

#endif
