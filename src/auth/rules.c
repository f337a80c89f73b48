/* The rows of `auth:` in the configuration, and the rules: the settings after they were checked, copied so that the
 * configuration they came from may go. tenant_claim and allow_tenant_header stand elsewhere in the file, under
 * refdata.security.tenant, and are set by the kernel. */
#include "auth/state.h"

#include <stdlib.h>

#include "auth/auth.h"
#include "base/memory.h"

#define DAY_MS (24 * 60 * 60 * 1000)

static const struct setting_row client_rows[] = {
    {.name = "identity",
     .type = SETTING_STRING,
     .offset = offsetof(struct auth_client, identity),
     .min = 1,
     .max = 1024,
     .help =
         "The client's URI (a SPIFFE id) in X-Forwarded-Client-Cert, or its Subject where it has no URI."},
    {.name = "tenant",
     .type = SETTING_STRING,
     .offset = offsetof(struct auth_client, tenant),
     .fallback = "",
     .help = "The tenant of the client. A trusted client without one sends it in X-Tenant-Id."},
    {.name = "scopes",
     .type = SETTING_STRING,
     .offset = offsetof(struct auth_client, scopes),
     .fallback = "",
     .help = "Its scopes, separated by spaces."},
    {.name = "trusted",
     .type = SETTING_BOOL,
     .offset = offsetof(struct auth_client, trusted),
     .fallback = "false",
     .help = "May it name another tenant in X-Tenant-Id? Counts only where "
             "refdata.security.tenant.allowHeaderOverrideForTrustedClients is true."},
    {.name = NULL},
};

/* Offsets are those of the whole struct: `mtls` stands at 0 in it. */
static const struct setting_row mtls_rows[] = {
    {.name = "peers",
     .type = SETTING_STRING_LIST,
     .offset = offsetof(struct auth_settings, mtls_peers),
     .place_offset = 1 + offsetof(struct auth_settings, mtls_peers_place),
     .fallback = "",
     .reloadable = true,
     .help = "Addresses or ranges (10.0.0.0/8, ::1) whose X-Forwarded-Client-Cert is believed: the mesh's "
             "sidecars. "
             "From other addresses the header is ignored."},
    {.name = "clients",
     .type = SETTING_OBJECT_LIST,
     .offset = offsetof(struct auth_settings, mtls_clients),
     .fallback = "",
     .rows = client_rows,
     .element_bytes = sizeof(struct auth_client),
     .reloadable = true,
     .help = "Clients identified by their certificate."},
    {.name = NULL},
};

