/* Rules: the settings after they were checked, copied so that the configuration they came from may go. */
#include <stdlib.h>

#include "auth/state.h"
#include "base/memory.h"

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

    while (scheme < url.len && !str_starts_with(str_of(url.ptr + scheme, url.len - scheme), STR("://")))
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
