/* Inside auth: the half with threads.
 *
 *     struct auth ──────── current rules, keys and generation, under a mutex; read only after a change
 *      └─ struct auth_loop   one per loop, touched by its thread alone: its own references to rules and keys,
 *           ├─ verified      tokens known to be good,
 *           ├─ denied        tokens known to be bad, for a little while,
 *           └─ pending       running verifications, shared by all requests with the same token
 *
 * A change (new keys, new settings) is published by raising the generation and sending every loop a
 * message; the loop then takes the current rules and keys, and what it remembers from an older generation
 * no longer counts. */
#ifndef FRESHET_AUTH_STATE_H
#define FRESHET_AUTH_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "auth/auth.h"
#include "auth/jose.h"
#include "base/list.h"
#include "base/map.h"
#include "base/metrics.h"

/* ---- client_cert.c: address ranges ---- */
struct auth_range {
    unsigned char address[16]; /* IPv4 as ::ffff:a.b.c.d */
    unsigned bits;
};
bool auth_range_parse(struct str cidr, struct auth_range *range);
bool auth_range_holds(const struct auth_range *range, const struct sockaddr_in6 *peer);

/* ---- rules.c: the settings, checked and copied; immutable, shared by counting ---- */
struct auth_rules {
    atomic_uint refs;
    struct arena arena;
    bool enabled, allow_tenant_header, asks_clients;
    struct auth_checks checks;
    size_t verified_max, denied_max;
    struct auth_range *peers;
    size_t peer_count;
    struct auth_client *clients;
    size_t client_count;
    struct str jwks_file, jwks_url, secret; /* NUL-terminated after their length */
    struct str jwks_url_shown;              /* jwks_url without credentials, for logs and errors */
    int64_t refresh_ms, refresh_min_ms, timeout_ms;
};
enum status auth_rules_create(const struct auth_settings *settings, struct auth_rules **rules,
                              struct error *error) MUST_CHECK;
/* Keys or named clients: with neither, no request can ever pass. */
bool auth_rules_let_in(const struct auth_rules *rules);
struct auth_rules *auth_rules_ref(struct auth_rules *rules);
void auth_rules_unref(struct auth_rules *rules);

/* ---- client_cert.c ---- */
/* The configured client that the header names, when the peer may be believed; else NULL. */
const struct auth_client *auth_client_find(const struct auth_rules *rules, const struct sockaddr_in6 *peer,
                                           struct str forwarded_client_cert);
/* The client of a request: the one that a believed peer forwards or, where it forwards none, the peer itself by its own certificate. A
 * peer that forwards a client which is not configured does not become that client. */
const struct auth_client *auth_client_of(const struct auth_rules *rules,
                                         const struct auth_question *question);

/* ---- verified.c ---- */
struct auth_verified { /* one token that was found good */
    uint64_t generation, used;
    int64_t exp_us;
    struct auth_identity identity; /* slices of `bytes` */
    size_t authorization_len, size;
    char bytes[]; /* the Authorization header as it came, then the identity's strings */
};

struct auth_verified_table {
    struct auth_verified_bucket *buckets;
    size_t bucket_mask;
    struct auth_verified *last; /* of the latest hit: clients come back */
    uint64_t clock;             /* counts lookups, for least-recently-used */
    size_t hand;                /* the bucket that auth_verified_evict() goes on with */
};
void auth_verified_init(struct auth_verified_table *table, size_t entries);
void auth_verified_deinit(struct auth_verified_table *table);
/* The entry for exactly these bytes, whatever its age or generation; NULL when there is none. */
struct auth_verified *auth_verified_find(struct auth_verified_table *table, struct str authorization);
/* Remembers it, in place of an older entry for the same bytes, else of the one in its bucket that is worth
 * least. Returns what was pushed out, to be freed by the caller when no callback can hold it any more; may be
 * NULL. */
struct auth_verified *auth_verified_put(struct auth_verified_table *table, struct str authorization,
                                        const struct auth_claims *claims, uint64_t generation);

/* Before another token is put: while the account of tokens is full, removes an entry and returns it, to be freed as above. NULL: there
 * is room, or no entry was found. */
struct auth_verified *auth_verified_evict(struct auth_verified_table *table);

/* ---- verified.c: fixed memory, no copy of the token; two hashes stand for it, one of them with a secret
 * seed ---- */
struct auth_denied_table {
    struct auth_denied *entries;
    size_t bucket_mask;
};
void auth_denied_init(struct auth_denied_table *table, size_t entries);
void auth_denied_deinit(struct auth_denied_table *table);
bool auth_denied_find(const struct auth_denied_table *table, struct str authorization, uint64_t generation,
                      int64_t now_ns, enum auth_reason *reason);
void auth_denied_put(struct auth_denied_table *table, struct str authorization, uint64_t generation,
                     int64_t until_ns, enum auth_reason reason);

/* ---- key_reader.c: where keys come from, and when they are read again ---- */
struct auth_key_reader;
/* Reads the keys once, blocking. `previous` (may be NULL) lends its last good answer of the same URL. */
enum status auth_key_reader_create(struct auth *auth, struct auth_rules *rules,
                                   struct auth_key_reader *previous, struct auth_key_reader **key_reader,
                                   struct error *error) MUST_CHECK;
void auth_key_reader_start(struct auth_key_reader *key_reader); /* reads again from now on */
/* Waits for a reading under way; NULL is fine. */
void auth_key_reader_destroy(struct auth_key_reader *key_reader);
struct auth_keyset *auth_key_reader_keys(struct auth_key_reader *key_reader); /* a reference for the caller */
/* A key is missing: read again, unless that was done within refresh_min. True: auth_publish() follows. */
bool auth_key_reader_demand(struct auth_key_reader *key_reader);

/* ---- auth.c ---- */
enum { AUTH_SENDERS = 256 };
struct auth_loop {
    struct auth *auth;
    struct loop *loop;
    struct auth_rules *rules;
    struct auth_keyset *keys;
    uint64_t generation;
    struct auth_verified_table verified;
    struct auth_denied_table denied;
    int64_t tick_ns, wall_us;                 /* the wall clock as of this tick */
    struct map pending;                       /* verifications under way */
    unsigned pending_by_sender[AUTH_SENDERS]; /* of those, by a hash of their sender */
    TAILQ_HEAD(, auth_verification) awaiting; /* of those, the ones that wait for keys */
    unsigned awaiting_count;
    struct auth_identity scratch; /* an identity made for one question: an override, auth switched off */
} __attribute__((aligned(64)));

struct auth {
    atomic_uint refs; /* the owner's, and one for each message or job under way */
    struct loop_group *group;
    struct worker_pool *workers;
    int64_t (*now_us)(void); /* clock_unix_us, but for tests */
    pthread_mutex_t mutex;
    struct auth_rules *rules; /* these three under the mutex */
    struct auth_key_reader *key_reader;
    uint64_t generation;
    unsigned loop_count;
    struct auth_loop loops[];
};
struct auth *auth_ref(struct auth *auth);
void auth_unref(struct auth *auth);
/* Any thread: every loop takes what is current; `changed` raises the generation first. */
void auth_publish(struct auth *auth, bool changed);
bool auth_demand_keys(struct auth *auth);
enum status auth_refuse(enum auth_reason reason, struct error *error);
struct auth_loop *auth_loop_of(struct auth *auth, const struct loop *loop);

/* ---- verification.c ---- */
/* Those that waited for new keys go on. */
void auth_verifications_settle(struct auth_loop *state, bool keys_changed);
void auth_metrics_register(void);

#endif
