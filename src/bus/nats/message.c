/* A message as NATS carries it. Its headers are headers of NATS, with their names, so that other clients can read them. What NATS
 * cannot carry is escaped as in URLs (%0A): control characters, '%', spaces at the ends of a value, and in names everything that
 * is not a token of HTTP; names that begin with "Nats-" or "Freshet-" too, since those have a meaning. An empty value is "%",
 * since readers of headers take the next line for it.
 *
 *   Freshet-Key    the key, escaped; absent: no key
 *   Freshet-Order  the names in their order, joined by commas; where it is present, names and values are escaped
 *   Nats-Msg-Id    the event id; one that was made up here begins with "freshet:"
 *
 * Messages of other programs need none of these: their Nats-Msg-Id is the event id. A header that is not text, or one too many,
 * makes the message poison: without it the message might mean something else (`visibility`). */
#include <stdlib.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/hex.h"
#include "base/memory.h"
#include "bus/nats/inside.h"

#define KEY_HEADER "Freshet-Key"
#define ORDER_HEADER "Freshet-Order"
#define ID_HEADER "Nats-Msg-Id"
#define MADE_UP_ID "freshet:"
#define PLAIN_ARENA_BYTES 1024
#define TOO_MANY "more headers than a message may have"

/* ---- escaping ---- */

enum escape { ESCAPE_NAME, ESCAPE_VALUE, ESCAPE_BYTES };

static void put_escaped(struct buf *out, struct str text, enum escape kind)
{
    bool is_reserved = (text.len >= 5 && str_eq_nocase(str_of(text.ptr, 5), STR("Nats-"))) ||
                       (text.len >= 8 && str_eq_nocase(str_of(text.ptr, 8), STR("Freshet-")));

    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.ptr[i];
        bool is_end = i == 0 || i == text.len - 1;
        bool is_token = c > ' ' && c < 0x7f && !strchr("%()<>@,;:\\\"/[]?={}", c);
        bool is_plain = kind == ESCAPE_NAME    ? is_token && !(i == 0 && is_reserved)
                        : kind == ESCAPE_VALUE ? c >= ' ' && c != 0x7f && c != '%' && !(c == ' ' && is_end)
                                               : c > ' ' && c < 0x7f && c != '%';
        if (is_plain)
            buf_put_char(out, (char)c);
        else
            buf_printf(out, "%%%02X", c);
    }
}

static struct str unescape(struct arena *arena, const char *text)
{
    size_t len = strlen(text), to = 0;
    char *out = arena_alloc(arena, len + 1);

    if (len == 1 && text[0] == '%')
        len = 0;
    for (size_t i = 0; i < len; i++) {
        int high = text[i] == '%' ? hex_digit(text[i + 1]) : -1;
        int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
        out[to++] = (char)(low >= 0 ? high << 4 | low : text[i]);
        i += low >= 0 ? 2 : 0;
    }
    out[to] = '\0';
    return str_of(out, to);
}

/* ---- encode ---- */

/* Name and value are empty afterwards. */
static natsStatus add_header(natsMsg *message, struct buf *name, struct buf *value, size_t *bytes)
{
    if (buf_len(value) == 0)
        buf_put_char(value, '%');
    buf_put_char(name, '\0');
    buf_put_char(value, '\0');
    *bytes += buf_len(name) + buf_len(value) + 4;
    natsStatus status = natsMsgHeader_Add(message, buf_str(name).ptr, buf_str(value).ptr);
    buf_clear(name);
    buf_clear(value);
    return status;
}

