/* Where the next claim begins, so that no tenant waits for the backlog of another, and no aggregate for those that come before it.
 *
 * A round goes over the table in the order of the index. A claim that ends within a tenant's rows leaves the rest of them as a tail, and
 * the round goes on after that tenant. Claims of the round and of tails alternate, and tails take turns.
 *
 *     tenants   a     b ──────────────────────▶ tail of b      c     d
 *     round     1     1 ┄ (the batch is full)                  3     3 …
 *     tail               2    4    5 …  alone, where no other tenant has live rows
 *
 * The round does not begin again with the tenant of the last tail, but before it and then after it: the index entries of the rows that
 * were just published are still there, and a walk over them would cost more with each claim.
 *
 * Where the table names no tenant, the round goes on after the aggregate, without tails.
 *
 * Claims end when a round has claimed nothing, with all tails that it left. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "outbox/outbox_inside.h"

enum { SUSPECTS_MAX = 50 }; /* in a row; then the round goes on */
enum { TAILS_MAX = 256 };   /* further tenants have their first rows claimed in each round */

/* ---- marks ---- */

static struct outbox_mark copy_parts(const struct str *parts, unsigned count)
{
    struct outbox_mark mark = {.text = NULL};
    size_t len = 0;
    for (unsigned i = 0; i < count; i++)
        len += parts[i].len;
    mark.text = memory_alloc(len + 1); /* not NULL, also when all parts are empty */
    char *at = mark.text;
    for (unsigned i = 0; i < count; i++) {
        mark.parts[i] = str_of(at, parts[i].len);
        if (parts[i].len > 0)
            memcpy(at, parts[i].ptr, parts[i].len);
        at += parts[i].len;
    }
    *at = '\0';
    return mark;
}

/* The last aggregate of a claim, from column 1 of its rows on. */
static struct outbox_mark mark_of(const struct outbox_table *table, const struct db_result *rows)
{
    struct str parts[OUTBOX_AGGREGATE_MAX];
    unsigned count = outbox_walk_columns(table);
    for (unsigned i = 0; i < count; i++)
        parts[i] = db_result_str(rows, 0, 1 + i);
    return copy_parts(parts, count);
}

static void forget_mark(struct outbox_mark *mark)
{
    free(mark->text);
    *mark = (struct outbox_mark){.text = NULL};
}

/* The tenant of a mark, with the character that ends it. */
static struct str tenant_of(const struct outbox_table *table, const struct outbox_mark *mark)
{
    struct str tenant = mark->parts[0];
    const char *end = table->turn_end ? memchr(tenant.ptr, table->turn_end[0], tenant.len) : NULL;
    return end ? str_of(tenant.ptr, (size_t)(end - tenant.ptr) + 1) : tenant;
}

/* Greater than all aggregates of its tenant, and not greater than those of the next one. */
static struct outbox_mark end_of_tenant(const struct outbox_table *table, const struct outbox_mark *mark)
{
    struct str tenant = tenant_of(table, mark);
    struct outbox_mark end = copy_parts(&tenant, 1);
    if (table->turn_end && tenant.len > 0 && end.text[tenant.len - 1] == table->turn_end[0])
        end.text[tenant.len - 1]++;
    return end;
}

static bool is_same_tenant(const struct outbox_table *table, const struct outbox_mark *mark,
                           const struct outbox_mark *other)
{
    return str_eq(tenant_of(table, mark), tenant_of(table, other));
}

/* ---- the next claim ---- */

int64_t outbox_walk_rows_max(const struct outbox *outbox)
{
    return outbox->settings.batch > outbox->walk.rows_max ? outbox->settings.batch : outbox->walk.rows_max;
}

unsigned outbox_walk_columns(const struct outbox_table *table)
{
    return table->sequence ? outbox_aggregate_columns(table) : table->turn ? 1 : 0;
}

static const struct outbox_mark *next_mark(struct outbox_walk *walk, enum outbox_place *place)
{
    *place = walk->place;
    if (walk->tail_count > 0 && walk->is_tails_turn) {
        *place = OUTBOX_AFTER_AGGREGATE;
        return &walk->tails[0];
    }
    if (walk->place == OUTBOX_FROM_START && walk->tail_count > 0) {
        *place = OUTBOX_BEFORE_TENANT;
        return &walk->tails[walk->tail_count - 1];
    }
    return &walk->mark;
}

