/* What the configuration's tests share: load a text, expect success or these very lines. */
#ifndef FRESHET_TESTS_CONFIG_LOAD_H
#define FRESHET_TESTS_CONFIG_LOAD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "config_sample.h"

static inline struct config *loaded_from(const struct config_section *sections, const char *yaml)
{
    struct config *config = NULL;
    struct error error = {0};
    struct buf all = {0};

    if (config_load_text("t.yaml", str_from(yaml), sections, &config, &all, &error) != STATUS_OK)
        fail_msg("not loaded: %.*s", STR_ARG(buf_str(&all)));
    assert_int_equal(buf_len(&all), 0);
    buf_deinit(&all);
    return config;
}

static inline void assert_lines(const struct config_section *sections, struct str yaml, const char *lines)
{
    struct config *config = NULL;
    struct error error = {0};
    struct buf all = {0};

    assert_int_equal(config_load_text("t.yaml", yaml, sections, &config, &all, &error), STATUS_CONFIG);
    buf_put_char(&all, '\0');
    assert_string_equal(all.data, lines);
    size_t first = strcspn(lines, "\n"), room = sizeof(error.message) - 1;
    assert_memory_equal(error.message, lines, first < room ? first : room);
    assert_null(config);
    assert_int_equal(error.status, STATUS_CONFIG);
    buf_deinit(&all);
}

#define refused(yaml, lines) assert_lines(sample_sections, str_from(yaml), lines)

#endif
