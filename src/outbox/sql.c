/* A table's statements, made of its descriptor: templates in which @name stands for a piece of SQL. Every template calls the table
 * `e`, so that a piece means the same everywhere. Values are always parameters; only the descriptor's names, which are part of
 * the program, become text. */
#include "outbox/outbox_inside.h"

#define SET_CLAIMED                                             \
    "@set_claimed @locked_now @claim_id = $3, @locked_by = $4," \
    " @locked_until = now() + $5 * interval '1 ms', @claims = e.@claims + 1"
#define CLAIMED                                                                        \
    "e.@id::text AS id, @aggregate_text (e.@attempts@less_outages)::text AS attempts," \
    " (e.@claims@less_outages)::text AS claims,"                                       \
    " (@event_type)::text AS event_type, @payload AS payload@extra"

/* $1 rows to look at, $2 events at most, $3 claim id, $4 worker, $5 lease in ms, $6 rows of a stride; $7 … the aggregate
 * to start after.
 *
 * `walk` strides over the partial index of live rows: a few in their order, from the first of an aggregate on, then a hop
 * to after the last aggregate seen, whatever the length of its tail. `free` rows may be claimed: they are due, as all before them in
 * their aggregate, and not suspect (two claims lost) unless they are the first. `rest` continues tails that a
 * stride cut off, if the batch has room: a single long tail fills it, several share it.
 * `locked` separates engines: PostgreSQL checks a row that changed between snapshot and lock again and drops it, and `run` drops
 * all later rows of its aggregate. So no two engines hold rows of one aggregate. A suspect is claimed alone.
 *
 * Rows are found again by ctid, never by their key: where almost everything is published, statistics say that nothing is
 * live, and a plan made by them would look for each key through all that is. */
#define STRIDE(after)                                                                                       \
    "SELECT q.*, row_number() OVER own AS place, row_number() OVER line = $6 AS is_full,"                   \
    "       lead(true) OVER line IS NULL AS is_last,"                                                       \
    "       bool_and(q.due) OVER own"                                                                       \
    "           AND (row_number() OVER own = 1 OR count(*) FILTER (WHERE q.suspect) OVER own = 0) AS free"  \
    " FROM (SELECT e.ctid AS tid, e.@sequence AS sequence, @aggregate_as, @due AS due, @suspect AS suspect" \
    "       FROM @table e WHERE @live" after " ORDER BY @aggregate, e.@sequence LIMIT $6) q"                \
    " WINDOW line AS (ORDER BY @names, q.sequence),"                                                        \
    "        own AS (PARTITION BY @names ORDER BY q.sequence ROWS UNBOUNDED PRECEDING)"

/* clang-format off */
static const char claim_template[] =
    "WITH RECURSIVE walk AS ("
    "    (SELECT 1 AS step, s.* FROM (" STRIDE("@after") ") s WHERE s.free OR s.is_last)"
    "  UNION ALL"
    "    (SELECT w.step + 1, s.*"
    "     FROM walk w CROSS JOIN LATERAL (" STRIDE(" AND (@aggregate) > (@walked)") ") s"
    "     WHERE w.is_last AND (s.free OR s.is_last))),"
    " walked AS MATERIALIZED (SELECT w.*, row_number() OVER () AS number FROM (SELECT * FROM walk LIMIT $1) w),"
    " cut AS MATERIALIZED (SELECT * FROM walked WHERE is_last AND is_full AND free),"
    " rest AS ("
    "    SELECT w.number - w.place + 1 AS head, r.* FROM cut w CROSS JOIN LATERAL ("
    "        SELECT q.tid, w.place + row_number() OVER own AS place,"
    "               bool_and(q.due AND NOT q.suspect) OVER own AS free"
    "        FROM (SELECT e.ctid AS tid, e.@sequence AS sequence, @due AS due, @suspect AS suspect"
    "              FROM @table e WHERE @live AND (@aggregate) = (@walked) AND e.@sequence > w.sequence"
    "              ORDER BY e.@sequence"
    "              LIMIT greatest(0, ($2 - (SELECT count(*) FROM walked WHERE free)) / (SELECT count(*) FROM cut)))"
    "            q WINDOW own AS (ORDER BY q.sequence ROWS UNBOUNDED PRECEDING)) r),"
    " ready AS ("
    "    SELECT w.number - w.place + 1 AS head, w.place, w.tid FROM walked w WHERE w.free"
    "    UNION ALL SELECT w.head, w.place, w.tid FROM rest w WHERE w.free ORDER BY 1, 2),"
    " locked AS MATERIALIZED ("
    "    SELECT w.head, w.place, l.* FROM ready w CROSS JOIN LATERAL ("
    "        SELECT e.ctid AS tid, @suspect AS suspect FROM @table e"
    "        WHERE e.ctid = w.tid AND @live AND @due LIMIT 1 FOR UPDATE SKIP LOCKED) l"
    "    LIMIT $2),"
    " run AS MATERIALIZED ("
    "    SELECT w.tid, w.line FROM ("
    "        SELECT q.*, row_number() OVER line AS line, count(*) FILTER (WHERE q.suspect) OVER line AS suspects,"
    "               row_number() OVER (PARTITION BY q.head ORDER BY q.place) AS held"
    "        FROM locked q WINDOW line AS (ORDER BY q.head, q.place ROWS UNBOUNDED PRECEDING)) w"
    "    WHERE w.held = w.place AND (w.line = 1 OR w.suspects = 0)),"
    " claimed AS ("
    "    UPDATE @table e SET " SET_CLAIMED
    " FROM run WHERE e.ctid = run.tid"
    "    RETURNING run.line::text AS line, " CLAIMED "),"
    " last AS (SELECT w.number::text, @cursor FROM walked w ORDER BY w.number DESC LIMIT 1)"
    " SELECT last.*, c.* FROM last LEFT JOIN claimed c ON true ORDER BY c.line::bigint";