const struct db_statement *outbox_walk_next(struct outbox *outbox, struct db_param *params, unsigned *count)
{
    struct outbox_walk *walk = &outbox->walk;
    const struct outbox_table *table = outbox->config.table;
    enum outbox_place place;
    const struct outbox_mark *mark = next_mark(walk, &place);
    *count = 0;
    if (!table->sequence) {
        if (table->turn)
            params[(*count)++] = db_text(mark->text ? mark->parts[0] : STR(""));
        return &outbox->sql.claims[OUTBOX_FROM_START];
    }
    if (place == OUTBOX_BEFORE_TENANT || place == OUTBOX_AFTER_TENANT)
        params[(*count)++] = db_text(place == OUTBOX_BEFORE_TENANT ? tenant_of(table, mark) : mark->parts[0]);
    else if (place == OUTBOX_AFTER_AGGREGATE)
        for (; *count < outbox_walk_columns(table); (*count)++)
            params[*count] = db_text(mark->parts[*count]);
    return &outbox->sql.claims[place];
}

/* ---- after a claim ---- */

static void begin_round(struct outbox_walk *walk)
{
    walk->is_quiet = true;
    walk->is_lapped = false;
    walk->is_partial = walk->tail_count > 0;
}

static void go_on_after(struct outbox_walk *walk, enum outbox_place place, struct outbox_mark mark)
{
    forget_mark(&walk->mark);
    walk->place = place;
    walk->mark = mark;
}

static void end_lap(struct outbox_walk *walk)
{
    go_on_after(walk, OUTBOX_FROM_START, (struct outbox_mark){.text = NULL});
    walk->is_lapped = true;
    if (!walk->is_quiet)
        begin_round(walk);
}

/* A round that has seen the whole table and claimed nothing adds no tails, so that it ends. False: there is no room for the tail. */
static bool add_tail(struct outbox *outbox, const struct outbox_mark *at)
{
    struct outbox_walk *walk = &outbox->walk;
    const struct outbox_table *table = outbox->config.table;
    if (walk->is_quiet && walk->is_lapped)
        return true;
    for (size_t i = 0; i < walk->tail_count; i++)
        if (is_same_tenant(table, &walk->tails[i], at))
            return true;
    if (walk->tail_count == TAILS_MAX)
        return false;
    walk->tails = memory_realloc_array(walk->tails, walk->tail_count + 1, sizeof *walk->tails);
    walk->tails[walk->tail_count++] = copy_parts(at->parts, outbox_walk_columns(table));
    return true;
}

/* Ends the first tail, or makes it the last one. */
static void move_tail(struct outbox *outbox, const struct outbox_mark *at)
{
    struct outbox_walk *walk = &outbox->walk;
    const struct outbox_table *table = outbox->config.table;
    struct outbox_mark tail = walk->tails[0];
    bool goes_on = at->text && is_same_tenant(table, &tail, at);
    walk->tail_count--;
    memmove(walk->tails, walk->tails + 1, walk->tail_count * sizeof *walk->tails);
    if (goes_on)
        walk->tails[walk->tail_count++] = copy_parts(at->parts, outbox_walk_columns(table));
    forget_mark(&tail);
    walk->is_tails_turn = false;
}

static void move_round(struct outbox *outbox, enum outbox_place place, const struct outbox_mark *at)
{
    struct outbox_walk *walk = &outbox->walk;
    const struct outbox_table *table = outbox->config.table;
    walk->is_tails_turn = true;
    if (at->text && !table->turn)
        go_on_after(walk, OUTBOX_AFTER_AGGREGATE, copy_parts(at->parts, outbox_walk_columns(table)));
    else if (at->text) {
        if (add_tail(outbox, at) || !walk->is_quiet)
            go_on_after(walk, OUTBOX_AFTER_TENANT, end_of_tenant(table, at));
        else /* the last round, perhaps: nothing else would see the rest of this tenant */
            go_on_after(walk, OUTBOX_AFTER_AGGREGATE, copy_parts(at->parts, outbox_walk_columns(table)));
    } else if (place == OUTBOX_BEFORE_TENANT)
        go_on_after(walk, OUTBOX_AFTER_TENANT, end_of_tenant(table, &walk->tails[walk->tail_count - 1]));
    else
        end_lap(walk);
}

