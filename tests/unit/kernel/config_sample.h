/* Sample settings for the configuration's tests: one section with every type, one in the shape of seed 000 §5. */
#ifndef FRESHET_TESTS_CONFIG_SAMPLE_H
#define FRESHET_TESTS_CONFIG_SAMPLE_H

#include "kernel/config.h"

enum sample_color { SAMPLE_RED, SAMPLE_GREEN, SAMPLE_BLUE };

struct sample_inner {
    int64_t depth;
    struct str label;
};

struct sample_rule {
    struct str path;
    int64_t weight;
    struct setting_strings methods;
};

struct sample {
    struct str title;
    struct str password;
    struct setting_place title_place;
    bool enabled;
    int64_t port;
    int64_t timeout_ms;
    int64_t cache_bytes;
    int color;
    struct setting_strings listen;
    struct sample_inner inner;
    struct sample_inner spare;
    struct setting_place spare_place;
    struct setting_objects rules;
};

struct sample_dictionary {
    struct str code;
    bool enabled;
    struct str load_sql, drift_sql;
    struct setting_place load_place, upsert_place;
    int apply_mode, snapshot_strategy, reload_on_event;
    struct str upsert_sql, delete_sql, replace_sql;
};

struct sample_postgres {
    struct str url, username, password_env, schema;
    int64_t connections_max;
};

struct sample_refdata {
    struct str topic, key_template, mode, channel, stream, group;
    struct setting_strings nodes;
    struct setting_objects postgres;
    int64_t wait_commit_timeout_ms;
    int tenant_source;
    struct str tenant_claim;
    bool header_override;
    struct setting_objects dictionaries;
};

extern const struct config_section sample_sections[];         /* sample only: every setting has a default */
extern const struct config_section sample_refdata_sections[]; /* refdata and sample */
extern const char sample_seed_yaml[];                         /* seed 000 §5, as written */

#endif
