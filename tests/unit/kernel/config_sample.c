/* The sample tables, and the configuration example of seed 000 §5 as it stands there. */
#include "config_sample.h"

static const char *const colors[] = {"red", "green", "blue", NULL};

#define INNER(member) offsetof(struct sample_inner, member)
static const struct setting_row inner_rows[] = {
    {"depth", SETTING_INT, .offset = INNER(depth), "How deep.", "3", 1, 64},
    {"label", SETTING_STRING, .offset = INNER(label), "What it is called.", "none", .reloadable = true},
    {0},
};
static const struct setting_row spare_rows[] = {
    {"depth", SETTING_INT, .offset = INNER(depth), "How deep.", NULL, 1, 64},
    {"label", SETTING_STRING, .offset = INNER(label), "What it is called.", "spare"},
    {0},
};

#define RULE(member) offsetof(struct sample_rule, member)
static const struct setting_row rule_rows[] = {
    {"path", SETTING_STRING, .offset = RULE(path), "Which path.", NULL, 1, 16},
    {"weight", SETTING_INT, .offset = RULE(weight), "How much it counts.", "1", INT64_MIN, 100},
    {"methods", SETTING_STRING_LIST, .offset = RULE(methods), "Which methods.", "[GET, HEAD]", 1, 3},
    {0},
};

#define SAMPLE(member) offsetof(struct sample, member)
static const struct setting_row rows[] = {
    {"title", SETTING_STRING, .offset = SAMPLE(title), "A title, with a | in its help.", "untitled",
     .place_offset = 1 + SAMPLE(title_place)},
    {"password", SETTING_STRING, .offset = SAMPLE(password), "A secret.", "hunter2", 4, 32, .secret = true},
    {"enabled", SETTING_BOOL, .offset = SAMPLE(enabled), "Whether it works at all.", "true"},
    {"port", SETTING_INT, .offset = SAMPLE(port), "Port.", "8080", 1, 65535},
    {"timeout", SETTING_DURATION_MS, .offset = SAMPLE(timeout_ms), "Patience.", "5s", 10, 3600000,
     .reloadable = true},
    {"cache-size", SETTING_SIZE, .offset = SAMPLE(cache_bytes), "Memory.", "64MiB", 65536, INT64_MAX},
    {"color", SETTING_ENUM, .offset = SAMPLE(color), "Paint.", "green", .choices = colors},
    {"listen", SETTING_STRING_LIST, .offset = SAMPLE(listen), "Where to listen.", "127.0.0.1:8080", 1, 4},
    {"inner", SETTING_OBJECT, .offset = SAMPLE(inner), "A part.", .rows = inner_rows},
    {"spare", SETTING_OBJECT, .offset = SAMPLE(spare), "A part that may be left out.", "", .rows = spare_rows,
     .place_offset = 1 + SAMPLE(spare_place)},
    {"rules", SETTING_OBJECT_LIST, .offset = SAMPLE(rules), "Rules.", "", .rows = rule_rows,
     .element_bytes = sizeof(struct sample_rule)},
    {0},
};

#define POSTGRES(member) offsetof(struct sample_postgres, member)
static const struct setting_row pool_rows[] = {
    {"maxSize", SETTING_INT, .offset = POSTGRES(connections_max), "Most connections.", "10", 1, 1000},
    {0},
};
static const struct setting_row postgres_rows[] = {
    {"jdbcUrl", SETTING_STRING, .offset = POSTGRES(url), "Where it is.", NULL, 1, 4096},
    {"username", SETTING_STRING, .offset = POSTGRES(username), "User.", ""},
    {"passwordFromEnv", SETTING_STRING, .offset = POSTGRES(password_env), "Variable with the password.", ""},
    {"schema", SETTING_STRING, .offset = POSTGRES(schema), "search_path.", ""},
    {"pool", SETTING_OBJECT, .help = "Pool.", .rows = pool_rows},
    {0},
};