/* clang-format on */

/* Of a table without order; $1 and $6 are unused. The due rows are one range of the index on the due time; a suspect is claimed
 * alone. */
static const char delivery_template[] =
    "WITH due AS MATERIALIZED ("
    "    SELECT e.ctid AS tid, @due_at AS at, @suspect AS suspect FROM @table e"
    "    WHERE @live AND @due_at <= now() ORDER BY @due_at LIMIT $2 FOR UPDATE SKIP LOCKED),"
    " run AS MATERIALIZED ("
    "    SELECT w.tid, w.line"
    "    FROM (SELECT d.tid, row_number() OVER line AS line,"
    "                 count(*) FILTER (WHERE d.suspect) OVER line AS suspects"
    "          FROM due d WINDOW line AS (ORDER BY d.at, d.tid)) w"
    "    WHERE w.line = 1 OR w.suspects = 0),"
    " claimed AS ("
    "    UPDATE @table e SET " SET_CLAIMED " FROM run WHERE e.ctid = run.tid"
    "    RETURNING run.line::text AS line, " CLAIMED ")"
    " SELECT '0', c.* FROM claimed c ORDER BY c.line::bigint";

/* $1 claim id; $2 … $5 arrays: id, result, pause in ms, reason. */
static const char settle_template[] =
    "UPDATE @table e SET @set_settled"
    "    @attempts = e.@attempts + (v.result IN (@failures))::int,"
    "    @claims = e.@claims - (v.result IN (@not_claimed))::int,"
    "    @next_attempt_at ="
    "        CASE WHEN v.result IN ('retry', 'outage') THEN now() + v.pause::bigint * interval '1 ms' END,"
    "    @set_outages @set_error @unlock"
    " FROM unnest($2, $3, $4, $5) AS v (id, result, pause, reason)"
    " WHERE e.@id = v.id::@id_type AND e.@claim_id = $1"
    " RETURNING v.result, (@event_type)::text,"
    "     (date_part('epoch', now() - e.@created_at) * 1000)::bigint, v.id, v.reason, e.@attempts@logged";

/* $1 claim id: one whose reply was lost. Rare, so it scans the live index. */
static const char release_template[] =
    "UPDATE @table e SET @set_pending @claims = e.@claims - 1, @unlock WHERE @live AND e.@claim_id = $1";

/* $1 claim id, $2 lease in ms, $3 ids. */
static const char renew_template[] =
    "UPDATE @table e SET @locked_until = now() + $2 * interval '1 ms'"
    " FROM unnest($3) AS v (id) WHERE e.@id = v.id::@id_type AND e.@claim_id = $1";

static const char gauge_template[] =
    "SELECT (@event_type)::text, count(*),"
    "       greatest(0, extract(epoch FROM now() - min(e.@created_at)) * 1000)::bigint"
    " FROM @table e WHERE @live GROUP BY 1";