const struct setting_row auth_setting_rows[] = {
    {.name = "enabled",
     .type = SETTING_BOOL,
     .offset = offsetof(struct auth_settings, enabled),
     .fallback = "true",
     .help =
         "false: every request is accepted, for any tenant; allowed only while every listener is on a loopback address."},
    {.name = "jwksFile",
     .type = SETTING_STRING,
     .offset = offsetof(struct auth_settings, jwks_file),
     .fallback = "",
     .reloadable = true,
     .help =
         "Key set (JWKS) that tokens are checked against. Read again within a second of a change; a bad file "
         "leaves the last good keys."},
    {.name = "jwksUrl",
     .type = SETTING_STRING,
     .offset = offsetof(struct auth_settings, jwks_url),
     .place_offset = 1 + offsetof(struct auth_settings, jwks_url_place),
     .fallback = "",
     .reloadable = true,
     .help = "URL (http or https) of a key set; with jwksFile too, the keys of both are used."},
    {.name = "jwksRefresh",
     .type = SETTING_DURATION_MS,
     .offset = offsetof(struct auth_settings, jwks_refresh_ms),
     .fallback = "5m",
     .min = 1000,
     .max = 7 * (int64_t)DAY_MS,
     .reloadable = true,
     .help = "Interval of reading jwksUrl; after a failure it is read sooner, with backoff."},
    {.name = "jwksRefreshMin",
     .type = SETTING_DURATION_MS,
     .offset = offsetof(struct auth_settings, jwks_refresh_min_ms),
     .fallback = "10s",
     .min = 100,
     .max = DAY_MS,
     .reloadable = true,
     .help = "A token signed by a key that is not known makes the keys be read at once, but not more often "
             "than this."},
    {.name = "jwksTimeout",
     .type = SETTING_DURATION_MS,
     .offset = offsetof(struct auth_settings, jwks_timeout_ms),
     .fallback = "3s",
     .min = 100,
     .max = 60000,
     .reloadable = true,
     .help = "Time limit for reading jwksUrl once."},
    {.name = "issuer",
     .type = SETTING_STRING,
     .offset = offsetof(struct auth_settings, issuer),
     .fallback = "",
     .reloadable = true,
     .help = "Required iss of a token; empty = any."},
    {.name = "audiences",
     .type = SETTING_STRING_LIST,
     .offset = offsetof(struct auth_settings, audiences),
     .fallback = "",
     .reloadable = true,
     .help = "The aud of a token must contain one of these; empty = any."},
    {.name = "leeway",
     .type = SETTING_DURATION_MS,
     .offset = offsetof(struct auth_settings, leeway_ms),
     .fallback = "5s",
     .min = 0,
     .max = 300000,
     .reloadable = true,
     .help = "How far nbf may be in the future, for clocks that differ. exp is never extended."},
    {.name = "algorithms",
     .type = SETTING_STRING_LIST,
     .offset = offsetof(struct auth_settings, algorithms),
     .place_offset = 1 + offsetof(struct auth_settings, algorithms_place),
     .fallback = "",
     .reloadable = true,
     .help = "Allowed signature algorithms, out of RS256, ES256, EdDSA, HS256; empty = all four. "
             "Each key "
             "is good for the one of its type only."},
    {.name = "hs256SecretFromEnv",
     .type = SETTING_STRING,
     .offset = offsetof(struct auth_settings, hs256_secret_env),
     .place_offset = 1 + offsetof(struct auth_settings, hs256_secret_place),
     .fallback = "",
     .reloadable = true,
     .help = "Name of the environment variable that holds a secret for HS256, at least 32 bytes."},
    {.name = "tokenBytesMax",
     .type = SETTING_SIZE,
     .offset = offsetof(struct auth_settings, token_bytes_max),
     .fallback = "8KiB",
     .min = 256,
     .max = 65536,
     .reloadable = true,
     .help = "Larger tokens are refused."},
    {.name = "cacheEntries",
     .type = SETTING_INT,
     .offset = offsetof(struct auth_settings, cache_entries),
     .fallback = "10000",
     .min = 16,
     .max = 10000000,
     .reloadable = true,
     .help = "Verified tokens each loop remembers, never past their exp (rounded up to eight times "
             "a power of two)."},
    {.name = "negativeEntries",
     .type = SETTING_INT,
     .offset = offsetof(struct auth_settings, negative_entries),
     .fallback = "10000",
     .min = 16,
     .max = 10000000,
     .reloadable = true,
     .help =
         "Refused tokens each loop remembers for some seconds (rounded up to four times a power of two)."},
    {.name = "mtls",
     .type = SETTING_OBJECT,
     .offset = 0,
     .rows = mtls_rows,
     .fallback = "",
     .reloadable = true,
     .help = "Clients behind a service mesh that verifies their certificates."},
    {.name = NULL},
};

/* ---- rules ---- */

#define RULES_BLOCK_BYTES 1024

static enum status read_algorithms(const struct setting_strings *names, unsigned *set, struct error *error)
{
    enum auth_algorithm algorithm;

    *set = names->count > 0 ? 0 : AUTH_ALGORITHMS_ALL;
    for (size_t i = 0; i < names->count; i++) {
        if (!auth_algorithm_parse(names->items[i], &algorithm))
            return error_set_field(error, STATUS_CONFIG, "auth.algorithms",
                                   "\"%.*s\" is none of RS256, ES256, EdDSA, HS256",
                                   STR_ARG(names->items[i]));
        *set |= 1u << algorithm;
    }
    return STATUS_OK;
}

