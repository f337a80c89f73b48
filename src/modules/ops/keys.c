/* GET /v1/ops/dictionaries/{tenant_id}/{dict_code}/keys: from the memory of this process where it holds the dictionary, else from the built-in
 * table, where dictionaries without SQL of their own are. */
#include "modules/ops/ops.h"

static void send_keys(struct http_request *request, const struct ops_view *view, const struct ops_keys *keys)
{
    struct buf body = {0}, cursor = {0};
    if (keys->has_more)
        ops_cursor_put(&cursor, view, &keys->last, "");
    buf_printf(&body, "{\"source\":\"memory\",\"version\":%lld,\"items\":[%.*s]", (long long)keys->version,
               STR_ARG(buf_str(keys->items)));
    json_put_member_str_or_null(&body, "next_cursor", keys->has_more ? buf_str(&cursor) : STR_NONE);
    buf_put_str(&body, STR(",\"unavailable\":[]}"));
    http_send(request, &(struct http_response){.status = 200, .body = buf_str(&body)});
    buf_deinit(&body);
    buf_deinit(&cursor);
}

void ops_get_keys(struct http_request *request)
{
    const struct ops *ops = request->context;
    struct error error = {0};
    struct ops_request wanted;
    struct buf items = {0};
    bool is_held = false;
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
    for (const struct module *const *at = ops->modules; *at && !is_held; at++) {
        void *state = (*at)->list_keys ? kernel_module_state(ops->kernel, *at) : NULL;
        is_held = state && (*at)->list_keys(state, &keys);
    }
    if (is_held)
        send_keys(request, view, &keys);
    else
        ops_send_view(request, view);
    buf_deinit(&items);
}
