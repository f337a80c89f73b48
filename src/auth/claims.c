/* The claims of a token whose signature holds (RFC 7519): times, issuer, audience, and its subject, scopes and tenant.
 * A claim of the wrong type refuses the token; only the tenant may be missing or unfit, which auth.c
 * turns into a 403. */
#include "auth/jose.h"

#define CLAIMS_DEPTH_MAX 32
#define DATE_S_MAX 253402300799.0 /* the end of the year 9999 */
#define EXP_MISSING INT64_C(-1)

/* False when the claim is there and not a NumericDate, an integer or a fraction. A missing one leaves *unix_us as it is. */
static bool read_date(const struct json_value *claims, struct str name, int64_t *unix_us)
{
    struct json_value value;
    double seconds;

    if (!json_get(claims, name, &value))
        return true;
    if (!json_to_double(&value, &seconds) || seconds < 0 || seconds > DATE_S_MAX)
        return false;
    *unix_us = (int64_t)(seconds * 1e6);
    return true;
}

static bool is_our_audience(struct str raw, const struct auth_checks *checks)
{
    for (size_t i = 0; i < checks->audiences.count; i++)
        if (json_str_eq(raw, checks->audiences.items[i]))
            return true;
    return false;
}

static enum auth_reason check_audience(const struct json_value *root, const struct auth_checks *checks)
{
    struct json_value value, element;
    struct json_iter it;
    bool ours = false;

    if (checks->audiences.count == 0)
        return AUTH_REASON_VALID;
    if (!json_get(root, STR("aud"), &value))
        return AUTH_REASON_AUDIENCE;
    if (value.type == JSON_STRING)
        return is_our_audience(value.raw, checks) ? AUTH_REASON_VALID : AUTH_REASON_AUDIENCE;
    if (value.type != JSON_ARRAY)
        return AUTH_REASON_CLAIMS;
    json_iter_init(&it, &value);
    while (json_iter_next(&it, NULL, &element)) {
        if (element.type != JSON_STRING)
            return AUTH_REASON_CLAIMS;
        ours |= is_our_audience(element.raw, checks);
    }
    return ours ? AUTH_REASON_VALID : AUTH_REASON_AUDIENCE;
}

/* ---- scopes ---- */

/* RFC 6749's scope-token: printable ASCII without space, quote and backslash. */
static bool is_scope(struct str text)
{
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.ptr[i];
        if (c <= ' ' || c > '~' || c == '"' || c == '\\')
            return false;
    }
    return text.len > 0;
}

static void append_scope(struct str scope, char *out, size_t *len)
{
    if (*len > 0)
        out[(*len)++] = ' ';
    *len = (size_t)(str_put(out + *len, scope) - out);
}

/* One claim of scopes, as "a b" or as ["a","b"], appended to `out`, which is as large as the payload. */
static bool read_scopes(const struct json_value *value, struct arena *arena, char *out, size_t *len)
{
    struct json_iter it;
    struct str rest, scope;
    struct json_value element;

    if (value->type == JSON_STRING) {
        rest = json_str_decode(value->raw, arena);
        while (str_split(&rest, ' ', &scope)) {
            if (scope.len > 0 && !is_scope(scope))
                return false;
            if (scope.len > 0)
                append_scope(scope, out, len);
        }
        return true;
    }
    if (value->type != JSON_ARRAY)
        return false;
    json_iter_init(&it, value);
    while (json_iter_next(&it, NULL, &element)) {
        if (element.type != JSON_STRING || !is_scope(scope = json_str_decode(element.raw, arena)))
            return false;
        append_scope(scope, out, len);
    }
    return true;
}

enum auth_reason auth_claims_check(struct str payload, const struct auth_checks *checks, int64_t now_us,
                                   struct arena *arena, struct auth_claims *claims)
{
    static const struct str SCOPES[] = {{"scope", 5}, {"scp", 3}};
    struct json_value root, value;
    int64_t iat_us;

    *claims = (struct auth_claims){0};
    if (json_parse(payload, CLAIMS_DEPTH_MAX, &root, NULL) != STATUS_OK || root.type != JSON_OBJECT ||
        json_has_duplicates(&root, arena))
        return AUTH_REASON_CLAIMS;

    claims->exp_us = EXP_MISSING;
    if (!read_date(&root, STR("exp"), &claims->exp_us) || claims->exp_us == EXP_MISSING ||
        !read_date(&root, STR("nbf"), &claims->nbf_us) || !read_date(&root, STR("iat"), &iat_us))
        return AUTH_REASON_CLAIMS;
    if (now_us >= claims->exp_us)
        return AUTH_REASON_EXPIRED;
    if (now_us < claims->nbf_us - checks->leeway_us)
        return AUTH_REASON_NOT_YET;
    if (checks->issuer.len > 0 && !str_eq(json_get_text(&root, STR("iss"), arena), checks->issuer))
        return AUTH_REASON_ISSUER;
    enum auth_reason reason = check_audience(&root, checks);
    if (reason != AUTH_REASON_VALID)
        return reason;

    claims->subject = json_get_text(&root, STR("sub"), arena);
    if (json_get(&root, STR("sub"), &value) &&
        (claims->subject.len == 0 || claims->subject.len > AUTH_SUBJECT_BYTES_MAX))
        return AUTH_REASON_CLAIMS;
    for (size_t i = 0; i < claims->subject.len; i++)
        if ((unsigned char)claims->subject.ptr[i] < 0x20 || claims->subject.ptr[i] == 0x7F)
            return AUTH_REASON_CLAIMS;
    char *scopes = arena_alloc(arena, root.raw.len);
    size_t len = 0;
    for (size_t i = 0; i < sizeof(SCOPES) / sizeof(SCOPES[0]); i++)
        if (json_get(&root, SCOPES[i], &value) && !read_scopes(&value, arena, scopes, &len))
            return AUTH_REASON_CLAIMS;
    claims->scopes = str_of(scopes, len);
    struct str tenant = json_get_text(&root, checks->tenant_claim, arena);
    if (str_is_name(tenant))
        claims->tenant = tenant;
    return AUTH_REASON_VALID;
}
