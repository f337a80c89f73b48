/* A table's statements, made of its descriptor: templates in which @name stands for a piece of SQL. Every template calls the table
 * `e`, so that a piece means the same everywhere. Values are always parameters; only the descriptor's names, which are part of
 * the program, become text. */
#include "outbox/outbox_inside.h"

#define SET_CLAIMED                                             \
    "@set_claimed @locked_now @claim_id = $3, @locked_by = $4," \
    " @locked_until = now() + $5 * interval '1 ms', @claims = e.@claims + 1"
#define CLAIMED                                               \
    "e.ctid::text AS tid, e.@id::text AS id, @aggregate_text" \
    " (e.@attempts@less_outages)::text AS attempts,"          \
    " (e.@claims@less_outages)::text AS claims,"              \
    " (@event_type)::text AS event_type, @payload AS payload@extra"

/* $1 rows to look at, $2 events at most, $3 claim id, $4 worker, $5 lease in ms, $6 rows of a stride; $7 … where the walk begins or ends
 * (walk.c).
 *
 * `walk` strides over the partial index of live rows: a few in their order, from the first of an aggregate on, then a hop
 * to after the last aggregate seen, whatever the length of its tail. `free` rows may be claimed: they are due, as all before them in
 * their aggregate, and not suspect (two claims lost) unless they are the first. Of an aggregate without free rows the first row stands
 * for it. `head` is the number of an aggregate's first row in the walk, so that one sort by numbers puts the batch in order.
 * `claimable` ends the walk when the batch is full, since PostgreSQL reads no more rows of a recursive query than are asked for.
 * `rest` continues tails that a stride may have cut off, if the batch has room: a single long tail fills it, several share it.
 * `locked` separates engines, and drops rows that changed between snapshot and lock; `run` drops all later rows of their aggregate. So
 * no two engines hold rows of one aggregate. `ready` is materialized, since PostgreSQL runs what is below a lock again for each row that
 * changed. A suspect is claimed alone, and before all others, which could otherwise go before it for ever. Payloads of more than
 * CLAIM_BYTES are left to the next claim, but for the first event. `stop` is the first row that has to wait for either reason; it
 * is looked for only where there is one.
 *
 * `until` is the last row of the walk that the batch had room for, or NULL: the next claim begins after its aggregate. `last` is the walk's
 * end: 0 where it saw every aggregate and the batch had room; otherwise 1, plus 2 if an earlier tenant has live rows and 4 if a later
 * one has; then the aggregate to go on after.
 *
 * Rows are found again by ctid, never by their key: where almost everything is published, statistics say that nothing is
 * live, and a plan made by them would look for each key through all that is. IS TRUE keeps the planner from the index of live rows, and
 * ORDER BY keeps it on that. */
#define CLAIM_BYTES "8388608"
#define STRIDE(after)                                                                                       \
    "SELECT q.tid, q.sequence, @names, row_number() OVER own AS place,"                                     \
    "       bool_and(q.due) OVER own"                                                                       \
    "           AND (row_number() OVER own = 1 OR count(*) FILTER (WHERE q.suspect) OVER own = 0) AS free"  \
    " FROM (SELECT e.ctid AS tid, e.@sequence AS sequence, @aggregate_as, @due AS due, @suspect AS suspect" \
    "       FROM @table e WHERE @live" after " ORDER BY @aggregate, e.@sequence LIMIT $6) q"                \
    " WINDOW own AS (PARTITION BY @names ORDER BY q.sequence ROWS UNBOUNDED PRECEDING)"

