/* Address ranges: who may speak for a client certificate. IPv4 is kept in its IPv6-mapped form, so that a
 * dual-stack listener and an IPv4 one agree. */
#include <arpa/inet.h>

#include "auth/state.h"

#define V4_PREFIX_BITS 96
static const unsigned char V4_PREFIX[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};

static bool parse_address(struct str text, struct auth_range *range, unsigned *width)
{
    char z[INET6_ADDRSTRLEN];

    if (text.len >= sizeof(z) || memchr(text.ptr, '\0', text.len))
        return false;
    memcpy(z, text.ptr, text.len);
    z[text.len] = '\0';
    if (inet_pton(AF_INET, z, range->address + sizeof(V4_PREFIX)) == 1) {
        memcpy(range->address, V4_PREFIX, sizeof(V4_PREFIX));
        *width = 32;
        return true;
    }
    *width = 128;
    return inet_pton(AF_INET6, z, range->address) == 1;
}

bool auth_range_parse(struct str cidr, struct auth_range *range)
{
    struct str rest = cidr, address;
    unsigned width;
    uint64_t bits;

    if (!str_split(&rest, '/', &address) || address.len == 0 || !parse_address(address, range, &width))
        return false;
    bits = width;
    if (rest.ptr && (!str_to_u64(rest, &bits) || bits > width))
        return false;
    range->bits = (unsigned)bits + (width == 32 ? V4_PREFIX_BITS : 0);
    return true;
}

static bool peer_address(const struct sockaddr_storage *peer, unsigned char address[16])
{
    if (peer && peer->ss_family == AF_INET) {
        memcpy(address, V4_PREFIX, sizeof(V4_PREFIX));
        memcpy(address + sizeof(V4_PREFIX), &((const struct sockaddr_in *)peer)->sin_addr, 4);
        return true;
    }
    if (peer && peer->ss_family == AF_INET6) {
        memcpy(address, &((const struct sockaddr_in6 *)peer)->sin6_addr, 16);
        return true;
    }
    return false;
}

bool auth_range_holds(const struct auth_range *range, const struct sockaddr_storage *peer)
{
    unsigned char address[16];
    unsigned whole = range->bits / 8, rest = range->bits % 8;

    if (!peer_address(peer, address) || memcmp(address, range->address, whole) != 0)
        return false;
    return rest == 0 || ((address[whole] ^ range->address[whole]) >> (8 - rest)) == 0;
}
