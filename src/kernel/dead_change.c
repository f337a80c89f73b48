/* Decisions about dead letters. The row of a decision is written before its message is published and committed after it: a second operator
 * waits for the row and finds it decided, and a crash in between leaves no row. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "kernel/dead_inside.h"

enum {
    BATCH_MAX = 200,
    EXPIRED_MAX = 1000,
    LOCKED_MS = 2000 /* publishers wait for a requeue so long, and for a batch more */
};
#define MONTH_MS (INT64_C(30) * 24 * 3600 * 1000)
#define BATCH_BYTES_MAX ((size_t)8 << 20)

/* $1 engine, $2 topic; $3 … $5 letters: partition, offset, time; $6 state, $7 by whom, $8 why. Sorted, as every operator does: they never
 * wait for each other in a circle. */
static const struct db_statement decide_sql =
    DB_STATEMENT("INSERT INTO platform.dead_letter_decision"
                 "    (engine, topic, partition, message_offset, letter_us, state, decided_by, reason)"
                 " SELECT $1, $2, u.partition, u.message_offset, u.letter_us, $6, $7, $8"
                 " FROM " DEAD_UNNESTED " AS u (partition, message_offset, letter_us, at) ORDER BY 3, 4, 5"
                 " ON CONFLICT DO NOTHING RETURNING partition, message_offset");

/* Decisions about letters that are long gone. $1 rows at most, $2 the age of their letters in ms. Only PostgreSQL's retention is known. */
static const struct db_statement expire_sql = DB_STATEMENT(
    "DELETE FROM platform.dead_letter_decision WHERE ctid = ANY (ARRAY("
    "    SELECT ctid FROM platform.dead_letter_decision"
    "    WHERE letter_us < (extract(epoch FROM now()) * 1000000)::bigint - 1000 * $2 AND engine = 'postgres'"
    "    ORDER BY letter_us LIMIT $1 FOR UPDATE SKIP LOCKED))");

/* Of another engine: those before its oldest letters. $1 rows at most, $2 engine, $3 topic; $4, $5: partition, first offset. */
static const struct db_statement expire_passed_sql = DB_STATEMENT(
    "DELETE FROM platform.dead_letter_decision WHERE ctid = ANY (ARRAY("
    "    SELECT d.ctid FROM unnest($4::text[]::int[], $5::text[]::bigint[]) AS u (partition, first)"
    "    CROSS JOIN LATERAL (SELECT ctid FROM platform.dead_letter_decision"
    "        WHERE engine = $2 AND topic = $3 AND partition = u.partition AND message_offset < u.first"
    "        OFFSET 0 FOR UPDATE SKIP LOCKED) d LIMIT $1))");

/* Decides about items[0 .. count); those that this call has decided are moved to the front. */
static enum status decide_letters(struct dead_change *change, struct dead_item *items, size_t count,
                                  size_t *decided, struct error *error)
{
    const struct dead_place *place = &change->place;
    struct dead_triples triples = {.partitions = {0}};
    struct db_result *rows = NULL;
    for (size_t i = 0; i < count; i++)
        dead_triples_put(&triples, items[i].letter->partition, items[i].letter->offset,
                         items[i].letter->created_us);
    enum status status = db_query(
        place->conn, &decide_sql,
        DB_PARAMS(db_cstr(bus_dead_engine(place->dead)), db_cstr(place->name), DEAD_TRIPLES(&triples),
                  db_cstr(dead_state_name(change->requeues ? DEAD_REQUEUED : DEAD_DISCARDED)),
                  db_text(change->who), db_text(change->why)),
        place->deadline_ns, &rows, error);
    *decided = 0;
    for (size_t i = 0; i < count && status == STATUS_OK; i++)
        for (size_t row = 0; row < db_result_rows(rows); row++)
            if (db_result_i64(rows, row, 0) == items[i].letter->partition &&
                db_result_i64(rows, row, 1) == items[i].letter->offset) {
                struct dead_item own = items[i];
                items[i] = items[*decided];
                items[(*decided)++] = own;
                break;
            }
    db_result_free(rows);
    dead_triples_deinit(&triples);
    return status;
}