/* clang-format off */
#define CLAIM(first, every) \
    "WITH RECURSIVE walk AS (" \
    "    (SELECT 1 AS step, s.* FROM (" STRIDE(first every) ") s WHERE s.free OR s.place = 1)" \
    "  UNION ALL" \
    "    (SELECT w.step + 1, s.*" \
    "     FROM (SELECT * FROM walk w ORDER BY @backwards LIMIT 1) w" \
    "     CROSS JOIN LATERAL (" STRIDE(" AND (@aggregate) > (@walked)" every) ") s WHERE s.free OR s.place = 1))," \
    " walked AS MATERIALIZED (SELECT w.*, row_number() OVER () AS number FROM walk w LIMIT $1)," \
    " claimable AS MATERIALIZED (SELECT number, number - place + 1 AS head, place, tid FROM walked WHERE free LIMIT $2)," \
    " seen AS MATERIALIZED (" \
    "    SELECT count(*) AS free, max(number) AS last_free," \
    "           CASE WHEN count(*) < $2 THEN (SELECT count(*) FROM walked) ELSE max(number) END AS last FROM claimable)," \
    " ends AS (SELECT DISTINCT ON (w.step) w.* FROM walked w ORDER BY w.step, @backwards, w.sequence DESC)," \
    " cut AS MATERIALIZED (SELECT * FROM ends WHERE free)," \
    " rest AS (" \
    "    SELECT w.number - w.place + 1 AS head, w.place + r.place AS place, r.tid, r.free FROM cut w CROSS JOIN LATERAL (" \
    "        SELECT q.tid, row_number() OVER own AS place, bool_and(q.due AND NOT q.suspect) OVER own AS free" \
    "        FROM (SELECT e.ctid AS tid, e.@sequence AS sequence, @due AS due, @suspect AS suspect" \
    "              FROM @table e WHERE @live AND (@aggregate) = (@walked) AND e.@sequence > w.sequence" \
    "              ORDER BY e.@sequence" \
    "              LIMIT greatest(0, ($2 - (SELECT free FROM seen)) / nullif((SELECT count(*) FROM cut), 0)))" \
    "            q WINDOW own AS (ORDER BY q.sequence ROWS UNBOUNDED PRECEDING)) r)," \
    " ready AS MATERIALIZED (" \
    "    SELECT * FROM claimable UNION ALL SELECT NULL, head, place, tid FROM rest WHERE free)," \
    " locked AS MATERIALIZED (" \
    "    SELECT w.*, @suspect AS suspect, @size AS bytes FROM ready w JOIN @table e ON e.ctid = w.tid" \
    "    WHERE (e.ctid = w.tid AND @live AND @due) IS TRUE LIMIT $2 FOR UPDATE OF e SKIP LOCKED)," \
    " batch AS MATERIALIZED (" \
    "    SELECT count(*) = $2 OR sum(bytes) >= " CLAIM_BYTES " AS is_full, bool_or(suspect) OR sum(bytes) >= " CLAIM_BYTES " AS is_cut," \
    "           min(head) FILTER (WHERE suspect AND place = 1) AS alone" \
    "    FROM locked)," \
    " stop AS (" \
    "    SELECT w.head, w.place FROM (SELECT q.*, sum(q.bytes) OVER line - q.bytes AS before FROM locked q" \
    "                                 WINDOW line AS (ORDER BY q.head, q.place ROWS UNBOUNDED PRECEDING)) w" \
    "    WHERE w.suspect OR w.before >= " CLAIM_BYTES " ORDER BY w.head, w.place LIMIT 1)," \
    " run AS MATERIALIZED (" \
    "    SELECT w.tid, w.number FROM (" \
    "        SELECT q.*, row_number() OVER (PARTITION BY q.head ORDER BY q.place) AS held FROM locked q) w" \
    "    WHERE w.held = w.place" \
    "      AND CASE WHEN NOT (SELECT is_cut FROM batch) THEN true" \
    "               WHEN (SELECT alone FROM batch) IS NULL THEN coalesce((w.head, w.place) < (SELECT head, place FROM stop), true)" \
    "               ELSE w.head = (SELECT alone FROM batch) AND w.place = 1 END)," \
    " until AS MATERIALIZED (" \
    "    SELECT CASE WHEN is_full AND alone IS NULL THEN (SELECT max(number) FROM run) END AS number FROM batch)," \
    " claimed AS (" \
    "    UPDATE @table e SET " SET_CLAIMED " WHERE e.ctid = ANY (ARRAY(SELECT tid FROM run))" \
    "    RETURNING e.@sequence AS sequence, " CLAIMED ")," \
    " last AS (" \
    "    SELECT (CASE WHEN (SELECT last = $1 OR free = $2 OR last_free > (SELECT number FROM until) FROM seen)" \
    "            THEN 1 + @other_tenants ELSE 0 END)::text AS walked, @cursor" \
    "    FROM walked w" \
    "    WHERE w.number = coalesce((SELECT number FROM until), (SELECT last FROM seen)) LIMIT 1)" \
    " SELECT last.*, c.* FROM last LEFT JOIN claimed c ON true ORDER BY @claimed, c.sequence"
