/* Listeners from inside. */
#ifndef FRESHET_HTTP_LISTENER_H
#define FRESHET_HTTP_LISTENER_H

#include "http/http_inside.h"

void http_listener_close_all(struct http_home *home); /* on its loop */
void http_listener_destroy_all(struct http_server *server);

#endif
