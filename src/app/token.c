/* `freshet token`: a development token signed with a local key, printed and nothing else, so that
 * TOKEN=$(freshet token --tenant demo) works. */
#include <stdio.h>
#include <stdlib.h>

#include "app/commands.h"
#include "app/options.h"
#include "app/token.h"

#define TTL_MAX_MS (INT64_C(366) * 24 * 3600 * 1000)

/* Beside the key that ./dev made, unless said otherwise. */
static struct str key_path(const char *given, struct buf *buffer, const char *name)
{
    const char *var = getenv("FRESHET_VAR");
    if (given)
        return str_from(given);
    buf_printf(buffer, "%s/keys/%s", var && *var ? var : "var", name);
    buf_put_char(buffer, '\0');
    return str_of(buffer->data, buf_len(buffer) - 1);
}

static enum status issue(const char *key, const char *jwks, const struct auth_token_request *request,
                         struct buf *token, struct error *error)
{
    struct buf key_buffer, jwks_buffer;
    buf_init(&key_buffer), buf_init(&jwks_buffer);
    enum status status = auth_token_issue(key_path(key, &key_buffer, "dev-key.json"),
                                          key_path(jwks, &jwks_buffer, "jwks.json"), request, token, error);
    buf_deinit(&key_buffer), buf_deinit(&jwks_buffer);
    return status;
}

enum status app_token_development(const struct auth_token_request *request, struct buf *token,
                                  struct error *error)
{
    return issue(NULL, NULL, request, token, error);
}

static int print_token(const char *key, const char *jwks, const struct auth_token_request *request)
{
    struct buf token;
    struct error error = {0};
    buf_init(&token);
    enum status status = issue(key, jwks, request, &token, &error);
    if (status == STATUS_OK)
        printf("%.*s\n", STR_ARG(buf_str(&token)));
    else
        fprintf(stderr, "freshet token: %s\n", error.message);
    buf_deinit(&token);
    return status == STATUS_OK ? 0 : 1;
}

int app_token(int argc, char **argv)
{
    const char *tenant = NULL, *subject = "developer", *scope = "", *ttl = "1h", *key = NULL, *jwks = NULL,
               *issuer = "", *audience = "", *claim = "";
    const struct option_row rows[] = {
        {"--tenant", "T", "the tenant (required)", .into = &tenant},
        {"--subject", "S", "the user (default developer)", .into = &subject},
        {"--scope", "\"a b\"", "scopes, separated by spaces (default none)", .into = &scope},
        {"--ttl", "1h", "how long it is valid: 90s, 15m, 1h, 7d (default 1h)", .into = &ttl},
        {"--issuer", "ISS", "the iss claim (default none)", .into = &issuer},
        {"--audience", "AUD", "the aud claim (default none)", .into = &audience},
        {"--tenant-claim", "NAME", "the claim that holds the tenant (default tenant_id)", .into = &claim},
        {"--key", "FILE", "private key (default $FRESHET_VAR/keys/dev-key.json; made when missing)",
         .into = &key},
        {"--jwks", "FILE", "where its public half is written (default jwks.json beside it)", .into = &jwks},
        {.name = NULL},
    };
    enum options_outcome outcome =
        options_read(argc, argv, "Prints a development token signed with a local key.", rows);
    if (outcome != OPTIONS_RUN)
        return outcome == OPTIONS_HELPED ? 0 : 2;
    struct auth_token_request request = {
        .tenant = str_from(tenant),
        .subject = str_from(subject),
        .scopes = str_from(scope),
        .issuer = str_from(issuer),
        .audience = str_from(audience),
        .tenant_claim = str_from(claim),
    };
    if (!tenant || !str_is_name(request.tenant)) {
        fprintf(stderr, "freshet token: --tenant is required: 1 to 64 of A-Z a-z 0-9 . _ -\n");
        return 2;
    }
    int64_t ttl_ms;
    if (!options_duration(ttl, TTL_MAX_MS, &ttl_ms) || ttl_ms < 1000) {
        fprintf(stderr, "freshet token: --ttl takes a duration like 90s, 15m, 1h or 7d, at most 366d\n");
        return 2;
    }
    request.ttl_s = ttl_ms / 1000;
    return print_token(key, jwks, &request);
}