/* $1 age in ms, $2 rows at most. Skips rows that another process is deleting. */
static const char cleanup_template[] =
    "DELETE FROM @table e WHERE e.ctid = ANY (ARRAY("
    "    SELECT e.ctid FROM @table e WHERE @is_published AND e.@published_at < now() - $1 * interval '1 ms'"
    "    ORDER BY e.@published_at LIMIT $2 FOR UPDATE SKIP LOCKED))";

/* ---- pieces ---- */

#define PIECES_MAX 56
struct pieces {
    struct arena *arena;
    size_t count;
    struct {
        struct str name, text;
    } items[PIECES_MAX];
};

static void define(struct pieces *pieces, const char *name, struct str text)
{
    pieces->items[pieces->count].name = str_from(name);
    pieces->items[pieces->count++].text = text;
}

/* The format for each column of the aggregate, comma-separated unless it has one itself: % is its name, # its place, $ its
 * parameter. */
static struct str each_column(struct pieces *pieces, const struct outbox_table *table, const char *format)
{
    struct buf text;
    buf_init(&text);
    for (int i = 0; table->aggregate[i].name; i++) {
        const struct outbox_column *column = &table->aggregate[i];
        if (i && format[strlen(format) - 1] != ',')
            buf_put_str(&text, STR(", "));
        for (const char *c = format; *c; c++)
            if (*c == '#')
                buf_printf(&text, "%d", i + 1);
            else if (*c == '$')
                buf_printf(&text, "$%d::%s", OUTBOX_CLAIM_PARAMS + i + 1, column->type);
            else if (*c == '%')
                buf_put_str(&text, str_from(column->name));
            else
                buf_put_char(&text, *c);
    }
    struct str result = arena_str(pieces->arena, buf_str(&text));
    buf_deinit(&text);
    return result;
}

static void define_aggregate(struct pieces *pieces, const struct outbox_table *table)
{
    define(pieces, "aggregate", each_column(pieces, table, "e.%"));
    define(pieces, "aggregate_as", each_column(pieces, table, "e.% AS a#"));
    define(pieces, "aggregate_text", each_column(pieces, table, "e.%::text AS a#,"));
    define(pieces, "walked", each_column(pieces, table, "w.a#"));
    define(pieces, "names", each_column(pieces, table, "q.a#"));
    define(pieces, "cursor", each_column(pieces, table, "w.a#::text AS c#"));
}

/* Order and aggregate, which a table may lack. */
static void define_order(struct pieces *pieces, const struct outbox_table *table)
{
    struct arena *arena = pieces->arena;
    define(pieces, "sequence", str_from(table->sequence ? table->sequence : ""));
    define(pieces, "number",
           table->sequence ? arena_printf(arena, "e.%s", table->sequence) : STR("NULL::bigint"));
    define(pieces, "order",
           table->sequence ? arena_printf(arena, "e.%s", table->sequence)
                           : arena_printf(arena, "e.%s, e.%s", table->created_at, table->id.name));
    define(pieces, "about",
           table->aggregate[0].name
               ? arena_printf(arena, "concat_ws('/', %.*s)", STR_ARG(each_column(pieces, table, "e.%")))
               : arena_printf(arena, "e.%s::text", table->id.name));
    define(pieces, "due_at",
           arena_printf(arena, "coalesce(greatest(e.%s, e.%s), e.%s)", table->next_attempt_at,
                        table->locked_until, table->created_at));
}

/* A row's states and the changes between them, of a table with words. */
static void define_words(struct pieces *pieces, const struct outbox_table *table)
{
    const struct outbox_words *words = &table->words;
    struct arena *arena = pieces->arena;
    const char *column = words->column;
    define(pieces, "live",
           arena_printf(arena, "e.%s IN ('%s', '%s')", column, words->pending, words->in_flight));
    define(pieces, "is_published", arena_printf(arena, "e.%s = '%s'", column, words->published));
    define(pieces, "is_failed", arena_printf(arena, "e.%s = '%s'", column, words->failed));
    define(pieces, "is_discarded",
           table->last_error ? arena_printf(arena, "e.%s IS NOT NULL", table->last_error) : STR("false"));
    define(pieces, "set_claimed", arena_printf(arena, "%s = '%s',", column, words->in_flight));
    define(pieces, "set_pending", arena_printf(arena, "%s = '%s',", column, words->pending));
    define(pieces, "set_alive",
           arena_printf(arena, "%s = '%s', %s = NULL,", column, words->pending, table->published_at));
    define(pieces, "set_discarded",
           arena_printf(arena, "%s = '%s', %s = now(),", column, words->published, table->published_at));
    define(pieces, "set_settled",
           arena_printf(arena,
                        "%s = CASE v.result WHEN 'done' THEN '%s' WHEN 'dead' THEN '%s' ELSE '%s' END,"
                        " %s = CASE v.result WHEN 'done' THEN now() END,",
                        column, words->published, words->failed, words->pending, table->published_at));
}

