/* A tiny HTTP server in a thread, for tests of what calls out: answers every request alike, counts them,
 * can stall. */
#ifndef FRESHET_TESTS_FETCH_TINY_SERVER_H
#define FRESHET_TESTS_FETCH_TINY_SERVER_H

#include <stdbool.h>

#include "base/str.h"

struct tiny_server;
struct tiny_server *tiny_server_start(void); /* 127.0.0.1, any free port */
void tiny_server_stop(struct tiny_server *server);
const char *tiny_server_url(const struct tiny_server *server);
/* What it says from now on: a status line's number, whole header lines with CRLF, a body. */
void tiny_server_say(struct tiny_server *server, int status, const char *headers, struct str body);
void tiny_server_stall(struct tiny_server *server, bool stall);     /* takes requests and does not answer */
unsigned tiny_server_count(struct tiny_server *server);             /* requests read so far */
bool tiny_server_saw(struct tiny_server *server, const char *text); /* in the latest request, head and body */

#endif
