/* Pages of dead letters: a merge of the partitions by time. Each partition is a lane with a few letters read ahead; the one whose letter is
 * the newest (or oldest) gives the next. Letters that are decided are passed over without being read, where a run of them is known. */
#include "base/clock.h"
#include "kernel/dead_inside.h"

enum {
    AHEAD_MIN = 8,
    AHEAD_MAX = 256,  /* letters of a lane that are read at once */
    READ_MAX = 4096,  /* the same of all lanes */
    SCAN_MAX = 20000, /* letters that are read for one page */
};

/* ---- lanes ---- */

struct lane {
    unsigned partition;
    int64_t first, next; /* its letters */
    int64_t at;          /* newest first: all from here on are shown or read; else all before */
    /* The time of its oldest letter: older decisions are of another topic that was here before. */
    int64_t since_us;
    struct dead_item *ahead; /* by offset */
    size_t begin, end;       /* of those that are left */
    int64_t shown;           /* as `at`, without those read ahead */
};

struct merge {
    struct dead_scan *scan;
    struct lane *lanes;
    size_t count, read;      /* lanes; letters read so far */
    size_t width, width_max; /* letters to read of a lane at once */
    bool skips;              /* there are decisions */
};

static bool lane_is_over(const struct merge *merge, const struct lane *lane)
{
    return merge->scan->is_oldest_first ? lane->at >= lane->next : lane->at <= lane->first;
}

static bool lane_needs_letters(const struct merge *merge, const struct lane *lane)
{
    return lane->begin == lane->end && !lane_is_over(merge, lane);
}

/* The letters that are read next. */
static struct bus_dead_range lane_span(const struct merge *merge, const struct lane *lane)
{
    int64_t width = (int64_t)merge->width;
    if (merge->scan->is_oldest_first)
        return (struct bus_dead_range){lane->partition, lane->at,
                                       lane->at + width < lane->next ? lane->at + width : lane->next};
    return (struct bus_dead_range){lane->partition,
                                   lane->at - width > lane->first ? lane->at - width : lane->first, lane->at};
}

/* $1 engine, $2 topic; $3 … $5: partition, position, time of the oldest letter. Where a run of decided letters ends, or is RUN_MAX long: by the
 * primary key. The offset of its last row; it counts where the letter at the position is decided, which is the last column. */
#define RUN_MAX "20000"
#define RUN_END(from, step, order)                                                                           \
    "SELECT u.at, (SELECT w.o FROM (SELECT d.o, lead(d.o) OVER (ORDER BY d.o " order ") AS following FROM (" \
    "         SELECT d.message_offset AS o FROM platform.dead_letter_decision d WHERE d.engine = $1"         \
    "         AND d.topic = $2 AND d.partition = u.partition AND d.message_offset " from                     \
    "         AND d.letter_us >= u.since_us ORDER BY d.message_offset " order " LIMIT " RUN_MAX ") d) w"     \
    "     WHERE w.following IS DISTINCT FROM w.o " step " 1 ORDER BY w.o " order " LIMIT 1),"                \
    "     EXISTS (SELECT FROM platform.dead_letter_decision d WHERE d.engine = $1 AND d.topic = $2"          \
    "         AND d.partition = u.partition AND d.letter_us >= u.since_us AND d.message_offset = "
static const struct db_statement skip_down_sql =
    DB_STATEMENT(RUN_END("< u.position", "-", "DESC") "u.position - 1)::int FROM " DEAD_UNNESTED
                                                      " AS u (partition, position, since_us, at)");
static const struct db_statement skip_up_sql =
    DB_STATEMENT(RUN_END(">= u.position", "+", "ASC") "u.position)::int FROM " DEAD_UNNESTED
                                                      " AS u (partition, position, since_us, at)");