static void define_flags(struct pieces *pieces, const struct outbox_table *table)
{
    struct arena *arena = pieces->arena;
    const char *published = table->published, *failed_at = table->failed_at, *at = table->published_at;
    define(pieces, "live", arena_printf(arena, "NOT e.%s AND e.%s IS NULL", published, failed_at));
    define(pieces, "is_published", arena_printf(arena, "e.%s", published));
    define(pieces, "is_failed", arena_printf(arena, "e.%s IS NOT NULL AND NOT e.%s", failed_at, published));
    define(pieces, "is_discarded", arena_printf(arena, "e.%s IS NOT NULL", failed_at));
    define(pieces, "set_claimed", STR(""));
    define(pieces, "set_pending", STR(""));
    define(pieces, "set_alive",
           arena_printf(arena, "%s = false, %s = NULL, %s = NULL,", published, at, failed_at));
    define(pieces, "set_discarded", arena_printf(arena, "%s = true, %s = now(),", published, at));
    define(pieces, "set_settled",
           arena_printf(arena,
                        "%s = v.result = 'done', %s = CASE v.result WHEN 'done' THEN now() END,"
                        " %s = CASE v.result WHEN 'dead' THEN now() END,",
                        published, at, failed_at));
}

static struct str extra_columns(struct arena *arena, const struct outbox_table *table)
{
    struct str text = STR("");
    for (size_t i = 0; table->extra[i]; i++)
        text = arena_printf(arena, "%.*s, (%s)::text AS x%zu", STR_ARG(text), table->extra[i], i);
    return text;
}

static struct str logged_columns(struct arena *arena, const struct outbox_table *table)
{
    struct str text = STR("");
    for (size_t i = 0; table->logged[i].name; i++)
        text = arena_printf(arena, "%.*s, (%s)::text", STR_ARG(text), table->logged[i].value);
    return text;
}

static void define_locks(struct pieces *pieces, const struct outbox_table *table)
{
    struct arena *arena = pieces->arena;
    define(pieces, "leased", arena_printf(arena, "e.%s > now()", table->locked_until));
    define(pieces, "due",
           arena_printf(arena, "(e.%s IS NULL OR e.%s <= now()) AND (e.%s IS NULL OR e.%s <= now())",
                        table->locked_until, table->locked_until, table->next_attempt_at,
                        table->next_attempt_at));
    define(
        pieces, "suspect",
        arena_printf(arena, "e.%s - e.%s >= %d", table->claims, table->attempts, OUTBOX_LOST_CLAIMS_SUSPECT));
    struct str locked_at = table->locked_at ? arena_printf(arena, ", %s = NULL", table->locked_at) : STR("");
    define(pieces, "unlock",
           arena_printf(arena, "%s = NULL, %s = NULL, %s = NULL%.*s", table->claim_id, table->locked_by,
                        table->locked_until, STR_ARG(locked_at)));
    define(pieces, "locked_now",
           table->locked_at ? arena_printf(arena, "%s = now(),", table->locked_at) : STR(""));
    define(pieces, "set_error",
           table->last_error
               ? arena_printf(
                     arena,
                     "%s = CASE v.result WHEN 'done' THEN NULL WHEN 'released' THEN e.%s ELSE v.reason END,",
                     table->last_error, table->last_error)
               : STR(""));
    define(pieces, "error", table->last_error ? arena_printf(arena, "e.%s", table->last_error) : STR("NULL"));
}

