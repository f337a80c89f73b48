/* The rows of `auth:` in the configuration, and the rules: the settings after they were checked, copied so that the
 * configuration they came from may go. tenant_claim and allow_tenant_header stand elsewhere in the file, under
 * refdata.security.tenant, and are set by the kernel. */
#include "auth/state.h"

#include <stdlib.h>

#include "auth/auth.h"
#include "base/memory.h"

#define DAY_MS (24 * 60 * 60 * 1000)
#define ROW(member) .offset = offsetof(struct auth_settings, member)
#define PLACE(member) .place_offset = 1 + offsetof(struct auth_settings, member)
#define CLIENT_ROW(member) .offset = offsetof(struct auth_client, member)

static const struct setting_row client_rows[] = {
    {"identity", SETTING_STRING, CLIENT_ROW(identity),
     "The client's URI (a SPIFFE id) in its certificate or in X-Forwarded-Client-Cert, or its Subject where it has no URI.",
     NULL, 1, 1024},
    {"tenant", SETTING_STRING, CLIENT_ROW(tenant),
     "The tenant of the client. A trusted client without one sends it in X-Tenant-Id.", ""},
    {"scopes", SETTING_STRING, CLIENT_ROW(scopes), "Its scopes, separated by spaces.", ""},
    {"trusted", SETTING_BOOL, CLIENT_ROW(trusted),
     "May it name another tenant in X-Tenant-Id? Counts only where "
     "refdata.security.tenant.allowHeaderOverrideForTrustedClients is true.",
     "false"},
    {.name = NULL},
};

/* Offsets are those of the whole struct: `mtls` stands at 0 in it. */
static const struct setting_row mtls_rows[] = {
    {"peers", SETTING_STRING_LIST, ROW(mtls_peers),
     "Addresses or ranges (10.0.0.0/8, ::1) whose X-Forwarded-Client-Cert is believed: the mesh's sidecars. "
     "From other addresses the header is ignored.",
     "", PLACE(mtls_peers_place), .reloadable = true},
    {"clients", SETTING_OBJECT_LIST, ROW(mtls_clients), "Clients identified by their certificate.", "",
     .rows = client_rows, .element_bytes = sizeof(struct auth_client), .reloadable = true},
    {.name = NULL},
};

const struct setting_row auth_setting_rows[] = {
    {"enabled", SETTING_BOOL, ROW(enabled),
     "false: every request is accepted, for any tenant; allowed only while every listener is on a loopback address.",
     "true"},
    {"jwksFile", SETTING_STRING, ROW(jwks_file),
     "Key set (JWKS) that tokens are checked against. Read again within a second of a change; a bad file "
     "leaves the last good keys.",
     "", .reloadable = true},
    {"jwksUrl", SETTING_STRING, ROW(jwks_url),
     "URL (http or https) of a key set; with jwksFile too, the keys of both are used.", "",
     PLACE(jwks_url_place), .reloadable = true},
    {"jwksRefresh", SETTING_DURATION_MS, ROW(jwks_refresh_ms),
     "Interval of reading jwksUrl; after a failure it is read sooner, with backoff.", "5m", 1000,
     7 * (int64_t)DAY_MS, .reloadable = true},
    {"jwksRefreshMin", SETTING_DURATION_MS, ROW(jwks_refresh_min_ms),
     "A token signed by a key that is not known makes the keys be read at once, but not more often than this.",
     "10s", 100, DAY_MS, .reloadable = true},
    {"jwksTimeout", SETTING_DURATION_MS, ROW(jwks_timeout_ms), "Time limit for reading jwksUrl once.", "3s",
     100, 60000, .reloadable = true},
    {"issuer", SETTING_STRING, ROW(issuer), "Required iss of a token; empty = any.", "", .reloadable = true},
    {"audiences", SETTING_STRING_LIST, ROW(audiences),
     "The aud of a token must contain one of these; empty = any.", "", .reloadable = true},
    {"leeway", SETTING_DURATION_MS, ROW(leeway_ms),
     "How far nbf may be in the future, for clocks that differ. exp is never extended.", "5s", 0, 300000,
     .reloadable = true},
    {"algorithms", SETTING_STRING_LIST, ROW(algorithms),
     "Allowed signature algorithms, out of RS256, ES256, EdDSA, HS256; empty = all four. Each key is good for "
     "the one of its type only.",
     "", PLACE(algorithms_place), .reloadable = true},
    {"hs256SecretFromEnv", SETTING_STRING, ROW(hs256_secret_env),
     "Name of the environment variable that holds a secret for HS256, at least 32 bytes.", "",
     PLACE(hs256_secret_place), .reloadable = true},
    {"tokenBytesMax", SETTING_SIZE, ROW(token_bytes_max), "Larger tokens are refused.", "8KiB", 256, 65536,
     .reloadable = true},
    {"cacheEntries", SETTING_INT, ROW(cache_entries),
     "Verified tokens each loop remembers, never past their exp (rounded up to eight times a power of two).",
     "10000", 16, 10000000, .reloadable = true},
    {"negativeEntries", SETTING_INT, ROW(negative_entries),
     "Refused tokens each loop remembers for some seconds (rounded up to four times a power of two).",
     "10000", 16, 10000000, .reloadable = true},
    {"mtls", SETTING_OBJECT, 0, "Clients whose certificates http.tls or the sidecar of a mesh verifies.", "",
     .rows = mtls_rows, .reloadable = true},
    {.name = NULL},
};

/* ---- rules ---- */

#define RULES_BLOCK_BYTES 1024

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