static enum status read_peers(struct auth_rules *rules, const struct setting_strings *peers,
                              struct error *error)
{
    rules->peers = arena_zalloc(&rules->arena, peers->count * sizeof(*rules->peers));
    rules->peer_count = peers->count;
    for (size_t i = 0; i < peers->count; i++)
        if (!auth_range_parse(peers->items[i], &rules->peers[i]))
            return error_set_field(error, STATUS_CONFIG, "auth.mtls.peers",
                                   "\"%.*s\" is not an address or a range like 10.0.0.0/8",
                                   STR_ARG(peers->items[i]));
    return STATUS_OK;
}

static enum status read_clients(struct auth_rules *rules, const struct setting_objects *objects,
                                struct error *error)
{
    const struct auth_client *clients = objects->items;

    rules->clients = arena_zalloc(&rules->arena, objects->count * sizeof(*rules->clients));
    rules->client_count = objects->count;
    for (size_t i = 0; i < objects->count; i++) {
        const struct auth_client *client = &clients[i];
        if (client->identity.len == 0)
            return error_set_field(error, STATUS_CONFIG, "auth.mtls.clients.identity", "is empty");
        if (client->tenant.len > 0 && !str_is_name(client->tenant))
            return error_set_field(error, STATUS_CONFIG, "auth.mtls.clients.tenant",
                                   "\"%.*s\" is not a tenant name", STR_ARG(client->tenant));
        rules->clients[i] = (struct auth_client){
            .identity = arena_str(&rules->arena, client->identity),
            .tenant = arena_str(&rules->arena, client->tenant),
            .scopes = arena_str(&rules->arena, client->scopes),
            .trusted = client->trusted,
        };
    }
    return STATUS_OK;
}

static enum status read_secret(struct auth_rules *rules, struct str variable, struct error *error)
{
    if (variable.len == 0)
        return STATUS_OK;
    char *name = str_dup(variable);
    const char *secret = getenv(name);
    free(name);
    if (!secret)
        return error_set_field(error, STATUS_CONFIG, "auth.hs256SecretFromEnv",
                               "the environment has no variable %.*s", STR_ARG(variable));
    if (strlen(secret) < AUTH_SECRET_BYTES_MIN)
        return error_set_field(error, STATUS_CONFIG, "auth.hs256SecretFromEnv",
                               "the secret in %.*s has fewer than %d bytes", STR_ARG(variable),
                               AUTH_SECRET_BYTES_MIN);
    rules->secret = arena_str(&rules->arena, str_from(secret));
    return STATUS_OK;
}

/* The URL without user, password and query, which may all be secrets. Everything up to the last '@' goes: a
 * password whose '/' or '?' was not escaped must not be shown either. */
static struct str url_shown(struct str url, struct arena *arena)
{
    struct buf shown;
    size_t scheme = 0, host, end;

    while (scheme < url.len && !str_starts_with(str_skip(url, scheme), STR("://")))
        scheme++;
    scheme = scheme < url.len ? scheme + 3 : 0;
    host = scheme;
    for (size_t i = scheme; i < url.len; i++)
        if (url.ptr[i] == '@')
            host = i + 1;
    for (end = host; end < url.len && url.ptr[end] != '?' && url.ptr[end] != '#';)
        end++;
    buf_init(&shown);
    buf_put_str(&shown, str_of(url.ptr, scheme));
    buf_put_str(&shown, str_of(url.ptr + host, end - host));
    struct str copy = arena_str(arena, buf_str(&shown));
    buf_deinit(&shown);
    return copy;
}

