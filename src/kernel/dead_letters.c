/* Dead letters with what was decided about them: whose they are, which filter they fit, chosen ones. */
#include "kernel/dead_letters.h"

#include "kernel/dead_inside.h"

const char *dead_state_name(enum dead_state state)
{
    static const char *const names[] = {[DEAD_OPEN] = "open",
                                        [DEAD_REQUEUED] = "requeued",
                                        [DEAD_DISCARDED] = "discarded",
                                        [DEAD_ANY] = "any"};
    return names[state];
}

/* ---- positions ---- */

void dead_positions_put(struct buf *out, const struct dead_position *positions, size_t count)
{
    for (size_t i = 0; i < count; i++)
        buf_printf(out, "%s%u:%lld", i ? "," : "", positions[i].partition, (long long)positions[i].at);
}

static bool read_pair(struct str text, char between, struct dead_position *place)
{
    struct str first;
    int64_t partition;
    if (!str_split(&text, between, &first) || !str_to_i64(first, &partition) || partition < 0 ||
        partition >= BUS_PARTITIONS_MAX || !str_to_i64(text, &place->at) || place->at < 0 ||
        place->at == INT64_MAX) /* the end of a range is the offset after its last */
        return false;
    place->partition = (unsigned)partition;
    return true;
}

bool dead_positions_read(struct str text, struct arena *arena, struct dead_position **positions,
                         size_t *count)
{
    struct str pair;
    *positions = arena_alloc(arena, BUS_PARTITIONS_MAX * sizeof **positions);
    *count = 0;
    while (str_split(&text, ',', &pair)) {
        if (*count == BUS_PARTITIONS_MAX || !read_pair(pair, ':', &(*positions)[*count]) ||
            (*count > 0 && (*positions)[*count].partition <= (*positions)[*count - 1].partition))
            return false;
        ++*count;
    }
    return *count > 0;
}

bool dead_id_read(struct str id, struct dead_position *place)
{
    return read_pair(id, '-', place);
}

/* ---- what a letter is about ---- */

struct str dead_item_tenant(const struct kernel_dead_topic *topic, const struct bus_message *letter)
{
    struct str named = bus_message_header(letter, STR("tenant_id")), rest = letter->key;
    if (!named.ptr && topic->key_tenant_end && rest.ptr && !str_split(&rest, topic->key_tenant_end, &named))
        named = STR_NONE;
    return str_is_name(named) ? named : STR_NONE;
}

bool dead_item_fits(const struct kernel_dead_topic *topic, const struct dead_filter *filter,
                    const struct dead_item *item)
{
    const struct bus_message *letter = item->letter;
    struct str reason = bus_message_header(letter, STR(BUS_HEADER_DEAD_REASON));
    if (filter->state != DEAD_ANY && filter->state != item->state)
        return false;
    if ((filter->from_us && letter->created_us < filter->from_us) ||
        (filter->to_us && letter->created_us >= filter->to_us))
        return false;
    if (filter->reason.len &&
        !(reason.len && memmem(reason.ptr, reason.len, filter->reason.ptr, filter->reason.len)))
        return false;
    if (!filter->tenant.ptr)
        return true;
    struct str tenant = dead_item_tenant(topic, letter);
    return tenant.ptr && str_eq(tenant, filter->tenant);
}

/* ---- decisions ---- */

void dead_triples_put(struct dead_triples *triples, unsigned partition, int64_t offset, int64_t time)
{
    db_array_put_i64(&triples->partitions, partition);
    db_array_put_i64(&triples->offsets, offset);
    db_array_put_i64(&triples->times, time);
}

void dead_triples_deinit(struct dead_triples *triples)
{
    buf_deinit(&triples->partitions), buf_deinit(&triples->offsets), buf_deinit(&triples->times);
}

