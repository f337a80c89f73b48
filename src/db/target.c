/* Where a database is: reads JDBC and libpq URLs into libpq's keywords, once, at start.
 *
 *     jdbc:postgresql://host[:port][,host2[:port2]…]/database?name=value&…
 *     postgresql://[user[:password]@][host[:port],…]/database?host=/socket/directory&…
 *
 * It opens nothing. Messages name the part at fault, never the URL itself: it may hold a password. A parameter that is not known
 * is refused, since a setting that is silently without effect (a timeout, TLS) is worse than a start that fails. */
#include "db/db.h"

#include <stdio.h>

#include "base/hex.h"
#include "db/db_inside.h"

/* ---- keywords and parameters ---- */

static void set_keyword(struct db_parsed *parsed, const char *keyword, struct str value)
{
    unsigned at = 0;

    while (at < parsed->keyword_count && strcmp(parsed->keywords[at], keyword) != 0)
        at++;
    parsed->keywords[at] = keyword;
    parsed->values[at] = arena_str(&parsed->arena, value).ptr;
    parsed->keyword_count += at == parsed->keyword_count;
}

const char *db_keyword_get(const struct db_parsed *parsed, const char *keyword)
{
    for (unsigned i = 0; i < parsed->keyword_count; i++)
        if (strcmp(parsed->keywords[i], keyword) == 0)
            return parsed->values[i];
    return NULL;
}

static bool has_word(const char *words, struct str name)
{
    struct str rest = str_from(words), word;

    while (str_split(&rest, ' ', &word))
        if (str_eq(word, name))
            return true;
    return false;
}

static bool read_number(struct str text, uint64_t max, uint64_t *number)
{
    return str_to_u64(text, number) && *number > 0 && *number <= max;
}

/* ---- parameters: libpq's own, JDBC's names for the same things, and what JDBC calls differently ---- */

static const char libpq_names[] =
    "user password dbname sslmode sslrootcert sslcert sslkey sslpassword sslcrl sslsni ssl_min_protocol_version"
    " ssl_max_protocol_version channel_binding gssencmode krbsrvname passfile keepalives keepalives_idle"
    " keepalives_interval keepalives_count tcp_user_timeout application_name";

static const char *const aliases[][2] = {{"channelBinding", "channel_binding"},
                                         {"gssEncMode", "gssencmode"},
                                         {"ApplicationName", "application_name"}};

/* JDBC's tuning of its own driver, which means nothing here. */
static const char ignored_names[] =
    "prepareThreshold preparedStatementCacheQueries preparedStatementCacheSizeMiB defaultRowFetchSize"
    " reWriteBatchedInserts binaryTransfer stringtype logUnclosedConnections";

/* Parameters of a few values, each with libpq's keyword and its name for the value. A flag without a value means true to pgjdbc.
 * The hosts are tried one by one, so "prefer" cannot be kept. */
#define FLAG(on, off) {{"", on}, {"true", on}, {"1", on}, {"false", off}, {"0", off}}, "true or false"
static const struct {
    const char *name, *keyword, *values[5][2], *wanted;
} choices[] = {
    {"ssl", "sslmode", FLAG("verify-full", "disable")},
    {"tcpKeepAlive", "keepalives", FLAG("1", "0")},
    {"targetServerType",
     "target_session_attrs",
     {{"primary", "read-write"},
      {"master", "read-write"},
      {"secondary", "standby"},
      {"slave", "standby"},
      {"any", "any"}},
     "any, primary or secondary"},
    {"target_session_attrs",
     "target_session_attrs",
     {{"any", "any"},
      {"read-write", "read-write"},
      {"read-only", "read-only"},
      {"primary", "primary"},
      {"standby", "standby"}},
     "any, read-write, read-only, primary or standby"},
};

/* Sets *wanted where the value is not one of the choices. False: the name is not among them. */
static bool set_choice(struct db_parsed *parsed, struct str name, struct str value, const char **wanted)
{
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        if (!str_eq(name, str_from(choices[i].name)))
            continue;
        *wanted = choices[i].wanted;
        for (size_t j = 0; j < 5 && *wanted; j++)
            if (str_eq(value, str_from(choices[i].values[j][0]))) {
                *wanted = NULL;
                /* ssl=true beside an sslmode, in either order: that one counts */
                if (strcmp(choices[i].keyword, "sslmode") != 0 || !db_keyword_get(parsed, "sslmode"))
                    set_keyword(parsed, choices[i].keyword, str_from(choices[i].values[j][1]));
            }
        return true;
    }
    return false;
}

