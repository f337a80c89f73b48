/* GET /v1/ops/dictionaries/{tenant_id}/{dict_code}/keys: from the memory of this process where it holds the dictionary, else from the built-in
 * table, where dictionaries without SQL of their own are. */
#include "modules/ops/ops.h"

static bool list_held(struct ops *ops, struct ops_keys *keys)
{
    for (const struct module *const *at = ops->modules; *at; at++) {
        void *state = (*at)->list_keys ? kernel_module_state(ops->kernel, *at) : NULL;
        if (state && (*at)->list_keys(state, keys))
            return true;
    }
    return false;
}

static void send_keys(struct http_request *request, const struct ops_view *view, const struct ops_keys *keys)
{
    struct buf body = {0}, cursor = {0};
    buf_printf(&body, "{\"source\":\"memory\",\"version\":%lld,\"items\":[%.*s],\"next_cursor\":",
               (long long)keys->version, STR_ARG(buf_str(keys->items)));
    if (keys->has_more) {
        ops_cursor_put(&cursor, view, &keys->last, "");
        json_put_string(&body, buf_str(&cursor));
    } else {
        buf_put_str(&body, STR("null"));
    }
    buf_put_str(&body, STR(",\"unavailable\":[]}"));
    http_send(request, &(struct http_response){.status = 200, .body = buf_str(&body)});
    buf_deinit(&body);
    buf_deinit(&cursor);
}

void ops_get_keys(struct http_request *request)
{
    struct error error = {0};
    struct ops_request wanted;
    struct buf items = {0};
    const struct ops_view *view = ops_view_find(request, &error);
    if (!view || ops_request_read(request, view, &wanted, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    enum { DICT_CODE, PREFIX };
    struct ops_keys keys = {.tenant = wanted.question.tenant,
                            .dict_code = wanted.question.values[DICT_CODE],
                            .prefix = wanted.question.values[PREFIX],
                            .after = wanted.question.has_after ? wanted.question.after[0] : STR_NONE,
                            .limit = wanted.question.limit,
                            .arena = request->arena,
                            .items = &items};
    if (list_held(request->context, &keys))
        send_keys(request, view, &keys);
    else
        ops_send_view(request, view);
    buf_deinit(&items);
}
