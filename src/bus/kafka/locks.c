/* Which partitions a reader has, where the members of its group share a database: a partition belongs to the session of
 * PostgreSQL that holds its advisory lock. A process that dies loses its sessions at once, and the others find its partitions
 * free at their next reading, without waiting for a session timeout of Kafka (ADR 15).
 *
 * All members also hold one shared lock, by which they are counted. A reading lists both kinds of locks. From it each member derives
 * its share of the partitions, takes free ones up to it, and returns those beyond it: when the handler has ended and the offset is
 * committed, it unlocks them.
 *
 * A frozen holder keeps its connection, so PostgreSQL ends a session that was idle for session_ms (since version 14). By its own
 * clock a holder begins neither a batch nor a commit when its last reading is older than 4/5 of that. So it handles at most the
 * batch that it had begun, whose effect the database recognises by the event ids. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/kafka/inside.h"

enum {
    MEMBER = INT32_MAX, /* the lock that all members share; the others are numbers of partitions */
    LOOK_MIN_MS = 50,   /* between two readings after a change; doubles without one */
    LOOK_MAX_MS = 500,
    RETURN_COMMIT_MS = 2000, /* for the last commit before a partition is returned */
};

static const struct db_statement join_sql = DB_STATEMENT(
    "SELECT pg_advisory_unlock_all(), pg_try_advisory_lock_shared($1, $2),"
    " (SELECT set_config(name, $3, false) FROM pg_settings WHERE name = 'idle_session_timeout')");
static const struct db_statement locks_sql = DB_STATEMENT(
    "SELECT objid::bigint, sign(pid - pg_backend_pid()), count(*) OVER (PARTITION BY pid) - 1 FROM pg_locks"
    " WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND classid = $1::bigint::oid"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())");
static const struct db_statement take_sql =
    DB_STATEMENT("SELECT n, pg_try_advisory_lock($1, n)::int FROM unnest($2::int[]) AS n");
static const struct db_statement return_sql =
    DB_STATEMENT("SELECT pg_advisory_unlock($1, n) FROM unnest($2::int[]) AS n");
static const struct db_statement leave_sql = DB_STATEMENT("SELECT pg_advisory_unlock_all()");

/* What a reading has found. Partitions that cannot be shared out evenly give some members one more than the others. */
struct kafka_view {
    unsigned members;
    unsigned ahead,
        before;    /* other members that have one more; of them, those whose session has a lower number */
    bool *is_held; /* by partition */
};

static int64_t session_ms(const struct kafka_reader *reader)
{
    return reader->kafka->config.session_ms;
}

static int64_t statement_deadline(const struct kafka_reader *reader)
{
    return clock_deadline_ms(session_ms(reader) / 2);
}

/* The first half of the keys of its locks: of the topic and the group. */
static int lock_space(const struct kafka_reader *reader)
{
    char name[160];

    snprintf(name, sizeof name, "freshet/kafka/%s/%s", reader->consumer.spec.topic,
             reader->consumer.spec.group);
    return (int)(bus_murmur2(str_from(name)) & INT32_MAX);
}

/* ---- the session ---- */

static bool locks_join(struct kafka_reader *reader)
{
    char timeout[24];
    struct error error = {0};
    struct db_result *rows = NULL;
    struct db_conn *session = NULL;
    int64_t asked_ns = clock_mono_ns(), deadline_ns = statement_deadline(reader);

    snprintf(timeout, sizeof timeout, "%lld", (long long)session_ms(reader));
    if (db_acquire(reader->kafka->lock_pool, deadline_ns, &session, &error) != STATUS_OK ||
        db_query(session, &join_sql, DB_PARAMS(db_int(lock_space(reader)), db_int(MEMBER), db_cstr(timeout)),
                 deadline_ns, &rows, &error) != STATUS_OK) {
        if (clock_mono_ns() >= reader->log_at_ns && error.status != STATUS_CANCELLED) {
            reader->log_at_ns = clock_deadline_ms(KAFKA_LOG_MS);
            log_warn("kafka_locks_wait", LOG_CSTR("group", reader->consumer.spec.group),
                     LOG_ERROR_FIELDS(&error));
        }
        db_release(session);
        return false;
    }
    db_result_free(rows);
    reader->session = session;
    atomic_store(&reader->held_until_ns, asked_ns + session_ms(reader) * CLOCK_NS_PER_MS * 4 / 5);
    return true;
}