/* clang-format on */
static const char *const claim_templates[] = {
    [OUTBOX_FROM_START] = CLAIM("", ""),
    [OUTBOX_BEFORE_TENANT] = CLAIM("", " AND e.@first < $7"),
    [OUTBOX_AFTER_TENANT] = CLAIM(" AND e.@first > $7", ""),
    [OUTBOX_AFTER_AGGREGATE] = CLAIM(" AND (@aggregate) > (@parameters)", ""),
};

/* Of a table without order; $1 and $6 are unused. The due rows are one range of the index on the due time; a suspect is claimed
 * alone. */
static const char delivery_template[] =
    "WITH due AS MATERIALIZED ("
    "    SELECT e.ctid AS tid, @due_at AS at, @suspect AS suspect, @size AS bytes FROM @table e"
    "    WHERE @live AND @due_at <= now() ORDER BY @due_at LIMIT $2 FOR UPDATE SKIP LOCKED),"
    " run AS MATERIALIZED ("
    "    SELECT w.tid, w.line"
    "    FROM (SELECT d.tid, row_number() OVER line AS line,"
    "                 count(*) FILTER (WHERE d.suspect) OVER line AS suspects, sum(d.bytes) OVER line - d.bytes AS before"
    "          FROM due d WINDOW line AS (ORDER BY d.at, d.tid ROWS UNBOUNDED PRECEDING)) w"
    "    WHERE (w.line = 1 OR w.suspects = 0) AND w.before < " CLAIM_BYTES "),"
    " claimed AS ("
    "    UPDATE @table e SET " SET_CLAIMED " FROM run WHERE e.ctid = run.tid"
    "    RETURNING run.line::text AS line, " CLAIMED ")"
    " SELECT '0', c.* FROM claimed c ORDER BY c.line::bigint";

/* Of a table without order whose rows take turns; $6 rows of a tenant before the others' turn, $7 the tenant to start after, $8 tenants
 * that are left out.
 *
 * `after` and `before` hop from one tenant with live rows to the next, whatever their number: to the end, and from the beginning up to
 * $7. `first` takes a few due rows of each until the batch is full; `rest` fills it with further ones of the same tenants. The
 * first rows of all tenants come first in the batch. A suspect is claimed alone, when it is its tenant's turn.
 * The cursor is the tenant before `next` where `first` has filled the batch: the next batch begins with the first tenant that got nothing
 * for the sake of a suspect, or less than its part as the last one. Of a walk that was cut off ($1 instead of 0) it is the last one in
 * `after`, or the beginning; otherwise the first tenant of the batch. */
#define HOP(where)                                                                       \
    "SELECT e.@turn AS turn, @due_at <= now() AS is_due FROM @table e WHERE @live" where \
    " ORDER BY e.@turn, @due_at LIMIT 1"
#define HOPS(name, first, where)                                                                  \
    name " AS ((SELECT 1 AS step, h.* FROM (" first ") h WHERE " where ")"                        \
         " UNION ALL (SELECT w.step + 1, h.* FROM " name " w CROSS JOIN LATERAL (" NEXT_HOP ") h" \
         "    WHERE w.step < 10 * $1 AND " where "))"
#define NEXT_HOP HOP(" AND e.@turn > w.turn")
#define FIRST_AFTER HOP(" AND e.@turn > $7")
#define FIRST_BEFORE HOP("")
#define AFTER HOPS("after", FIRST_AFTER, "true")
#define BEFORE HOPS("before", FIRST_BEFORE, "h.turn <= $7 AND (SELECT count(*) FROM after) < 10 * $1")
#define DUE_ROWS                                                               \
    "SELECT @due_at AS at, e.ctid AS tid, @suspect AS suspect, @size AS bytes" \
    " FROM @table e WHERE @live AND e.@turn = w.turn AND @due_at <= now()"