static enum status set_parameter(struct db_parsed *parsed, struct str name, struct str value,
                                 struct error *error)
{
    const char *wanted = NULL;
    uint64_t number;

    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++)
        if (str_eq(name, str_from(aliases[i][0])))
            name = str_from(aliases[i][1]);
    if (has_word(libpq_names, name)) {
        set_keyword(parsed, arena_str(&parsed->arena, name).ptr, value);
    } else if (str_eq(name, STR("currentSchema"))) {
        parsed->schema = arena_str(&parsed->arena, value).ptr;
    } else if (str_eq(name, STR("host"))) {
        /* ?host=/run/postgresql replaces the URL's own host part, which is empty then */
        if (parsed->host_count > 1 || value.len == 0 || value.len > 255 || memchr(value.ptr, ',', value.len))
            wanted = "a single host or directory";
        else if (parsed->host_count == 0)
            parsed->hosts[parsed->host_count++] = (struct db_host){.port = "5432"};
        if (!wanted)
            parsed->hosts[0].name = arena_str(&parsed->arena, value).ptr;
    } else if (str_eq(name, STR("port"))) {
        if (!read_number(value, 65535, &number))
            wanted = "a number from 1 to 65535";
        else if (parsed->host_count == 0)
            parsed->hosts[parsed->host_count++] = (struct db_host){.name = "localhost"};
        for (unsigned i = 0; i < parsed->host_count && !wanted; i++)
            parsed->hosts[i].port = arena_str(&parsed->arena, value).ptr;
    } else if (has_word("connect_timeout connectTimeout", name)) {
        if (read_number(value, 3600, &number))
            parsed->connect_timeout_ms = (int64_t)number * 1000;
        else
            wanted = "a number of seconds from 1 to 3600";
    } else if (!set_choice(parsed, name, value, &wanted) && !has_word(ignored_names, name)) {
        return error_set(error, STATUS_CONFIG, "parameter %.*s of the database URL is not supported",
                         STR_ARG(str_utf8_cut(name, 64)));
    }
    return wanted ? error_set(error, STATUS_CONFIG, "parameter %.*s of the database URL must be %s",
                              STR_ARG(name), wanted)
                  : STATUS_OK;
}

/* ---- the URL ---- */

/* Percent-decodes into the arena; false on a broken escape or a NUL. JDBC also reads '+' in a query as a
 * space. */
static bool decode(struct arena *arena, struct str s, bool plus_is_space, struct str *out)
{
    char *text = arena_alloc(arena, s.len + 1);
    size_t len = 0;

    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        if (c == '%') {
            int high = i + 2 < s.len ? hex_digit(s.ptr[i + 1]) : -1;
            int low = high >= 0 ? hex_digit(s.ptr[i + 2]) : -1;
            if (low < 0)
                return false;
            c = (char)(high * 16 + low);
            i += 2;
        } else if (c == '+' && plus_is_space) {
            c = ' ';
        }
        if (c == '\0')
            return false;
        text[len++] = c;
    }
    text[len] = '\0';
    *out = str_of(text, len);
    return true;
}

static enum status add_host(struct db_parsed *parsed, struct str name, struct str port, struct error *error)
{
    uint64_t number = 5432;

    if (parsed->host_count == DB_HOSTS_MAX)
        return error_set(error, STATUS_CONFIG, "more than %d hosts in the database URL", DB_HOSTS_MAX);
    if (port.len > 0 && !read_number(port, 65535, &number))
        return error_set(error, STATUS_CONFIG,
                         "the port in the database URL is not a number from 1 to 65535");
    if (name.len > 255)
        return error_set(error, STATUS_CONFIG, "a host in the database URL is longer than 255 bytes");
    parsed->hosts[parsed->host_count++] = (struct db_host){
        .name = arena_str(&parsed->arena, name).ptr,
        .port = arena_printf(&parsed->arena, "%u", (unsigned)number).ptr,
    };
    return STATUS_OK;
}

/* host, host:port, [v6], [v6]:port, all percent-decoded */
static enum status parse_host(struct db_parsed *parsed, struct str part, struct error *error)
{
    struct str name, between = STR_NONE;

    if (str_starts_with(part, STR("["))) {
        part = str_skip(part, 1);
        str_split(&part, ']', &name);
        if (!part.ptr)
            return error_set(error, STATUS_CONFIG, "an IPv6 address in the database URL lacks its ']'");
        str_split(&part, ':', &between);
        if (between.len > 0)
            return error_set(error, STATUS_CONFIG, "the database URL has text between ']' and the port");
    } else {
        str_split(&part, ':', &name);
    }
    if (!decode(&parsed->arena, name, false, &name))
        return error_set(error, STATUS_CONFIG, "a host in the database URL is wrongly percent-encoded");
    return add_host(parsed, name.len > 0 ? name : STR("localhost"), part, error);
}

