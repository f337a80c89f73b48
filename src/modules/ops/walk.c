/* Pages of views whose order only their database knows: one database after the other, and in each one view after the other. The cursor
 * names the view, the database and the keys after which the next page begins ("0:main"); with "=" it begins at these keys, since the page
 * before ended with a database or view. */
#include "base/clock.h"
#include "base/json.h"
#include "modules/ops/ops.h"

enum { SCAN_MS = 250 /* pages that are scanned are filled for so long */ };

struct walk {
    struct ops_request wanted;
    struct ops_answer answer; /* of the current database */
    size_t left;              /* items that may be added */
    bool begins_at;           /* the next page: at the keys of the question, and not after them */
    struct buf items, cursor; /* JSON; empty = there is no next page */
};

static enum status ask_one(struct ops_ask *ask, struct db_conn *conn, struct error *error)
{
    struct walk *walk = ask->context;
    return kernel_ops_list(conn, walk->wanted.view, &walk->wanted.question, ask->deadline_ns, &walk->answer,
                           error);
}

/* Adds rows of the answer. True: the database may have more of them, after the keys in the question. */
static bool take_rows(struct walk *walk, const char *database, struct arena *arena)
{
    const struct ops_view *view = walk->wanted.view;
    struct ops_answer *answer = &walk->answer;
    size_t count = answer->rows ? db_result_rows(answer->rows) : 0,
           shown = count < walk->left ? count : walk->left;
    for (size_t i = 0; i < shown; i++)
        kernel_ops_put_row(&walk->items, view, answer->rows, i, database);
    walk->left -= shown;
    bool has_more = count > shown || answer->has_more;
    struct str keys[OPS_KEYS_MAX];
    walk->begins_at = count > 0 && shown == 0;
    if (count > shown) {
        kernel_ops_row_keys(view, answer->rows, shown ? shown - 1 : 0, keys);
        ops_request_go_on(&walk->wanted, keys, arena);
    } else if (has_more) {
        ops_request_go_on(&walk->wanted, answer->stop, arena);
    }
    kernel_ops_answer_free(answer);
    return has_more;
}

/* One view in one database. False: the page ends here. */
static bool walk_view(struct walk *walk, struct ops *ops, struct ops_ask *ask, size_t view, int64_t until_ns,
                      struct arena *arena)
{
    for (;;) {
        walk->wanted.question.limit = (int64_t)walk->left + 1;
        ops_ask_all(ops, ask, 1, ask_one, walk);
        walk->wanted.question.includes_after = false;
        if (ask->status != STATUS_OK || !take_rows(walk, ask->site->name, arena))
            return true;
        if (walk->left > 0 && clock_mono_ns() < until_ns)
            continue;
        struct str place = arena_printf(arena, "%s%zu:%s", walk->begins_at ? "=" : "", view, ask->site->name);
        ops_cursor_put(&walk->cursor, walk->wanted.view, walk->wanted.question.after, place.ptr);
        return false;
    }
}

/* Where the cursor begins: *view, *site. */
static void find_begin(struct walk *walk, const struct ops_ask *asks, size_t count, size_t *view,
                       size_t *site)
{
    struct str rest = walk->wanted.after_database, number;
    int64_t found = 0;
    *view = *site = 0;
    if (!walk->wanted.question.has_after)
        return;
    walk->wanted.question.includes_after = str_starts_with(rest, STR("="));
    if (walk->wanted.question.includes_after)
        rest = str_skip(rest, 1);
    if (str_split(&rest, ':', &number) && str_to_i64(number, &found) && found >= 0)
        *view = (size_t)found;
    while (*site < count && !str_eq(str_from(asks[*site].site->name), rest))
        ++*site;
}

void ops_send_walk(struct http_request *request, const struct ops_view *const *views, size_t view_count)
{
    struct ops *ops = request->context;
    struct ops_sites *sites = ops_sites_hold(ops);
    struct ops_ask *asks = arena_zalloc(request->arena, (sites->count + 1) * sizeof *asks);
    struct walk walk = {.left = 0};
    struct error error = {0};
    size_t count = 0, view, site;
    int64_t until_ns = clock_deadline_ms(SCAN_MS);
    enum status status = ops_request_read(request, views[0], &walk.wanted, &error);
    if (status == STATUS_OK)
        status = ops_asks_init(sites, views[0]->place, walk.wanted.only, asks, &count, &error);
    find_begin(&walk, asks, count, &view, &site);
    walk.left = (size_t)walk.wanted.question.limit;
    bool goes_on = status == STATUS_OK;
    for (; site < count && goes_on; site++, view = 0)
        for (; view < view_count && goes_on; view++) {
            walk.wanted.view = views[view];
            goes_on = walk_view(&walk, ops, &asks[site], view, until_ns, request->arena);
            walk.wanted.question.has_after = false;
        }
    if (status == STATUS_OK)
        ops_send_items(request, &walk.items, &walk.cursor, asks, count);
    else
        http_send_error(request, &error);
    buf_deinit(&walk.items);
    buf_deinit(&walk.cursor);
    ops_sites_unref(sites);
}
