/* The parameters a database URL may carry, as one table: libpq's own names, JDBC's names for the same things,
 * and JDBC's tuning of its own driver, which means nothing here and is passed over. What is not in the table
 * is refused, since a setting that is silently without effect (a timeout, TLS) is worse than a start that
 * fails. */
#include "db/db.h"

#include "db/db_inside.h"

enum meaning {
    KEYWORD,
    SCHEMA,
    SSL_FLAG,
    KEEPALIVE_FLAG,
    SERVER_TYPE,
    SESSION_ATTRS,
    HOST,
    PORT,
    CONNECT_TIMEOUT,
    IGNORED
};

static const struct row {
    const char *name;
    enum meaning meaning;
    const char *keyword;
} rows[] = {
    {"user", KEYWORD, "user"},
    {"password", KEYWORD, "password"},
    {"dbname", KEYWORD, "dbname"},
    {"host", HOST, NULL},
    {"port", PORT, NULL},
    {"sslmode", KEYWORD, "sslmode"},
    {"sslrootcert", KEYWORD, "sslrootcert"},
    {"sslcert", KEYWORD, "sslcert"},
    {"sslkey", KEYWORD, "sslkey"},
    {"sslpassword", KEYWORD, "sslpassword"},
    {"sslcrl", KEYWORD, "sslcrl"},
    {"sslsni", KEYWORD, "sslsni"},
    {"ssl_min_protocol_version", KEYWORD, "ssl_min_protocol_version"},
    {"ssl_max_protocol_version", KEYWORD, "ssl_max_protocol_version"},
    {"channel_binding", KEYWORD, "channel_binding"},
    {"channelBinding", KEYWORD, "channel_binding"},
    {"gssencmode", KEYWORD, "gssencmode"},
    {"gssEncMode", KEYWORD, "gssencmode"},
    {"krbsrvname", KEYWORD, "krbsrvname"},
    {"passfile", KEYWORD, "passfile"},
    {"keepalives", KEYWORD, "keepalives"},
    {"keepalives_idle", KEYWORD, "keepalives_idle"},
    {"keepalives_interval", KEYWORD, "keepalives_interval"},
    {"keepalives_count", KEYWORD, "keepalives_count"},
    {"tcp_user_timeout", KEYWORD, "tcp_user_timeout"},
    {"application_name", KEYWORD, "application_name"},
    {"ApplicationName", KEYWORD, "application_name"},
    {"target_session_attrs", SESSION_ATTRS, "target_session_attrs"},
    {"connect_timeout", CONNECT_TIMEOUT, NULL},
    {"connectTimeout", CONNECT_TIMEOUT, NULL},
    {"currentSchema", SCHEMA, NULL},
    {"ssl", SSL_FLAG, NULL},
    {"tcpKeepAlive", KEEPALIVE_FLAG, NULL},
    {"targetServerType", SERVER_TYPE, NULL},
    {"prepareThreshold", IGNORED, NULL},
    {"preparedStatementCacheQueries", IGNORED, NULL},
    {"preparedStatementCacheSizeMiB", IGNORED, NULL},
    {"defaultRowFetchSize", IGNORED, NULL},
    {"reWriteBatchedInserts", IGNORED, NULL},
    {"binaryTransfer", IGNORED, NULL},
    {"stringtype", IGNORED, NULL},
    {"logUnclosedConnections", IGNORED, NULL},
    {NULL, KEYWORD, NULL},
};

void db_keyword_set(struct db_parsed *parsed, const char *keyword, struct str value)
{
    const char *copy = arena_str(&parsed->arena, value).ptr;
    unsigned at = 0;

    while (at < parsed->keyword_count && strcmp(parsed->keywords[at], keyword) != 0)
        at++;
    parsed->keywords[at] = keyword;
    parsed->values[at] = copy;
    if (at == parsed->keyword_count)
        parsed->keyword_count++;
}

const char *db_keyword_get(const struct db_parsed *parsed, const char *keyword)
{
    for (unsigned i = 0; i < parsed->keyword_count; i++)
        if (strcmp(parsed->keywords[i], keyword) == 0)
            return parsed->values[i];
    return NULL;
}

static enum status refuse_value(struct error *error, const char *name, const char *wanted)
{
    return error_set(error, STATUS_CONFIG, "parameter %s of the database URL must be %s", name, wanted);
}

/* pgjdbc: present without a value means true. */
static bool parse_flag(struct str value, bool *flag)
{
    *flag = value.len == 0 || str_eq(value, STR("true")) || str_eq(value, STR("1"));
    return *flag || str_eq(value, STR("false")) || str_eq(value, STR("0"));
}

