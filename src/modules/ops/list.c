/* Pages of views. Every database is asked for a page; the rows are merged by the view's keys, then by the name of the database. A row is
 * shown when no database can have one before it: up to where each of them was looked through. */
#include "base/clock.h"
#include "base/json.h"
#include "modules/ops/ops.h"

enum { SCAN_MS = 250 /* pages that are scanned are filled for so long */ };

struct page_part { /* one database's */
    struct ops_answer answer;
    struct ops_question question;
    size_t next, count;
};

struct page {
    struct ops *ops;
    struct ops_request wanted;
    struct ops_ask *asks;
    struct page_part *parts;
    size_t count, left; /* databases; rows that may be added */
    struct buf items;   /* JSON */
    struct buf cursor;  /* empty = there is no next page */
};

static enum status ask_part(struct ops_ask *ask, struct db_conn *conn, struct error *error)
{
    const struct page *page = ask->context;
    struct page_part *part = ask->own;
    enum status status =
        kernel_ops_list(conn, page->wanted.view, &part->question, ask->deadline_ns, &part->answer, error);
    part->count = status == STATUS_OK ? db_result_rows(part->answer.rows) : 0;
    part->next = 0;
    return status;
}

static void ask_parts(struct page *page)
{
    const struct ops_request *wanted = &page->wanted;
    for (size_t i = 0; i < page->count; i++) {
        struct page_part *part = &page->parts[i];
        part->count = part->next = 0; /* it may not be asked: no connection */
        part->question = wanted->question;
        part->question.limit = (int64_t)page->left + 1;
        part->question.includes_after =
            wanted->question.has_after && wanted->after_database.len && !wanted->view->merged_by &&
            str_compare(str_from(page->asks[i].site->name), wanted->after_database) > 0;
        page->asks[i].own = part;
    }
    ops_ask_all(page->ops, page->asks, page->count, ask_part, page);
}

static bool has_row(const struct page_part *part)
{
    return part->next < part->count;
}

/* Of the row that is next. */
static void keys_of(const struct page *page, const struct page_part *part, struct str keys[OPS_KEYS_MAX])
{
    kernel_ops_row_keys(page->wanted.view, part->answer.rows, part->next, keys);
}

/* What rows of the same keys are merged by. */
static struct str merger_of(const struct page *page, const struct page_part *part)
{
    const struct ops_view *view = page->wanted.view;
    unsigned at = 0;
    while (strcmp(view->columns[at].name, view->merged_by) != 0)
        at++;
    return db_result_str(part->answer.rows, part->next, at);
}

/* The order of the next rows of two databases: by their keys, then by what they are merged by, or by the databases' names. */
static int compare_parts(const struct page *page, size_t a, size_t b)
{
    const struct ops_view *view = page->wanted.view;
    struct str x[OPS_KEYS_MAX], y[OPS_KEYS_MAX];
    keys_of(page, &page->parts[a], x);
    keys_of(page, &page->parts[b], y);
    int order = kernel_ops_keys_compare(view, x, y);
    if (order == 0 && view->merged_by)
        return str_compare(merger_of(page, &page->parts[b]), merger_of(page, &page->parts[a]));
    return order ? order : strcmp(page->asks[a].site->name, page->asks[b].site->name);
}

/* The first keys at which a database may have more; NULL = all were looked through to their end. */
static const struct str *find_stop(const struct page *page)
{
    const struct str *first = NULL;
    for (size_t i = 0; i < page->count; i++) {
        const struct ops_answer *answer = &page->parts[i].answer;
        if (answer->has_more &&
            (!first || kernel_ops_keys_compare(page->wanted.view, answer->stop, first) < 0))
            first = answer->stop;
    }
    return first;
}

static void put_item(struct page *page, size_t at)
{
    struct page_part *part = &page->parts[at];
    const struct ops_view *view = page->wanted.view;
    const char *database = page->asks[at].site->name;
    kernel_ops_put_row(&page->items, view, part->answer.rows, part->next,
                       view->place == OPS_STORE || view->merged_by ? NULL : database);
    struct str keys[OPS_KEYS_MAX], others[OPS_KEYS_MAX];
    keys_of(page, part, keys);
    if (--page->left == 0)
        ops_cursor_put(&page->cursor, view, keys, database);
    part->next++;
    for (size_t i = 0; view->merged_by && i < page->count; i++) {
        if (!has_row(&page->parts[i]))
            continue;
        keys_of(page, &page->parts[i], others);
        page->parts[i].next += kernel_ops_keys_compare(view, keys, others) == 0;
    }
}