void bus_kafka_locks_leave(struct kafka_reader *reader)
{
    struct db_conn *session = reader->session;

    if (!session)
        return;
    reader->session = NULL;
    atomic_store(&reader->held_until_ns, 0);
    /* The connection goes back to the pool, where it would keep the locks until PostgreSQL ends the session. */
    if (db_exec(session, &leave_sql, DB_NO_PARAMS, statement_deadline(reader), NULL, NULL) != STATUS_OK)
        log_debug("kafka_locks_lost", LOG_CSTR("group", reader->consumer.spec.group));
    db_release(session);
}

/* ---- reading the locks ---- */

static bool locks_read(struct kafka_reader *reader, struct kafka_view *view)
{
    struct db_result *rows = NULL;
    int64_t asked_ns = clock_mono_ns();

    FAILPOINT("kafka.before_look");
    if (db_query(reader->session, &locks_sql, DB_PARAMS(db_int(lock_space(reader))),
                 statement_deadline(reader), &rows, NULL) != STATUS_OK)
        return false;
    for (size_t i = 0; i < db_result_rows(rows); i++) {
        int64_t number = db_result_i64(rows, i, 0);
        view->members += number == MEMBER;
        if (number < reader->topic_partitions)
            view->is_held[number] = true;
    }
    for (size_t i = 0; i < db_result_rows(rows); i++) {
        int64_t side = db_result_i64(rows, i, 1), has = db_result_i64(rows, i, 2);
        bool is_ahead = db_result_i64(rows, i, 0) == MEMBER && has > reader->topic_partitions / view->members;
        view->ahead += is_ahead && side != 0;
        view->before += is_ahead && side < 0;
    }
    db_result_free(rows);
    atomic_store(&reader->held_until_ns, asked_ns + session_ms(reader) * CLOCK_NS_PER_MS * 4 / 5);
    return true;
}

/* ---- shares ---- */

/* Takes those partitions of the array whose locks are free. */
static bool take_locks(struct kafka_reader *reader, struct buf *numbers, unsigned *taken)
{
    struct db_result *rows = NULL;

    if (db_query(reader->session, &take_sql,
                 DB_PARAMS(db_int(lock_space(reader)), db_text_array(db_array_end(numbers))),
                 statement_deadline(reader), &rows, NULL) != STATUS_OK)
        return false;
    pthread_mutex_lock(&reader->lock);
    for (size_t i = 0; i < db_result_rows(rows); i++) {
        if (!db_result_i64(rows, i, 1))
            continue;
        bus_kafka_partition_own(bus_kafka_partition_get(reader, (unsigned)db_result_i64(rows, i, 0)));
        (*taken)++;
    }
    pthread_mutex_unlock(&reader->lock);
    db_result_free(rows);
    return true;
}

/* Marks the partitions beyond the share. Returns how many more the member may take. */
static unsigned mark_surplus(struct kafka_reader *reader, const struct kafka_view *view)
{
    unsigned members = view->members ? view->members : 1, owned = 0, kept = 0;
    unsigned share = reader->topic_partitions / members, more = reader->topic_partitions % members;

    pthread_mutex_lock(&reader->lock);
    for (unsigned i = 0; i < reader->partition_count; i++)
        owned +=
            reader->partitions[i] && reader->partitions[i]->is_owned && !reader->partitions[i]->is_leaving;
    share += (owned > share ? view->before : view->ahead) < more;
    for (unsigned i = 0; i < reader->partition_count; i++) {
        struct kafka_partition *partition = reader->partitions[i];
        if (!partition || !partition->is_owned)
            continue;
        bool is_leaving = kept >= share;
        if (is_leaving && !partition->is_leaving)
            partition->leave_by_ns = 0;
        partition->is_leaving = is_leaving;
        kept += !is_leaving;
    }
    bus_kafka_partitions_dispatch(reader);
    pthread_mutex_unlock(&reader->lock);
    return share - kept;
}

