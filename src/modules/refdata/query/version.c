/* GET …/version (R6): what this pod holds, comparable with another pod or with the database by its digest. */
#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "modules/refdata/query/barrier.h"
#include "modules/refdata/query/reading.h"

void refdata_get_version(struct http_request *request)
{
    static const char *const none[] = {NULL};
    struct refdata_reading reading;
    struct error error;
    if (!refdata_reading_begin(request, &reading))
        return;
    if (http_request_query_only(request, none, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    if (!refdata_barrier_pass(request, &reading, NULL, 0))
        return;
    char digest[HASH128_HEX_BYTES], loaded_at[CLOCK_RFC3339_BYTES];
    struct buf body;
    hash128_hex(reading.info->digest, digest);
    clock_rfc3339(reading.info->loaded_at_us, loaded_at);
    buf_init(&body);
    buf_put_char(&body, '{');
    json_put_member_str(&body, "tenantId", reading.holding->tenant);
    json_put_member_str(&body, "dictCode", reading.holding->code);
    json_put_member_i64(&body, "version", reading.info->version);
    json_put_member_i64(&body, "itemCount", (int64_t)reading.info->item_count);
    json_put_member_str(&body, "digest", str_from(digest));
    json_put_member_str(&body, "loadedAt", str_from(loaded_at));
    buf_put_char(&body, '}');
    http_send(request, &(struct http_response){.status = 200,
                                               .headers = refdata_reading_headers(&reading),
                                               .body = buf_str(&body)});
    buf_deinit(&body);
}