/* Saves a claim that would find nothing: no tenant has live rows before, or after, that of the tail which was left last. */
static void skip_empty(struct outbox *outbox, const struct outbox_mark *at, bool has_before, bool has_after)
{
    struct outbox_walk *walk = &outbox->walk;
    const struct outbox_table *table = outbox->config.table;
    if (walk->tail_count == 0 || !is_same_tenant(table, &walk->tails[walk->tail_count - 1], at))
        return;
    struct outbox_mark end = end_of_tenant(table, at);
    if (!has_before && !has_after) {
        end_lap(walk);
        walk->is_tails_turn = true;
    } else if (walk->place == OUTBOX_AFTER_TENANT && str_eq(walk->mark.parts[0], end.parts[0]) &&
               !has_after) {
        end_lap(walk);
    } else if (walk->place == OUTBOX_FROM_START && !has_before) {
        go_on_after(walk, OUTBOX_AFTER_TENANT, end);
        return;
    }
    forget_mark(&end);
}

static bool move_in_order(struct outbox *outbox, const struct db_result *rows, size_t count)
{
    enum { IS_CUT = 1, HAS_BEFORE = 2, HAS_AFTER = 4 }; /* as the claim returns them */
    struct outbox_walk *walk = &outbox->walk;
    enum outbox_place place;
    bool is_tail = walk->tail_count > 0 && walk->is_tails_turn;
    int64_t end = db_result_rows(rows) ? db_result_i64(rows, 0, 0) : 0;
    struct outbox_mark at = {.text = NULL};
    (void)next_mark(walk, &place);
    if (place == OUTBOX_FROM_START)
        begin_round(walk);
    walk->is_quiet &= count == 0;
    /* A suspect was claimed alone: what the batch would have had otherwise is claimed next. */
    const struct outbox_event *first = outbox->claim.events;
    bool is_suspect = count == 1 && first->claims - first->attempts > 2;
    walk->suspects = is_suspect ? walk->suspects + 1 : 0;
    if (is_suspect && walk->suspects % SUSPECTS_MAX != 0)
        return true;
    if (end & IS_CUT)
        at = mark_of(outbox->config.table, rows);
    if (is_tail)
        move_tail(outbox, &at);
    else
        move_round(outbox, place, &at);
    if (at.text && outbox->config.table->turn)
        skip_empty(outbox, &at, end & HAS_BEFORE, end & HAS_AFTER);
    forget_mark(&at);
    if (!walk->is_quiet || !walk->is_lapped || walk->tail_count > 0)
        return true;
    go_on_after(walk, OUTBOX_FROM_START, (struct outbox_mark){.text = NULL});
    return walk->is_partial;
}

/* Of a table without order a claim goes round itself, unless it was cut off. Claims end when a walk from the start to the end has found
 * nothing. */
static bool move_by_turns(struct outbox *outbox, const struct db_result *rows, size_t count)
{
    struct outbox_walk *walk = &outbox->walk;
    bool has_rows = db_result_rows(rows) > 0, from_middle = walk->mark.text != NULL;
    bool is_cut_off = has_rows && db_result_i64(rows, 0, 0) == outbox_walk_rows_max(outbox);
    bool has_mark = has_rows && outbox->config.table->turn && !db_result_is_null(rows, 0, 1);
    bool is_round = count == 0 && (walk->is_quiet || !from_middle);
    bool goes_on = is_cut_off && (has_mark || !is_round);
    walk->is_quiet = is_round && goes_on;
    go_on_after(walk, OUTBOX_FROM_START,
                has_mark ? mark_of(outbox->config.table, rows) : (struct outbox_mark){.text = NULL});
    return goes_on || count > 0;
}

bool outbox_walk_move(struct outbox *outbox, const struct db_result *rows, size_t count)
{
    return outbox->config.table->sequence ? move_in_order(outbox, rows, count)
                                          : move_by_turns(outbox, rows, count);
}

void outbox_walk_deinit(struct outbox_walk *walk)
{
    for (size_t i = 0; i < walk->tail_count; i++)
        forget_mark(&walk->tails[i]);
    free(walk->tails);
    forget_mark(&walk->mark);
    *walk = (struct outbox_walk){.rows_max = walk->rows_max};
}