#define DICTIONARY(member) offsetof(struct sample_dictionary, member)
static const char *const apply_modes[] = {"SQL_TEMPLATE", NULL};
static const char *const strategies[] = {"FULL_REPLACE", NULL};
static const char *const reload_modes[] = {"FULL", "DELTA", NULL};
static const struct setting_row apply_rows[] = {
    {"mode", SETTING_ENUM, .offset = DICTIONARY(apply_mode), "How.", "SQL_TEMPLATE", .choices = apply_modes},
    {"upsertSql", SETTING_STRING, .offset = DICTIONARY(upsert_sql), "For UPSERT.", "",
     .place_offset = 1 + DICTIONARY(upsert_place)},
    {"deleteSql", SETTING_STRING, .offset = DICTIONARY(delete_sql), "For DELETE.", ""},
    {"snapshotStrategy", SETTING_ENUM, .offset = DICTIONARY(snapshot_strategy), "How.", "FULL_REPLACE",
     .choices = strategies},
    {"snapshotReplaceSql", SETTING_STRING, .offset = DICTIONARY(replace_sql), "For SNAPSHOT.", ""},
    {0},
};
static const struct setting_row dictionary_rows[] = {
    {"code", SETTING_STRING, .offset = DICTIONARY(code), "Its name.", NULL, 1, 64},
    {"enabled", SETTING_BOOL, .offset = DICTIONARY(enabled), "Whether it is served.", "true"},
    {"loadSql", SETTING_STRING, .offset = DICTIONARY(load_sql), "Query for k and v.", "",
     .place_offset = 1 + DICTIONARY(load_place)},
    {"driftCheckSql", SETTING_STRING, .offset = DICTIONARY(drift_sql), "Diagnosis.", ""},
    {"apply", SETTING_OBJECT, .help = "Writing.", .rows = apply_rows},
    {"reloadOnEvent", SETTING_ENUM, .offset = DICTIONARY(reload_on_event), "How.", "FULL",
     .choices = reload_modes},
    {0},
};

#define REFDATA(member) offsetof(struct sample_refdata, member)
static const char *const tenant_sources[] = {"JWT_CLAIM", NULL};
static const struct setting_row consistency_rows[] = {
    {"waitCommitTimeoutMs", SETTING_DURATION_MS, .offset = REFDATA(wait_commit_timeout_ms), "Wait.", "300",
     50, 1000},
    {0},
};
static const struct setting_row tenant_rows[] = {
    {"source", SETTING_ENUM, .offset = REFDATA(tenant_source), "Where from.", "JWT_CLAIM",
     .choices = tenant_sources},
    {"claim", SETTING_STRING, .offset = REFDATA(tenant_claim), "Which claim.", "tenant_id", 1, 64},
    {"allowHeaderOverrideForTrustedClients", SETTING_BOOL, .offset = REFDATA(header_override), "X-Tenant-Id.",
     "false"},
    {0},
};
static const struct setting_row security_rows[] = {
    {"tenant", SETTING_OBJECT, .help = "Tenant.", .rows = tenant_rows},
    {0},
};
static const struct setting_row kafka_rows[] = {
    {"commandsTopic", SETTING_STRING, .offset = REFDATA(topic), "Topic.", ""},
    {"keyTemplate", SETTING_STRING, .offset = REFDATA(key_template), "Key.", ""},
    {0},
};
static const struct setting_row redis_rows[] = {
    {"mode", SETTING_STRING, .offset = REFDATA(mode), "Mode.", ""},
    {"nodes", SETTING_STRING_LIST, .offset = REFDATA(nodes), "Nodes.", ""},
    {"pubChannel", SETTING_STRING, .offset = REFDATA(channel), "Channel.", ""},
    {"streamKey", SETTING_STRING, .offset = REFDATA(stream), "Stream.", ""},
    {"consumerGroup", SETTING_STRING, .offset = REFDATA(group), "Group.", ""},
    {0},
};
static const struct setting_row refdata_rows[] = {
    {"postgres", SETTING_OBJECT_LIST, .offset = REFDATA(postgres), "Databases.", NULL, 1, 16,
     .rows = postgres_rows, .element_bytes = sizeof(struct sample_postgres)},
    {"consistency", SETTING_OBJECT, .help = "Waits.", .rows = consistency_rows},
    {"security", SETTING_OBJECT, .help = "Security.", .rows = security_rows},
    {"kafka", SETTING_OBJECT, .help = "Kafka.", .rows = kafka_rows},
    {"redis", SETTING_OBJECT, .help = "Redis.", .rows = redis_rows},
    {"dictionaries", SETTING_OBJECT_LIST, .offset = REFDATA(dictionaries), "Dictionaries.", "",
     .rows = dictionary_rows, .element_bytes = sizeof(struct sample_dictionary), .reloadable = true},
    {0},
};

const struct config_section sample_sections[] = {
    {"sample", "One of each.", rows, sizeof(struct sample)},
    {0},
};
const struct config_section sample_refdata_sections[] = {
    {"refdata", "Dictionaries.", refdata_rows, sizeof(struct sample_refdata)},
    {"sample", "One of each.", rows, sizeof(struct sample)},
    {0},
};

