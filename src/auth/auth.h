/* Authentication and authorisation: tokens, keys, decisions about tenant and scope (C5). The only folder that
 * uses OpenSSL, besides TLS (src/http/tls.c, src/bus/redis/link.c).
 *
 * A token that was verified before is found in a bounded table of this loop's own (no lock, no copy),
 * never past its `exp`. One that was not costs 15–200 µs of signature check: the caller takes it to a
 * worker by auth_verify() and comes back. Keys and settings are immutable sets, replaced whole; each loop
 * holds references of its own. */
#ifndef FRESHET_AUTH_AUTH_H
#define FRESHET_AUTH_AUTH_H

#include <netinet/in.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/setting.h"
#include "base/status.h"
#include "base/str.h"
#include "loop/group.h"
#include "loop/worker.h"

struct auth_identity {
    struct str tenant;        /* empty = the token has none */
    struct str subject;       /* `sub`, or the mTLS client's name */
    struct str scopes;        /* space-separated as in the token; see auth_has_scope() */
    int64_t expires_at_s;     /* unix; INT64_MAX for mTLS clients */
    bool may_override_tenant; /* a trusted client, where configuration allows it */
    bool is_anybody;          /* auth is switched off: has every scope */
};

/* ---- configuration: the rows of `auth:`, and the specification's refdata.security.tenant ---- */
struct auth_client {     /* one mTLS client: auth.mtls.clients[] */
    struct str identity; /* SPIFFE URI or subject as the sidecar writes it */
    struct str tenant, scopes;
    bool trusted;
};
struct auth_settings {
    bool enabled;
    struct str jwks_file, jwks_url;
    int64_t jwks_refresh_ms, jwks_refresh_min_ms, jwks_timeout_ms;
    struct str issuer;                 /* empty = not checked */
    struct setting_strings audiences;  /* empty = not checked */
    int64_t leeway_ms;                 /* forgiven on nbf; exp is never stretched */
    struct setting_strings algorithms; /* allowed ones; empty = all four */
    struct str hs256_secret_env;       /* name of the environment variable that holds an HS256 secret */
    int64_t token_bytes_max, cache_entries, negative_entries;
    struct setting_strings mtls_peers; /* CIDRs whose X-Forwarded-Client-Cert is believed */
    struct setting_place algorithms_place, jwks_url_place, hs256_secret_place,
        mtls_peers_place;                /* for errors */
    struct setting_objects mtls_clients; /* struct auth_client */
    struct str tenant_claim;  /* set by the kernel: refdata.security.tenant.claim; empty = tenant_id */
    bool allow_tenant_header; /* allowHeaderOverrideForTrustedClients */
    bool asks_clients;        /* set by the kernel: http.tls asks clients for certificates */
};
extern const struct setting_row auth_setting_rows[];
/* Checks the settings by themselves: algorithms, addresses, secrets. On failure *place is the position of the field in the file
 * (line 0 = none). */
enum status auth_settings_check(const struct auth_settings *settings, struct setting_place *place,
                                struct error *error) MUST_CHECK;

struct auth;
/* Loads the keys (a key file that cannot be read or holds no usable key is CONFIG; a URL that cannot be
 * reached is not: it is retried, and until then every token is 401 and the process is not ready). Blocks up to
 * jwks_timeout_ms. */
enum status auth_create(const struct auth_settings *settings, struct loop_group *group,
                        struct worker_pool *workers, struct auth **auth, struct error *error) MUST_CHECK;
/* After the worker pool stopped and the loops ended; before loop_group_destroy(). */
void auth_destroy(struct auth *auth);
/* New settings after a configuration reload: keys are read again, caches emptied. A failure changes nothing; a
 * URL that is new and cannot be read is one. `enabled` stays as it was created: the listeners, which decide
 * whether it may be off, do not change either. Blocks like auth_create(): not on a loop. */
enum status auth_reload(struct auth *auth, const struct auth_settings *settings,
                        struct error *error) MUST_CHECK;
bool auth_needs_keys(const struct auth *auth); /* a file or URL of keys is configured */
bool auth_is_ready(const struct auth *auth);   /* has it keys? */

/* ---- a request's question ---- */
struct auth_question {
    struct str authorization;     /* header value, empty = none */
    unsigned authorization_count; /* how often the header came: more than once is refused */
    struct str forwarded_client_cert, tenant_header; /* empty when absent or repeated */
    bool is_forwarded;      /* X-Forwarded-Client-Cert came, maybe repeated; of use beside client_cert only */
    struct str client_cert; /* of the connection itself, verified, in the form of that header; empty = none */
    const struct sockaddr_in6 *peer;
    struct str path_tenant; /* decoded; ptr NULL = the route names none */
    const char *scope;      /* NULL = none needed */
    bool needs_user;        /* an identity without a subject is refused */
};

enum auth_answer {
    AUTH_ALLOWED, /* *identity stands (in the loop's table: valid until the callback returns; copy to keep) */
    AUTH_DENIED,  /* *error is a 401 or 403 */
    AUTH_VERIFY,  /* not known yet: auth_verify() */
};
/* On a loop. The effective tenant (override applied) is in identity->tenant. */
enum auth_answer auth_check(struct auth *auth, struct loop *loop, const struct auth_question *question,
                            const struct auth_identity **identity, struct error *error);
/* On a loop, after AUTH_VERIFY: checks the signature on a worker, single-flight per token, and then calls
 * on_verified(context) on this loop, exactly once: ask auth_check() again. It then knows either way, but
 * for the rare AUTH_VERIFY once more (keys replaced meanwhile, work cancelled), which is answered by
 * asking again. A token whose key is not known waits for one reading of the keys, at most jwks_timeout_ms.
 * False: too much is under way, of all or of this sender (a hash of its address), answer 503, nothing will be called. The token is
 * copied. */
bool auth_verify(struct auth *auth, struct loop *loop, uint64_t sender, struct str authorization,
                 void (*on_verified)(void *context), void *context) MUST_CHECK;
/* The value of WWW-Authenticate for a 401 of auth_check() (RFC 6750 §3). Returns its length;
 * NUL-terminated. */
#define AUTH_CHALLENGE_BYTES 256
size_t auth_challenge(const struct error *error, char out[AUTH_CHALLENGE_BYTES]);

bool auth_has_scope(const struct auth_identity *identity, struct str scope);
/* An identity of the caller's own, for a request that is parked. */
struct auth_identity *auth_identity_copy(const struct auth_identity *identity, struct arena *arena);

/* ---- development tokens (`freshet token`) ---- */
struct auth_token_request {
    struct str tenant, subject, scopes, issuer, audience; /* an empty one is left out */
    struct str tenant_claim;                              /* empty = tenant_id */
    int64_t ttl_s;
};
/* Signs with the private JWK in `key_file`, made (EdDSA, mode 0600) with its public JWKS at `jwks_file`
 * when missing; safe side by side. A JWKS that is there and lacks the key is an error, not changed: it may
 * be that of a real issuer. */
enum status auth_token_issue(struct str key_file, struct str jwks_file,
                             const struct auth_token_request *request, struct buf *token,
                             struct error *error) MUST_CHECK;

#endif
