/* A key as it comes (I1), what it is known by inside (I2), and how its failures are told. */
#include "base/json.h"
#include "idempotency/idempotency_inside.h"

enum { SCOPE_PARTS = 5, LENGTH_BYTES = 4 };

static bool is_key_char(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

static bool is_key(struct str text)
{
    if (text.len == 0 || text.len > IDEMPOTENCY_KEY_BYTES_MAX)
        return false;
    for (size_t i = 0; i < text.len; i++)
        if (!is_key_char(text.ptr[i]))
            return false;
    return true;
}

enum status idempotency_key_of(const struct http_request *request, struct str *key, struct error *error)
{
    struct str name = STR("Idempotency-Key");
    size_t count = http_request_header_count(request, name);

    *key = count ? http_request_header(request, name) : STR_NONE;
    if (count == 0 || (count == 1 && is_key(*key)))
        return STATUS_OK;
    if (!key->ptr)
        *key = STR("");
    return error_set(error, STATUS_INVALID_IDEMPOTENCY_KEY, "%s",
                     status_message(STATUS_INVALID_IDEMPOTENCY_KEY));
}

/* Each part behind its length: no two scopes read alike. */
struct idempotency_id idempotency_id_of(const struct http_request *request, struct str tenant,
                                        struct str subject, struct str key)
{
    static const struct str methods[HTTP_METHODS] = {[HTTP_POST] = {"POST", 4}};
    const struct str scope[SCOPE_PARTS] = {tenant, subject, methods[request->method],
                                           str_from(request->route->path), key};
    uint8_t lengths[SCOPE_PARTS][LENGTH_BYTES];
    struct str parts[2 * SCOPE_PARTS];
    struct idempotency_id id;

    for (size_t i = 0; i < SCOPE_PARTS; i++) {
        for (size_t byte = 0; byte < LENGTH_BYTES; byte++)
            lengths[i][byte] = (uint8_t)(scope[i].len >> (8 * byte));
        parts[2 * i] = str_of((const char *)lengths[i], LENGTH_BYTES);
        parts[2 * i + 1] = scope[i];
    }
    auth_sha256(parts, 2 * SCOPE_PARTS, id.bytes);
    return id;
}

int64_t idempotency_id_lock(const struct idempotency_id *id)
{
    uint64_t lock = 0;

    for (size_t i = 0; i < sizeof lock; i++)
        lock = lock << 8 | id->bytes[i];
    return (int64_t)lock;
}

int64_t idempotency_lock_key(const struct http_request *request, struct str tenant, struct str subject,
                             struct str key)
{
    struct idempotency_id id = idempotency_id_of(request, tenant, subject, key);
    return idempotency_id_lock(&id);
}

/* What came is told back, so it is bounded: it may be anything a header can hold. */
void idempotency_send_error(struct http_request *request, const struct error *error, struct str key)
{
    bool busy = error->status == STATUS_IDEMPOTENCY_KEY_PROCESSING;
    struct buf members;

    buf_init(&members);
    buf_put_str(&members, STR(",\"idempotency_key\":"));
    json_put_string(&members, str_utf8_cut(key, IDEMPOTENCY_KEY_BYTES_MAX));
    http_send_error_with(request, error, busy ? STR("Retry-After: 1\r\n") : STR_NONE, buf_str(&members));
    buf_deinit(&members);
}
