/* The rows of `refdata:`. Keys and nesting are the specification's; what it does not name stands under `cache`. */
#include "modules/refdata/settings.h"

#include "modules/refdata/buses.h"

#define ROW(member) .offset = offsetof(struct refdata_settings, member)
#define PLACE(member) .place_offset = 1 + offsetof(struct refdata_settings, member)
#define CACHE_ROW(member) ROW(cache.member)
#define DICT_ROW(member) .offset = offsetof(struct refdata_dictionary_settings, member)
#define DICT_PLACE(member) .place_offset = 1 + offsetof(struct refdata_dictionary_settings, member)
#define TEMPLATE(yaml, member, text)                                                                       \
    {                                                                                                      \
        yaml, SETTING_STRING, DICT_ROW(member.sql), text, "", DICT_PLACE(member.place), .reloadable = true \
    }
#define HOUR_MS (3600 * 1000)
#define KEY_TEMPLATE "{tenantId}:{dictCode}"
#define MIB (INT64_C(1) << 20)
#define TIB (INT64_C(1) << 40)

enum { TOPIC_BYTES_MAX = 60, GROUP_BYTES_MAX = REFDATA_GROUP_BYTES - 1 };

static const char *const apply_modes[] = {"SQL_TEMPLATE", NULL};
static const char *const snapshot_strategies[] = {"FULL_REPLACE", NULL};
static const char *const reload_modes[] = {"AUTO", "FULL", "DELTA", NULL};
static const char *const tenant_sources[] = {"JWT_CLAIM", NULL};

static const struct setting_row apply_rows[] = {
    {"mode", SETTING_ENUM, DICT_ROW(apply_mode), "How updates are written.", "SQL_TEMPLATE",
     .choices = apply_modes, .reloadable = true},
    TEMPLATE("upsertSql", upsert,
             "Writes one item of a DELTA: :tenantId :key :payload :eventEpoch :eventVersion."),
    TEMPLATE("deleteSql", delete, "Deletes one item of a DELTA: :tenantId :key :eventEpoch :eventVersion."),
    {"snapshotStrategy", SETTING_ENUM, DICT_ROW(snapshot_strategy), "How a SNAPSHOT is written.",
     "FULL_REPLACE", .choices = snapshot_strategies, .reloadable = true},
    TEMPLATE(
        "snapshotReplaceSql", snapshot_replace,
        "Replaces everything by a snapshot: :tenantId :snapshotJson :snapshotId :eventEpoch :eventVersion."),
    TEMPLATE(
        "snapshotStageSql", snapshot_stage,
        "Stages one chunk of a snapshot: :tenantId :snapshotJson :snapshotId :chunkIndex :eventEpoch :eventVersion."),
    TEMPLATE("snapshotFinalizeSql", snapshot_finalize,
             "Replaces everything by the staged chunks: :tenantId :snapshotId :eventEpoch :eventVersion."),
    {.name = NULL},
};