/* clang-format off */
const char sample_seed_yaml[] =
    "refdata:\n"
    "  postgres:\n"
    "    jdbcUrl: jdbc:postgresql://pg-host:5432/app\n"
    "    username: app_user\n"
    "    passwordFromEnv: PG_PASSWORD\n"
    "    schema: public\n"
    "    pool:\n"
    "      maxSize: 50\n"
    "\n"
    "  consistency:\n"
    "    waitCommitTimeoutMs: 300\n"
    "\n"
    "  security:\n"
    "    tenant:\n"
    "      source: JWT_CLAIM\n"
    "      claim: tenant_id\n"
    "      allowHeaderOverrideForTrustedClients: false\n"
    "\n"
    "  kafka:\n"
    "    commandsTopic: refdata.commands\n"
    "    keyTemplate: \"{tenantId}:{dictCode}\"\n"
    "\n"
    "  redis:\n"
    "    mode: cluster\n"
    "    nodes:\n"
    "      - redis-0:6379\n"
    "      - redis-1:6379\n"
    "      - redis-2:6379\n"
    "    pubChannel: refdata:inv:pub\n"
    "    streamKey: refdata:inv:stream\n"
    "    consumerGroup: refdata-query-pods\n"
    "\n"
    "  dictionaries:\n"
    "    - code: COUNTRY\n"
    "      enabled: true\n"
    "      loadSql: |\n"
    "        select code as k, to_jsonb(t) as v\n"
    "        from mdm_country t\n"
    "        where t.tenant_id = :tenantId and t.deleted = false\n"
    "      driftCheckSql: |\n"
    "        select coalesce(max(updated_at_epoch),0)::bigint as version\n"
    "        from mdm_country\n"
    "        where tenant_id = :tenantId\n"
    "      apply:\n"
    "        mode: SQL_TEMPLATE\n"
    "        upsertSql: |\n"
    "          insert into mdm_country(tenant_id, code, name, updated_at_epoch, deleted)\n"
    "          values (:tenantId, :key, cast(:payload->>'name' as text), :eventEpoch, false)\n"
    "          on conflict (tenant_id, code) do update\n"
    "          set name = excluded.name,\n"
    "              updated_at_epoch = excluded.updated_at_epoch,\n"
    "              deleted = false\n"
    "        deleteSql: |\n"
    "          update mdm_country\n"
    "          set deleted = true,\n"
    "              updated_at_epoch = :eventEpoch\n"
    "          where tenant_id = :tenantId\n"
    "            and code = :key\n"
    "        snapshotStrategy: FULL_REPLACE\n"
    "        snapshotReplaceSql: |\n"
    "          select refdata_replace_country_snapshot(:tenantId, :snapshotJson)\n"
    "      reloadOnEvent: FULL\n"
    "\n"
    "    - code: CURRENCY\n"
    "      enabled: true\n"
    "      loadSql: |\n"
    "        select ccy as k,\n"
    "               jsonb_build_object('name', name, 'digits', digits) as v\n"
    "        from mdm_currency\n"
    "        where tenant_id = :tenantId and deleted = false\n"
    "      driftCheckSql: |\n"
    "        select coalesce(max(version),0)::bigint\n"
    "        from mdm_currency\n"
    "        where tenant_id = :tenantId\n"
    "      apply:\n"
    "        mode: SQL_TEMPLATE\n"
    "        upsertSql: |\n"
    "          insert into mdm_currency(tenant_id, ccy, name, digits, version, deleted)\n"
    "          values (\n"
    "            :tenantId,\n"
    "            :key,\n"
    "            cast(:payload->>'name' as text),\n"
    "            cast(:payload->>'digits' as int),\n"
    "            :eventVersion,\n"
    "            false\n"
    "          )\n"
    "          on conflict (tenant_id, ccy) do update\n"
    "          set name = excluded.name,\n"
    "              digits = excluded.digits,\n"
    "              version = excluded.version,\n"
    "              deleted = false\n"
    "        deleteSql: |\n"
    "          update mdm_currency\n"
    "          set deleted = true,\n"
    "              version = :eventVersion\n"
    "          where tenant_id = :tenantId\n"
    "            and ccy = :key\n"
    "        snapshotStrategy: FULL_REPLACE\n"
    "        snapshotReplaceSql: |\n"
    "          select refdata_replace_currency_snapshot(:tenantId, :snapshotJson)\n"
    "      reloadOnEvent: FULL\n";
/* clang-format on */
