/* Shared by the files about dead letters: dead_letters.c (lists, one letter), dead_sources.c (all sources, counted), dead_changes.c. */
#ifndef FRESHET_MODULES_OPS_DEAD_LETTERS_H
#define FRESHET_MODULES_OPS_DEAD_LETTERS_H

#include "base/clock.h"
#include "base/hex.h"
#include "kernel/dead_letters.h"
#include "kernel/outbox_views.h"
#include "modules/ops/ops.h"

/* The path's parameter `source`. False: the request is answered. */
bool ops_dead_source(struct http_request *request, struct dead_source *source);
enum ops_place ops_dead_place(const struct dead_source *source);
/* The databases that the source is in, or that have its decisions. */
enum status ops_dead_asks(const struct ops_sites *sites, const struct dead_source *source, struct str only,
                          struct ops_ask *asks, size_t *count, struct error *error) MUST_CHECK;
/* place->dead is to be closed, also after a failure. */
enum status ops_dead_open(struct ops *ops, const struct dead_source *source, struct db_conn *conn,
                          int64_t deadline_ns, struct dead_place *place, struct error *error) MUST_CHECK;

#endif