/* With their payloads; the order of the letters is kept by those of one partition. */
static enum status publish(struct dead_change *change, const struct dead_item *items, size_t count,
                           struct error *error)
{
    const struct dead_place *place = &change->place;
    struct arena arena = ARENA(65536);
    struct dead_position *places = arena_alloc(&arena, (count + 1) * sizeof *places);
    const struct dead_filter any = {.state = DEAD_ANY};
    struct bus_message *messages = arena_alloc(&arena, (count + 1) * sizeof *messages);
    struct str topic = str_from(place->topic->topic);
    struct dead_item *whole = NULL;
    size_t found = 0, kept = 0;
    for (size_t i = 0; i < count; i++)
        places[i] = (struct dead_position){items[i].letter->partition, items[i].letter->offset};
    enum status status = kernel_dead_get(place, &any, places, count, SIZE_MAX, &arena, &whole, &found, error);
    if (status == STATUS_OK && found != count)
        status = error_set(error, STATUS_UNAVAILABLE, "%zu of %zu letters could not be read again",
                           count - found, count);
    for (size_t i = 0; i < found && status == STATUS_OK; i++)
        kept += bus_dead_original(whole[i].letter, topic, &arena, &messages[kept]);
    FAILPOINT("letters.before_publish");
    if (status == STATUS_OK)
        status = bus_dead_publish(place->dead, messages, kept, place->deadline_ns, error);
    FAILPOINT("letters.after_publish");
    arena_deinit(&arena);
    return status;
}

static int by_place(const void *x, const void *y)
{
    const struct bus_message *a = ((const struct dead_item *)x)->letter,
                             *b = ((const struct dead_item *)y)->letter;
    if (a->partition != b->partition)
        return a->partition < b->partition ? -1 : 1;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

static enum status requeue_batch(struct dead_change *change, struct dead_item *items, size_t count,
                                 struct error *error)
{
    size_t decided = 0;
    enum status status = decide_letters(change, items, count, &decided, error);
    if (status == STATUS_OK && decided > 0)
        status = publish(change, items, decided, error);
    if (status == STATUS_OK)
        change->changed += (int64_t)decided;
    return status;
}

/* In batches by bytes. The partitions are locked before the first decision and decisions are made in the order of places, so that neither
 * publishers nor other operators wait for this transaction in a circle. If a later batch fails, the decisions of those before it are kept:
 * Kafka and NATS have their messages already, and the next requeue would send them twice. */
static enum status requeue(struct dead_change *change, struct dead_item *items, size_t count,
                           struct error *error)
{
    const struct dead_place *place = &change->place;
    static const struct db_statement savepoint_sql = DB_STATEMENT(DB_SAVEPOINT_SQL);
    enum status status = STATUS_OK;
    if (count > 0)
        status = bus_dead_lock(place->dead, str_from(place->topic->topic), place->deadline_ns, error);
    qsort(items, count, sizeof *items, by_place);
    int64_t until_ns = clock_deadline_ms(LOCKED_MS);
    for (size_t begin = 0; begin < count && status == STATUS_OK;) {
        size_t end = begin, bytes = 0;
        while (end < count && end - begin < BATCH_MAX && bytes < BATCH_BYTES_MAX)
            bytes += items[end++].bytes;
        if (begin > 0)
            status = db_exec(place->conn, &savepoint_sql, DB_NO_PARAMS, place->deadline_ns, NULL, error);
        if (status == STATUS_OK)
            status = requeue_batch(change, items + begin, end - begin, error);
        if (status != STATUS_OK && begin > 0) {
            log_warn("dead_letters_not_requeued", LOG_CSTR("topic", place->name),
                     LOG_INT("requeued", change->changed), LOG_ERROR_FIELDS(error));
            change->has_more = true;
            return db_rollback_to_savepoint(place->conn, place->deadline_ns, error);
        }
        begin = end;
        if (begin < count && clock_mono_ns() >= until_ns) { /* the rest is for the next request */
            change->has_more = true;
            break;
        }
    }
    return status;
}

/* Those whose content was not kept stay as they are. */
static size_t drop_without_content(struct dead_change *change, struct dead_item *items, size_t count)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        struct bus_message original;
        if (items[i].bytes > 0 || bus_dead_original(items[i].letter, STR_NONE, change->arena, &original))
            items[kept++] = items[i];
    }
    change->without_content += (int64_t)(count - kept);
    return kept;
}

