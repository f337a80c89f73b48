/* A compact JWS (RFC 7515) as a JWT: its encoding, its shape, its header, its signature. Strict where the standards
 * leave room: every liberty in reading a token has been a way in somewhere. The token's claims are read only
 * after its signature was found valid, in claims.c. */
#include "auth/jose.h"

/* ---- base64url: no padding, no white space, no other alphabet, and no non-zero bits after the last byte. So a value has
 * exactly one spelling, and a token cannot be varied without breaking its signature. ---- */

static const char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

static int digit(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '-' ? 62 : c == '_' ? 63 : -1;
}

bool auth_base64url_decode(struct str text, struct arena *arena, struct str *bytes)
{
    size_t len = text.len / 4 * 3 + (text.len % 4 ? text.len % 4 - 1 : 0), at = 0;
    unsigned bits = 0, count = 0;

    if (text.len % 4 == 1)
        return false;
    char *out = arena_alloc(arena, len + 1);
    for (size_t i = 0; i < text.len; i++) {
        int value = digit(text.ptr[i]);
        if (value < 0)
            return false;
        bits = bits << 6 | (unsigned)value;
        count += 6;
        if (count >= 8) {
            count -= 8;
            out[at++] = (char)(bits >> count);
            bits &= (1u << count) - 1;
        }
    }
    if (bits != 0) /* bits that belong to no byte */
        return false;
    out[at] = '\0';
    *bytes = str_of(out, at);
    return true;
}

void auth_base64url_encode(struct str bytes, struct buf *out)
{
    unsigned bits = 0, count = 0;

    for (size_t i = 0; i < bytes.len; i++) {
        bits = (bits << 8 | (unsigned char)bytes.ptr[i]) & 0xFFFF;
        for (count += 8; count >= 6; count -= 6)
            buf_put_char(out, ALPHABET[bits >> (count - 6) & 63]);
    }
    if (count > 0)
        buf_put_char(out, ALPHABET[bits << (6 - count) & 63]);
}

/* ---- tokens ---- */

#define HEADER_DEPTH_MAX 8

static const struct {
    const char *label, *sentence;
} REASONS[AUTH_REASONS] = {
#define AUTH_REASON_ROW(name, label, sentence) [AUTH_REASON_##name] = {label, sentence},
    AUTH_REASON_TABLE(AUTH_REASON_ROW)
#undef AUTH_REASON_ROW
};

const char *auth_reason_label(enum auth_reason reason)
{
    return REASONS[reason].label;
}

const char *auth_reason_sentence(enum auth_reason reason)
{
    return REASONS[reason].sentence;
}

bool auth_bearer_token(struct str authorization, struct str *token)
{
    const struct str scheme = STR("Bearer");
    size_t at = scheme.len;

    if (authorization.len <= scheme.len || !str_eq_nocase(str_of(authorization.ptr, scheme.len), scheme))
        return false;
    while (at < authorization.len && authorization.ptr[at] == ' ')
        at++;
    if (at == scheme.len || at == authorization.len)
        return false;
    *token = str_skip(authorization, at);
    return true;
}

enum auth_reason auth_token_shape(struct str token, const struct auth_checks *checks)
{
    unsigned dots = 0;
    bool part_is_empty = true;

    if (token.len > checks->token_bytes_max)
        return AUTH_REASON_TOO_LARGE;
    for (size_t i = 0; i < token.len; i++) {
        bool dot = token.ptr[i] == '.';
        if (dot ? part_is_empty || ++dots > 2 : digit(token.ptr[i]) < 0)
            return AUTH_REASON_MALFORMED;
        part_is_empty = dot;
    }
    return dots == 2 && !part_is_empty ? AUTH_REASON_VALID : AUTH_REASON_MALFORMED;
}

/* ---- header ---- */

struct header {
    enum auth_algorithm algorithm;
    struct str kid;
};

/* A name of a foreign key or an extension refuses the token, as does any type but a JWT's. */
static enum auth_reason read_header(struct str text, const struct auth_checks *checks, struct arena *arena,
                                    struct header *header)
{
    static const struct str REFUSED[] = {{"crit", 4}, {"jwk", 3}, {"jku", 3}, {"x5u", 3},
                                         {"x5c", 3},  {"b64", 3}, {"zip", 3}, {"enc", 3}};
    const struct str media = STR("application/");
    struct json_value root, value;

    if (json_parse(text, HEADER_DEPTH_MAX, &root, NULL) != STATUS_OK || root.type != JSON_OBJECT)
        return AUTH_REASON_MALFORMED;
    if (json_has_duplicates(&root, arena))
        return AUTH_REASON_HEADER;
    for (size_t i = 0; i < sizeof(REFUSED) / sizeof(REFUSED[0]); i++)
        if (json_get(&root, REFUSED[i], &value))
            return AUTH_REASON_HEADER;
    if (json_get(&root, STR("typ"), &value)) {
        struct str type = json_get_text(&root, STR("typ"), arena);
        if (type.len > media.len && str_eq_nocase(str_of(type.ptr, media.len), media))
            type = str_skip(type, media.len);
        if (!str_eq_nocase(type, STR("JWT")) && !str_eq_nocase(type, STR("at+jwt")))
            return AUTH_REASON_HEADER;
    }
    header->kid = json_get_text(&root, STR("kid"), arena);
    if (json_get(&root, STR("kid"), &value) && (header->kid.len == 0 || header->kid.len > AUTH_KID_BYTES_MAX))
        return AUTH_REASON_HEADER;
    if (!auth_algorithm_parse(json_get_text(&root, STR("alg"), arena), &header->algorithm) ||
        !(checks->algorithms & 1u << header->algorithm))
        return AUTH_REASON_ALGORITHM;
    return AUTH_REASON_VALID;
}

enum auth_reason auth_token_verify(struct str token, const struct auth_checks *checks,
                                   const struct auth_keyset *keys, int64_t now_us, struct arena *arena,
                                   struct auth_claims *claims)
{
    struct str rest = token, parts[3], decoded[3];
    const struct auth_key *candidates[AUTH_CANDIDATES_MAX];
    struct header header;
    enum auth_reason reason = auth_token_shape(token, checks);

    *claims = (struct auth_claims){0};
    if (reason != AUTH_REASON_VALID)
        return reason;
    for (int i = 0; i < 3; i++)
        if (!str_split(&rest, '.', &parts[i]) || !auth_base64url_decode(parts[i], arena, &decoded[i]))
            return AUTH_REASON_MALFORMED;
    reason = read_header(decoded[0], checks, arena, &header);
    if (reason != AUTH_REASON_VALID)
        return reason;

    struct str message = str_of(token.ptr, parts[0].len + 1 + parts[1].len);
    size_t count = auth_keyset_candidates(keys, header.algorithm, header.kid, candidates), at = 0;
    while (at < count && !auth_signature_verify(candidates[at], message, decoded[2]))
        at++;
    if (at < count)
        return auth_claims_check(decoded[1], checks, now_us, arena, claims);
    if (header.kid.len == 0 ? count == 0 : !auth_keyset_has_kid(keys, header.kid))
        return AUTH_REASON_UNKNOWN_KEY;
    return count > 0 ? AUTH_REASON_SIGNATURE
                     : AUTH_REASON_ALGORITHM; /* the kid is a key of another algorithm */
}
