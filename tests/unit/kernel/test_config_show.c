/* What operators see of the configuration has no secret in it (issue 15.1), wherever a URL holds one. */
#include "config_load.h"
#include "kernel/config.h"

struct shown {
    const char *text, *expected;
    bool is_secret;
};

static void each(const struct shown *cases, void (*show)(struct buf *, const struct shown *))
{
    for (const struct shown *one = cases; one->text; one++) {
        struct buf out = {0};
        show(&out, one);
        buf_put_char(&out, '\0');
        if (strcmp(out.data, one->expected) != 0)
            fail_msg("%s is shown as %s", one->text, out.data);
        buf_deinit(&out);
    }
}

static void show_value(struct buf *out, const struct shown *one)
{
    config_show_text(out, str_from(one->text), one->is_secret);
}

static void show_message(struct buf *out, const struct shown *one)
{
    config_show_message(out, str_from(one->text));
}

static void values(void **state)
{
    (void)state;
    static const struct shown cases[] = {
        {"plain", "plain", false},
        {"plain", "***", true},
        {"", "", true},
        {"postgres://u:p@h:5432/db?sslmode=require", "postgres://***@h:5432/db?***", true},
        {"jdbc:postgresql://h:5432/db", "jdbc:postgresql://h:5432/db", true},
        {"postgres://u:p@ss@h/db", "postgres://***@h/db", true},
        {"postgres://u:p/ss@h/db", "postgres://***@h/db", true},
        {"postgres://u:p?ss@h/db", "postgres://***", true},
        {"postgres://h/db?user=u&password=p@ss", "postgres://***", true},
        {"https://hooks.example/services/T0/secret", "https://hooks.example/***", true},
        {"https://u:p@hooks.example/secret?key=secret", "https://***@hooks.example/***", true},
        {"https://hooks.example?key=secret", "https://hooks.example?***", true},
        {"https://h/v1/traces", "https://h/v1/traces", false},
        {"X-Token: secret https://h", "***", true},
        {"select 'http://u:secret@h/'", "select 'http://***@h/'", false},
        {NULL},
    };
    each(cases, show_value);
}

static void messages(void **state)
{
    (void)state;
    static const struct shown cases[] = {
        {"no URL here: a@b", "no URL here: a@b", false},
        {"'nats://u:p@h:4222' is refused", "'nats://***@h:4222' is refused", false},
        {"postgres://u:pa'ss@h/db: no", "postgres://***@h/db: no", false},
        {"postgres://u:pa ss@h/db: no", "postgres://***@h/db: no", false},
        {"two: nats://u:p@a and nats://u:q@b?c=d, both", "two: nats://***@a and nats://***@b?*** both",
         false},
        {"it ends in ://", "it ends in ://", false},
        {NULL},
    };
    each(cases, show_message);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(values), cmocka_unit_test(messages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