/* The URL without user, password and query, which may all be secrets. Everything up to the last '@' goes: a
 * password whose '/' or '?' was not escaped must not be shown either. */
static struct str url_shown(struct str url, struct arena *arena)
{
    const char *scheme = memmem(url.ptr, url.len, "://", 3);
    struct str start = str_of(url.ptr, scheme ? (size_t)(scheme - url.ptr) + 3 : 0);
    struct str rest = str_skip(url, start.len);
    const char *at = memrchr(rest.ptr, '@', rest.len);

    if (at)
        rest = str_skip(rest, (size_t)(at + 1 - rest.ptr));
    return arena_printf(arena, "%.*s%.*s", STR_ARG(start), (int)strcspn(rest.ptr, "?#"), rest.ptr);
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
    rules->asks_clients = settings->asks_clients;
    rules->verified_max = (size_t)settings->cache_entries;
    rules->denied_max = (size_t)settings->negative_entries;
    /* Off: no key is read. */
    rules->jwks_file = arena_str(arena, settings->enabled ? settings->jwks_file : STR(""));
    rules->jwks_url = arena_str(arena, settings->enabled ? settings->jwks_url : STR(""));
    rules->jwks_url_shown = url_shown(rules->jwks_url, arena);
    rules->refresh_ms = settings->jwks_refresh_ms;
    rules->refresh_min_ms = settings->jwks_refresh_min_ms;
    rules->timeout_ms = settings->jwks_timeout_ms;
    rules->checks = (struct auth_checks){
        .algorithms = settings->algorithms.count > 0 ? 0 : AUTH_ALGORITHMS_ALL,
        .token_bytes_max = (size_t)settings->token_bytes_max,
        .leeway_us = settings->leeway_ms * 1000,
        .issuer = arena_str(arena, settings->issuer),
        .audiences = {.items = audiences, .count = settings->audiences.count},
        .tenant_claim = arena_str(arena, claim),
    };
}

static enum status fill(struct auth_rules *rules, const struct auth_settings *settings, struct error *error)
{
    const struct setting_strings *names = &settings->algorithms, *peers = &settings->mtls_peers;

    copy_plain(rules, settings);
    for (size_t i = 0; i < names->count; i++) {
        enum auth_algorithm algorithm;
        if (!auth_algorithm_parse(names->items[i], &algorithm))
            return error_set_field(error, STATUS_CONFIG, "auth.algorithms",
                                   "\"%.*s\" is none of RS256, ES256, EdDSA, HS256",
                                   STR_ARG(names->items[i]));
        rules->checks.algorithms |= 1u << algorithm;
    }
    if (rules->jwks_url.len > 0 && !str_starts_with(rules->jwks_url, STR("https://")) &&
        !str_starts_with(rules->jwks_url, STR("http://")))
        return error_set_field(error, STATUS_CONFIG, "auth.jwksUrl",
                               "an http:// or https:// address is needed");
    rules->peers = arena_zalloc(&rules->arena, peers->count * sizeof(*rules->peers));
    rules->peer_count = peers->count;
    for (size_t i = 0; i < peers->count; i++)
        if (!auth_range_parse(peers->items[i], &rules->peers[i]))
            return error_set_field(error, STATUS_CONFIG, "auth.mtls.peers",
                                   "\"%.*s\" is not an address or a range like 10.0.0.0/8",
                                   STR_ARG(peers->items[i]));
    if (settings->hs256_secret_env.len > 0 && rules->enabled) {
        const char *variable = arena_str(&rules->arena, settings->hs256_secret_env).ptr;
        const char *secret = getenv(variable);
        if (!secret)
            return error_set_field(error, STATUS_CONFIG, "auth.hs256SecretFromEnv",
                                   "the environment has no variable %s", variable);
        if (strlen(secret) < AUTH_SECRET_BYTES_MIN || strlen(secret) > AUTH_SECRET_BYTES_MAX)
            return error_set_field(error, STATUS_CONFIG, "auth.hs256SecretFromEnv",
                                   "the secret in %s must have %d to %d bytes", variable,
                                   AUTH_SECRET_BYTES_MIN, AUTH_SECRET_BYTES_MAX);
        rules->secret = arena_str(&rules->arena, str_from(secret));
    }
    return read_clients(rules, &settings->mtls_clients, error);
}

enum status auth_rules_create(const struct auth_settings *settings, struct auth_rules **out,
                              struct error *error)
{
    struct auth_rules *rules = memory_zalloc(sizeof(*rules));

    atomic_init(&rules->refs, 1);
    rules->arena = ARENA(RULES_BLOCK_BYTES);
    enum status status = fill(rules, settings, error);
    if (status == STATUS_OK)
        *out = rules;
    else
        auth_rules_unref(rules);
    return status;
}

bool auth_rules_let_in(const struct auth_rules *rules)
{
    return !rules->enabled || rules->jwks_file.len > 0 || rules->jwks_url.len > 0 || rules->secret.len > 0 ||
           (rules->client_count > 0 && (rules->peer_count > 0 || rules->asks_clients));
}

enum status auth_settings_check(const struct auth_settings *settings, struct setting_place *place,
                                struct error *error)
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
    struct auth_rules *rules = NULL;
    enum status status = auth_rules_create(settings, &rules, error);

    auth_rules_unref(rules);
    if (status == STATUS_OK)
        return status;
    *place =
        settings->mtls_clients.count > 0 ? settings->mtls_clients.places[0] : (struct setting_place){0, 0};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
        if (strcmp(places[i].field, error->field) == 0)
            *place = places[i].place;
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