/* Moves the lanes that need letters past what is decided. */
static enum status skip_decided(struct merge *merge, struct error *error)
{
    const struct dead_place *place = &merge->scan->place;
    bool is_up = merge->scan->is_oldest_first;
    struct dead_triples triples = {.partitions = {0}};
    struct db_result *rows = NULL;
    struct lane **needing = arena_alloc(merge->scan->arena, (merge->count + 1) * sizeof(struct lane *));
    size_t count = 0;
    for (struct lane *lane = merge->lanes; lane < merge->lanes + merge->count; lane++)
        if (lane_needs_letters(merge, lane)) {
            dead_triples_put(&triples, lane->partition, lane->at, lane->since_us);
            needing[count++] = lane;
        }
    enum status status = count == 0 ? STATUS_OK
                                    : db_query(place->conn, is_up ? &skip_up_sql : &skip_down_sql,
                                               DB_PARAMS(db_cstr(bus_dead_engine(place->dead)),
                                                         db_cstr(place->name), DEAD_TRIPLES(&triples)),
                                               place->deadline_ns, &rows, error);
    for (size_t i = 0; count && status == STATUS_OK && i < db_result_rows(rows); i++) {
        struct lane *lane = needing[db_result_i64(rows, i, 0) - 1];
        if (db_result_i64(rows, i, 2) == 1)
            lane->at = lane->shown = db_result_i64(rows, i, 1) + (is_up ? 1 : 0);
    }
    db_result_free(rows);
    dead_triples_deinit(&triples);
    return status;
}

/* Reads ahead for the lanes that have nothing left. */
static enum status read_ahead(struct merge *merge, struct error *error)
{
    struct dead_scan *scan = merge->scan;
    struct bus_dead_range *spans = arena_alloc(scan->arena, (merge->count + 1) * sizeof *spans);
    struct bus_dead_letter *letters;
    struct dead_item *items = NULL;
    struct bus_dead_query query = {.topic = scan->place.name, .spans = spans, .bytes_max = READ_BYTES_MAX};
    size_t found = 0, taken = 0;
    enum status status = STATUS_OK;
    if (merge->skips && scan->filter.state == DEAD_OPEN)
        status = skip_decided(merge, error);
    for (struct lane *lane = merge->lanes; lane < merge->lanes + merge->count; lane++)
        if (lane_needs_letters(merge, lane))
            spans[query.span_count++] = lane_span(merge, lane);
    if (status == STATUS_OK)
        status = bus_dead_read(scan->place.dead, &query, scan->arena, &letters, &found,
                               scan->place.deadline_ns, error);
    if (status == STATUS_OK)
        status = dead_items_make(&scan->place, letters, found, scan->arena, &items, error);
    for (size_t i = 0; i < query.span_count && status == STATUS_OK; i++) {
        struct lane *lane = merge->lanes;
        while (lane->partition != spans[i].partition)
            lane++;
        lane->ahead = items;
        lane->begin = taken;
        while (taken < found && items[taken].letter->partition == lane->partition)
            taken++;
        lane->end = taken;
        lane->at = scan->is_oldest_first ? spans[i].next : spans[i].first;
        if (lane->begin == lane->end)
            lane->shown = lane->at;
        merge->read += (size_t)(spans[i].next - spans[i].first);
    }
    merge->width = merge->width * 2 < merge->width_max ? merge->width * 2 : merge->width_max;
    return status;
}

static bool needs_reading(const struct merge *merge)
{
    for (size_t i = 0; i < merge->count; i++)
        if (lane_needs_letters(merge, &merge->lanes[i]))
            return true;
    return false;
}

/* The lane whose letter is next; NULL: there are none. */
static struct lane *next_lane(const struct merge *merge)
{
    bool is_up = merge->scan->is_oldest_first;
    struct lane *best = NULL;
    int64_t best_us = 0;
    for (struct lane *lane = merge->lanes; lane < merge->lanes + merge->count; lane++) {
        if (lane->begin == lane->end)
            continue;
        int64_t us = lane->ahead[is_up ? lane->begin : lane->end - 1].letter->created_us;
        if (!best || (is_up ? us < best_us : us > best_us)) {
            best = lane;
            best_us = us;
        }
    }
    return best;
}

/* ---- a page ---- */

