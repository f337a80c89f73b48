/* Any bytes as a token, as claims behind a valid signature, as a key set, as a forwarded certificate, as base64url.
 * The first byte chooses. What is accepted must keep what the rest of the program relies on. */
#include <openssl/evp.h>
#include <stdlib.h>

#include "auth/state.h"
#include "base/log.h"

#define NOW_US (INT64_C(1700000000) * 1000000)
#define SECRET STR("a secret of more than thirty-two bytes")

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool holds)
{
    if (!holds)
        abort();
}

static const struct auth_checks checks = {.algorithms = AUTH_ALGORITHMS_ALL,
                                          .token_bytes_max = 8192,
                                          .leeway_us = 5000000,
                                          .tenant_claim = {"tenant_id", 9}};

static struct auth_keyset *keys(void)
{
    static struct auth_keyset *set;

    if (!set) {
        log_set_level(LOG_LEVEL_ERROR); /* skipped keys are the point here, not news */
        set = auth_keyset_create();
        auth_keyset_add_secret(set, SECRET);
    }
    return set;
}

static void check_claims(const struct auth_claims *claims)
{
    check(claims->exp_us > NOW_US);
    check(claims->nbf_us <= NOW_US + checks.leeway_us);
    check(claims->tenant.len == 0 || str_is_name(claims->tenant));
    check(claims->subject.len <= AUTH_SUBJECT_BYTES_MAX && str_is_utf8(claims->subject));
    for (size_t i = 0; i < claims->scopes.len; i++)
        check(claims->scopes.ptr[i] >= ' ' && claims->scopes.ptr[i] <= '~');
}

static void as_token(struct str input, struct arena *arena)
{
    struct auth_claims claims;
    struct str token;

    if (auth_token_verify(input, &checks, keys(), NOW_US, arena, &claims) == AUTH_REASON_VALID)
        check_claims(&claims);
    if (auth_bearer_token(input, &token))
        check(token.len > 0 && token.len < input.len);
}

/* "header\nclaims", signed for it, so that what lies behind the signature is reached. */
static void as_signed(struct str input, struct arena *arena)
{
    struct str rest = input, header;
    struct auth_claims claims;
    unsigned char mac[EVP_MAX_MD_SIZE];
    size_t len = 0;
    struct buf token = {0};

    if (!str_split(&rest, '\n', &header) || !rest.ptr || header.len == 0 || rest.len == 0)
        return;
    auth_base64url_encode(header, &token);
    buf_put_char(&token, '.');
    auth_base64url_encode(rest, &token);
    check(EVP_Q_mac(NULL, "HMAC", NULL, "SHA256", NULL, SECRET.ptr, SECRET.len,
                    (const unsigned char *)buf_str(&token).ptr, buf_len(&token), mac, sizeof(mac),
                    &len) != NULL);
    buf_put_char(&token, '.');
    auth_base64url_encode(str_of((const char *)mac, len), &token);
    if (auth_token_verify(buf_str(&token), &checks, keys(), NOW_US, arena, &claims) == AUTH_REASON_VALID)
        check_claims(&claims);
    buf_deinit(&token);
}

static void as_key_set(struct str input)
{
    struct auth_keyset *set;
    struct error error;

    (void)keys();
    set = auth_keyset_create();
    bool taken = auth_keyset_add_jwks(set, input, "fuzz", &error) == STATUS_OK;
    check(taken == (set->count > 0));
    auth_keyset_unref(set);
}

static void as_client_cert(struct str input)
{
    static struct auth_range everybody[2];
    static struct auth_client client = {.identity = {"spiffe://a", 10}};
    static const struct auth_rules rules = {
        .peers = everybody, .peer_count = 2, .clients = &client, .client_count = 1};
    struct sockaddr_in6 peer = {.sin6_family = AF_INET};

    check(auth_range_parse(STR("0.0.0.0/0"), &everybody[0]));
    (void)auth_range_parse(input, &everybody[1]);
    if (auth_client_find(&rules, &peer, input))
        check(memmem(input.ptr, input.len, "a", 1) != NULL);
}

static void as_base64url(struct str input, struct arena *arena)
{
    struct str bytes;
    struct buf again = {0};

    if (!auth_base64url_decode(input, arena, &bytes))
        return;
    auth_base64url_encode(bytes, &again);
    check(str_eq(buf_str(&again), input)); /* one spelling for each value */
    buf_deinit(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena arena = ARENA(16384);

    if (size == 0)
        return 0;
    struct str input = str_of((const char *)data + 1, size - 1);
    switch (data[0]) {
    case 't': as_token(input, &arena); break;
    case 's': as_signed(input, &arena); break;
    case 'k': as_key_set(input); break;
    case 'x': as_client_cert(input); break;
    case 'b': as_base64url(input, &arena); break;
    default: break;
    }
    arena_deinit(&arena);
    return 0;
}
