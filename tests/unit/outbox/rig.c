/* Tables, stations and the journal. */
#include "rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../db/pg_fixture.h"
#include "base/memory.h"

/* As refdata.outbox_event. */
const struct outbox_table rig_flags = {
    .module = "flags",
    .name = "public.flag_outbox",
    .id = {"id", "bigint"},
    .aggregate = {{"tenant_id", "text"}, {"dict_code", "text"}},
    .tenant = "e.tenant_id",
    .sequence = "id",
    .turn = "tenant_id",
    .event_type = "'changed'",
    .payload = "e.payload",
    .size = "pg_column_size(e.payload)",
    .extra = {"e.traceparent"},
    .published = "published",
    .failed_at = "failed_at",
    .published_at = "published_at",
    .created_at = "created_at",
    .attempts = "attempt_count",
    .outages = "outage_count",
    .claims = "claim_count",
    .claim_id = "claim_id",
    .locked_by = "locked_by",
    .locked_until = "locked_until",
    .next_attempt_at = "next_attempt_at",
    .last_error = "last_error",
};

/* As seeds 003 and 004 have theirs. */
const struct outbox_table rig_words = {
    .module = "words",
    .name = "public.word_outbox",
    .id = {"event_id", "uuid"},
    .aggregate = {{"session_id", "uuid"}},
    .sequence = "sequence",
    .event_type = "e.event_type",
    .payload = "e.payload",
    .size = "pg_column_size(e.payload)",
    .words = {"status", "PENDING", "IN_FLIGHT", "PUBLISHED", "FAILED"},
    .published_at = "published_at",
    .created_at = "created_at",
    .attempts = "retry_count",
    .outages = "outage_count",
    .claims = "claim_count",
    .claim_id = "claim_id",
    .locked_by = "locked_by",
    .locked_at = "locked_at",
    .locked_until = "lease_until",
    .next_attempt_at = "next_retry_at",
    .last_error = NULL,
};

/* As entitlement.outbox_events: the aggregate begins with the tenant. */
static const struct outbox_table rig_keys = {
    .module = "keys",
    .name = "public.key_outbox",
    .id = {"event_id", "uuid"},
    .aggregate = {{"aggregate_key", "text"}},
    .sequence = "sequence",
    .turn = "aggregate_key",
    .turn_end = "/",
    .event_type = "e.event_type",
    .payload = "e.payload",
    .size = "pg_column_size(e.payload)",
    .words = {"status", "PENDING", "IN_FLIGHT", "PUBLISHED", "FAILED"},
    .published_at = "published_at",
    .attempts = "retry_count",
    .outages = "outage_count",
    OUTBOX_LEASE_COLUMNS,
};

/* As notification.notification_nats_dlq: nothing waits for anything. The payload is bytes. */
#define DELIVERY_COLUMNS                                                                             \
    .id = {"delivery_id", "uuid"}, .aggregate = {{"user_id", "text"}}, .event_type = "e.event_type", \
    .payload = "e.payload", .payload_is_bytes = true, .size = "octet_length(e.payload)",             \
    .published_at = "sent_at", .words = {"status", "PENDING", "PROCESSING", "SENT", "FAILED"},       \
    .attempts = "attempt_count", OUTBOX_LEASE_COLUMNS
const struct outbox_table rig_deliveries = {
    .module = "deliveries", .name = "public.delivery", DELIVERY_COLUMNS};
/* As notification.notifications. */
const struct outbox_table rig_turns = {
    .module = "turns", .name = "public.turn_delivery", .turn = "user_id", DELIVERY_COLUMNS};

const struct rig_form rig_forms[RIG_FORMS] = {
    {&rig_flags, "flags", "NOT published AND failed_at IS NULL", "published",
     "failed_at IS NOT NULL AND NOT published"},
    {&rig_words, "words", "status IN ('PENDING', 'IN_FLIGHT')", "status = 'PUBLISHED'", "status = 'FAILED'"},
    {&rig_deliveries, "deliveries", "status IN ('PENDING', 'PROCESSING')", "status = 'SENT'",
     "status = 'FAILED'"},
    {&rig_turns, "turns", "status IN ('PENDING', 'PROCESSING')", "status = 'SENT'", "status = 'FAILED'"},
};

const struct rig_form rig_keys_form = {&rig_keys, "keys", "status IN ('PENDING', 'IN_FLIGHT')",
                                       "status = 'PUBLISHED'", "status = 'FAILED'"};

