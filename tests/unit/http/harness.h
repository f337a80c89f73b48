/* A server on one loop without threads, talked to through socketpairs: the test turns the loop by hand, so
 * that nothing depends on timing. */
#ifndef FRESHET_TESTS_HTTP_HARNESS_H
#define FRESHET_TESTS_HTTP_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "http/http.h"

enum { HARNESS_PATIENCE_MS = 600000 };

struct harness {
    struct loop_group *group;
    struct loop *loop;
    struct worker_pool *workers;
    struct http_router *router;
    struct http_server *server;
    struct http_server_config config; /* may be changed before harness_start() */
};

struct client {
    struct harness *harness;
    int fd;
    struct buf in; /* received and not yet taken */
    bool at_end;   /* the server closed */
};

void harness_init(struct harness *harness, const struct http_route *routes);
void harness_start(struct harness *harness);
void harness_deinit(struct harness *harness);
void harness_turn(struct harness *harness, int times);

void client_connect(struct harness *harness, struct client *client);
void client_send(struct client *client, struct str bytes);
void client_receive(
    struct client *client); /* turns the loop and takes whatever comes, until nothing more does */
void client_close(struct client *client);

struct answer {
    int status;
    struct str head, body; /* slices of the client's buffer: taken whole, gone with the next client_take() */
};
/* Takes one answer (sized, chunked or ended by the close) off what was received; fails the test when there is
 * none. */
struct answer client_take(struct client *client);
struct answer client_take_head_only(struct client *client); /* the answer to HEAD */
bool answer_has(const struct answer *answer, const char *line);
/* Connects, sends, receives and takes one answer; `closed` tells whether the server then closed. */
int ask(struct harness *harness, struct str request, char *body, size_t body_bytes, bool *closed);

/* Handlers: the body of the request; <key> of the path, with a header of its own. */
void answer_body(struct http_request *request);
void answer_key(struct http_request *request);

#endif