static const char turns_template[] =
    "WITH RECURSIVE " AFTER ", " BEFORE ","
    " first AS MATERIALIZED ("
    "    SELECT w.*, d.* FROM (SELECT row_number() OVER () AS number, h.turn FROM ("
    "            SELECT turn, is_due FROM after UNION ALL SELECT turn, is_due FROM before) h"
    "        WHERE h.is_due AND h.turn <> ALL ($8)) w"
    "        CROSS JOIN LATERAL (" DUE_ROWS " ORDER BY @due_at LIMIT $6 FOR UPDATE SKIP LOCKED) d"
    "    LIMIT $2),"
    " cut AS MATERIALIZED ("
    "    SELECT number, turn, max(at) AS until FROM first WHERE (SELECT count(*) FROM first) < $2"
    "    GROUP BY number, turn HAVING count(*) = $6),"
    " rest AS MATERIALIZED ("
    "    SELECT w.number, w.turn, d.* FROM cut w CROSS JOIN LATERAL (" DUE_ROWS
    " AND @due_at >= w.until AND e.ctid <> ALL (ARRAY(SELECT tid FROM first))"
    "        ORDER BY @due_at"
    "        LIMIT ceil(($2 - (SELECT count(*) FROM first))::float8 / (SELECT count(*) FROM cut)) FOR UPDATE SKIP LOCKED) d"
    "    LIMIT $2 - (SELECT count(*) FROM first)),"
    " line AS MATERIALIZED ("
    "    SELECT p.*, row_number() OVER line AS line,"
    "           first_value(p.suspect) OVER line OR sum(p.bytes) OVER line - p.bytes >= " CLAIM_BYTES
    " AS is_left"
    "    FROM (SELECT t.*, row_number() OVER (PARTITION BY t.number ORDER BY t.at, t.tid) AS place"
    "          FROM (SELECT * FROM first UNION ALL SELECT * FROM rest) t) p"
    "    WINDOW line AS (ORDER BY p.place, p.number ROWS UNBOUNDED PRECEDING)),"
    " run AS MATERIALIZED (SELECT tid, line FROM line WHERE line = 1 OR NOT (suspect OR is_left)),"
    " claimed AS ("
    "    UPDATE @table e SET " SET_CLAIMED " FROM run WHERE e.ctid = run.tid"
    "    RETURNING run.line::text AS line, " CLAIMED "),"
    " next AS ("
    "    SELECT least((SELECT min(number) FROM line WHERE line > 1 AND place = 1 AND (suspect OR is_left)),"
    "                 (SELECT number + (count(*) = $6)::int FROM first GROUP BY number ORDER BY number DESC LIMIT 1)) AS number),"
    " last AS ("
    "    SELECT CASE WHEN (SELECT count(*) FROM first) = $2 THEN 0"
    "                WHEN 10 * $1 IN ((SELECT count(*) FROM after), (SELECT count(*) FROM before)) THEN $1"
    "                ELSE 0 END::text,"
    "           CASE WHEN (SELECT count(*) FROM first) = $2"
    "                THEN (SELECT turn FROM first WHERE number < (SELECT number FROM next) ORDER BY number DESC LIMIT 1)"
    "                WHEN (SELECT count(*) FROM after) = 10 * $1"
    "                THEN (SELECT turn FROM after ORDER BY step DESC LIMIT 1)"
    "                WHEN (SELECT count(*) FROM before) < 10 * $1 THEN (SELECT turn FROM line WHERE line = 1) END)"
    " SELECT last.*, c.* FROM last LEFT JOIN claimed c ON true ORDER BY c.line::bigint";

/* Arrays: $1 claim id, $2 id, $3 result, $4 pause in ms, $5 reason. */
static const char settle_template[] =
    "UPDATE @table e SET @set_settled"
    "    @attempts = e.@attempts + (v.result IN (@failures))::int,"
    "    @claims = e.@claims - (v.result IN (@not_claimed))::int,"
    "    @next_attempt_at ="
    "        CASE WHEN v.result IN ('retry', 'outage') THEN now() + v.pause::bigint * interval '1 ms' END,"
    "    @set_outages @set_error @unlock"
    " FROM unnest($1, $2, $3, $4, $5) AS v (claim_id, id, result, pause, reason)"
    " WHERE e.@id = v.id::@id_type AND e.@claim_id = v.claim_id::uuid"
    " RETURNING v.result, (@event_type)::text,"
    "     (date_part('epoch', now() - e.@created_at) * 1000)::bigint, v.id, v.reason, e.@attempts@logged";

/* The same where all of one claim are published: $1 its id, $2 a tid[] as text, where the claim has put its rows. */
static const char settle_done_template[] =
    "UPDATE @table e SET @set_discarded @next_attempt_at = NULL, @no_error @unlock"
    " WHERE e.ctid = ANY ($2::tid[]) AND e.@claim_id = $1"
    " RETURNING 'done', (@event_type)::text, (date_part('epoch', now() - e.@created_at) * 1000)::bigint";