natsStatus bus_nats_encode(const struct bus_message *message, const char *subject, const char *id,
                           natsMsg **out, size_t *bytes)
{
    struct buf name = {0}, value = {0}, order = {0};
    natsStatus status = natsMsg_Create(out, subject, NULL, message->payload.ptr, (int)message->payload.len);

    *bytes = message->payload.len + sizeof "NATS/1.0\r\n\r\n";
    if (status == NATS_OK && id) {
        *bytes += sizeof ID_HEADER + strlen(id) + 4;
        status = natsMsgHeader_Set(*out, ID_HEADER, id);
    }
    if (status == NATS_OK && message->key.ptr) {
        buf_put_str(&name, STR(KEY_HEADER));
        put_escaped(&value, message->key, ESCAPE_BYTES);
        status = add_header(*out, &name, &value, bytes);
    }
    for (unsigned i = 0; i < message->header_count && status == NATS_OK; i++) {
        put_escaped(&name, message->headers[i].name, ESCAPE_NAME);
        put_escaped(&value, message->headers[i].value, ESCAPE_VALUE);
        if (i > 0)
            buf_put_char(&order, ',');
        buf_put_str(&order, buf_str(&name));
        status = add_header(*out, &name, &value, bytes);
    }
    buf_put_str(&name, STR(ORDER_HEADER));
    if (status == NATS_OK && message->header_count > 0)
        status = add_header(*out, &name, &order, bytes);
    buf_deinit(&name);
    buf_deinit(&value);
    buf_deinit(&order);
    return status;
}

/* ---- decode ---- */

static void put_header(struct bus_message *message, struct bus_header *headers, struct str name,
                       struct str value)
{
    if (name.len == 0 || !str_is_text(name) || !str_is_text(value))
        message->poison = "a header is not UTF-8 text";
    else if (message->header_count == BUS_HEADERS_MAX)
        message->poison = TOO_MANY;
    else
        headers[message->header_count++] = (struct bus_header){name, value};
}

/* The nth value of each name is that of its nth place in the order. */
static void decode_ordered(natsMsg *from, const char *order, struct arena *arena, struct bus_header *headers,
                           struct bus_message *message)
{
    struct str rest = str_from(order), part;
    struct str names[BUS_HEADERS_MAX];
    size_t places = 0;

    while (places < BUS_HEADERS_MAX && str_split(&rest, ',', &part)) {
        const char **values = NULL;
        int count = 0, nth = 0;
        names[places] = arena_str(arena, part);
        for (size_t i = 0; i < places; i++)
            nth += str_eq(names[i], part);
        if (natsMsgHeader_Values(from, names[places].ptr, &values, &count) == NATS_OK && nth < count)
            put_header(message, headers, unescape(arena, names[places].ptr), unescape(arena, values[nth]));
        free((void *)values);
        places++;
    }
    if (rest.len > 0)
        message->poison = TOO_MANY;
}

static void decode_foreign(natsMsg *from, struct arena *arena, struct bus_header *headers,
                           struct bus_message *message)
{
    const char **names = NULL;
    int name_count = 0;

    if (natsMsgHeader_Keys(from, &names, &name_count) != NATS_OK)
        return;
    for (int i = 0; i < name_count; i++) {
        const char **values = NULL;
        int count = 0;
        if (strncmp(names[i], "Nats-", 5) == 0 || strncmp(names[i], "Freshet-", 8) == 0 ||
            natsMsgHeader_Values(from, names[i], &values, &count) != NATS_OK)
            continue;
        for (int at = 0; at < count; at++)
            put_header(message, headers, arena_str(arena, str_from(names[i])),
                       arena_str(arena, str_from(values[at])));
        free((void *)values);
    }
    free((void *)names);
}

void bus_nats_decode(natsMsg *from, struct arena *arena, struct bus_message *message)
{
    struct bus_header *headers = arena_alloc(arena, BUS_HEADERS_MAX * sizeof headers[0]);
    const char *text = NULL;

    message->headers = headers;
    message->header_count = 0;
    message->poison = NULL;
    message->key = STR_NONE;
    message->payload = str_of(natsMsg_GetData(from), (size_t)natsMsg_GetDataLength(from));
    if (natsMsgHeader_Get(from, KEY_HEADER, &text) == NATS_OK)
        message->key = unescape(arena, text);
    if (natsMsgHeader_Get(from, ORDER_HEADER, &text) == NATS_OK)
        decode_ordered(from, text, arena, headers, message);
    else
        decode_foreign(from, arena, headers, message);
    if (natsMsgHeader_Get(from, ID_HEADER, &text) == NATS_OK &&
        !str_starts_with(str_from(text), STR(MADE_UP_ID)) &&
        !bus_message_header(message, STR(BUS_HEADER_EVENT_ID)).ptr)
        put_header(message, headers, STR(BUS_HEADER_EVENT_ID), arena_str(arena, str_from(text)));
}