static const struct setting_row dictionary_rows[] = {
    {"code", SETTING_STRING, DICT_ROW(code),
     "The dictionary's name in paths and events: [A-Za-z0-9._-]{1,64}.", NULL, 1, 64, DICT_PLACE(code_place),
     .reloadable = true},
    {"enabled", SETTING_BOOL, DICT_ROW(enabled), "false: as if it were not there.", "true",
     .reloadable = true},
    {"postgres", SETTING_STRING, DICT_ROW(postgres),
     "Name of the postgres block it lives in; empty = the first.", "", DICT_PLACE(postgres_place),
     .reloadable = true},
    TEMPLATE(
        "loadSql", load,
        "Loads everything of one tenant (:tenantId) as columns k and v (json or jsonb). Without it the dictionary lives "
        "in the built-in table refdata.dictionary_item."),
    TEMPLATE("loadKeysSql", load_keys, "Loads the items with the keys :keys of one tenant, as loadSql does."),
    TEMPLATE(
        "driftCheckSql", drift_check,
        "One bigint that moves whenever the data does (:tenantId). Diagnostic only: nothing is decided by it."),
    {"apply", SETTING_OBJECT, .help = "How updates are written; without it the dictionary is read-only.",
     .rows = apply_rows, .fallback = "", .reloadable = true},
    {"reloadOnEvent", SETTING_ENUM, DICT_ROW(reload),
     "What a pod loads when an update arrives: FULL, or DELTA (the changed keys; needs loadKeysSql or the built-in table). "
     "AUTO = DELTA where it can.",
     "AUTO", .choices = reload_modes, .reloadable = true},
    {"shared", SETTING_BOOL, DICT_ROW(shared),
     "true: loadSql and loadKeysSql need not use :tenantId, and every tenant may read what they load.",
     "false", DICT_PLACE(shared_place), .reloadable = true},
    {"readScope", SETTING_STRING, DICT_ROW(read_scope),
     "Scope that reading this dictionary needs, instead of refdata.security.readScope; \"\" = none.", "", 0,
     255, DICT_PLACE(read_scope_place), .reloadable = true},
    {"writeScope", SETTING_STRING, DICT_ROW(write_scope),
     "Scope that updating this dictionary needs, instead of refdata.security.writeScope; \"\" = none.", "", 0,
     255, DICT_PLACE(write_scope_place), .reloadable = true},
    {.name = NULL},
};

static const struct setting_row tenant_rows[] = {
    {"source", SETTING_ENUM, ROW(tenant_source), "Where a request's tenant comes from.", "JWT_CLAIM",
     .choices = tenant_sources},
    {"claim", SETTING_STRING, ROW(tenant_claim), "The token's claim that is the tenant.", "tenant_id", 1, 255,
     .reloadable = true},
    {"allowHeaderOverrideForTrustedClients", SETTING_BOOL, ROW(allow_tenant_header),
     "Whether mTLS clients named as trusted may choose the tenant by X-Tenant-Id.", "false",
     .reloadable = true},
    {.name = NULL},
};

static const struct setting_row security_rows[] = {
    {"tenant", SETTING_OBJECT, .help = "The tenant of a request.", .rows = tenant_rows, .fallback = ""},
    {"readScope", SETTING_STRING, ROW(read_scope),
     "Scope that a token needs to read a dictionary; empty = none. A dictionary may name another one.", "", 0,
     255, PLACE(read_scope_place), .reloadable = true},
    {"writeScope", SETTING_STRING, ROW(write_scope),
     "Scope that a token needs to update a dictionary, and to read the status of its updates; empty = none. A "
     "dictionary may name another one.",
     "", 0, 255, PLACE(write_scope_place), .reloadable = true},
    {.name = NULL},
};

static const struct setting_row consistency_rows[] = {
    {"waitCommitTimeoutMs", SETTING_INT, ROW(wait_commit_timeout_ms),
     "Longest wait of consistencyMode=WAIT_COMMIT.", "300", 50, 1000, .reloadable = true},
    {.name = NULL},
};