/* $1 claim id: one whose reply was lost. Rare, so it scans the live index. */
static const char release_template[] =
    "UPDATE @table e SET @set_pending @claims = e.@claims - 1, @unlock WHERE @live AND e.@claim_id = $1";

/* $2 lease in ms; arrays: $1 claim id, $3 id. */
static const char renew_template[] =
    "UPDATE @table e SET @locked_until = now() + $2 * interval '1 ms'"
    " FROM unnest($1, $3) AS v (claim_id, id) WHERE e.@id = v.id::@id_type AND e.@claim_id = v.claim_id::uuid";

static const char gauge_template[] =
    "SELECT (@event_type)::text, count(*),"
    "       greatest(0, extract(epoch FROM now() - min(e.@created_at)) * 1000)::bigint"
    " FROM @table e WHERE @live GROUP BY 1";

static const char pending_template[] = "EXISTS (SELECT FROM @table e WHERE @live)::int";

/* $1 age in ms, $2 rows at most. Skips rows that another process is deleting. */
static const char cleanup_template[] =
    "DELETE FROM @table e WHERE e.ctid = ANY (ARRAY("
    "    SELECT e.ctid FROM @table e WHERE @is_published AND e.@published_at < now() - $1 * interval '1 ms'"
    "    ORDER BY e.@published_at LIMIT $2 FOR UPDATE SKIP LOCKED))";

/* ---- pieces: what @name stands for ---- */

#define MEMBER(name) offsetof(struct outbox_table, name)

/* Texts of the descriptor, taken as they stand. */
static const struct {
    const char *name;
    size_t member;
} descriptor_texts[] = {
    {"table", MEMBER(name)},
    {"id", MEMBER(id.name)},
    {"id_type", MEMBER(id.type)},
    {"sequence", MEMBER(sequence)},
    {"turn", MEMBER(turn)},
    {"turn_end", MEMBER(turn_end)},
    {"first", MEMBER(aggregate[0].name)},
    {"size", MEMBER(size)},
    {"event_type", MEMBER(event_type)},
    {"tenant", MEMBER(tenant)},
    {"payload_value", MEMBER(payload)},
    {"status", MEMBER(words.column)},
    {"pending", MEMBER(words.pending)},
    {"in_flight", MEMBER(words.in_flight)},
    {"published_word", MEMBER(words.published)},
    {"failed_word", MEMBER(words.failed)},
    {"published", MEMBER(published)},
    {"failed_at", MEMBER(failed_at)},
    {"published_at", MEMBER(published_at)},
    {"created_at", MEMBER(created_at)},
    {"attempts", MEMBER(attempts)},
    {"claims", MEMBER(claims)},
    {"outages", MEMBER(outages)},
    {"claim_id", MEMBER(claim_id)},
    {"locked_by", MEMBER(locked_by)},
    {"locked_at", MEMBER(locked_at)},
    {"locked_until", MEMBER(locked_until)},
    {"next_attempt_at", MEMBER(next_attempt_at)},
    {"last_error", MEMBER(last_error)},
};

/* For each column of the aggregate, comma-separated unless it has one itself: % is its name, # its place, $ its parameter. */
static const struct {
    const char *name, *format;
} lists[] = {
    {"aggregate", "e.%"},
    {"aggregate_as", "e.% AS a#"},
    {"aggregate_text", "e.%::text AS a#,"},
    {"walked", "w.a#"},
    {"names", "q.a#"},
    {"cursor", "w.a#::text AS c#"},
    {"parameters", "$"},
    {"backwards", "w.a# DESC"},
    {"claimed", "c.a# COLLATE \"C\""},
};