static void copy_plain(struct auth_rules *rules, const struct auth_settings *settings)
{
    struct arena *arena = &rules->arena;
    struct str claim = settings->tenant_claim.len > 0 ? settings->tenant_claim : STR("tenant_id");
    struct str *audiences = arena_alloc(arena, settings->audiences.count * sizeof(*audiences));

    for (size_t i = 0; i < settings->audiences.count; i++)
        audiences[i] = arena_str(arena, settings->audiences.items[i]);
    rules->enabled = settings->enabled;
    rules->allow_tenant_header = settings->allow_tenant_header;
    rules->verified_max = (size_t)settings->cache_entries;
    rules->denied_max = (size_t)settings->negative_entries;
    rules->jwks_file =
        arena_str(arena, settings->enabled ? settings->jwks_file : STR("")); /* off: no key is read */
    rules->jwks_url = arena_str(arena, settings->enabled ? settings->jwks_url : STR(""));
    rules->jwks_url_shown = url_shown(rules->jwks_url, arena);
    rules->refresh_ms = settings->jwks_refresh_ms;
    rules->refresh_min_ms = settings->jwks_refresh_min_ms;
    rules->timeout_ms = settings->jwks_timeout_ms;
    rules->checks = (struct auth_checks){
        .token_bytes_max = (size_t)settings->token_bytes_max,
        .leeway_us = settings->leeway_ms * 1000,
        .issuer = arena_str(arena, settings->issuer),
        .audiences = {.items = audiences, .count = settings->audiences.count},
        .tenant_claim = arena_str(arena, claim),
    };
}

bool auth_rules_let_in(const struct auth_rules *rules)
{
    return !rules->enabled || rules->jwks_file.len > 0 || rules->jwks_url.len > 0 || rules->secret.len > 0 ||
           (rules->client_count > 0 && rules->peer_count > 0);
}

static enum status check_url(struct str url, struct error *error)
{
    if (url.len == 0 || str_starts_with(url, STR("https://")) || str_starts_with(url, STR("http://")))
        return STATUS_OK;
    return error_set_field(error, STATUS_CONFIG, "auth.jwksUrl", "an http:// or https:// address is needed");
}

enum status auth_rules_create(const struct auth_settings *settings, struct auth_rules **out,
                              struct error *error)
{
    struct auth_rules *rules = memory_zalloc(sizeof(*rules));

    atomic_init(&rules->refs, 1);
    arena_init(&rules->arena, RULES_BLOCK_BYTES);
    copy_plain(rules, settings);
    enum status status = read_algorithms(&settings->algorithms, &rules->checks.algorithms, error);
    if (status == STATUS_OK)
        status = check_url(rules->jwks_url, error);
    if (status == STATUS_OK)
        status = read_peers(rules, &settings->mtls_peers, error);
    if (status == STATUS_OK)
        status = read_clients(rules, &settings->mtls_clients, error);
    if (status == STATUS_OK && rules->enabled)
        status = read_secret(rules, settings->hs256_secret_env, error);
    if (status != STATUS_OK) {
        auth_rules_unref(rules);
        return status;
    }
    *out = rules;
    return STATUS_OK;
}

static struct setting_place place_of(const struct auth_settings *settings, const char *field)
{
    const struct {
        const char *field;
        struct setting_place place;
    } places[] = {
        {"auth.algorithms", settings->algorithms_place},
        {"auth.jwksUrl", settings->jwks_url_place},
        {"auth.hs256SecretFromEnv", settings->hs256_secret_place},
        {"auth.mtls.peers", settings->mtls_peers_place},
    };

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
        if (strcmp(places[i].field, field) == 0)
            return places[i].place;
    return settings->mtls_clients.count > 0 ? settings->mtls_clients.places[0] : (struct setting_place){0, 0};
}

enum status auth_settings_check(const struct auth_settings *settings, struct setting_place *place,
                                struct error *error)
{
    struct auth_rules *rules = NULL;
    enum status status = auth_rules_create(settings, &rules, error);

    if (status != STATUS_OK)
        *place = place_of(settings, error->field);
    auth_rules_unref(rules);
    return status;
}

struct auth_rules *auth_rules_ref(struct auth_rules *rules)
{
    atomic_fetch_add_explicit(&rules->refs, 1, memory_order_relaxed);
    return rules;
}

void auth_rules_unref(struct auth_rules *rules)
{
    if (!rules || atomic_fetch_sub_explicit(&rules->refs, 1, memory_order_acq_rel) > 1)
        return;
    if (rules->secret.ptr)
        explicit_bzero((void *)(uintptr_t)rules->secret.ptr, rules->secret.len);
    arena_deinit(&rules->arena);
    free(rules);
}
