/* Database URLs (R15: seed 000's jdbcUrl as written): what each becomes, and what is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "db/db_inside.h"

static struct db_target target_of(const char *url)
{
    return (struct db_target){.name = "main", .url = str_from(url)};
}

static enum status parse(struct db_parsed *parsed, const char *url, struct error *error)
{
    struct db_target target = target_of(url);
    return db_parsed_init(parsed, &target, error);
}

/* ---- what is understood ---- */

static const struct good {
    const char *url, *address, *keyword, *value;
} good[] = {
    {"jdbc:postgresql://pg-host:5432/app", "pg-host:5432/app", "dbname", "app"},
    {"jdbc:postgresql://pg-host/app", "pg-host:5432/app", "application_name", "freshet"},
    {"jdbc:postgresql://a:1,b,c:3/app", "a:1,b:5432,c:3/app", "client_encoding", "UTF8"},
    {"jdbc:postgresql://a,b/app", "a:5432,b:5432/app", "target_session_attrs", "primary"},
    {"jdbc:postgresql://a,b/app?targetServerType=any", "a:5432,b:5432/app", "target_session_attrs", "any"},
    {"postgresql://a,b/app?target_session_attrs=standby", "a:5432,b:5432/app", "target_session_attrs",
     "standby"},
    {"jdbc:postgresql://[::1]:6000/app", "[::1]:6000/app", "dbname", "app"},
    {"jdbc:postgresql://[fe80::1]/app", "[fe80::1]:5432/app", NULL, NULL},
    {"jdbc:postgresql://h/app?user=u&password=p+q", "h:5432/app", "password", "p q"},
    {"jdbc:postgresql://h/app?ssl=true", "h:5432/app", "sslmode", "verify-full"},
    {"jdbc:postgresql://h/app?ssl", "h:5432/app", "sslmode", "verify-full"},
    {"jdbc:postgresql://h/app?ssl=true&sslmode=require", "h:5432/app", "sslmode", "require"},
    {"jdbc:postgresql://h/app?sslmode=require&ssl=true", "h:5432/app", "sslmode", "require"},
    {"jdbc:postgresql://h/app?ApplicationName=my%20app", "h:5432/app", "application_name", "my app"},
    {"jdbc:postgresql://h/app?targetServerType=primary", "h:5432/app", "target_session_attrs", "read-write"},
    {"jdbc:postgresql://h/app?tcpKeepAlive=false", "h:5432/app", "keepalives", "0"},
    {"jdbc:postgresql://h/app?prepareThreshold=5&user=u", "h:5432/app", "user", "u"},
    {"postgresql://u:p%40ss@h:1/d%2Fb", "h:1/d/b", "password", "p@ss"},
    {"postgresql://u:p@ss@h:1/db", "h:1/db", "password", "p@ss"},
    {"postgres://u@h/db", "h:5432/db", "user", "u"},
    {"postgresql://h/db?password=a+b", "h:5432/db", "password", "a+b"},
    {"postgresql:///db", "localhost:5432/db", "dbname", "db"},
    {"postgresql://", "localhost:5432/", NULL, NULL},
    {"postgresql:///db?host=/run/pg&port=6001", "/run/pg:6001/db", NULL, NULL},
    {"postgresql:///db?port=6001&host=/run/pg", "/run/pg:6001/db", NULL, NULL},
    {"postgresql://%2Frun%2Fpg:6001/db", "/run/pg:6001/db", NULL, NULL},
};

static void test_what_is_understood(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct db_parsed parsed;
        struct error error = {0};
        if (parse(&parsed, good[i].url, &error) != STATUS_OK)
            fail_msg("%s: %s", good[i].url, error.message);
        assert_string_equal(parsed.address, good[i].address);
        if (good[i].keyword) {
            const char *value = db_keyword_get(&parsed, good[i].keyword);
            assert_non_null(value);
            assert_string_equal(value, good[i].value);
        }
        db_parsed_deinit(&parsed);
    }
}

/* ---- what is refused, without its secrets ---- */