/* Adds the rows that are certain. */
static void merge_parts(struct page *page, const struct str *stop)
{
    while (page->left > 0) {
        struct str keys[OPS_KEYS_MAX];
        size_t first = page->count;
        for (size_t i = 0; i < page->count; i++)
            if (has_row(&page->parts[i]) && (first == page->count || compare_parts(page, i, first) < 0))
                first = i;
        if (first == page->count)
            return;
        keys_of(page, &page->parts[first], keys);
        if (stop && kernel_ops_keys_compare(page->wanted.view, keys, stop) > 0)
            return;
        put_item(page, first);
    }
}

static void fill_page(struct page *page, struct arena *arena)
{
    int64_t until_ns = clock_deadline_ms(SCAN_MS);
    for (;;) {
        ask_parts(page);
        const struct str *stop = find_stop(page);
        merge_parts(page, stop);
        bool is_last = !stop || page->left == 0 || clock_mono_ns() >= until_ns;
        bool has_rest = stop; /* there is a row that was not shown, or may be one */
        for (size_t i = 0; i < page->count; i++)
            has_rest |= has_row(&page->parts[i]);
        if (page->left == 0 && !has_rest)
            buf_clear(&page->cursor);
        if (page->left > 0 && stop && is_last)
            ops_cursor_put(&page->cursor, page->wanted.view, stop, "");
        if (page->left > 0 && stop) { /* the next look begins where this one stopped */
            ops_request_go_on(&page->wanted, stop, arena);
            page->wanted.after_database = STR_NONE;
        }
        for (size_t i = 0; i < page->count; i++)
            kernel_ops_answer_free(&page->parts[i].answer);
        if (is_last)
            return;
    }
}

static void send_single(struct http_request *request, const struct page *page)
{
    struct error error;
    enum status missing = page->wanted.view->missing ? page->wanted.view->missing : STATUS_NOT_FOUND;
    for (size_t i = 0; i < page->count && !buf_len(&page->items); i++)
        if (page->asks[i].status != STATUS_OK)
            missing = page->asks[i].status;
    if (buf_len(&page->items)) {
        http_send(request, &(struct http_response){.status = 200, .body = buf_str(&page->items)});
    } else {
        (void)!error_set(&error, missing, "%s", status_message(missing));
        http_send_error(request, &error);
    }
}

void ops_send_view(struct http_request *request, const struct ops_view *view)
{
    struct page page = {.ops = request->context};
    struct ops_sites *sites = ops_sites_hold(page.ops);
    struct error error = {0};
    enum status status = ops_request_read(request, view, &page.wanted, &error);
    page.asks = arena_zalloc(request->arena, (sites->count + 1) * sizeof *page.asks);
    page.parts = arena_zalloc(request->arena, (sites->count + 1) * sizeof *page.parts);
    if (status == STATUS_OK)
        status = ops_asks_init(sites, view->place, page.wanted.only, page.asks, &page.count, &error);
    if (status == STATUS_OK) {
        page.left = view->is_single ? 1 : (size_t)page.wanted.question.limit;
        fill_page(&page, request->arena);
        if (view->is_single)
            send_single(request, &page);
        else
            ops_send_items(request, &page.items, &page.cursor, page.asks, page.count);
    } else {
        http_send_error(request, &error);
    }
    buf_deinit(&page.items);
    buf_deinit(&page.cursor);
    ops_sites_unref(sites);
}

const struct ops_view *ops_view_find(const struct http_request *request, struct error *error)
{
    const struct ops *ops = request->context;
    struct str name = str_skip(str_from(request->route->path), sizeof "/v1/ops/" - 1), value = STR_NONE;
    const struct ops_view *other = NULL, *any = NULL;
    bool found = false;
    for (const struct module *const *at = ops->modules; *at; at++)
        for (const struct ops_view *view = (*at)->views; view && view->name; view++) {
            if (!str_eq(name, str_from(view->name)))
                continue;
            if (view->by && !any &&
                http_request_query(request, str_from(view->by), &found, &value, error) != STATUS_OK)
                return NULL;
            any = view;
            if (!view->by || !found || (view->is && str_eq(value, str_from(view->is))))
                return view;
            if (!view->is)
                other = view;
        }
    if (!other)
        (void)!error_set_field(error, any ? STATUS_BAD_REQUEST : STATUS_NOT_FOUND, any ? any->by : "",
                               any ? "there is no list of this kind" : "there is nothing at this path");
    return other;
}

void ops_get_view(struct http_request *request)
{
    struct error error = {0};
    const struct ops_view *view = ops_view_find(request, &error);
    if (view)
        ops_send_view(request, view);
    else
        http_send_error(request, &error);
}