/* A table without outages shows one only by its error and the next try. */
static const struct {
    const char *name;
    size_t needs; /* a member of the descriptor; where that is NULL the second text is used */
    const char *text, *otherwise;
} pieces[] = {
    {"number", MEMBER(sequence), "e.@sequence", "NULL::bigint"},
    {"order", MEMBER(sequence), "e.@sequence", "e.@created_at, e.@id"},
    {"about", MEMBER(aggregate[0].name), "concat_ws('/', @aggregate)", "e.@id::text"},
    {"due_at", MEMBER(name), "coalesce(greatest(e.@next_attempt_at, e.@locked_until), e.@created_at)", ""},
    {"leased", MEMBER(name), "e.@locked_until > now()", ""},
    {"due", MEMBER(name),
     "(e.@locked_until IS NULL OR e.@locked_until <= now())"
     " AND (e.@next_attempt_at IS NULL OR e.@next_attempt_at <= now())",
     ""},
    /* With two claims of workers that died an event is claimed alone. */
    {"suspect", MEMBER(name), "e.@claims - e.@attempts >= 2", ""},
    /* Of an aggregate: what its tenant's rows begin with, and what is greater than all of them. */
    {"tenant_begin", MEMBER(turn_end), "split_part(w.a1, '@turn_end', 1) || '@turn_end'", "w.a1"},
    {"tenant_end", MEMBER(turn_end), "split_part(w.a1, '@turn_end', 1) || chr(ascii('@turn_end') + 1)",
     "w.a1"},
    {"any_live", MEMBER(name), "(SELECT 1 FROM @table e WHERE @live AND e.@first", ""},
    {"other_tenants", MEMBER(turn),
     "2 * coalesce(@any_live < @tenant_begin ORDER BY @aggregate, e.@sequence LIMIT 1), 0)"
     " + 4 * coalesce(@any_live > @tenant_end ORDER BY @aggregate, e.@sequence LIMIT 1), 0)",
     "0"},
    {"unlock", MEMBER(locked_at),
     "@claim_id = NULL, @locked_by = NULL, @locked_until = NULL, @locked_at = NULL",
     "@claim_id = NULL, @locked_by = NULL, @locked_until = NULL"},
    {"locked_now", MEMBER(locked_at), "@locked_at = now(),", ""},
    {"error", MEMBER(last_error), "e.@last_error", "NULL"},
    {"has_error", MEMBER(last_error), "e.@last_error IS NOT NULL", "false"},
    {"set_error", MEMBER(last_error),
     "@last_error = CASE v.result WHEN 'done' THEN NULL WHEN 'released' THEN e.@last_error ELSE v.reason END,",
     ""},
    {"no_error", MEMBER(last_error), "@last_error = NULL,", ""},
    {"failures", MEMBER(outages), "'retry', 'dead', 'outage'", "'retry', 'dead'"},
    {"not_claimed", MEMBER(outages), "'released'", "'released', 'outage'"},
    {"less_outages", MEMBER(outages), " - coalesce(e.@outages, 0)", ""},
    {"no_outages", MEMBER(outages), "@outages = NULL,", ""},
    {"set_outages", MEMBER(outages),
     "@outages = CASE v.result WHEN 'outage' THEN coalesce(e.@outages, 0) + 1 ELSE e.@outages END,", ""},
    {"is_of_tenant", MEMBER(tenant), "@tenant = $9::text", "$9::text IS NULL"},
    {"tenant_or_null", MEMBER(tenant), "@tenant", "NULL::text"},
    {"state", MEMBER(name),
     "CASE WHEN @is_published THEN 'published' WHEN @is_failed THEN 'failed' WHEN @leased THEN 'in_flight'"
     " ELSE 'pending' END",
     ""},
    /* The state of a row, and its changes: by words, or by flags. */
    {"live", MEMBER(words.column), "e.@status IN ('@pending', '@in_flight')",
     "NOT e.@published AND e.@failed_at IS NULL"},
    {"is_published", MEMBER(words.column), "e.@status = '@published_word'", "e.@published"},
    {"is_failed", MEMBER(words.column), "e.@status = '@failed_word'",
     "e.@failed_at IS NOT NULL AND NOT e.@published"},
    {"is_discarded", MEMBER(words.column), "@has_error", "e.@failed_at IS NOT NULL"},
    {"set_claimed", MEMBER(words.column), "@status = '@in_flight',", ""},
    {"set_pending", MEMBER(words.column), "@status = '@pending',", ""},
    {"set_alive", MEMBER(words.column), "@status = '@pending', @published_at = NULL,",
     "@published = false, @published_at = NULL, @failed_at = NULL,"},
    {"set_discarded", MEMBER(words.column), "@status = '@published_word', @published_at = now(),",
     "@published = true, @published_at = now(),"},
    {"set_settled", MEMBER(words.column),
     "@status = CASE v.result WHEN 'done' THEN '@published_word' WHEN 'dead' THEN '@failed_word'"
     " ELSE '@pending' END, @published_at = CASE v.result WHEN 'done' THEN now() END,",
     "@published = v.result = 'done', @published_at = CASE v.result WHEN 'done' THEN now() END,"
     " @failed_at = CASE v.result WHEN 'dead' THEN now() END,"},
};

