/* The named-parameter SQL compiler (R15): what is a parameter and what is left alone, as one table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>

#include "db/db.h"

static const struct db_name names[] = {
    {"tenantId", DB_TEXT},  {"key", DB_TEXT},        {"payload", DB_JSONB}, {"eventVersion", DB_BIGINT},
    {"chunkIndex", DB_INT}, {"keys", DB_TEXT_ARRAY}, {"a", DB_TEXT},        {NULL, DB_TEXT},
};

static const struct good {
    const char *sql, *text;
    unsigned params;
} good[] = {
    {"SELECT 1", "SELECT 1", 0},
    {"SELECT :key", "SELECT $1", 1},
    {"SELECT :key, :tenantId, :key", "SELECT $1, $2, $1", 2},
    {"SELECT:key", "SELECT $1", 1},
    {"SELECT(:key)", "SELECT($1)", 1},
    {"SELECT 1+:eventVersion", "SELECT 1+$1", 1},
    {"SELECT x::text, :key::text", "SELECT x::text, $1::text", 1},
    {"SELECT x::key", "SELECT x::key", 0},
    {"SELECT x :: key", "SELECT x :: key", 0},
    {"SELECT x:::key", "SELECT x::$1", 1},
    {"SELECT ':key'", "SELECT ':key'", 0},
    {"SELECT 'it''s :key', :key", "SELECT 'it''s :key', $1", 1},
    {"SELECT 'back\\', :key", "SELECT 'back\\', $1", 1},
    {"SELECT E'it\\'s :key', :key", "SELECT E'it\\'s :key', $1", 1},
    {"SELECT e'\\\\', :key", "SELECT e'\\\\', $1", 1},
    {"SELECT E'a'\n '\\' :key', :key", "SELECT E'a'\n '\\' :key', $1", 1},
    {"SELECT E'a' -- c'\n '\\' :key', :key", "SELECT E'a' -- c'\n '\\' :key', $1", 1},
    {"SELECT E'a' '\\', :key", "SELECT E'a' '\\', $1", 1},
    {"SELECT nameE'\\', :key", "SELECT nameE'\\', $1", 1},
    {"SELECT U&'\\0041 :key' , :key", "SELECT U&'\\0041 :key' , $1", 1},
    {"SELECT u&\"d:key\", :key", "SELECT u&\"d:key\", $1", 1},
    {"SELECT B'01', X'1F', N':key', :key", "SELECT B'01', X'1F', N':key', $1", 1},
    {"SELECT \"a:key\", \"x\"\":key\" , :key", "SELECT \"a:key\", \"x\"\":key\" , $1", 1},
    {"SELECT $$:key$$, :key", "SELECT $$:key$$, $1", 1},
    {"SELECT $t$ $$ :key $x$ $t$, :key", "SELECT $t$ $$ :key $x$ $t$, $1", 1},
    {"SELECT $t$;$t$", "SELECT $t$;$t$", 0},
    {"SELECT a$b$, :key, c$b$", "SELECT a$b$, $1, c$b$", 1},
    {"SELECT 1 -- :key 'x\n, :key", "SELECT 1 -- :key 'x\n, $1", 1},
    {"SELECT 1 --:key", "SELECT 1 --:key", 0},
    {"SELECT 1 -- :key\r, :key", "SELECT 1 -- :key\r, $1", 1},
    {"SELECT /* :key ' */ :key", "SELECT /* :key ' */ $1", 1},
    {"SELECT /* a /* :key */ :a */ :key", "SELECT /* a /* :key */ :a */ $1", 1},
    {"SELECT 2*/* c */:eventVersion", "SELECT 2*/* c */$1", 1},
    {"SELECT x[1:2], x[:2], x[1:]", "SELECT x[1:2], x[:2], x[1:]", 0},
    {"SELECT x[1: n]", "SELECT x[1: n]", 0},
    {"SELECT x[1: :chunkIndex]", "SELECT x[1: $1]", 1},
    {"SELECT f(x := 1, y := :key)", "SELECT f(x := 1, y := $1)", 1},
    {"SELECT f(x:=:key)", "SELECT f(x:=$1)", 1},
    {"SELECT j ? 'k', j ?| :keys, j @? '$.a'", "SELECT j ? 'k', j ?| $1, j @? '$.a'", 1},
    {"SELECT j #>> '{a,b}', j -> :key", "SELECT j #>> '{a,b}', j -> $1", 1},
    {"SELECT 1;", "SELECT 1;", 0},
    {"SELECT :key ; -- done\n /* :a */ ", "SELECT $1 ; -- done\n /* :a */ ", 1},
    {"SELECT 1;;", "SELECT 1;;", 0},
    {"SELECT ';', \";\", $$;$$ -- ;\n", "SELECT ';', \";\", $$;$$ -- ;\n", 0},
    {"SELECT '\xc3\xa9:key', \xc3\xa9, :key", "SELECT '\xc3\xa9:key', \xc3\xa9, $1", 1},
    {"SELECT \xc3\xa9:key", "SELECT \xc3\xa9 $1", 1},
    {"SELECT : key", "SELECT : key", 0},
    {"SELECT $ 1", "SELECT $ 1", 0},
    {"INSERT INTO t SELECT k FROM unnest(:keys::text[]) k ON CONFLICT DO NOTHING",
     "INSERT INTO t SELECT k FROM unnest($1::text[]) k ON CONFLICT DO NOTHING", 1},
    {"  \n SELECT :a", "  \n SELECT $1", 1},
};

