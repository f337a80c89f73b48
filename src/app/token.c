/* `freshet token`: prints a development token signed with a local key, and nothing else, so that
 * TOKEN=$(freshet token --tenant demo) works. */
#include <stdio.h>
#include <stdlib.h>

#include "app/commands.h"
#include "app/options.h"

/* In $FRESHET_VAR/keys, where ./dev makes the key, unless a path is given. */
static struct str key_path(const char *given, struct arena *arena, const char *name)
{
    const char *var = getenv("FRESHET_VAR");
    return given ? str_from(given) : arena_printf(arena, "%s/keys/%s", var && *var ? var : "var", name);
}

enum status app_token_issue(const char *key, const char *jwks, const struct auth_token_request *request,
                            struct buf *token, struct error *error)
{
    struct arena arena = ARENA(512);
    enum status status = auth_token_issue(key_path(key, &arena, "dev-key.json"),
                                          key_path(jwks, &arena, "jwks.json"), request, token, error);
    arena_deinit(&arena);
    return status;
}

int app_token(int argc, char **argv)
{
    const char *tenant = NULL, *subject = "developer", *scope = "", *key = NULL, *jwks = NULL, *issuer = "",
               *audience = "", *claim = "";
    int64_t ttl_ms = 3600000;
    const struct option_row rows[] = {
        {"--tenant", "T", "the tenant (required)", .into = &tenant},
        {"--subject", "S", "the user (default developer)", .into = &subject},
        {"--scope", "\"a b\"", "scopes, separated by spaces (default none)", .into = &scope},
        {"--ttl", "1h", "how long it is valid: 90s, 15m, 1h, 7d; at most 366d (default 1h)",
         .duration_ms = &ttl_ms, .max = 366 * OPTION_DAY_MS},
        {"--issuer", "ISS", "the iss claim (default none)", .into = &issuer},
        {"--audience", "AUD", "the aud claim (default none)", .into = &audience},
        {"--tenant-claim", "NAME", "the claim that holds the tenant (default tenant_id)", .into = &claim},
        {"--key", "FILE", "private key (default $FRESHET_VAR/keys/dev-key.json; made when missing)",
         .into = &key},
        {"--jwks", "FILE", "where its public key is written (default jwks.json beside it)", .into = &jwks},
        {.name = NULL},
    };
    int outcome = options_read(argc, argv, "Prints a development token signed with a local key.", rows);
    if (outcome != OPTIONS_RUN)
        return outcome;
    struct auth_token_request request = {.tenant = str_from(tenant),
                                         .subject = str_from(subject),
                                         .scopes = str_from(scope),
                                         .issuer = str_from(issuer),
                                         .audience = str_from(audience),
                                         .tenant_claim = str_from(claim),
                                         .ttl_s = ttl_ms / 1000};
    if (!tenant)
        return app_misuse("token", "--tenant is required");
    if (!str_is_name(request.tenant))
        return app_misuse("token", "--tenant needs 1 to 64 characters of A-Z a-z 0-9 . _ -");
    if (request.ttl_s < 1)
        return app_misuse("token", "--ttl must be at least 1s");
    struct buf token = {0};
    struct error error = {0};
    enum status status = app_token_issue(key, jwks, &request, &token, &error);
    if (status == STATUS_OK)
        printf("%.*s\n", STR_ARG(buf_str(&token)));
    buf_deinit(&token);
    return status == STATUS_OK ? 0 : app_fail("token", "%s", error.message);
}