/* $1 engine, $2 topic; $3 … $5 letters: partition, offset, time. OFFSET 0: a lookup for each letter, not a read of all decisions. */
static const struct db_statement decisions_sql =
    DB_STATEMENT("SELECT u.at, d.state, d.decided_by, platform.rfc3339(d.decided_at), d.reason"
                 " FROM " DEAD_UNNESTED " AS u (partition, message_offset, letter_us, at)"
                 " CROSS JOIN LATERAL (SELECT * FROM platform.dead_letter_decision"
                 "     WHERE engine = $1 AND topic = $2 AND partition = u.partition"
                 "       AND message_offset = u.message_offset AND letter_us = u.letter_us OFFSET 0) d");

static enum status find_decisions(const struct dead_place *place, struct dead_item *items, size_t count,
                                  struct arena *arena, struct error *error)
{
    struct dead_triples triples = {.partitions = {0}};
    struct db_result *rows = NULL;
    for (size_t i = 0; i < count; i++)
        dead_triples_put(&triples, items[i].letter->partition, items[i].letter->offset,
                         items[i].letter->created_us);
    enum status status = db_query(
        place->conn, &decisions_sql,
        DB_PARAMS(db_cstr(bus_dead_engine(place->dead)), db_cstr(place->name), DEAD_TRIPLES(&triples)),
        place->deadline_ns, &rows, error);
    for (size_t i = 0; status == STATUS_OK && i < db_result_rows(rows); i++) {
        struct dead_item *item = &items[db_result_i64(rows, i, 0) - 1];
        item->state = str_eq(db_result_str(rows, i, 1), STR("requeued")) ? DEAD_REQUEUED : DEAD_DISCARDED;
        item->decided_by = arena_str(arena, db_result_str(rows, i, 2));
        item->decided_at = arena_str(arena, db_result_str(rows, i, 3));
        item->decided_why = arena_str(arena, db_result_str(rows, i, 4));
    }
    db_result_free(rows);
    dead_triples_deinit(&triples);
    return status;
}

enum status dead_items_make(const struct dead_place *place, const struct bus_dead_letter *letters,
                            size_t count, struct arena *arena, struct dead_item **items, struct error *error)
{
    *items = arena_zalloc(arena, (count + 1) * sizeof **items);
    for (size_t i = 0; i < count; i++)
        (*items)[i] = (struct dead_item){.letter = &letters[i].message, .bytes = letters[i].bytes};
    return count ? find_decisions(place, *items, count, arena, error) : STATUS_OK;
}

/* ---- chosen ones ---- */

enum status kernel_dead_get(const struct dead_place *place, const struct dead_filter *filter,
                            const struct dead_position *places, size_t count, size_t payload_max,
                            struct arena *arena, struct dead_item **items, size_t *found, struct error *error)
{
    struct bus_dead_range *spans = arena_alloc(arena, (count + 1) * sizeof *spans);
    struct bus_dead_letter *letters;
    size_t kept = 0, span_count = 0;
    for (size_t i = 0; i < count; i++) { /* sorted, each once */
        struct bus_dead_range span = {places[i].partition, places[i].at, places[i].at + 1};
        size_t at = span_count;
        while (at > 0 && (spans[at - 1].partition > span.partition ||
                          (spans[at - 1].partition == span.partition && spans[at - 1].first > span.first)))
            at--;
        bool is_there =
            at > 0 && spans[at - 1].partition == span.partition && spans[at - 1].first == span.first;
        if (is_there)
            continue;
        memmove(spans + at + 1, spans + at, (span_count - at) * sizeof *spans);
        spans[at] = span;
        span_count++;
    }
    const struct bus_dead_query query = {place->name, spans, span_count, payload_max, READ_BYTES_MAX};
    enum status status =
        bus_dead_read(place->dead, &query, arena, &letters, found, place->deadline_ns, error);
    if (status == STATUS_OK)
        status = dead_items_make(place, letters, *found, arena, items, error);
    for (size_t i = 0; status == STATUS_OK && i < *found; i++)
        if (dead_item_fits(place->topic, filter, &(*items)[i]))
            (*items)[kept++] = (*items)[i];
    *found = kept;
    return status;
}