static const struct wrong {
    const char *sql;
    size_t len, offset;
    const char *complaint;
} wrong[] = {
#define WRONG(sql, offset, complaint)           \
    {                                           \
        sql, sizeof(sql) - 1, offset, complaint \
    }
    WRONG("SELECT :nope", 7, "unknown parameter :nope"),
    WRONG("SELECT :key, :Key", 13, "unknown parameter :Key"),
    WRONG("SELECT :keyx", 7, "unknown parameter :keyx"),
    WRONG("SELECT :key$1", 7, "unknown parameter :key$1"),
    WRONG("SELECT :key\xc3\xa9", 7, "unknown parameter :key\xc3\xa9"),
    WRONG("SELECT x[1:n]", 10, "unknown parameter :n"),
    WRONG("SELECT \xc3\xa9, :nope", 11, "unknown parameter :nope"),
    WRONG("SELECT $1", 7, "positional"),
    WRONG("SELECT :key, $2", 13, "positional"),
    WRONG("SELECT 1$1", 8, "positional"),
    WRONG("SELECT 'x", 7, "string literal is not closed"),
    WRONG("SELECT 'x''", 7, "string literal is not closed"),
    WRONG("SELECT E'x\\'", 7, "string literal is not closed"),
    WRONG("SELECT E'x\\", 7, "string literal is not closed"),
    WRONG("SELECT \"x", 7, "quoted identifier is not closed"),
    WRONG("SELECT $a$ $b$", 7, "dollar-quoted string is not closed"),
    WRONG("SELECT $$", 7, "dollar-quoted string is not closed"),
    WRONG("SELECT /* /* */", 7, "comment is not closed"),
    WRONG("SELECT /*/", 7, "comment is not closed"),
    WRONG("SELECT 1; SELECT 2", 10, "second statement"),
    WRONG("SELECT 1; :key", 10, "second statement"),
    WRONG("SELECT 1;'", 9, "not closed"),
    WRONG("SELECT \0 1", 7, "NUL byte"),
    WRONG("SELECT '\0'", 8, "NUL byte"),
    WRONG("SELECT '\xff'", 8, "UTF-8"),
    WRONG("", 0, "no statement"),
    WRONG(" -- only\n ; /* words */", 23, "no statement"),
};

static void test_what_compiles(void **state)
{
    (void)state;
    struct arena arena = ARENA(1024);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct db_statement statement;
        struct error error = {0};
        size_t offset;
        enum status status =
            db_sql_compile(str_from(good[i].sql), names, &arena, &statement, &offset, &error);
        if (status != STATUS_OK)
            fail_msg("%s: %s at %zu", good[i].sql, error.message, offset);
        assert_string_equal(statement.text.ptr, good[i].text);
        assert_int_equal(statement.text.len, strlen(good[i].text));
        assert_int_equal(statement.param_count, good[i].params);
        assert_true(statement.id != 0);
    }
    arena_deinit(&arena);
}

static void test_what_is_refused(void **state)
{
    (void)state;
    struct arena arena = ARENA(1024);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct db_statement statement;
        struct error error = {0};
        size_t offset;
        enum status status =
            db_sql_compile(str_of(wrong[i].sql, wrong[i].len), names, &arena, &statement, &offset, &error);
        if (status != STATUS_CONFIG || !strstr(error.message, wrong[i].complaint) ||
            offset != wrong[i].offset)
            fail_msg("%s: %s \"%s\" at %zu", wrong[i].sql, status_name(status), error.message, offset);
    }
    arena_deinit(&arena);
}

static struct db_statement compiled(struct arena *arena, const char *sql)
{
    struct db_statement statement;
    size_t offset;
    assert_int_equal(db_sql_compile(str_from(sql), names, arena, &statement, &offset, NULL), STATUS_OK);
    return statement;
}