static bool take_share(struct kafka_reader *reader, const struct kafka_view *view, unsigned *taken)
{
    unsigned count = reader->topic_partitions, wanted = mark_surplus(reader, view);
    struct buf numbers = {0};
    bool is_good = true, is_any = false;

    for (unsigned i = 0; i < count && wanted > 0; i++) {
        if (view->is_held[i])
            continue;
        db_array_put_i64(&numbers, i);
        is_any = true;
        wanted--;
    }
    if (is_any)
        is_good = take_locks(reader, &numbers, taken);
    buf_deinit(&numbers);
    return is_good;
}

/* Unlocks marked partitions whose handler has ended and whose offset is committed. */
static bool return_surplus(struct kafka_reader *reader)
{
    int64_t now_ns = clock_mono_ns();
    struct buf numbers = {0};
    bool is_good = true, is_any = false;

    pthread_mutex_lock(&reader->lock);
    for (unsigned i = 0; i < reader->partition_count; i++) {
        struct kafka_partition *partition = reader->partitions[i];
        if (!partition || !partition->is_owned || !partition->is_leaving || partition->is_busy)
            continue;
        if (partition->leave_by_ns == 0)
            partition->leave_by_ns = clock_deadline_ms(RETURN_COMMIT_MS);
        if (partition->position >= 0 && partition->committed != partition->position &&
            now_ns < partition->leave_by_ns)
            continue;
        bus_kafka_partition_give_up(partition);
        db_array_put_i64(&numbers, i);
        is_any = true;
    }
    pthread_mutex_unlock(&reader->lock);
    if (is_any) {
        bus_kafka_group_assign(reader);
        is_good = db_exec(reader->session, &return_sql,
                          DB_PARAMS(db_int(lock_space(reader)), db_text_array(db_array_end(&numbers))),
                          statement_deadline(reader), NULL, NULL) == STATUS_OK;
        reader->look_ms = LOOK_MIN_MS;
    }
    buf_deinit(&numbers);
    return is_good;
}

/* ---- keep ---- */

static bool locks_read_and_take(struct kafka_reader *reader)
{
    struct kafka_view view = {0};
    unsigned taken = 0;

    reader->topic_partitions = bus_kafka_topic_partitions(reader->kafka, reader->consumer.topic);
    view.is_held = memory_zalloc(reader->topic_partitions + 1);
    bool is_good = locks_read(reader, &view) && take_share(reader, &view, &taken);
    free(view.is_held);
    if (taken || view.members != reader->members)
        log_debug("kafka_partitions_taken", LOG_CSTR("topic", reader->consumer.spec.topic),
                  LOG_CSTR("group", reader->consumer.spec.group), LOG_INT("taken", taken),
                  LOG_INT("members", view.members));
    bool is_changed = taken > 0 || view.members != reader->members;
    reader->members = view.members;
    reader->look_ms = is_changed ? LOOK_MIN_MS : 2 * reader->look_ms;
    if (reader->look_ms > LOOK_MAX_MS)
        reader->look_ms = LOOK_MAX_MS;
    if (is_good && reader->topic_partitions > 0 && (taken > 0 || reader->state == READER_JOINING)) {
        bus_kafka_reader_move(reader, READER_ASSIGNED);
        reader->position_at_ns = 0;
    }
    return is_good;
}

/* A member that cannot reach Kafka must not keep partitions that others could read. */
void bus_kafka_locks_keep(struct kafka_reader *reader)
{
    int64_t now_ns = clock_mono_ns();
    bool is_good = true;

    if (kafka_is_ending(reader->kafka))
        return;
    if (atomic_load(&reader->kafka->bus.is_up))
        reader->up_ns = now_ns;
    bool is_cut_off = now_ns - reader->up_ns > session_ms(reader) * CLOCK_NS_PER_MS;
    if (reader->session && !is_cut_off)
        is_good = return_surplus(reader);
    if (is_good && now_ns < reader->look_at_ns)
        return;
    if (is_good && !is_cut_off)
        is_good = (reader->session || locks_join(reader)) && locks_read_and_take(reader);
    reader->look_at_ns = clock_deadline_ms(is_good ? reader->look_ms : LOOK_MAX_MS / 2);
    if (!reader->session || (is_good && !is_cut_off) || kafka_is_ending(reader->kafka))
        return;
    /* Another process has the locks, or may have them: handlers that still run must not change anything any more. */
    atomic_store(&reader->held_until_ns, 0);
    bus_kafka_group_leave(reader, true);
    bus_kafka_group_assign(reader);
    bus_kafka_locks_leave(reader);
}