static const char *const ddl[] = {
    "CREATE TABLE public.flag_outbox (id bigserial PRIMARY KEY, tenant_id text NOT NULL, dict_code text NOT NULL,"
    " payload jsonb NOT NULL, traceparent text, created_at timestamptz NOT NULL DEFAULT clock_timestamp(),"
    " published boolean NOT NULL DEFAULT false, published_at timestamptz, failed_at timestamptz,"
    " attempt_count int NOT NULL DEFAULT 0, outage_count int, claim_count int NOT NULL DEFAULT 0, claim_id uuid,"
    " locked_by text, locked_until timestamptz, next_attempt_at timestamptz, last_error text) WITH (fillfactor = 70)",
    "CREATE INDEX ON public.flag_outbox (tenant_id, dict_code, id) WHERE NOT published AND failed_at IS NULL",
    "CREATE INDEX ON public.flag_outbox (published_at) WHERE published",
    "CREATE TABLE public.word_outbox (event_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),"
    " sequence bigserial NOT NULL, session_id uuid NOT NULL, event_type varchar(100) NOT NULL,"
    " payload jsonb NOT NULL, status varchar(20) NOT NULL DEFAULT 'PENDING', retry_count int NOT NULL DEFAULT 0,"
    " outage_count int, claim_count int NOT NULL DEFAULT 0, claim_id uuid, locked_by text, locked_at timestamptz,"
    " lease_until timestamptz, next_retry_at timestamptz,"
    " created_at timestamptz NOT NULL DEFAULT clock_timestamp(), published_at timestamptz)",
    "CREATE INDEX ON public.word_outbox (session_id, sequence) WHERE status IN ('PENDING', 'IN_FLIGHT')",
    "CREATE TABLE public.key_outbox (LIKE public.word_outbox INCLUDING DEFAULTS, aggregate_key text NOT NULL"
    " COLLATE \"C\", last_error text, PRIMARY KEY (event_id))",
    "ALTER TABLE public.key_outbox DROP session_id",
    "CREATE INDEX ON public.key_outbox (aggregate_key, sequence) WHERE status IN ('PENDING', 'IN_FLIGHT')",
    "ALTER TABLE public.key_outbox ALTER payload SET STORAGE EXTERNAL",
    "ALTER TABLE public.flag_outbox ALTER payload SET STORAGE EXTERNAL",
    "ALTER TABLE public.word_outbox ALTER payload SET STORAGE EXTERNAL",
    "CREATE TABLE public.delivery (delivery_id uuid PRIMARY KEY DEFAULT gen_random_uuid(), user_id text NOT NULL,"
    " event_type text NOT NULL, payload bytea NOT NULL, status text NOT NULL DEFAULT 'PENDING',"
    " attempt_count int NOT NULL DEFAULT 0, claim_count int NOT NULL DEFAULT 0, claim_id uuid, locked_by text,"
    " locked_at timestamptz, lease_until timestamptz, next_retry_at timestamptz, last_error text,"
    " created_at timestamptz NOT NULL DEFAULT clock_timestamp(), sent_at timestamptz)",
    ("CREATE INDEX ON public.delivery ((coalesce(greatest(next_retry_at, lease_until), created_at)))"
     " WHERE status IN ('PENDING', 'PROCESSING')"),
    "CREATE TABLE public.turn_delivery (LIKE public.delivery INCLUDING DEFAULTS, PRIMARY KEY (delivery_id))",
    "ALTER TABLE public.turn_delivery ALTER user_id TYPE text COLLATE \"C\"",
    ("CREATE INDEX ON public.turn_delivery"
     " (user_id, (coalesce(greatest(next_retry_at, lease_until), created_at)))"
     " WHERE status IN ('PENDING', 'PROCESSING')"),
};

static struct db_pool *pool;

void rig_start(void)
{
    struct error error = {0};
    pg_fixture_start();
    struct db_target target = pg_fixture_target();
    target.connections_max = 4;
    if (db_pool_create(&target, &pool, &error) != STATUS_OK) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
    for (size_t i = 0; i < sizeof ddl / sizeof *ddl; i++)
        if (rig_sql("%s", ddl[i]) < 0)
            exit(1);
}

void rig_stop(void)
{
    db_pool_destroy(pool);
    pg_fixture_stop();
}

struct outbox_settings rig_settings(void)
{
    return (struct outbox_settings){.poll_ms = 3600000,
                                    .batch = 50,
                                    .lease_ms = 30000,
                                    .attempts_max = 10,
                                    .backoff_base_ms = 1,
                                    .backoff_max_ms = 20,
                                    .jitter_min = 500,
                                    .jitter_max = 1500,
                                    .keep_ms = 3600000,
                                    .cleanup_ms = 3600000};
}

struct db_conn *rig_conn(void)
{
    struct db_conn *conn;
    if (db_acquire(pool, clock_deadline_ms(PATIENCE_MS), &conn, NULL) != STATUS_OK)
        return NULL;
    return conn;
}