static const char *member_of(const struct outbox_table *table, size_t member)
{
    return *(const char *const *)((const char *)table + member);
}

static void put_list(struct buf *out, const struct outbox_table *table, const char *format)
{
    for (int i = 0; table->aggregate[i].name; i++) {
        if (i && format[strlen(format) - 1] != ',')
            buf_put_str(out, STR(", "));
        for (const char *c = format; *c; c++)
            if (*c == '#')
                buf_printf(out, "%d", i + 1);
            else if (*c == '$')
                buf_printf(out, "$%d::%s", OUTBOX_CLAIM_PARAMS + i + 1, table->aggregate[i].type);
            else if (*c == '%')
                buf_put_str(out, str_from(table->aggregate[i].name));
            else
                buf_put_char(out, *c);
    }
}

static void expand(struct buf *out, const struct outbox_table *table, const char *template);

/* An unknown name is a mistake in a template, which the tests of every statement find. */
static void put_piece(struct buf *out, const struct outbox_table *table, struct str name)
{
    for (size_t i = 0; i < sizeof descriptor_texts / sizeof descriptor_texts[0]; i++)
        if (str_eq(name, str_from(descriptor_texts[i].name)))
            buf_put_str(out, str_from(member_of(table, descriptor_texts[i].member)));
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        if (str_eq(name, str_from(lists[i].name)))
            put_list(out, table, lists[i].format);
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++)
        if (str_eq(name, str_from(pieces[i].name)))
            expand(out, table, member_of(table, pieces[i].needs) ? pieces[i].text : pieces[i].otherwise);
    if (str_eq(name, STR("payload")))
        expand(out, table, table->payload_is_bytes ? "(@payload_value)" : "(@payload_value)::text");
    for (size_t i = 0; table->extra[i] && str_eq(name, STR("extra")); i++)
        buf_printf(out, ", (%s)::text AS x%zu", table->extra[i], i);
    for (size_t i = 0; table->logged[i].name && str_eq(name, STR("logged")); i++)
        buf_printf(out, ", (%s)::text", table->logged[i].value);
}

static void expand(struct buf *out, const struct outbox_table *table, const char *template)
{
    while (*template) {
        size_t len = strcspn(template, "@");
        buf_put(out, template, len);
        template += len;
        if (!*template)
            return;
        len = strspn(++template, "abcdefghijklmnopqrstuvwxyz_");
        put_piece(out, table, str_of(template, len));
        template += len;
    }
}

struct db_statement outbox_sql_expand(const struct outbox_table *table, const char *template,
                                      struct arena *arena)
{
    struct buf text = {0};
    expand(&text, table, template);
    struct db_statement statement = db_statement_of(arena_str(arena, buf_str(&text)));
    buf_deinit(&text);
    return statement;
}

void outbox_sql_init(struct outbox_sql *sql, const struct outbox_table *table, struct arena *arena)
{
    sql->settle = outbox_sql_expand(table, settle_template, arena);
    sql->settle_done = outbox_sql_expand(table, settle_done_template, arena);
    sql->release = outbox_sql_expand(table, release_template, arena);
    sql->renew = outbox_sql_expand(table, renew_template, arena);
    sql->gauge = outbox_sql_expand(table, gauge_template, arena);
    sql->pending = outbox_sql_expand(table, pending_template, arena);
    sql->cleanup = outbox_sql_expand(table, cleanup_template, arena);
    const char *unordered = table->turn ? turns_template : delivery_template;
    for (int from = OUTBOX_FROM_START; from < OUTBOX_PLACES; from++) {
        if (!table->sequence && from != OUTBOX_FROM_START)
            continue;
        sql->claims[from] =
            outbox_sql_expand(table, table->sequence ? claim_templates[from] : unordered, arena);
        sql->claims[from].binary_results = table->payload_is_bytes;
    }
}

unsigned outbox_aggregate_columns(const struct outbox_table *table)
{
    unsigned count = 0;
    while (table->aggregate[count].name)
        count++;
    return count;
}