static const struct setting_row cache_rows[] = {
    {"preload", SETTING_STRING_LIST, CACHE_ROW(preload),
     "TENANT/DICTIONARY pairs loaded before the pod is ready; TENANT may be *, meaning every tenant that has a version. The "
     "rest is loaded on first read.",
     "", .place_offset = 1 + offsetof(struct refdata_settings, cache.preload_place), .reloadable = true},
    {"memory", SETTING_SIZE, CACHE_ROW(memory_bytes_max),
     "Budget for dictionaries in memory; past it those read longest ago go. 0 = none.", "0", 0, 64 * TIB,
     .reloadable = true},
    {"entries", SETTING_INT, CACHE_ROW(entries_max), "Most (tenant, dictionary) pairs held at once.",
     "100000", 1, 10000000, .reloadable = true},
    {"parallelReloads", SETTING_INT, CACHE_ROW(parallel_reloads),
     "Loads of one tenant that may run at once in this pod; a fifth more are for the other tenants.", "2", 1,
     64},
    {"sweepInterval", SETTING_DURATION_MS, CACHE_ROW(sweep_interval_ms),
     "How often every version held is compared with dictionary_meta.", "800ms", 10, HOUR_MS,
     .reloadable = true},
    {"loadTimeout", SETTING_DURATION_MS, CACHE_ROW(load_timeout_ms),
     "Time for one load of a whole dictionary.", "2m", 100, 24 * HOUR_MS, .reloadable = true},
    {"firstReadTimeout", SETTING_DURATION_MS, CACHE_ROW(first_read_timeout_ms),
     "How long a read waits for a dictionary that is not in memory yet; past it 503.", "5s", 10, HOUR_MS,
     .reloadable = true},
    {"driftCheckInterval", SETTING_DURATION_MS, CACHE_ROW(drift_check_interval_ms),
     "How often driftCheckSql is run for every pair held.", "1m", 100, 24 * HOUR_MS, .reloadable = true},
    {"retryMin", SETTING_DURATION_MS, CACHE_ROW(retry_min_ms),
     "First pause after a failed load; doubled each time.", "200ms", 10, HOUR_MS, .reloadable = true},
    {"retryMax", SETTING_DURATION_MS, CACHE_ROW(retry_max_ms), "Longest pause after failed loads.", "5s", 10,
     HOUR_MS, .reloadable = true},
    {"jitter", SETTING_DURATION_MS, CACHE_ROW(jitter_ms),
     "Preloads of a start, and several loads found by the sweep, begin at a random moment within this.",
     "50ms", 0, 10000, .reloadable = true},
    {"debounce", SETTING_DURATION_MS, CACHE_ROW(debounce_ms),
     "Full reloads of one pair start at least this far apart: the first change loads at once, those within the window "
     "share one more load. Reloads of changed keys alone (DELTA) and readers at the barrier do not wait for it.",
     "20ms", 0, 10000, .reloadable = true},
    {"digestCheckInterval", SETTING_DURATION_MS, CACHE_ROW(digest_check_ms),
     "How often a pair that is kept fresh by DELTA reloads is loaded in full and its digest compared. 0 = never.",
     "10m", 0, 24 * HOUR_MS, .reloadable = true},
    {.name = NULL},
};

#define UPDATE_ROW(member) ROW(updates.member)
static const struct setting_row update_rows[] = {
    {"items", SETTING_INT, UPDATE_ROW(limits.items_max), "Most items in one update or chunk; past it 413.",
     "10000", 1, 1000000, .reloadable = true},
    {"keyBytes", SETTING_SIZE, UPDATE_ROW(limits.key_bytes_max), "Longest key; past it 400.", "1024", 1, 1024,
     .reloadable = true},
    {"payloadBytes", SETTING_SIZE, UPDATE_ROW(limits.payload_bytes_max),
     "Largest payload of an item; past it 413.", "1MiB", 2, 256 * MIB, .reloadable = true},
    {"depth", SETTING_INT, UPDATE_ROW(limits.depth_max), "Deepest nesting of an update's JSON; past it 400.",
     "64", 4, 1024, .reloadable = true},
    {"queue", SETTING_INT, UPDATE_ROW(queue_max), "Updates that may wait for their commit; past it 503.",
     "20000", 1, 1000000},
    {"queueBytes", SETTING_SIZE, UPDATE_ROW(queue_bytes_max),
     "Bytes that the bodies of these updates may take together; past it 503. One update alone may be larger.",
     "64MiB", 1, INT64_C(64) << 30, .reloadable = true},
    {"commitTimeout", SETTING_DURATION_MS, UPDATE_ROW(commit_timeout_ms),
     "Time for an update to be committed; past it 503.", "5s", 10, HOUR_MS, .reloadable = true},
    {"batch", SETTING_INT, UPDATE_ROW(batch_max), "Most commands that apply puts into one transaction.",
     "200", 1, 10000},
    {"attempts", SETTING_INT, UPDATE_ROW(attempts_max),
     "Attempts for an update whose SQL exceeds its time limit, with growing pauses; 13 take about a minute and a half.",
     "13", 1, 100, .reloadable = true},
    {"snapshotExpiry", SETTING_DURATION_MS, UPDATE_ROW(snapshot_expire_ms),
     "A chunked snapshot that is not complete this long after its last chunk was accepted or applied fails with SNAPSHOT_INCOMPLETE.",
     "1h", 100, 30 * 24 * (int64_t)HOUR_MS, .reloadable = true},
    {"keep", SETTING_DURATION_MS, UPDATE_ROW(keep_ms),
     "How long the status and the eventId of a decided update are stored.", "30d", 1000,
     3650 * 24 * (int64_t)HOUR_MS, .reloadable = true},
    {"keyKeep", SETTING_DURATION_MS, UPDATE_ROW(key_keep_ms),
     "How long an Idempotency-Key of POST /updates is stored after its first use.", "1h", 1000,
     30 * 24 * (int64_t)HOUR_MS, .reloadable = true},
    {"auditAfter", SETTING_DURATION_MS, UPDATE_ROW(audit_ms),
     "An update that is not decided for this long is audited: if its command was lost, it is published again or fails with COMMAND_LOST.",
     "1m", 100, 24 * (int64_t)HOUR_MS, .reloadable = true},
    {.name = NULL},
};