static void test_types_and_rows_follow_the_names(void **state)
{
    (void)state;
    struct arena arena = ARENA(1024);
    struct db_statement s = compiled(&arena, "SELECT :payload, :key, :eventVersion, :payload, :keys");
    assert_int_equal(s.param_count, 4);
    assert_int_equal(s.types[0], DB_JSONB);
    assert_int_equal(s.names[0], 2);
    assert_int_equal(s.types[1], DB_TEXT);
    assert_int_equal(s.names[1], 1);
    assert_int_equal(s.types[2], DB_BIGINT);
    assert_int_equal(s.types[3], DB_TEXT_ARRAY);
    /* the same text with other types is another prepared statement */
    assert_true(compiled(&arena, "SELECT :key").id != compiled(&arena, "SELECT :payload").id);
    assert_true(compiled(&arena, "SELECT :key").id == compiled(&arena, "SELECT :tenantId").id);
    arena_deinit(&arena);
}

static void test_too_many_parameters(void **state)
{
    (void)state;
    static char texts[DB_PARAMS_MAX + 1][8];
    struct db_name many[DB_PARAMS_MAX + 2] = {{0}};
    struct db_statement statement;
    struct error error = {0};
    struct arena arena = ARENA(1024);
    struct buf sql = {0};
    size_t offset;

    buf_printf(&sql, "SELECT 1");
    for (int i = 0; i <= DB_PARAMS_MAX; i++) {
        snprintf(texts[i], sizeof texts[i], "p%d", i);
        many[i] = (struct db_name){texts[i], DB_TEXT};
        buf_printf(&sql, ", :p%d", i);
    }
    assert_int_equal(db_sql_compile(buf_str(&sql), many, &arena, &statement, &offset, &error), STATUS_CONFIG);
    assert_non_null(strstr(error.message, "more than 32"));
    assert_int_equal(offset, buf_len(&sql) - 4);
    arena_deinit(&arena);
    buf_deinit(&sql);
}

/* Where PostgreSQL points in the compiled text, the writer looks for in the template: at the same `mark`. */
static void check_offset(const char *sql, const char *mark, size_t template_at)
{
    struct arena arena = ARENA(1024);
    struct db_statement s = compiled(&arena, sql);
    const char *found = strstr(s.text.ptr, mark);
    assert_non_null(found);
    size_t chars = 0;
    for (const char *c = s.text.ptr; c < found; c++)
        chars += ((unsigned char)*c & 0xc0) != 0x80;
    assert_int_equal(db_statement_offset(&s, str_from(sql), chars + 1), template_at);
    arena_deinit(&arena);
}

static void test_positions_map_back_to_the_template(void **state)
{
    (void)state;
    check_offset("SELECT nope", "nope", 7);
    check_offset("SELECT :tenantId, nope", "nope", 18);
    check_offset("SELECT :tenantId, :key, nope(:key)", "nope", 24);
    check_offset("SELECT:tenantId, nope", "nope", 17);
    check_offset("SELECT :tenantId, :key", "$2", 18);
    check_offset("SELECT '\xc3\xa9\xe2\x82\xac', :tenantId, nope", "nope", 27);
    check_offset("SELECT '\xc3\xa9' /* :key */, :key, nope", "nope", 30);
}

static void test_positions_out_of_range_stay_inside(void **state)
{
    (void)state;
    struct arena arena = ARENA(1024);
    const char *sql = "SELECT :key";
    struct db_statement s = compiled(&arena, sql);
    assert_int_equal(db_statement_offset(&s, str_from(sql), 0), 0);
    assert_true(db_statement_offset(&s, str_from(sql), 1000) <= strlen(sql));
    struct db_statement own = DB_STATEMENT("SELECT $1, x");
    assert_int_equal(db_statement_offset(&own, own.text, 12), 11);
    arena_deinit(&arena);
}

static void test_array_literals_are_escaped(void **state)
{
    (void)state;
    struct buf out = {0};
    db_array_end(&out);
    assert_true(str_eq(buf_str(&out), STR("{}")));
    buf_clear(&out);
    db_array_put(&out, STR("a"));
    db_array_put(&out, STR(""));
    db_array_put(&out, STR("q\"b\\c,{}"));
    db_array_put(&out, STR("NULL"));
    db_array_end(&out);
    assert_true(str_eq(buf_str(&out), STR("{\"a\",\"\",\"q\\\"b\\\\c,{}\",\"NULL\"}")));
    buf_deinit(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_compiles),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_types_and_rows_follow_the_names),
        cmocka_unit_test(test_too_many_parameters),
        cmocka_unit_test(test_positions_map_back_to_the_template),
        cmocka_unit_test(test_positions_out_of_range_stay_inside),
        cmocka_unit_test(test_array_literals_are_escaped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
