/* `http.cors`: which origins' scripts may read answers. src/http/cors.c does it. */
#include <stdio.h>
#include <string.h>

#include "kernel/kernel_inside.h"

#define ROW(member) .offset = offsetof(struct kernel_http_settings, cors.member)
#define PLACE(member) .place_offset = 1 + offsetof(struct kernel_http_settings, cors.member)

enum { ORIGINS_MAX = 64, HEADERS_MAX = 64, DAY_MS = 24 * 3600 * 1000 };

const struct setting_row kernel_cors_rows[] = {
    {"allowedOrigins", SETTING_STRING_LIST, ROW(origins),
     "Origins, exactly as browsers send them (https://app.example.com), or \"*\" for all. Others get no CORS header.",
     "", 0, ORIGINS_MAX, PLACE(origins_place), .reloadable = true},
    {"allowCredentials", SETTING_BOOL, ROW(allows_credentials),
     "Whether browsers may send cookies and client certificates along; tokens in Authorization do not need it. Not with \"*\".",
     "false", PLACE(credentials_place), .reloadable = true},
    {"maxAge", SETTING_DURATION_MS, ROW(max_age_ms),
     "How long a browser may keep the answer to its preflight; browsers have limits of their own.", "10m", 0,
     DAY_MS, .reloadable = true},
    {"exposeHeaders", SETTING_STRING_LIST, ROW(expose_headers),
     "Headers of answers that scripts may read, besides those that they always may.",
     "[Allow, ETag, Idempotency-Replayed, Location, Retry-After, WWW-Authenticate, X-Data-Source, X-Dict-Version, "
     "X-Request-Id]",
     0, HEADERS_MAX, PLACE(expose_place), .reloadable = true},
    {.name = NULL},
};

static const struct kernel_cors_settings *settings_of(const struct config *config)
{
    return &((const struct kernel_http_settings *)config_section(config, "http"))->cors;
}

static struct http_cors_settings wanted(const struct kernel_cors_settings *settings)
{
    return (struct http_cors_settings){.origins = settings->origins,
                                       .expose_headers = settings->expose_headers,
                                       .allows_credentials = settings->allows_credentials,
                                       .max_age_s = settings->max_age_ms / 1000};
}

enum status kernel_cors_check(const struct config *config, struct error *error)
{
    const struct kernel_cors_settings *settings = settings_of(config);
    const struct http_cors_settings cors = wanted(settings);
    struct setting_place place = settings->origins_place;
    struct error own = {0};
    char field[64];
    if (http_cors_check(&cors, &own) == STATUS_OK)
        return STATUS_OK;
    if (strcmp(own.field, "allowCredentials") == 0)
        place = settings->credentials_place;
    else if (strcmp(own.field, "exposeHeaders") == 0)
        place = settings->expose_place;
    snprintf(field, sizeof field, "http.cors.%s", own.field);
    return config_error_at(config, place, field, error, "%s", own.message);
}

struct http_cors *kernel_cors_create(const struct config *config)
{
    const struct http_cors_settings cors = wanted(settings_of(config));
    return http_cors_create(&cors);
}

void kernel_cors_reload(struct kernel *kernel, const struct config *fresh)
{
    struct http_cors *cors = kernel_cors_create(fresh);
    http_server_use_cors(kernel->server, cors);
    http_cors_unref(cors);
}