static enum status set_server_type(struct db_parsed *parsed, struct str value, struct error *error)
{
    if (str_eq(value, STR("primary")) || str_eq(value, STR("master")))
        db_keyword_set(parsed, "target_session_attrs", STR("read-write"));
    else if (str_eq(value, STR("secondary")) || str_eq(value, STR("slave")))
        db_keyword_set(parsed, "target_session_attrs", STR("standby"));
    else if (str_eq(value, STR("any")))
        db_keyword_set(parsed, "target_session_attrs", value);
    else
        return refuse_value(error, "targetServerType", "any, primary or secondary");
    return STATUS_OK;
}

/* The hosts are tried one by one, so "prefer" cannot be kept. */
static enum status set_session_attrs(struct db_parsed *parsed, struct str value, struct error *error)
{
    static const char *const known[] = {"any", "read-write", "read-only", "primary", "standby", NULL};

    for (unsigned i = 0; known[i]; i++) {
        if (str_eq(value, str_from(known[i]))) {
            db_keyword_set(parsed, "target_session_attrs", value);
            return STATUS_OK;
        }
    }
    return refuse_value(error, "target_session_attrs", "any, read-write, read-only, primary or standby");
}

/* ?host=/run/postgresql replaces the URL's own host part, which is empty then. */
static enum status set_host(struct db_parsed *parsed, struct str value, struct error *error)
{
    struct db_host *host = &parsed->hosts[0];

    if (parsed->host_count > 1 || value.len == 0 || value.len > 255 || memchr(value.ptr, ',', value.len))
        return refuse_value(error, "host", "a single host or directory");
    if (parsed->host_count == 0)
        *host = (struct db_host){.port = "5432"};
    parsed->host_count = 1;
    host->name = arena_str(&parsed->arena, value).ptr;
    return STATUS_OK;
}

static enum status set_port(struct db_parsed *parsed, struct str value, struct error *error)
{
    uint64_t number;

    if (!str_to_u64(value, &number) || number == 0 || number > 65535)
        return refuse_value(error, "port", "a number from 1 to 65535");
    if (parsed->host_count == 0)
        parsed->hosts[parsed->host_count++] = (struct db_host){.name = "localhost"};
    for (unsigned i = 0; i < parsed->host_count; i++)
        parsed->hosts[i].port = arena_str(&parsed->arena, value).ptr;
    return STATUS_OK;
}

static enum status set_connect_timeout(struct db_parsed *parsed, const char *name, struct str value,
                                       struct error *error)
{
    uint64_t seconds;

    if (!str_to_u64(value, &seconds) || seconds == 0 || seconds > 3600)
        return refuse_value(error, name, "a number of seconds from 1 to 3600");
    parsed->connect_timeout_ms = (int64_t)seconds * 1000;
    return STATUS_OK;
}

static enum status apply(struct db_parsed *parsed, const struct row *row, struct str value,
                         struct error *error)
{
    bool flag;

    switch (row->meaning) {
    case KEYWORD: db_keyword_set(parsed, row->keyword, value); return STATUS_OK;
    case SCHEMA: parsed->schema = arena_str(&parsed->arena, value).ptr; return STATUS_OK;
    case SERVER_TYPE: return set_server_type(parsed, value, error);
    case SESSION_ATTRS: return set_session_attrs(parsed, value, error);
    case HOST: return set_host(parsed, value, error);
    case PORT: return set_port(parsed, value, error);
    case CONNECT_TIMEOUT: return set_connect_timeout(parsed, row->name, value, error);
    case IGNORED: return STATUS_OK;
    case SSL_FLAG:
    case KEEPALIVE_FLAG: break;
    }
    if (!parse_flag(value, &flag))
        return refuse_value(error, row->name, "true or false");
    if (row->meaning == KEEPALIVE_FLAG)
        db_keyword_set(parsed, "keepalives", flag ? STR("1") : STR("0"));
    else if (!db_keyword_get(parsed, "sslmode")) /* what pgjdbc means by ssl=true */
        db_keyword_set(parsed, "sslmode", flag ? STR("verify-full") : STR("disable"));
    return STATUS_OK;
}

enum status db_parameter_set(struct db_parsed *parsed, struct str name, struct str value, struct error *error)
{
    for (const struct row *row = rows; row->name; row++)
        if (str_eq(name, str_from(row->name)))
            return apply(parsed, row, value, error);
    return error_set(error, STATUS_CONFIG, "parameter %.*s of the database URL is not supported",
                     STR_ARG(str_utf8_cut(name, 64)));
}