int64_t rig_sql(const char *format, ...)
{
    struct db_statement statement;
    struct db_result *result = NULL;
    struct error error = {0};
    struct db_conn *conn = rig_conn();
    char text[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    statement = db_statement_of(str_from(text));
    int64_t value = -1;
    if (conn &&
        db_query(conn, &statement, NULL, clock_deadline_ms(PATIENCE_MS), &result, &error) == STATUS_OK)
        value = db_result_rows(result) ? db_result_i64(result, 0, 0) : 0;
    else
        fprintf(stderr, "%s: %s\n", text, error.message);
    db_result_free(result);
    db_release(conn);
    return value;
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

bool rig_await(int64_t value, const char *sql)
{
    int64_t deadline_ns = clock_deadline_ms(PATIENCE_MS);
    while (rig_sql("%s", sql) != value) {
        if (clock_mono_ns() > deadline_ns)
            return false;
        nap();
    }
    return true;
}

void rig_insert(const struct outbox_table *table, int aggregate, int first, int last)
{
    rig_insert_of(table, 0, aggregate, first, last);
}

void rig_insert_of(const struct outbox_table *table, int tenant, int aggregate, int first, int last)
{
    char name[16] = "t";
    if (tenant > 0)
        snprintf(name, sizeof name, "t%d", tenant);
    if (table == &rig_flags)
        rig_sql("INSERT INTO public.flag_outbox (tenant_id, dict_code, payload)"
                " SELECT '%s', 'D%03d', jsonb_build_object('a', %d, 'n', n) FROM generate_series(%d, %d) n",
                name, aggregate, aggregate, first, last);
    else if (table == &rig_keys)
        rig_sql(
            "INSERT INTO public.key_outbox (aggregate_key, event_type, payload)"
            " SELECT '%s/D%03d', 'granted', jsonb_build_object('a', %d, 'n', n) FROM generate_series(%d, %d) n",
            name, aggregate, aggregate, first, last);
    else if (!table->sequence)
        rig_sql("INSERT INTO %s (user_id, event_type, payload)"
                " SELECT 'u%d', 'sent', convert_to(format('{\"a\": %%s, \"n\": %%s}', %d, n), 'UTF8')"
                " FROM generate_series(%d, %d) n",
                table->name, aggregate, aggregate, first, last);
    else
        rig_sql("INSERT INTO public.word_outbox (session_id, event_type, payload)"
                " SELECT md5('%d')::uuid, 'type-' || %d %% 3, jsonb_build_object('a', %d, 'n', n)"
                " FROM generate_series(%d, %d) n",
                aggregate, aggregate, aggregate, first, last);
}

void rig_clear(void)
{
    rig_sql(
        "TRUNCATE public.flag_outbox, public.word_outbox, public.key_outbox, public.delivery, public.turn_delivery");
}

static const char *form_word(const struct rig_form *form, const char *name, size_t len)
{
    const struct outbox_table *table = form->table;
    const struct {
        const char *name, *text;
    } words[] = {
        {"table", table->name},
        {"live", form->live},
        {"published", form->published},
        {"failed", form->failed},
        {"attempts", table->attempts},
        {"leased", table->locked_until},
        {"retry", table->next_attempt_at},
        {"a", table->payload_is_bytes ? "(convert_from(payload, 'UTF8')::jsonb->>'a')::int"
                                      : "(payload->>'a')::int"},
        {"n", table->payload_is_bytes ? "(convert_from(payload, 'UTF8')::jsonb->>'n')::int"
                                      : "(payload->>'n')::int"},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i].name) == len && memcmp(words[i].name, name, len) == 0)
            return words[i].text;
    return "?";
}

int64_t rig_form_sql(const struct rig_form *form, const char *sql)
{
    struct buf text = {0};
    for (const char *c = sql; *c; c++) {
        size_t len = *c == '@' ? strspn(c + 1, "abcdefghijklmnopqrstuvwxyz") : 0;
        if (len > 0)
            buf_put_str(&text, str_from(form_word(form, c + 1, len)));
        else
            buf_put_char(&text, *c);
        c += len;
    }
    buf_put_char(&text, '\0');
    int64_t value = rig_sql("%s", buf_str(&text).ptr);
    buf_deinit(&text);
    return value;
}

int64_t rig_count(const struct rig_form *form, const char *where)
{
    char text[1024];
    snprintf(text, sizeof text, "SELECT count(*) FROM @table WHERE %s", where);
    return rig_form_sql(form, text);
}

bool rig_await_live(const struct rig_form *form, int64_t count)
{
    int64_t deadline_ns = clock_deadline_ms(PATIENCE_MS);
    while (rig_count(form, "@live") != count) {
        if (clock_mono_ns() > deadline_ns)
            return false;
        nap();
    }
    return true;
}

/* ---- journal ---- */

void journal_init(struct journal *journal)
{
    *journal = (struct journal){0};
    pthread_mutex_init(&journal->lock, NULL);
    pthread_cond_init(&journal->changed, NULL);
}

