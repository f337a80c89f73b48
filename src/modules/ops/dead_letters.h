/* Shared by the files about dead letters: dead_letters.c (lists, one letter), dead_letter_stores.c (all stores, counted), dead_changes.c. */
#ifndef FRESHET_MODULES_OPS_DEAD_LETTERS_H
#define FRESHET_MODULES_OPS_DEAD_LETTERS_H

#include "base/clock.h"
#include "base/hex.h"
#include "kernel/dead_letters.h"
#include "kernel/outbox_views.h"
#include "modules/ops/ops.h"

/* The path's parameter `source`. False: the request is answered. */
bool ops_dead_letter_store(struct http_request *request, struct dead_letter_store *letter_store);
enum ops_place ops_dead_place(const struct dead_letter_store *letter_store);
/* The databases that the letter store is in, or that have its decisions. */
enum status ops_dead_asks(const struct ops_sites *sites, const struct dead_letter_store *letter_store,
                          struct str only, struct ops_ask *asks, size_t *count,
                          struct error *error) MUST_CHECK;
/* place->dead is to be closed, also after a failure. */
enum status ops_dead_open(struct ops *ops, const struct dead_letter_store *letter_store, struct db_conn *conn,
                          int64_t deadline_ns, struct dead_place *place, struct error *error) MUST_CHECK;

#endif