#define WATCH_ROW(member) ROW(watch.member)
static const struct setting_row watch_rows[] = {
    {"heartbeat", SETTING_DURATION_MS, WATCH_ROW(heartbeat_ms),
     "How often a stream without changes sends a heartbeat.", "15s", 10, HOUR_MS, .reloadable = true},
    {"versions", SETTING_INT, WATCH_ROW(versions_max),
     "Versions that a watcher may have missed; a resume from further back gets 410.", "10000", 1, 10000000,
     .reloadable = true},
    {"buffer", SETTING_SIZE, WATCH_ROW(buffer_bytes_max),
     "Changes a slow watcher may have waiting; past it the connection is cut.", "8MiB", 1024, 1024 * MIB,
     .reloadable = true},
    {.name = NULL},
};

#define BARRIER_ROW(member) ROW(barrier.member)
static const struct setting_row barrier_rows[] = {
    {"waitMs", SETTING_INT, BARRIER_ROW(wait_ms),
     "How long a read with X-Min-Version waits for a reload before the primary is asked, in milliseconds.",
     "100", 0, 60000, .reloadable = true},
    {"timeout", SETTING_DURATION_MS, BARRIER_ROW(timeout_ms),
     "How long it then waits for the primary; past it 503.", "5s", 10, HOUR_MS, .reloadable = true},
    {"checksPerSecond", SETTING_INT, BARRIER_ROW(checks_per_second),
     "Most reads of a committed version from the primary, per tenant, dictionary and second; past it 503.",
     "100", 1, 100000, .reloadable = true},
    {"parallelReads", SETTING_INT, BARRIER_ROW(parallel_reads),
     "Reads from the primary that may run at once for one tenant; a fifth more are for the other tenants.",
     "4", 1, 64},
    {"queue", SETTING_INT, BARRIER_ROW(queue_max),
     "Reads that may wait for the primary; past it the tenant with most of them gets 503.", "1000", 1,
     100000},
    {.name = NULL},
};

static const struct setting_row kafka_rows[] = {
    {"commandsTopic", SETTING_STRING, ROW(kafka.commands_topic),
     "The topic's name; dead letters go to the topic of this name with .dlq appended.", REFDATA_COMMANDS,
     PLACE(kafka.topic_place)},
    {"keyTemplate", SETTING_STRING, ROW(kafka.key_template),
     "A message's key. There is only one that keeps the order of a dictionary's updates.", KEY_TEMPLATE,
     PLACE(kafka.template_place)},
    {"consumerGroup", SETTING_STRING, ROW(kafka.group),
     "Consumer group of the role apply; no other program may join it.", REFDATA_APPLY_GROUP,
     PLACE(kafka.group_place)},
    {"partitions", SETTING_INT, ROW(kafka.partitions),
     "Partitions of the topic: as many are worked on at once. 0 = it is created by others and has as many as it has.",
     "16", 0, 256},
    {"handlers", SETTING_INT, ROW(kafka.handlers),
     "Partitions with updates of one tenant, or of one dictionary, that this process handles at once, per database; each "
     "uses a connection. A fifth is added for the others.",
     "4", 1, 64},
    {"keep", SETTING_DURATION_MS, ROW(kafka.keep_ms),
     "How long a topic that is created here keeps its messages.", "7d", 60000, 365 * 24 * (int64_t)HOUR_MS},
    {.name = NULL},
};

