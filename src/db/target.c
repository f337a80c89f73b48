/* Where a database is: reads JDBC and libpq URLs into libpq's keywords, once, at start.
 *
 *     jdbc:postgresql://host[:port][,host2[:port2]…]/database?name=value&…
 *     postgresql://[user[:password]@][host[:port],…]/database?host=/socket/directory&…
 *
 * It opens nothing. Messages name the part at fault, never the URL itself: it may hold a password. */
#include "db/db.h"

#include <stdio.h>

#include "base/memory.h"
#include "db/db_inside.h"

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Percent-decodes into the arena; false on a broken escape or a NUL. JDBC also reads '+' in a query as a
 * space. */
static bool decode(struct arena *arena, struct str s, bool plus_is_space, struct str *out)
{
    char *text = arena_alloc(arena, s.len + 1);
    size_t len = 0;

    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        if (c == '%') {
            int high = i + 2 < s.len ? hex_value(s.ptr[i + 1]) : -1;
            int low = high >= 0 ? hex_value(s.ptr[i + 2]) : -1;
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

/* Cuts *rest at the first of `stops`, which stays in *rest. */
static struct str take_until(struct str *rest, const char *stops)
{
    size_t len = 0;

    while (len < rest->len && !strchr(stops, rest->ptr[len]))
        len++;
    struct str part = str_of(rest->ptr, len);
    *rest = str_of(rest->ptr + len, rest->len - len);
    return part;
}

static enum status add_host(struct db_parsed *parsed, struct str name, struct str port, struct error *error)
{
    uint64_t number = 5432;

    if (parsed->host_count == DB_HOSTS_MAX)
        return error_set(error, STATUS_CONFIG, "more than %d hosts in the database URL", DB_HOSTS_MAX);
    if (port.len > 0 && (!str_to_u64(port, &number) || number == 0 || number > 65535))
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
    struct str name, port = STR_NONE;

    if (part.len > 0 && part.ptr[0] == '[') {
        part = str_of(part.ptr + 1, part.len - 1);
        name = take_until(&part, "]");
        if (part.len == 0)
            return error_set(error, STATUS_CONFIG, "an IPv6 address in the database URL lacks its ']'");
        part = str_of(part.ptr + 1, part.len - 1);
        if (part.len > 0 && part.ptr[0] != ':')
            return error_set(error, STATUS_CONFIG, "the database URL has text between ']' and the port");
    } else {
        name = take_until(&part, ":");
    }
    if (part.len > 0)
        port = str_of(part.ptr + 1, part.len - 1);
    if (!decode(&parsed->arena, name, false, &name))
        return error_set(error, STATUS_CONFIG, "a host in the database URL is wrongly percent-encoded");
    return add_host(parsed, name.len > 0 ? name : STR("localhost"), port, error);
}

static enum status parse_user(struct db_parsed *parsed, struct str info, struct error *error)
{
    struct str user = take_until(&info, ":"), password = STR_NONE;

    if (info.len > 0)
        password = str_of(info.ptr + 1, info.len - 1);
    if (!decode(&parsed->arena, user, false, &user) || !decode(&parsed->arena, password, false, &password))
        return error_set(error, STATUS_CONFIG,
                         "user or password in the database URL is wrongly percent-encoded");
    if (user.len > 0)
        db_keyword_set(parsed, "user", user);
    if (password.len > 0)
        db_keyword_set(parsed, "password", password);
    return STATUS_OK;
}

/* [user[:password]@]host[:port],… : the last '@' ends the user, so that a password may hold one. */
static enum status parse_authority(struct db_parsed *parsed, struct str authority, struct error *error)
{
    const char *at = memrchr(authority.ptr, '@', authority.len);
    struct str part;
    enum status status;

    if (at) {
        size_t info_len = (size_t)(at - authority.ptr);
        status = parse_user(parsed, str_of(authority.ptr, info_len), error);
        if (status != STATUS_OK)
            return status;
        authority = str_of(at + 1, authority.len - info_len - 1);
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
        struct str raw_name = take_until(&pair, "=");
        struct str raw_value = pair.len > 0 ? str_of(pair.ptr + 1, pair.len - 1) : STR_NONE;
        if (!decode(&parsed->arena, raw_name, jdbc, &name) ||
            !decode(&parsed->arena, raw_value, jdbc, &value))
            return error_set(error, STATUS_CONFIG,
                             "a parameter in the database URL is wrongly percent-encoded");
        enum status status = db_parameter_set(parsed, name, value, error);
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
    struct str database;

    while (schemes[scheme].ptr && !str_starts_with(url, schemes[scheme]))
        scheme++;
    if (!schemes[scheme].ptr)
        return error_set(error, STATUS_CONFIG,
                         "the database URL must begin with jdbc:postgresql:// or postgresql://");
    struct str rest = str_of(url.ptr + schemes[scheme].len, url.len - schemes[scheme].len);
    enum status status = parse_authority(parsed, take_until(&rest, "/?"), error);
    if (status != STATUS_OK)
        return status;
    if (rest.len > 0 && rest.ptr[0] == '/')
        rest = str_of(rest.ptr + 1, rest.len - 1);
    if (!decode(&parsed->arena, take_until(&rest, "?"), false, &database))
        return error_set(error, STATUS_CONFIG, "the database's name in the URL is wrongly percent-encoded");
    if (database.len > 0)
        db_keyword_set(parsed, "dbname", database);
    if (rest.len > 0)
        rest = str_of(rest.ptr + 1, rest.len - 1);
    return parse_query(parsed, rest, scheme == 0, error);
}

/* "app, public" as SQL: each name quoted, so that it is taken literally; one already in quotes stays as it
 * is. */
static void put_search_path(struct buf *out, struct str schemas)
{
    struct str name;
    bool first = true;

    while (schemas.len > 0 && str_split(&schemas, ',', &name)) {
        name = str_trim(name);
        if (name.len == 0)
            continue;
        if (!first)
            buf_put_char(out, ',');
        first = false;
        if (name.len >= 2 && name.ptr[0] == '"' && name.ptr[name.len - 1] == '"') {
            buf_put_str(out, name);
            continue;
        }
        buf_put_char(out, '"');
        for (size_t i = 0; i < name.len; i++) {
            if (name.ptr[i] == '"')
                buf_put_char(out, '"');
            buf_put_char(out, name.ptr[i]);
        }
        buf_put_char(out, '"');
    }
}

/* In `options` a space separates and a backslash escapes. */
static void put_option(struct buf *out, const char *name, struct str value)
{
    buf_printf(out, "%s-c %s=", buf_len(out) > 0 ? " " : "", name);
    for (size_t i = 0; i < value.len; i++) {
        if (value.ptr[i] == ' ' || value.ptr[i] == '\\')
            buf_put_char(out, '\\');
        buf_put_char(out, value.ptr[i]);
    }
}

/* Settings every session of ours starts with: they travel in the startup packet and cost no round trip. */
static void set_options(struct db_parsed *parsed)
{
    /* A process that is frozen between two statements gives its locks back, as one that died does. */
    static const char idle_ms[] = "30000";
    struct buf options, path;

    buf_init(&options);
    buf_init(&path);
    put_option(&options, "timezone", STR("UTC"));
    put_option(&options, "datestyle", STR("ISO"));
    put_option(&options, "standard_conforming_strings", STR("on"));
    put_option(&options, "idle_in_transaction_session_timeout", str_from(idle_ms));
    if (parsed->statement_timeout_ms > 0) {
        char ms[24];
        snprintf(ms, sizeof ms, "%lld", (long long)parsed->statement_timeout_ms);
        put_option(&options, "statement_timeout", str_from(ms));
    }
    if (parsed->fixed_plans) {
        put_option(&options, "plan_cache_mode", STR("force_generic_plan"));
        put_option(&options, "enable_seqscan", STR("off"));
        put_option(&options, "enable_hashjoin", STR("off"));
        put_option(&options, "enable_mergejoin", STR("off"));
        put_option(&options, "jit", STR("off")); /* or the price of a way that is shut would set it off */
    }
    put_search_path(&path, str_from(parsed->schema));
    if (buf_len(&path) > 0)
        put_option(&options, "search_path", buf_str(&path));
    db_keyword_set(parsed, "options", buf_str(&options));
    buf_deinit(&path);
    buf_deinit(&options);
}

static void set_default(struct db_parsed *parsed, const char *keyword, const char *value)
{
    if (!db_keyword_get(parsed, keyword))
        db_keyword_set(parsed, keyword, str_from(value));
}

static void set_defaults(struct db_parsed *parsed)
{
    if (parsed->host_count > 1) /* one of them may be a standby, which lags and takes no writes */
        set_default(parsed, "target_session_attrs", "primary");
    db_keyword_set(parsed, "client_encoding", STR("UTF8"));
    set_default(parsed, "application_name", "freshet");
    set_default(parsed, "gssencmode", "disable"); /* its negotiation blocks and is wanted by few */
    set_default(parsed, "keepalives", "1");       /* a peer that vanished is noticed within a minute … */
    set_default(parsed, "keepalives_idle", "30");
    set_default(parsed, "keepalives_interval", "10");
    set_default(parsed, "keepalives_count", "3");
    set_default(parsed, "tcp_user_timeout", "15000"); /* … and sooner while bytes wait to be acknowledged */
}

static void set_address(struct db_parsed *parsed)
{
    const char *database = db_keyword_get(parsed, "dbname");
    struct buf out;

    buf_init(&out);
    for (unsigned i = 0; i < parsed->host_count; i++) {
        const struct db_host *host = &parsed->hosts[i];
        if (i > 0)
            buf_put_char(&out, ',');
        if (strchr(host->name, ':'))
            buf_printf(&out, "[%s]:%s", host->name, host->port);
        else
            buf_printf(&out, "%s:%s", host->name, host->port);
    }
    buf_printf(&out, "/%s", database ? database : "");
    parsed->address = arena_str(&parsed->arena, buf_str(&out)).ptr;
    buf_deinit(&out);
}

static int64_t at_least(int64_t value, int64_t least, int64_t unset)
{
    return value <= 0 ? unset : value < least ? least : value;
}

static void copy_limits(struct db_parsed *parsed, const struct db_target *target)
{
    parsed->connections_max = target->connections_max > 0 ? target->connections_max : 4;
    parsed->statement_timeout_ms = target->statement_timeout_ms;
    parsed->fixed_plans = target->fixed_plans;
    parsed->idle_timeout_ms = target->idle_timeout_ms;
    parsed->connect_timeout_ms = at_least(target->connect_timeout_ms, 1, 5000);
    parsed->backoff_min_ms = at_least(target->backoff_min_ms, 1, 100);
    parsed->backoff_max_ms = at_least(target->backoff_max_ms, parsed->backoff_min_ms, 5000);
    if (parsed->backoff_max_ms < parsed->backoff_min_ms)
        parsed->backoff_max_ms = parsed->backoff_min_ms;
}

static enum status parse(struct db_parsed *parsed, const struct db_target *target, struct error *error)
{
    if (memchr(target->url.ptr, '\0', target->url.len))
        return error_set(error, STATUS_CONFIG, "the database URL holds a NUL byte");
    enum status status = parse_url(parsed, target->url, error);
    if (status != STATUS_OK)
        return status;
    if (parsed->host_count == 0 &&
        (status = add_host(parsed, STR("localhost"), STR_NONE, error)) != STATUS_OK)
        return status;
    if (target->username.len > 0)
        db_keyword_set(parsed, "user", target->username);
    if (target->password.len > 0)
        db_keyword_set(parsed, "password", target->password);
    if (target->schema.len > 0)
        parsed->schema = arena_str(&parsed->arena, target->schema).ptr;
    set_defaults(parsed);
    set_options(parsed);
    set_address(parsed);
    return STATUS_OK;
}

enum status db_parsed_init(struct db_parsed *parsed, const struct db_target *target, struct error *error)
{
    *parsed = (struct db_parsed){0};
    arena_init(&parsed->arena, 4096);
    parsed->name = arena_str(&parsed->arena, str_from(target->name)).ptr;
    copy_limits(parsed, target);
    enum status status = parse(parsed, target, error);
    if (status != STATUS_OK)
        db_parsed_deinit(parsed);
    return status;
}

void db_parsed_deinit(struct db_parsed *parsed)
{
    arena_deinit(&parsed->arena);
}

struct db_target db_target_copy(const struct db_target *target, const char *suffix, struct arena *arena)
{
    struct db_target copy = *target;

    copy.name = arena_printf(arena, "%s-%s", target->name, suffix).ptr;
    copy.url = arena_str(arena, target->url);
    copy.username = arena_str(arena, target->username);
    copy.password = arena_str(arena, target->password);
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