static const struct wrong {
    const char *url, *complaint;
} wrong[] = {
    {"", "must begin with"},
    {"mysql://h/db", "must begin with"},
    {"jdbc:postgresql:db", "must begin with"},
    {"postgresql://h:0/db", "port"},
    {"postgresql://h:65536/db", "port"},
    {"postgresql://h:hunter2/db", "port"},
    {"postgresql://[::1/db", "']'"},
    {"postgresql://[::1]x/db", "']'"},
    {"postgresql://h%zz/db", "host"},
    {"postgresql://h/d%0", "name"},
    {"postgresql://h/d%00", "name"},
    {"postgresql://u:hunter2%zz@h/db", "user or password"},
    {"postgresql://h/db?password=hunter2%", "percent-encoded"},
    {"postgresql://h/db?nonsense=hunter2", "nonsense"},
    {"postgresql://h/db?ssl=hunter2", "ssl "},
    {"postgresql://h/db?socketTimeout=5", "socketTimeout"},
    {"postgresql://h/db?connectTimeout=0", "connectTimeout"},
    {"postgresql://h/db?target_session_attrs=prefer-standby", "target_session_attrs"},
    {"jdbc:postgresql://h/db?targetServerType=preferSecondary", "targetServerType"},
    {"postgresql://a,b/db?host=/run/pg", "host"},
    {"postgresql://1,2,3,4,5,6,7,8,9/db", "hosts"},
};

static void test_what_is_refused_is_named_without_the_password(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct db_parsed parsed;
        struct error error = {0};
        if (parse(&parsed, wrong[i].url, &error) != STATUS_CONFIG ||
            !strstr(error.message, wrong[i].complaint))
            fail_msg("%s: \"%s\"", wrong[i].url, error.message);
        assert_null(strstr(error.message, "hunter2"));
    }
}

/* ---- what the target says beside its URL ---- */

static void test_user_and_password_of_the_target_win(void **state)
{
    (void)state;
    struct db_parsed parsed;
    struct db_target target = target_of("postgresql://a:b@h/db");
    target.username = STR("app_user");
    target.password = STR("secret");
    assert_int_equal(db_parsed_init(&parsed, &target, NULL), STATUS_OK);
    assert_string_equal(db_keyword_get(&parsed, "user"), "app_user");
    assert_string_equal(db_keyword_get(&parsed, "password"), "secret");
    assert_null(strstr(parsed.address, "secret"));
    db_parsed_deinit(&parsed);
}

static void check_options(struct str schema, const char *url, const char *wanted)
{
    struct db_parsed parsed;
    struct db_target target = target_of(url);
    target.schema = schema;
    target.statement_timeout_ms = 1500;
    assert_int_equal(db_parsed_init(&parsed, &target, NULL), STATUS_OK);
    const char *options = db_keyword_get(&parsed, "options");
    assert_non_null(strstr(options, "-c timezone=UTC"));
    assert_non_null(strstr(options, "-c statement_timeout=1500"));
    if (!strstr(options, wanted))
        fail_msg("%s is not in %s", wanted, options);
    db_parsed_deinit(&parsed);
}

static void test_schema_becomes_a_quoted_search_path(void **state)
{
    (void)state;
    check_options(STR("public"), "postgresql://h/db", "-c search_path=\"public\"");
    check_options(STR("App, public"), "postgresql://h/db", "-c search_path=\"App\",\"public\"");
    check_options(STR("a b"), "postgresql://h/db", "-c search_path=\"a\\ b\"");
    check_options(STR("a\"b"), "postgresql://h/db", "-c search_path=\"a\"\"b\"");
    check_options(STR("\"x y\""), "postgresql://h/db", "-c search_path=\"x\\ y\"");
    check_options(STR_NONE, "jdbc:postgresql://h/db?currentSchema=one,two", "-c search_path=\"one\",\"two\"");
    check_options(STR("mine"), "jdbc:postgresql://h/db?currentSchema=theirs", "-c search_path=\"mine\"");
}

static void test_connect_timeout_of_the_url(void **state)
{
    (void)state;
    struct db_parsed parsed;
    assert_int_equal(parse(&parsed, "postgresql://h/db?connect_timeout=7", NULL), STATUS_OK);
    assert_int_equal(parsed.connect_timeout_ms, 7000);
    db_parsed_deinit(&parsed);
}

/* ---- backoff ---- */

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_understood),
        cmocka_unit_test(test_what_is_refused_is_named_without_the_password),
        cmocka_unit_test(test_user_and_password_of_the_target_win),
        cmocka_unit_test(test_schema_becomes_a_quoted_search_path),
        cmocka_unit_test(test_connect_timeout_of_the_url),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
