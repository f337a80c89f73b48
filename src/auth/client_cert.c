/* X-Forwarded-Client-Cert, as Envoy writes it: elements parted by ',', pairs by ';', values bare or quoted
 * with '\'.
 *
 * Only the last element counts. A sidecar appends what it verified itself; what stands before was passed
 * on by hops that we did not ask. Of that element the client is its URI (a SPIFFE id), or its Subject
 * where it has no URI. A header that does not parse, or comes from a peer that is not configured, names
 * no client. The certificate of a TLS connection of our own has the same form, one element that src/http wrote, and is believed. */
#include "auth/state.h"

#include <arpa/inet.h>

/* ---- address ranges whose peers may vouch for a client certificate. IPv4 is kept in its IPv6-mapped form, so that a dual-stack
 * listener and an IPv4 one agree. ---- */

static const unsigned char V4_PREFIX[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};

bool auth_range_parse(struct str cidr, struct auth_range *range)
{
    char z[INET6_ADDRSTRLEN];
    struct str rest = cidr, address;
    uint64_t bits = 128, width = 128;

    if (!str_split(&rest, '/', &address) || address.len == 0 || address.len >= sizeof(z) ||
        memchr(address.ptr, '\0', address.len))
        return false;
    str_copy(z, sizeof(z), address);
    if (inet_pton(AF_INET, z, range->address + sizeof(V4_PREFIX)) == 1) {
        memcpy(range->address, V4_PREFIX, sizeof(V4_PREFIX));
        bits = width = 32;
    } else if (inet_pton(AF_INET6, z, range->address) != 1) {
        return false;
    }
    if (rest.ptr && (!str_to_u64(rest, &bits) || bits > width))
        return false;
    range->bits = (unsigned)(bits + 128 - width);
    return true;
}

bool auth_range_holds(const struct auth_range *range, const struct sockaddr_in6 *peer)
{
    unsigned char address[16];
    unsigned whole = range->bits / 8, rest = range->bits % 8;

    if (peer && peer->sin6_family == AF_INET) {
        memcpy(address, V4_PREFIX, sizeof(V4_PREFIX));
        memcpy(address + sizeof(V4_PREFIX), &((const struct sockaddr_in *)peer)->sin_addr, 4);
    } else if (peer && peer->sin6_family == AF_INET6) {
        memcpy(address, &peer->sin6_addr, 16);
    } else {
        return false;
    }
    return memcmp(address, range->address, whole) == 0 &&
           (rest == 0 || ((address[whole] ^ range->address[whole]) >> (8 - rest)) == 0);
}

/* ---- the header ---- */

struct cert_pair {
    struct str name, raw; /* raw: the value with its escapes, without its quotes */
};

/* Takes one pair off the front of *rest together with the ';' or ',' after it, which goes to *end ('\0'
 * at the end of the text). False when it does not parse. */
static bool take_pair(struct str *rest, struct cert_pair *pair, char *end)
{
    size_t at = 0, begin;

    while (at < rest->len && rest->ptr[at] != '=' && rest->ptr[at] != ';' && rest->ptr[at] != ',')
        at++;
    if (at == 0 || at == rest->len || rest->ptr[at] != '=')
        return false;
    pair->name = str_trim(str_of(rest->ptr, at));
    begin = ++at;
    if (at < rest->len && rest->ptr[at] == '"') {
        begin = ++at;
        while (at < rest->len && rest->ptr[at] != '"')
            at += rest->ptr[at] == '\\' ? 2 : 1;
        if (at >= rest->len)
            return false;
        pair->raw = str_of(rest->ptr + begin, at - begin);
        at++;
    } else {
        while (at < rest->len && rest->ptr[at] != ';' && rest->ptr[at] != ',' && rest->ptr[at] != '"')
            at++;
        pair->raw = str_trim(str_of(rest->ptr + begin, at - begin));
    }
    *end = at < rest->len ? rest->ptr[at] : '\0';
    if (at < rest->len && *end != ';' && *end != ',')
        return false;
    at += at < rest->len;
    *rest = str_skip(*rest, at);
    return *end == '\0' || rest->len > 0; /* nothing may end in a separator */
}

/* The client whose identity is the value as the sidecar wrote it. A '\' belongs to the distinguished name (RFC 4514: "\," is
 * a comma inside an attribute, not the end of it) and is compared like every other byte. The one escape of the header
 * itself is '\"': an identity may be written with the backslash or without. */
static const struct auth_client *client_named(const struct auth_rules *rules, struct str raw)
{
    for (size_t client = 0; client < rules->client_count; client++) {
        struct str text = rules->clients[client].identity;
        size_t at = 0, i = 0;
        for (; at < raw.len && i < text.len; at++, i++) {
            if (raw.ptr[at] == '\\' && at + 1 < raw.len && raw.ptr[at + 1] == '"' && text.ptr[i] == '"')
                at++;
            if (raw.ptr[at] != text.ptr[i])
                break;
        }
        if (at == raw.len && i == text.len)
            return &rules->clients[client];
    }
    return NULL;
}

/* Walks all elements, forgetting what it found at each ',' that opens another. */
static const struct auth_client *client_in(const struct auth_rules *rules, struct str elements)
{
    const struct auth_client *by_uri = NULL, *by_subject = NULL;
    struct cert_pair pair;
    bool has_uri = false;
    char end = ';';

    for (struct str rest = elements; end != '\0';) {
        bool opens_element = end == ',';
        if (!take_pair(&rest, &pair, &end))
            return NULL;
        if (opens_element) {
            by_uri = by_subject = NULL;
            has_uri = false;
        }
        if (str_eq_nocase(pair.name, STR("URI"))) {
            has_uri |= pair.raw.len > 0;
            by_uri = by_uri ? by_uri : client_named(rules, pair.raw);
        } else if (str_eq_nocase(pair.name, STR("Subject"))) {
            by_subject = client_named(rules, pair.raw);
        }
    }
    return has_uri ? by_uri : by_subject;
}

static bool is_believed(const struct auth_rules *rules, const struct sockaddr_in6 *peer)
{
    bool holds = false;

    for (size_t i = 0; i < rules->peer_count; i++)
        holds |= auth_range_holds(&rules->peers[i], peer);
    return holds;
}

const struct auth_client *auth_client_find(const struct auth_rules *rules, const struct sockaddr_in6 *peer,
                                           struct str forwarded_client_cert)
{
    return is_believed(rules, peer) ? client_in(rules, forwarded_client_cert) : NULL;
}

const struct auth_client *auth_client_of(const struct auth_rules *rules, const struct auth_question *question)
{
    if (question->client_cert.len == 0 || (question->is_forwarded && is_believed(rules, question->peer)))
        return auth_client_find(rules, question->peer, question->forwarded_client_cert);
    return client_in(rules, question->client_cert);
}