/* $1 engine, $2 topic. */
static const struct db_statement any_sql = DB_STATEMENT(
    "SELECT EXISTS (SELECT FROM platform.dead_letter_decision WHERE engine = $1 AND topic = $2)::int");

static enum status look_for_decisions(struct merge *merge, struct error *error)
{
    const struct dead_scan *scan = merge->scan;
    struct db_result *rows = NULL;
    struct bus_dead_range *spans = arena_alloc(scan->arena, (merge->count + 1) * sizeof *spans);
    struct bus_dead_letter *oldest;
    size_t found = 0;
    enum status status =
        db_query(scan->place.conn, &any_sql,
                 DB_PARAMS(db_cstr(bus_dead_engine(scan->place.dead)), db_cstr(scan->place.name)),
                 scan->place.deadline_ns, &rows, error);
    merge->skips = status == STATUS_OK && db_result_i64(rows, 0, 0) == 1;
    db_result_free(rows);
    if (!merge->skips)
        return status;
    for (size_t i = 0; i < merge->count; i++)
        spans[i] = (struct bus_dead_range){merge->lanes[i].partition, merge->lanes[i].first,
                                           merge->lanes[i].first + 1};
    const struct bus_dead_query query = {scan->place.name, spans, merge->count, 0, READ_BYTES_MAX};
    status =
        bus_dead_read(scan->place.dead, &query, scan->arena, &oldest, &found, scan->place.deadline_ns, error);
    for (size_t i = 0; i < merge->count; i++)
        for (size_t at = 0; at < found; at++)
            if (oldest[at].message.partition == merge->lanes[i].partition)
                merge->lanes[i].since_us = oldest[at].message.created_us;
    return status;
}

static int64_t begin_at(const struct dead_scan *scan, const struct bus_dead_range *range)
{
    int64_t from = scan->is_oldest_first ? range->first : range->next;
    for (size_t i = 0; i < scan->position_count; i++)
        if (scan->positions[i].partition == range->partition) {
            int64_t at = scan->positions[i].at;
            return scan->is_oldest_first ? (at > from ? at : from) : (at < from ? at : from);
        }
    return scan->positions ? (scan->is_oldest_first ? range->next : range->first) : from;
}

static enum status open_lanes(struct merge *merge, struct error *error)
{
    struct dead_scan *scan = merge->scan;
    struct bus_dead_range *ranges;
    size_t count;
    enum status status = bus_dead_look(scan->place.dead, scan->place.name, scan->place.topic->group,
                                       scan->arena, &ranges, &count, scan->place.deadline_ns, error);
    merge->lanes = arena_zalloc(scan->arena, (count + 1) * sizeof *merge->lanes);
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        struct lane *lane = &merge->lanes[merge->count];
        *lane =
            (struct lane){.partition = ranges[i].partition, .first = ranges[i].first, .next = ranges[i].next};
        lane->at = lane->shown = begin_at(scan, &ranges[i]);
        merge->count += !lane_is_over(merge, lane);
    }
    if (status == STATUS_OK && merge->count > 0 && scan->filter.state == DEAD_OPEN)
        status = look_for_decisions(merge, error);
    return status;
}

static void close_lanes(struct merge *merge)
{
    struct dead_scan *scan = merge->scan;
    scan->positions = arena_alloc(scan->arena, (merge->count + 1) * sizeof *scan->positions);
    scan->position_count = 0;
    for (size_t i = 0; i < merge->count; i++) {
        const struct lane *lane = &merge->lanes[i];
        bool is_over = scan->is_oldest_first ? lane->shown >= lane->next : lane->shown <= lane->first;
        if (!is_over)
            scan->positions[scan->position_count++] = (struct dead_position){lane->partition, lane->shown};
    }
    scan->is_complete = scan->position_count == 0;
}

