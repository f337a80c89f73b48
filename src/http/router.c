/* The router: a trie of path segments, built once at start and then only read.
 *
 * Segments are compared raw: percent-decoding happens after routing, so that %2F in a key stays in its segment. A literal is
 * tried before a parameter. There is one way to each node, so the search visits each node at most once. */
#include <stdlib.h>

#include "base/memory.h"
#include "http/http_inside.h"
#include "http/scan.h"

struct node {
    struct str segment; /* "" for a parameter */
    struct node **literals;
    size_t literal_count;
    struct node *param;
    struct http_entry *entries[HTTP_METHODS + 1]; /* the last one is NULL: HTTP_METHOD_OTHER */
    unsigned allowed;                             /* bits of methods */
};

struct http_router {
    struct node root; /* first: freed as any node */
};

struct http_router *http_router_create(void)
{
    return memory_zalloc(sizeof(struct http_router));
}

static void free_node(struct node *node)
{
    for (size_t i = 0; i < node->literal_count; i++)
        free_node(node->literals[i]);
    if (node->param)
        free_node(node->param);
    for (unsigned method = 0; method < HTTP_METHODS; method++)
        if (method != HTTP_HEAD) /* whose entry is GET's */
            free(node->entries[method]);
    free(node->literals);
    free(node);
}

void http_router_destroy(struct http_router *router)
{
    free_node(&router->root);
}

/* ---- building ---- */

static struct node *literal_of(const struct node *node, struct str segment)
{
    for (size_t i = 0; i < node->literal_count; i++)
        if (str_eq(node->literals[i]->segment, segment))
            return node->literals[i];
    return NULL;
}

/* Makes the nodes of the row's path. NULL when it is not valid. */
static struct node *make_path(struct http_router *router, struct http_entry *entry)
{
    struct str rest = str_from(entry->route->path), segment;
    struct node *node = &router->root;

    if (rest.len == 0 || rest.ptr[0] != '/')
        return NULL;
    rest = str_of(rest.ptr + 1, rest.len - 1);
    if (rest.len == 0)
        return node;
    if (rest.ptr[rest.len - 1] == '/')
        return NULL;
    while (str_split(&rest, '/', &segment)) {
        const char *end = segment.ptr + segment.len;
        if (segment.len > 2 && segment.ptr[0] == '{' && segment.ptr[segment.len - 1] == '}') {
            if (entry->param_count == HTTP_PARAMS_MAX)
                return NULL;
            entry->param_names[entry->param_count++] = str_of(segment.ptr + 1, segment.len - 2);
            if (!node->param)
                node->param = memory_zalloc(sizeof *node->param);
            node = node->param;
        } else if (segment.len > 0 && http_scan(segment.ptr, end, HTTP_BYTE_TARGET) == end &&
                   !memchr(segment.ptr, '?', segment.len) && !memchr(segment.ptr, '%', segment.len)) {
            struct node *child = literal_of(node, segment);
            if (!child) {
                child = memory_zalloc(sizeof *child);
                child->segment = segment;
                node->literals =
                    memory_realloc_array(node->literals, node->literal_count + 1, sizeof(struct node *));
                node->literals[node->literal_count++] = child;
            }
            node = child;
        } else {
            return NULL;
        }
    }
    return node;
}

static enum status add_row(struct http_router *router, struct http_entry *entry, struct error *error)
{
    const struct http_route *route = entry->route;
    struct node *node = make_path(router, entry);
    bool has_tenant = !route->tenant_param;

    if (!node)
        return error_set(error, STATUS_CONFIG, "route %s: not a valid path", route->path);
    if ((unsigned)route->method >= HTTP_METHODS || route->method == HTTP_HEAD ||
        route->method == HTTP_OPTIONS)
        return error_set(error, STATUS_CONFIG, "route %s: the server itself answers that method",
                         route->path);
    if (route->gzip != HTTP_GZIP_NEVER && (route->method != HTTP_GET || route->kind == HTTP_STREAM))
        return error_set(error, STATUS_CONFIG, "route %s: only GET rows with an end may compress",
                         route->path);
    if (node->entries[route->method])
        return error_set(error, STATUS_CONFIG, "route %s: %s matches the same requests", route->path,
                         node->entries[route->method]->route->path);
    for (unsigned i = 0; i < entry->param_count && !has_tenant; i++) {
        has_tenant = str_eq(entry->param_names[i], str_from(route->tenant_param));
        entry->ends_in_tenant = has_tenant && i + 1 == entry->param_count;
    }
    if (!has_tenant)
        return error_set(error, STATUS_CONFIG, "route %s: has no parameter {%s}", route->path,
                         route->tenant_param);
    node->entries[route->method] = entry;
    node->allowed |= 1u << route->method | 1u << HTTP_OPTIONS;
    if (route->method == HTTP_GET) {
        node->entries[HTTP_HEAD] = entry;
        node->allowed |= 1u << HTTP_HEAD;
    }
    return STATUS_OK;
}