/* [user[:password]@]host[:port],… : the last '@' ends the user, so that a password may hold one. */
static enum status parse_authority(struct db_parsed *parsed, struct str authority, struct error *error)
{
    const char *at = memrchr(authority.ptr, '@', authority.len);
    struct str part;
    enum status status;

    if (at) {
        struct str password = str_of(authority.ptr, (size_t)(at - authority.ptr)), user;
        authority = str_skip(authority, password.len + 1);
        str_split(&password, ':', &user);
        if (!decode(&parsed->arena, user, false, &user) ||
            !decode(&parsed->arena, password, false, &password))
            return error_set(error, STATUS_CONFIG,
                             "user or password in the database URL is wrongly percent-encoded");
        if (user.len > 0)
            set_keyword(parsed, "user", user);
        if (password.len > 0)
            set_keyword(parsed, "password", password);
    }
    while (authority.len > 0 && str_split(&authority, ',', &part)) {
        status = parse_host(parsed, part, error);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static enum status parse_query(struct db_parsed *parsed, struct str query, bool jdbc, struct error *error)
{
    struct str pair, name, value;

    while (query.len > 0 && str_split(&query, '&', &pair)) {
        if (pair.len == 0)
            continue;
        str_split(&pair, '=', &name);
        if (!decode(&parsed->arena, name, jdbc, &name) || !decode(&parsed->arena, pair, jdbc, &value))
            return error_set(error, STATUS_CONFIG,
                             "a parameter in the database URL is wrongly percent-encoded");
        enum status status = set_parameter(parsed, name, value, error);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static enum status parse_url(struct db_parsed *parsed, struct str url, struct error *error)
{
    static const struct str schemes[] = {
        {"jdbc:postgresql://", 18}, {"postgresql://", 13}, {"postgres://", 11}, {NULL, 0}};
    unsigned scheme = 0;
    struct str authority, database;

    while (schemes[scheme].ptr && !str_starts_with(url, schemes[scheme]))
        scheme++;
    if (!schemes[scheme].ptr)
        return error_set(error, STATUS_CONFIG,
                         "the database URL must begin with jdbc:postgresql:// or postgresql://");
    struct str query = str_skip(url, schemes[scheme].len);
    str_split(&query, '?', &database);
    str_split(&database, '/', &authority);
    enum status status = parse_authority(parsed, authority, error);
    if (status != STATUS_OK)
        return status;
    if (!decode(&parsed->arena, database, false, &database))
        return error_set(error, STATUS_CONFIG, "the database's name in the URL is wrongly percent-encoded");
    if (database.len > 0)
        set_keyword(parsed, "dbname", database);
    return parse_query(parsed, query, scheme == 0, error);
}

/* "app, public" as SQL: each name quoted, so that it is taken literally; one already in quotes stays as it
 * is. */
static void put_search_path(struct buf *out, struct str schemas)
{
    struct str name;

    while (schemas.len > 0 && str_split(&schemas, ',', &name)) {
        name = str_trim(name);
        if (name.len == 0)
            continue;
        bool is_quoted = name.len >= 2 && name.ptr[0] == '"' && name.ptr[name.len - 1] == '"';
        buf_put_str(out, buf_len(out) == 0 ? STR("\"") : STR(",\""));
        for (size_t i = is_quoted; i < name.len - is_quoted; i++) {
            if (name.ptr[i] == '"' && !is_quoted)
                buf_put_char(out, '"');
            buf_put_char(out, name.ptr[i]);
        }
        buf_put_char(out, '"');
    }
}

/* Settings every session of ours starts with: they travel in the startup packet and cost no round trip. */
static void set_options(struct db_parsed *parsed)
{
    struct buf options = {0}, path = {0};

    /* A process that is frozen between two statements gives its locks back, as one that died does. */
    buf_printf(&options, "-c timezone=UTC -c datestyle=ISO -c standard_conforming_strings=on"
                         " -c idle_in_transaction_session_timeout=30000");
    if (parsed->statement_timeout_ms > 0)
        buf_printf(&options, " -c statement_timeout=%lld", (long long)parsed->statement_timeout_ms);
    if (parsed->fixed_plans) /* without jit, or the price of a way that is shut would set it off */
        buf_printf(&options, " -c plan_cache_mode=force_generic_plan -c enable_seqscan=off"
                             " -c enable_hashjoin=off -c enable_mergejoin=off -c jit=off");
    put_search_path(&path, str_from(parsed->schema));
    if (buf_len(&path) > 0)
        buf_put_str(&options, STR(" -c search_path="));
    for (size_t i = 0; i < buf_len(&path); i++) { /* here a space separates and a backslash escapes */
        char c = buf_str(&path).ptr[i];
        if (c == ' ' || c == '\\')
            buf_put_char(&options, '\\');
        buf_put_char(&options, c);
    }
    set_keyword(parsed, "options", buf_str(&options));
    buf_deinit(&path);
    buf_deinit(&options);
}

static void set_defaults(struct db_parsed *parsed)
{
    static const char *const defaults[][2] = {
        {"client_encoding", "UTF8"},
        {"application_name", "freshet"},
        {"gssencmode", "disable"}, /* its negotiation blocks and is wanted by few */
        {"keepalives", "1"},       /* a peer that vanished is noticed within a minute … */
        {"keepalives_idle", "30"},
        {"keepalives_interval", "10"},
        {"keepalives_count", "3"},
        {"tcp_user_timeout", "15000"}, /* … and sooner while bytes wait to be acknowledged */
        {"target_session_attrs",
         "primary"}, /* of several hosts one may be a standby, which lags and takes no writes */
    };
    size_t count = sizeof defaults / sizeof defaults[0] - (parsed->host_count <= 1);

    for (size_t i = 0; i < count; i++)
        if (!db_keyword_get(parsed, defaults[i][0]))
            set_keyword(parsed, defaults[i][0], str_from(defaults[i][1]));
}

static void set_address(struct db_parsed *parsed)
{
    const char *database = db_keyword_get(parsed, "dbname");
    struct buf out = {0};

    for (unsigned i = 0; i < parsed->host_count; i++) {
        const struct db_host *host = &parsed->hosts[i];
        buf_printf(&out, strchr(host->name, ':') ? "%s[%s]:%s" : "%s%s:%s", i > 0 ? "," : "", host->name,
                   host->port);
    }
    buf_printf(&out, "/%s", database ? database : "");
    parsed->address = arena_str(&parsed->arena, buf_str(&out)).ptr;
    buf_deinit(&out);
}

static int64_t at_least(int64_t value, int64_t least, int64_t unset)
{
    return value <= 0 ? unset : value < least ? least : value;
}

enum status db_parsed_init(struct db_parsed *parsed, const struct db_target *target, struct error *error)
{
    int64_t backoff_min_ms = at_least(target->backoff_min_ms, 1, 100);

    *parsed = (struct db_parsed){
        .connections_max = target->connections_max > 0 ? target->connections_max : 4,
        .statement_timeout_ms = target->statement_timeout_ms,
        .fixed_plans = target->fixed_plans,
        .idle_timeout_ms = target->idle_timeout_ms,
        .connect_timeout_ms = at_least(target->connect_timeout_ms, 1, 5000),
        .backoff_min_ms = backoff_min_ms,
        .backoff_max_ms =
            at_least(target->backoff_max_ms, backoff_min_ms, backoff_min_ms > 5000 ? backoff_min_ms : 5000),
    };
    parsed->arena = ARENA(4096);
    parsed->name = arena_str(&parsed->arena, str_from(target->name)).ptr;
    enum status status = memchr(target->url.ptr, '\0', target->url.len)
                             ? error_set(error, STATUS_CONFIG, "the database URL holds a NUL byte")
                             : parse_url(parsed, target->url, error);
    if (status == STATUS_OK && parsed->host_count == 0)
        status = add_host(parsed, STR("localhost"), STR_NONE, error);
    if (status != STATUS_OK) {
        db_parsed_deinit(parsed);
        return status;
    }
    if (target->username.len > 0)
        set_keyword(parsed, "user", target->username);
    if (target->password.len > 0)
        set_keyword(parsed, "password", target->password);
    if (target->password_file.len > 0)
        parsed->password_file = arena_str(&parsed->arena, target->password_file).ptr;
    if (target->schema.len > 0)
        parsed->schema = arena_str(&parsed->arena, target->schema).ptr;
    set_defaults(parsed);
    set_options(parsed);
    set_address(parsed);
    return STATUS_OK;
}

void db_parsed_deinit(struct db_parsed *parsed)
{
    arena_deinit(&parsed->arena);
}

struct db_target db_target_copy(const struct db_target *target, const char *suffix, struct arena *arena)
{
    struct db_target copy = *target;

    copy.name = arena_printf(arena, "%s%s%s", target->name, suffix ? "-" : "", suffix ? suffix : "").ptr;
    copy.url = arena_str(arena, target->url);
    copy.username = arena_str(arena, target->username);
    copy.password = arena_str(arena, target->password);
    copy.password_file = arena_str(arena, target->password_file);
    copy.schema = arena_str(arena, target->schema);
    return copy;
}

enum status db_target_check(const struct db_target *target, struct error *error)
{
    struct db_parsed parsed;
    enum status status = db_parsed_init(&parsed, target, error);
    if (status == STATUS_OK)
        db_parsed_deinit(&parsed);
    return status;
}