void journal_deinit(struct journal *journal)
{
    free(journal->items);
    pthread_cond_destroy(&journal->changed);
    pthread_mutex_destroy(&journal->lock);
}

static bool await(struct journal *journal, const size_t *count, size_t wanted, const int *step,
                  int step_wanted)
{
    int64_t deadline_ns = clock_deadline_ms(PATIENCE_MS);
    bool in_time = true;
    pthread_mutex_lock(&journal->lock);
    while ((count ? *count < wanted : *step < step_wanted) && in_time)
        in_time = clock_cond_wait(&journal->changed, &journal->lock, deadline_ns);
    pthread_mutex_unlock(&journal->lock);
    return in_time;
}

bool journal_await(struct journal *journal, size_t count)
{
    return await(journal, &journal->count, count, NULL, 0);
}

bool journal_await_step(struct journal *journal, int step)
{
    return await(journal, NULL, 0, &journal->step, step);
}

void journal_step(struct journal *journal, int step)
{
    pthread_mutex_lock(&journal->lock);
    journal->step = step;
    pthread_cond_broadcast(&journal->changed);
    pthread_mutex_unlock(&journal->lock);
}

size_t journal_times(struct journal *journal, int aggregate, int number, enum outbox_result_kind kind)
{
    size_t times = 0;
    pthread_mutex_lock(&journal->lock);
    for (size_t i = 0; i < journal->count; i++) {
        const struct publication *item = &journal->items[i];
        times += item->aggregate == aggregate && item->number == number && item->kind == kind;
    }
    pthread_mutex_unlock(&journal->lock);
    return times;
}

static void add(struct journal *journal, struct publication publication)
{
    pthread_mutex_lock(&journal->lock);
    if (journal->count == journal->capacity) {
        journal->capacity = journal->capacity ? 2 * journal->capacity : 256;
        journal->items = memory_realloc_array(journal->items, journal->capacity, sizeof journal->items[0]);
    }
    journal->items[journal->count++] = publication;
    pthread_cond_broadcast(&journal->changed);
    pthread_mutex_unlock(&journal->lock);
}

static void publish(void *context, struct outbox_batch *batch)
{
    struct journal *journal = context;
    batch->is_relaxed = journal->is_relaxed;
    for (size_t i = 0; i < batch->count; i++) {
        const struct outbox_event *event = &batch->events[i];
        struct publication item = {.kind = OUTBOX_DONE, .batch_count = batch->count};
        if (outbox_batch_is_held(batch, i))
            continue;
        if (sscanf(event->payload.ptr, "{\"a\": %d, \"n\": %d}", &item.aggregate, &item.number) != 2)
            item.kind = OUTBOX_POISON;
        else if (journal->judge)
            item.kind = journal->judge(journal, event, item.aggregate, item.number);
        if (item.kind == OUTBOX_RETRY)
            outbox_batch_set(batch, i, OUTBOX_RETRY, "attempt %lld of %d", (long long)event->attempts + 1,
                             item.number);
        else if (item.kind == OUTBOX_RELEASE)
            outbox_batch_set(batch, i, OUTBOX_RELEASE, "not tried");
        else if (item.kind == OUTBOX_OUTAGE)
            outbox_batch_set(batch, i, OUTBOX_OUTAGE, "the engine does not answer");
        else if (item.kind == OUTBOX_POISON)
            outbox_batch_set(batch, i, OUTBOX_POISON, "nothing of ours");
        add(journal, item);
    }
}

/* ---- stations ---- */

static void *run_loop(void *arg)
{
    loop_run(arg);
    return NULL;
}

void station_open(struct station *station, struct journal *journal, const struct outbox_table *table,
                  const struct outbox_settings *settings)
{
    struct db_target target = pg_fixture_target();
    struct error error = {0};
    station->loop = loop_create(0, 0);
    station->workers = worker_pool_create("outbox", 3, 64);
    if (outbox_create(&(struct outbox_config){.table = table,
                                              .settings = settings,
                                              .loop = station->loop,
                                              .workers = station->workers,
                                              .target = &target,
                                              .context = journal,
                                              .publish = publish},
                      &station->engine, &error) != STATUS_OK)
        fail_msg("create: %s", error.message);
    station->notifier = db_notifier_create(station->loop, &target, OUTBOX_NOTICE_WINDOW_US);
    outbox_start(station->engine);
    pthread_create(&station->thread, NULL, run_loop, station->loop);
}

void station_close(struct station *station)
{
    outbox_stop(station->engine, PATIENCE_MS);
    worker_pool_stop(station->workers);
    loop_stop(station->loop);
    pthread_join(station->thread, NULL);
    outbox_destroy(station->engine);
    db_notifier_destroy(station->notifier);
    worker_pool_destroy(station->workers);
    loop_destroy(station->loop);
}
