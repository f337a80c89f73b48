/* GET /v1/ops/config: the configuration in force. It is written down when it is read, on the main thread, since a reload frees it. */
#include "base/clock.h"
#include "base/json.h"
#include "modules/ops/ops.h"

void ops_config_take(struct ops *ops, const struct config *config)
{
    struct buf text = {0}, settings = {0};
    char at[CLOCK_RFC3339_BYTES];
    bool is_whole = config_show(config, &settings);
    clock_rfc3339(clock_unix_us(), at);
    json_put_member_str(&text, "file", str_from(config_path(config)));
    json_put_member_str(&text, "loaded_at", str_from(at));
    json_put_member_bool(&text, "is_whole", is_whole);
    json_put_member_raw(&text, "settings", buf_str(&settings));
    buf_deinit(&settings);
    pthread_mutex_lock(&ops->lock);
    settings = ops->config;
    ops->config = text;
    pthread_mutex_unlock(&ops->lock);
    buf_deinit(&settings);
}

void ops_get_config(struct http_request *request)
{
    static const char *const names[] = {NULL};
    struct ops *ops = request->context;
    struct buf body = {0}, problems = {0};
    struct error error = {0};
    char at[CLOCK_RFC3339_BYTES];
    int64_t at_us = 0;
    if (http_request_query_only(request, names, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    buf_put_char(&body, '{');
    if (kernel_refused_config(ops->kernel, &problems, &at_us)) {
        clock_rfc3339(at_us, at);
        json_put_open(&body, "refused", '{');
        json_put_member_str(&body, "at", str_from(at));
        json_put_member_str(&body, "error", buf_str(&problems));
        buf_put_str(&body, STR("},"));
    }
    pthread_mutex_lock(&ops->lock);
    buf_put_str(&body, buf_str(&ops->config));
    pthread_mutex_unlock(&ops->lock);
    buf_put_char(&body, '}');
    http_send(request, &(struct http_response){.status = 200, .body = buf_str(&body)});
    buf_deinit(&body);
    buf_deinit(&problems);
}