/* A table without the column shows an outage only by its error and the next try. */
static void define_outages(struct pieces *pieces, const struct outbox_table *table)
{
    struct arena *arena = pieces->arena;
    const char *outages = table->outages;
    define(pieces, "failures", outages ? STR("'retry', 'dead', 'outage'") : STR("'retry', 'dead'"));
    define(pieces, "not_claimed", outages ? STR("'released'") : STR("'released', 'outage'"));
    define(pieces, "less_outages", outages ? arena_printf(arena, " - coalesce(e.%s, 0)", outages) : STR(""));
    define(pieces, "no_outages", outages ? arena_printf(arena, "%s = NULL,", outages) : STR(""));
    define(pieces, "set_outages",
           outages ? arena_printf(
                         arena, "%s = CASE v.result WHEN 'outage' THEN coalesce(e.%s, 0) + 1 ELSE e.%s END,",
                         outages, outages, outages)
                   : STR(""));
}

static void define_all(struct pieces *pieces, const struct outbox_table *table)
{
    define(pieces, "table", str_from(table->name));
    define(pieces, "id", str_from(table->id.name));
    define(pieces, "id_type", str_from(table->id.type));
    define(pieces, "event_type", str_from(table->event_type));
    define(pieces, "payload",
           arena_printf(pieces->arena, table->payload_is_bytes ? "(%s)" : "(%s)::text", table->payload));
    define(pieces, "extra", extra_columns(pieces->arena, table));
    define(pieces, "logged", logged_columns(pieces->arena, table));
    define(pieces, "published_at", str_from(table->published_at));
    define(pieces, "created_at", str_from(table->created_at));
    define(pieces, "attempts", str_from(table->attempts));
    define(pieces, "claims", str_from(table->claims));
    define(pieces, "claim_id", str_from(table->claim_id));
    define(pieces, "locked_by", str_from(table->locked_by));
    define(pieces, "locked_until", str_from(table->locked_until));
    define(pieces, "next_attempt_at", str_from(table->next_attempt_at));
    define_aggregate(pieces, table);
    define_order(pieces, table);
    define_locks(pieces, table);
    define_outages(pieces, table);
    if (table->words.column)
        define_words(pieces, table);
    else
        define_flags(pieces, table);
}

/* ---- templates ---- */

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || c == '_';
}

static struct str find(const struct pieces *pieces, struct str name)
{
    for (size_t i = 0; i < pieces->count; i++)
        if (str_eq(pieces->items[i].name, name))
            return pieces->items[i].text;
    return STR_NONE; /* a mistake in a template, which the tests of every statement find */
}

static const char *expand(const struct pieces *pieces, const char *template)
{
    struct buf text;
    buf_init(&text);
    while (*template) {
        const char *at = template + strcspn(template, "@");
        buf_put(&text, template, (size_t)(at - template));
        if (!*at)
            break;
        const char *end = ++at;
        while (is_name(*end))
            end++;
        buf_put_str(&text, find(pieces, str_of(at, (size_t)(end - at))));
        template = end;
    }
    const char *result = arena_str(pieces->arena, buf_str(&text)).ptr;
    buf_deinit(&text);
    return result;
}

static struct db_statement statement_of(const struct pieces *pieces, const char *template)
{
    return db_statement_of(str_from(expand(pieces, template)));
}

const char *outbox_sql_expand(const struct outbox_table *table, const char *template, struct arena *arena)
{
    struct pieces pieces = {.arena = arena};
    define_all(&pieces, table);
    return expand(&pieces, template);
}

void outbox_sql_init(struct outbox_sql *sql, const struct outbox_table *table, struct arena *arena)
{
    struct pieces pieces = {.arena = arena};
    define_all(&pieces, table);
    sql->settle = statement_of(&pieces, settle_template);
    sql->release = statement_of(&pieces, release_template);
    sql->renew = statement_of(&pieces, renew_template);
    sql->gauge = statement_of(&pieces, gauge_template);
    sql->cleanup = statement_of(&pieces, cleanup_template);
    if (table->sequence) {
        struct pieces later = pieces;
        define(&pieces, "after", STR(""));
        define(&later, "after",
               arena_printf(arena, " AND (%.*s) > (%.*s)", STR_ARG(find(&pieces, STR("aggregate"))),
                            STR_ARG(each_column(&pieces, table, "$"))));
        sql->claim_first = statement_of(&pieces, claim_template);
        sql->claim_after = statement_of(&later, claim_template);
    } else {
        sql->claim_first = statement_of(&pieces, delivery_template);
    }
    sql->claim_first.binary_results = sql->claim_after.binary_results = table->payload_is_bytes;
}

unsigned outbox_aggregate_columns(const struct outbox_table *table)
{
    unsigned count = 0;
    while (table->aggregate[count].name)
        count++;
    return count;
}