enum status kernel_dead_scan(struct dead_scan *scan, struct error *error)
{
    struct merge merge = {.scan = scan};
    bool is_up = scan->is_oldest_first;
    scan->items = arena_alloc(scan->arena, (scan->limit + 1) * sizeof *scan->items);
    scan->count = 0;
    enum status status = open_lanes(&merge, error);
    size_t share = merge.count ? 2 * scan->limit / merge.count + 1 : 0;
    merge.width_max = merge.count > READ_MAX / AHEAD_MAX ? READ_MAX / merge.count : AHEAD_MAX;
    merge.width = share < AHEAD_MIN ? AHEAD_MIN : share > merge.width_max ? merge.width_max : share;
    while (status == STATUS_OK && scan->count < scan->limit) {
        if (needs_reading(&merge)) {
            if (merge.read >= SCAN_MAX || (merge.read > 0 && clock_mono_ns() >= scan->until_ns))
                break;
            status = read_ahead(&merge, error);
            continue;
        }
        struct lane *lane = next_lane(&merge);
        if (!lane)
            break;
        const struct dead_item *item = &lane->ahead[is_up ? lane->begin++ : --lane->end];
        lane->shown = item->letter->offset + (is_up ? 1 : 0);
        if (dead_item_fits(scan->place.topic, &scan->filter, item))
            scan->items[scan->count++] = *item;
    }
    if (status == STATUS_OK)
        close_lanes(&merge);
    return status;
}

/* ---- counts ---- */

/* $1 engine, $2 topic; $3 … $5: partition, first offset, time of the oldest letter. */
static const struct db_statement decided_sql =
    DB_STATEMENT("SELECT count(*) FROM " DEAD_UNNESTED " AS u (partition, first, since_us, at)"
                 " CROSS JOIN LATERAL (SELECT FROM platform.dead_letter_decision"
                 "     WHERE engine = $1 AND topic = $2 AND partition = u.partition"
                 "       AND message_offset >= u.first AND letter_us >= u.since_us OFFSET 0) d");

static enum status count_all(struct merge *merge, int64_t *open, struct error *error)
{
    const struct dead_place *place = &merge->scan->place;
    struct dead_triples triples = {.partitions = {0}};
    struct db_result *rows = NULL;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < merge->count; i++) {
        const struct lane *lane = &merge->lanes[i];
        *open += lane->next - lane->first;
        dead_triples_put(&triples, lane->partition, lane->first, lane->since_us);
    }
    if (merge->skips)
        status = db_query(
            place->conn, &decided_sql,
            DB_PARAMS(db_cstr(bus_dead_engine(place->dead)), db_cstr(place->name), DEAD_TRIPLES(&triples)),
            place->deadline_ns, &rows, error);
    if (rows)
        *open -= db_result_i64(rows, 0, 0);
    *open = *open > 0 ? *open : 0;
    db_result_free(rows);
    dead_triples_deinit(&triples);
    return status;
}

enum status kernel_dead_count(const struct dead_place *place, struct str tenant, struct arena *arena,
                              struct dead_count *count, struct error *error)
{
    enum { TENANT_MS = 500 };
    struct dead_scan scan = {.place = *place,
                             .filter = {.tenant = tenant},
                             .is_oldest_first = true,
                             .limit = tenant.ptr ? KERNEL_DEAD_COUNT_MAX : 1,
                             .until_ns = clock_deadline_ms(TENANT_MS),
                             .arena = arena};
    *count = (struct dead_count){0};
    enum status status = kernel_dead_scan(&scan, error);
    if (status != STATUS_OK)
        return status;
    count->count = (int64_t)scan.count;
    count->has_more = !scan.is_complete;
    count->oldest_us = scan.count ? scan.items[0].letter->created_us : 0;
    if (tenant.ptr || scan.is_complete)
        return STATUS_OK;
    /* Offsets have no holes but where an engine lost messages: all, less those that are decided. */
    struct dead_scan all = scan;
    struct merge merge = {.scan = &all};
    all.positions = NULL;
    all.position_count = 0;
    status = open_lanes(&merge, error);
    count->count = 0;
    if (status == STATUS_OK)
        status = count_all(&merge, &count->count, error);
    count->has_more = count->count > KERNEL_DEAD_COUNT_MAX;
    if (count->has_more)
        count->count = KERNEL_DEAD_COUNT_MAX;
    return status;
}