/* Letters that do not fit, or cannot be requeued, do not hide those after them: it goes on until some are found, or half of the time is
 * over. A dry run counts on. */
static enum status choose_by_filter(struct dead_change *change, struct arena *scanned,
                                    struct dead_item **items, size_t *count, struct error *error)
{
    int64_t now_ns = clock_mono_ns(), most = change->is_dry_run ? KERNEL_DEAD_COUNT_MAX : DEAD_CHANGE_MAX;
    if (change->letters_max > 0 && change->letters_max < most)
        most = change->letters_max;
    struct dead_scan scan = {.place = change->place,
                             .filter = change->filter,
                             .is_oldest_first = true,
                             .until_ns = now_ns + (change->place.deadline_ns - now_ns) / 2,
                             .arena = scanned};
    enum status status;
    do {
        struct dead_position *positions =
            arena_alloc(change->arena, (scan.position_count + 1) * sizeof *positions);
        if (scan.positions) {
            memcpy(positions, scan.positions, scan.position_count * sizeof *positions);
            scan.positions = positions;
            arena_reset(scanned);
        }
        int64_t left = change->is_dry_run ? most - change->matched : most;
        scan.limit = (size_t)(left < DEAD_CHANGE_MAX ? left : DEAD_CHANGE_MAX);
        status = kernel_dead_scan(&scan, error);
        *items = scan.items;
        *count = status == STATUS_OK ? scan.count : 0;
        change->matched += (int64_t)*count;
        if (change->requeues)
            *count = drop_without_content(change, *items, *count);
    } while (status == STATUS_OK && (change->is_dry_run ? change->matched < most : *count == 0) &&
             !scan.is_complete && clock_mono_ns() < scan.until_ns);
    change->has_more = !scan.is_complete;
    return status;
}

static enum status expire(const struct dead_change *change, struct error *error)
{
    const struct dead_place *place = &change->place;
    const char *engine = bus_dead_engine(place->dead);
    if (strcmp(engine, "postgres") == 0)
        return db_exec(place->conn, &expire_sql,
                       DB_PARAMS(db_i64(EXPIRED_MAX), db_i64(2 * change->keep_ms + MONTH_MS)),
                       place->deadline_ns, NULL, error);
    struct bus_dead_range *ranges;
    struct buf partitions = {0}, firsts = {0};
    size_t count = 0;
    enum status status = bus_dead_look(place->dead, place->name, place->topic->group, change->arena, &ranges,
                                       &count, place->deadline_ns, error);
    for (size_t i = 0; i < count; i++) {
        db_array_put_i64(&partitions, ranges[i].partition);
        db_array_put_i64(&firsts, ranges[i].first);
    }
    if (status == STATUS_OK)
        status =
            db_exec(place->conn, &expire_passed_sql,
                    DB_PARAMS(db_i64(EXPIRED_MAX), db_cstr(engine), db_cstr(place->name),
                              db_text_array(db_array_end(&partitions)), db_text_array(db_array_end(&firsts))),
                    place->deadline_ns, NULL, error);
    buf_deinit(&partitions), buf_deinit(&firsts);
    return status;
}

enum status kernel_dead_change(struct dead_change *change, struct error *error)
{
    struct arena scanned = ARENA(65536);
    struct dead_item *items = NULL;
    size_t count = 0, decided = 0;
    enum status status;
    change->filter.state = DEAD_OPEN;
    if (!change->ids) {
        status = choose_by_filter(change, &scanned, &items, &count, error);
    } else {
        status = kernel_dead_get(&change->place, &change->filter, change->ids, change->id_count, 0,
                                 change->arena, &items, &count, error);
        change->matched = (int64_t)count;
        if (status == STATUS_OK && change->requeues)
            count = drop_without_content(change, items, count);
    }
    if (status == STATUS_OK && !change->is_dry_run && change->requeues) {
        status = requeue(change, items, count, error);
    } else if (status == STATUS_OK && !change->is_dry_run) {
        status = decide_letters(change, items, count, &decided, error);
        change->changed = (int64_t)decided;
    }
    if (status == STATUS_OK && !change->is_dry_run)
        status = expire(change, error);
    arena_deinit(&scanned);
    return status;
}
