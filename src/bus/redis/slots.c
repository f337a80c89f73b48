/* Slots and their map. CLUSTER SLOTS answers [[first, last, [host, port, …], replica …] …]. */
#include "bus/redis/slots.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"

/* CRC16-CCITT as the XMODEM protocol has it: polynomial 0x1021, nothing reflected, begins with 0. Keys are hashed once per
 * stream, so bit by bit is fast enough. */
static uint16_t crc16(struct str bytes)
{
    uint16_t crc = 0;

    for (size_t i = 0; i < bytes.len; i++) {
        crc = (uint16_t)(crc ^ (unsigned)(unsigned char)bytes.ptr[i] << 8);
        for (int bit = 0; bit < 8; bit++)
            crc = (uint16_t)(crc & 0x8000 ? (unsigned)crc << 1 ^ 0x1021u : (unsigned)crc << 1);
    }
    return crc;
}

unsigned redis_slot_of(struct str key)
{
    const char *open = key.len ? memchr(key.ptr, '{', key.len) : NULL;

    if (open) {
        size_t left = key.len - (size_t)(open + 1 - key.ptr);
        const char *close = left ? memchr(open + 1, '}', left) : NULL;
        if (close && close > open + 1)
            key = str_of(open + 1, (size_t)(close - open - 1));
    }
    return crc16(key) % REDIS_SLOTS;
}

/* ---- addresses ---- */

static bool set_address(struct redis_address *address, struct str host, uint64_t port)
{
    if (host.len > 2 && host.ptr[0] == '[' && host.ptr[host.len - 1] == ']')
        host = str_of(host.ptr + 1, host.len - 2);
    if (host.len >= sizeof address->host || port == 0 || port > UINT16_MAX ||
        (host.len && memchr(host.ptr, '\0', host.len)))
        return false;
    snprintf(address->host, sizeof address->host, "%.*s", STR_ARG(host));
    address->port = (uint16_t)port;
    return true;
}

static bool parse_address(struct str text, struct redis_address *address)
{
    size_t colon = text.len;
    uint64_t port;

    while (colon > 0 && text.ptr[colon - 1] != ':')
        colon--;
    return colon > 0 && str_to_u64(str_of(text.ptr + colon, text.len - colon), &port) &&
           set_address(address, str_of(text.ptr, colon - 1), port);
}

bool redis_address_parse(struct str text, struct redis_address *address)
{
    return parse_address(text, address) && address->host[0];
}

bool redis_address_eq(const struct redis_address *a, const struct redis_address *b)
{
    return a->port == b->port && strcmp(a->host, b->host) == 0;
}

/* ---- the map ---- */

static size_t master_index(struct redis_topology *topology, const struct redis_address *address)
{
    for (size_t i = 0; i < topology->count; i++)
        if (redis_address_eq(&topology->masters[i], address))
            return i;
    if (topology->count == REDIS_MASTERS_MAX)
        return REDIS_MASTERS_MAX;
    topology->masters =
        memory_realloc_array(topology->masters, topology->count + 1, sizeof topology->masters[0]);
    topology->masters[topology->count] = *address;
    return topology->count++;
}

static bool take_range(struct redis_topology *topology, const struct redis_reply *range,
                       const struct redis_address *asked)
{
    const struct redis_reply *first = redis_reply_at(range, 0), *last = redis_reply_at(range, 1);
    const struct redis_reply *master = redis_reply_at(range, 2), *host = redis_reply_at(master, 0),
                             *port = redis_reply_at(master, 1);
    struct redis_address address;

    if (first->kind != REDIS_INTEGER || last->kind != REDIS_INTEGER || port->kind != REDIS_INTEGER ||
        first->integer < 0 || last->integer < first->integer || last->integer >= REDIS_SLOTS ||
        port->integer < 0 || (host->kind != REDIS_TEXT && host->kind != REDIS_NIL))
        return false;
    bool unnamed = host->text.len == 0 || str_eq(host->text, STR("?"));
    if (!set_address(&address, unnamed ? str_from(asked->host) : host->text, (uint64_t)port->integer))
        return false;
    size_t index = master_index(topology, &address);
    if (index == REDIS_MASTERS_MAX)
        return false;
    for (int64_t slot = first->integer; slot <= last->integer; slot++) {
        topology->covered += topology->owner[slot] == 0;
        topology->owner[slot] = (uint16_t)(index + 1);
    }
    return true;
}

enum status redis_topology_parse(const struct redis_reply *reply, const struct redis_address *asked,
                                 struct redis_topology *topology, struct error *error)
{
    memset(topology, 0, sizeof *topology);
    if (reply->kind == REDIS_ERROR)
        return error_set(error, STATUS_IO, "CLUSTER SLOTS: %.*s", STR_ARG(str_utf8_cut(reply->text, 200)));
    bool sound = reply->kind == REDIS_ARRAY && reply->count <= REDIS_SLOTS;
    for (size_t i = 0; sound && i < reply->count; i++)
        sound = take_range(topology, &reply->items[i], asked);
    if (sound)
        return STATUS_OK;
    redis_topology_deinit(topology);
    return error_set(error, STATUS_IO, "what CLUSTER SLOTS answers is no map of slots");
}

void redis_topology_deinit(struct redis_topology *topology)
{
    free(topology->masters);
    topology->masters = NULL;
    topology->count = 0;
}

/* ---- redirects: "MOVED 3999 127.0.0.1:6381", "ASK …" ---- */

bool redis_redirect_parse(struct str error, struct redis_redirect *redirect)
{
    struct str word, slot;
    uint64_t number;

    if (!str_split(&error, ' ', &word) || !str_split(&error, ' ', &slot) || !error.ptr)
        return false;
    redirect->ask = str_eq(word, STR("ASK"));
    if ((!redirect->ask && !str_eq(word, STR("MOVED"))) || !str_to_u64(slot, &number) ||
        number >= REDIS_SLOTS)
        return false;
    redirect->slot = (unsigned)number;
    return parse_address(error, &redirect->to);
}