static const struct setting_row redis_rows[] = {
    {"mode", SETTING_ENUM, ROW(redis.mode), "Instead of redis.mode, for this module.", "cluster",
     PLACE(redis.mode_place), .choices = kernel_redis_modes},
    {"nodes", SETTING_STRING_LIST, ROW(redis.nodes), "Instead of redis.nodes, for this module.", "", 0, 64,
     PLACE(redis.nodes_place)},
    {"pubChannel", SETTING_STRING, ROW(redis.channel), "Channel that every invalidation is published to.",
     "refdata:inv:pub", 1, 512},
    {"streamKey", SETTING_STRING, ROW(redis.stream), "Stream that stores the invalidations.",
     "refdata:inv:stream", 1, 512},
    {"consumerGroup", SETTING_STRING, ROW(redis.group),
     "Beginning of the names of the pods' consumer groups; the pod's id is appended.", REFDATA_PODS_GROUP,
     PLACE(redis.group_place)},
    {"keep", SETTING_DURATION_MS, ROW(redis.keep_ms), "The stream is trimmed to what is younger than this.",
     "1h", 1000, 365 * 24 * (int64_t)HOUR_MS},
    {"keepMessages", SETTING_INT, ROW(redis.keep_messages), "And to so many at most.", "100000", 100,
     100000000},
    {.name = NULL},
};

static const struct setting_row rows[] = {
    {"postgres", SETTING_OBJECT_LIST, ROW(postgres),
     "The database the dictionaries live in; a list of named blocks where there are several. Without it: the one of "
     "postgres, above.",
     "", .min = 1, .max = 64, .rows = kernel_postgres_rows, .element_bytes = sizeof(struct kernel_postgres),
     .reloadable = true},
    {"consistency", SETTING_OBJECT, .help = "Waiting for commits.", .rows = consistency_rows, .fallback = ""},
    {"security", SETTING_OBJECT, .help = "Tenants.", .rows = security_rows, .fallback = ""},
    {"podId", SETTING_STRING, ROW(pod_id),
     "What this process is called where each has something of its own (Redis's consumer groups). Unique among those that "
     "run at once; empty = the host's name and something random.",
     "", PLACE(pod_place)},
    {"kafka", SETTING_OBJECT, .help = "The topic of commands, once bus.commands is kafka.",
     .rows = kafka_rows, .fallback = ""},
    {"redis", SETTING_OBJECT, .help = "The stream of invalidations, once bus.invalidations is redis.",
     .rows = redis_rows, .fallback = ""},
    {"cache", SETTING_OBJECT, .help = "What a query pod holds in memory, and when it reloads.",
     .rows = cache_rows, .fallback = ""},
    {"barrier", SETTING_OBJECT, .help = "Reads that demand a version (X-Min-Version).", .rows = barrier_rows,
     .fallback = "", .reloadable = true},
    {"updates", SETTING_OBJECT, .help = "Limits of updates, and how they are applied.", .rows = update_rows,
     .fallback = ""},
    {"outbox", SETTING_OBJECT, ROW(outbox), "How the relay publishes what apply committed.", "",
     .rows = outbox_setting_rows},
    {"adapter", SETTING_OBJECT, ROW(adapter), "Updates from Kafka topics of other systems.", "",
     .rows = refdata_adapter_rows},
    {"watch", SETTING_OBJECT, .help = "Streams of changes.", .rows = watch_rows, .fallback = ""},
    {"dictionaries", SETTING_OBJECT_LIST, ROW(dictionaries), "The dictionaries, by configuration alone.", "",
     .rows = dictionary_rows, .element_bytes = sizeof(struct refdata_dictionary_settings),
     .reloadable = true},
    {.name = NULL},
};