enum status http_router_add(struct http_router *router, const struct http_route *routes, void *context,
                            struct error *error)
{
    for (const struct http_route *route = routes; route->handler; route++) {
        struct http_entry *entry = memory_zalloc(sizeof *entry);
        entry->route = route;
        entry->context = context;
        entry->varies = route->gzip != HTTP_GZIP_NEVER;
        enum status status = add_row(router, entry, error);
        if (status != STATUS_OK) {
            free(entry);
            return status;
        }
    }
    return STATUS_OK;
}

/* ---- finding ---- */

struct search {
    enum http_method method;
    struct str *params;
    unsigned allowed, param_count;
    bool has_choice;    /* a literal led nowhere, and then the parameter beside it was taken */
    bool ends_in_param; /* the last segment is a parameter without literals beside it */
};

/* `at` is after a segment: at its slash or at the end. */
static struct http_entry *find_below(struct search *search, const struct node *node, const char *at,
                                     const char *end, unsigned param_count)
{
    if (at == end) {
        search->allowed |= node->allowed;
        search->param_count = param_count;
        return node->entries[search->method];
    }
    at++;
    const char *slash = memchr(at, '/', (size_t)(end - at));
    struct str segment = str_of(at, (size_t)((slash ? slash : end) - at));
    const struct node *literal = literal_of(node, segment);
    search->ends_in_param = false;
    struct http_entry *entry =
        literal ? find_below(search, literal, at + segment.len, end, param_count) : NULL;
    if (entry || !node->param || segment.len == 0)
        return entry;
    search->params[param_count] = segment;
    search->has_choice |= literal != NULL;
    search->ends_in_param = node->literal_count == 0;
    return find_below(search, node->param, at + segment.len, end, param_count + 1);
}

/* The prefix alone decided on the way to the last node, and every segment that is not empty leads from there to the same row. */
static bool is_on_way(const struct http_way *way, enum http_method method, struct str path)
{
    size_t last_at = way->prefix.len;

    return way->entry && way->method == method && path.len > last_at &&
           memcmp(path.ptr, way->prefix.ptr, last_at) == 0 &&
           !memchr(path.ptr + last_at, '/', path.len - last_at);
}

struct http_entry *http_router_find(const struct http_router *router, enum http_method method,
                                    struct str path, struct str params[HTTP_PARAMS_MAX], struct http_way *way,
                                    unsigned *allowed)
{
    struct search search = {.method = method, .params = params};
    const char *end = path.ptr + path.len;

    way->was_taken = is_on_way(way, method, path);
    if (way->was_taken) {
        params[way->param_count - 1] = str_skip(path, way->prefix.len);
        return way->entry;
    }
    way->entry = NULL;
    struct http_entry *entry = find_below(&search, &router->root, path.len == 1 ? end : path.ptr, end, 0);
    if (entry && search.ends_in_param && !search.has_choice && !entry->ends_in_tenant)
        *way = (struct http_way){
            .entry = entry,
            .method = method,
            .prefix = str_of(path.ptr, path.len - params[search.param_count - 1].len),
            .param_count = search.param_count,
        };
    *allowed = search.allowed;
    return entry;
}

const struct http_route *http_router_nearest(const struct http_router *router, struct str path)
{
    const struct node *node = &router->root;
    const struct http_route *nearest = NULL;
    struct str segment;

    (void)str_split(&path, '/', &segment); /* before the first slash */
    while (node && str_split(&path, '/', &segment)) {
        const struct node *literal = literal_of(node, segment);
        node = literal ? literal : segment.len > 0 ? node->param : NULL;
        for (size_t method = HTTP_METHODS; node && method > 0; method--)
            if (node->entries[method - 1])
                nearest = node->entries[method - 1]->route;
    }
    return nearest;
}
