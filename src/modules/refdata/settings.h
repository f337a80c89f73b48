/* refdata's settings: the specification's YAML as written (R15), and ours beside it. */
#ifndef FRESHET_REFDATA_SETTINGS_H
#define FRESHET_REFDATA_SETTINGS_H

#include "base/setting.h"
#include "kernel/engines.h"
#include "modules/refdata/adapter/settings.h"
#include "modules/refdata/update.h"
#include "outbox/outbox.h"

/* A SQL template and where it stands, for errors. */
struct refdata_template {
    struct str sql; /* empty = not given */
    struct setting_place place;
};

enum refdata_reload_mode { REFDATA_RELOAD_AUTO, REFDATA_RELOAD_FULL, REFDATA_RELOAD_DELTA };

struct refdata_dictionary_settings {
    struct str code;
    struct setting_place code_place;
    bool enabled;
    struct str postgres; /* name of the block it lives in; empty = the first */
    struct setting_place postgres_place;
    struct refdata_template load, load_keys, drift_check;
    struct refdata_template upsert, delete, snapshot_replace, snapshot_stage, snapshot_finalize;
    int apply_mode, snapshot_strategy;
    int reload;  /* enum refdata_reload_mode */
    bool shared; /* its SQL need not name :tenantId: all tenants read the same rows */
    struct setting_place shared_place;
    struct str read_scope,
        write_scope; /* empty = none; where the file has none: those for all dictionaries */
    struct setting_place read_scope_place, write_scope_place;
};

struct refdata_cache_settings {
    struct setting_strings preload; /* TENANT/DICTIONARY; TENANT may be * */
    struct setting_place preload_place;
    int64_t memory_bytes_max, entries_max, parallel_reloads;
    int64_t sweep_interval_ms, load_timeout_ms, first_read_timeout_ms, drift_check_interval_ms;
    int64_t retry_min_ms, retry_max_ms, jitter_ms;
    int64_t debounce_ms, digest_check_ms;
};

struct refdata_update_settings { /* of the command and apply roles */
    struct refdata_limits limits;
    int64_t queue_max, queue_bytes_max, commit_timeout_ms; /* of updates waiting for their commit */
    int64_t batch_max;                                     /* commands in one transaction of apply */
    int64_t attempts_max;                                  /* of one that does not end in time */
    int64_t snapshot_expire_ms;                            /* an incomplete one */
    int64_t keep_ms;     /* update_request and processed_event, once decided */
    int64_t key_keep_ms; /* update_key */
    int64_t audit_ms;    /* an undecided update that is older is audited */
};

struct refdata_watch_settings {
    int64_t heartbeat_ms, versions_max, buffer_bytes_max;
};

struct refdata_barrier_settings {
    int64_t wait_ms, timeout_ms, checks_per_second, parallel_reads, queue_max;
};

struct refdata_kafka_settings { /* where kafka carries the commands */
    struct str commands_topic, key_template, group;
    struct setting_place topic_place, template_place, group_place;
    int64_t partitions, handlers, keep_ms;
};

struct refdata_redis_settings { /* where redis carries the invalidations */
    int mode;                   /* enum kernel_redis_mode; counts only where the file has it */
    struct setting_strings nodes;
    struct setting_place mode_place, nodes_place, group_place;
    struct str channel, stream, group;
    int64_t keep_ms, keep_messages;
};

struct refdata_settings {
    struct setting_objects postgres; /* struct kernel_postgres */
    struct str pod_id;               /* empty = made of the host's name */
    struct setting_place pod_place;
    struct refdata_kafka_settings kafka;
    struct refdata_redis_settings redis;
    int64_t wait_commit_timeout_ms;
    struct str tenant_claim;
    int tenant_source;
    bool allow_tenant_header;
    struct str read_scope, write_scope; /* for dictionaries that name none; empty = none */
    struct setting_place read_scope_place, write_scope_place;
    struct refdata_cache_settings cache;
    struct refdata_barrier_settings barrier;
    struct refdata_update_settings updates;
    struct refdata_watch_settings watch;
    struct outbox_settings outbox; /* of the relay */
    struct refdata_adapter_settings adapter;
    struct setting_objects dictionaries; /* struct refdata_dictionary_settings */
};

extern const struct config_section refdata_section;

const struct refdata_dictionary_settings *refdata_settings_dictionary(const struct refdata_settings *settings,
                                                                      size_t index);
/* The top-level block's, unless refdata.redis has its own. */
const struct setting_strings *refdata_settings_redis_nodes(const struct refdata_settings *settings,
                                                           const struct kernel_redis *redis);
/* Checks of the engines that need the file alone. */
enum status refdata_settings_check_engines(const struct config *config,
                                           const struct refdata_settings *settings,
                                           struct error *error) MUST_CHECK;
/* Index of the block called `name` (empty = the first), or -1. */
int refdata_settings_database(const struct refdata_settings *settings, struct str name);

#endif