const struct config_section refdata_section = {
    .name = "refdata",
    .help = "Reference data: dictionaries in PostgreSQL, served from memory.",
    .rows = rows,
    .struct_bytes = sizeof(struct refdata_settings),
};

const struct refdata_dictionary_settings *refdata_settings_dictionary(const struct refdata_settings *settings,
                                                                      size_t index)
{
    return (const struct refdata_dictionary_settings *)settings->dictionaries.items + index;
}

int refdata_settings_database(const struct refdata_settings *settings, struct str name)
{
    const struct kernel_postgres *blocks = settings->postgres.items;
    for (size_t i = 0; i < settings->postgres.count; i++)
        if (name.len == 0 || str_eq(blocks[i].name, name))
            return (int)i;
    return -1;
}

/* ---- engines ---- */

const struct setting_strings *refdata_settings_redis_nodes(const struct refdata_settings *settings,
                                                           const struct kernel_redis *redis)
{
    return settings->redis.nodes.count ? &settings->redis.nodes : &redis->nodes;
}

enum status refdata_settings_check_engines(const struct config *config,
                                           const struct refdata_settings *settings, struct error *error)
{
    const struct kernel_bus_settings *bus = config_section(config, "bus");
    const struct refdata_kafka_settings *kafka = &settings->kafka;
    const struct refdata_redis_settings *redis = &settings->redis;
    const struct {
        struct str name;
        int bytes_max;
        struct setting_place place;
        const char *field;
    } names[] = {
        {kafka->commands_topic, TOPIC_BYTES_MAX, kafka->topic_place, "refdata.kafka.commandsTopic"},
        {kafka->group, GROUP_BYTES_MAX, kafka->group_place, "refdata.kafka.consumerGroup"},
        {redis->group, GROUP_BYTES_MAX, redis->group_place, "refdata.redis.consumerGroup"},
        {settings->pod_id.len ? settings->pod_id : STR("none"), GROUP_BYTES_MAX, settings->pod_place,
         "refdata.podId"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!str_is_name(names[i].name) || names[i].name.len > (size_t)names[i].bytes_max)
            return config_error_at(config, names[i].place, names[i].field, error,
                                   "must be 1 to %d of [A-Za-z0-9._-]", names[i].bytes_max);
    if (!str_eq(kafka->key_template, STR(KEY_TEMPLATE)))
        return config_error_at(config, kafka->template_place, "refdata.kafka.keyTemplate", error,
                               "can only be \"" KEY_TEMPLATE
                               "\": any other key would not keep the order of a dictionary's updates");
    for (size_t i = 0; i < redis->nodes.count; i++)
        if (!kernel_address_is_good(redis->nodes.items[i]))
            return config_error_at(config, redis->nodes_place, "refdata.redis.nodes", error,
                                   "\"%.*s\" is not HOST:PORT", STR_ARG(redis->nodes.items[i]));
    if (bus->invalidations == KERNEL_REDIS &&
        !refdata_settings_redis_nodes(settings, config_section(config, "redis"))->count)
        return config_error_at(config, bus->invalidations_place, "redis.nodes", error,
                               "bus.invalidations is redis: name its nodes here or in refdata.redis.nodes");

    /* Groups are called after their databases where there are several. */
    const struct kernel_postgres *blocks = settings->postgres.items;
    size_t group = kafka->group.len > redis->group.len ? kafka->group.len : redis->group.len;
    bool shared = bus->commands != KERNEL_POSTGRES || bus->invalidations != KERNEL_POSTGRES;
    for (size_t i = 1; shared && i < settings->postgres.count; i++)
        if (!str_is_name(blocks[i].name) || group + 1 + blocks[i].name.len > GROUP_BYTES_MAX)
            return config_error_at(
                config, settings->postgres.places[i], "refdata.postgres.name", error,
                "with engines a name is of [A-Za-z0-9._-] and, with a group's name before it, at most "
                "%d characters long",
                GROUP_BYTES_MAX - 1);
    return STATUS_OK;
}