/* ---- plain subjects: no stream, at most once ---- */

enum status bus_nats_send(struct bus *bus, const struct bus_message *message, struct error *error)
{
    struct nats *nats = (struct nats *)bus;
    struct bus_message carried = *message;
    char *subject = str_dup(message->topic);
    natsStatus status = NATS_NO_SERVER;
    natsMsg *out = NULL;
    size_t bytes;

    carried.key = STR_NONE;
    pthread_mutex_lock(&nats->lock);
    bool is_possible = !nats->is_stopping && atomic_load(&nats->bus.is_up);
    pthread_mutex_unlock(&nats->lock);
    if (is_possible)
        status = bus_nats_encode(&carried, subject, NULL, &out, &bytes);
    if (status == NATS_OK)
        status = natsConnection_PublishMsg(nats->connection, out);
    natsMsg_Destroy(out);
    free(subject);
    switch (status) {
    case NATS_OK: return STATUS_OK;
    case NATS_MAX_PAYLOAD:
        return error_set(error, STATUS_PAYLOAD_TOO_LARGE, "a message is over the server's limit");
    case NATS_INVALID_SUBJECT:
    case NATS_INVALID_ARG: return error_set(error, STATUS_BAD_REQUEST, "not a subject of NATS");
    default: return error_set(error, STATUS_UNAVAILABLE, "NATS cannot be reached");
    }
}

static void on_plain(natsConnection *connection, natsSubscription *subscription, natsMsg *message,
                     void *closure)
{
    const struct nats_listener *listener = closure;
    struct bus_message carried = {0};
    struct arena arena = ARENA(PLAIN_ARENA_BYTES);

    (void)connection;
    (void)subscription;
    bus_nats_decode(message, &arena, &carried);
    carried.topic = str_from(natsMsg_GetSubject(message));
    listener->on_message(listener->context, &carried);
    arena_deinit(&arena);
    natsMsg_Destroy(message);
}

enum status bus_nats_listen(struct bus *bus, const char *subject, const char *queue,
                            void (*on_message)(void *context, const struct bus_message *message),
                            void *context, struct error *error)
{
    struct nats *nats = (struct nats *)bus;
    struct nats_listener *listener;

    if (!subject || !subject[0] || strpbrk(subject, " \t\r\n"))
        return error_set(error, STATUS_CONFIG, "not a subject of NATS");
    listener = memory_zalloc(sizeof *listener);
    listener->subject = str_dup(str_from(subject));
    listener->queue = queue ? str_dup(str_from(queue)) : NULL;
    listener->on_message = on_message;
    listener->context = context;
    LIST_INSERT_HEAD(&nats->listeners, listener, link);
    return STATUS_OK;
}

/* On a new connection; the client subscribes again by itself after a reconnect. */
natsStatus bus_nats_listeners_subscribe(struct nats *nats)
{
    struct nats_listener *listener;
    natsStatus status = NATS_OK;

    LIST_FOREACH(listener, &nats->listeners, link)
        if (status == NATS_OK && !listener->subscription)
            status = bus_nats_subscribe(nats, &listener->subscription, listener->subject, listener->queue,
                                        on_plain, listener);
    return status;
}

void bus_nats_listeners_free(struct nats *nats)
{
    struct nats_listener *listener, *next;

    LIST_FOREACH_SAFE(listener, &nats->listeners, link, next) {
        natsSubscription_Destroy(listener->subscription);
        free(listener->subject);
        free(listener->queue);
        free(listener);
    }
}
