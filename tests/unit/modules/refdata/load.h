/* What refdata's tests share: a section of the file read as the program reads it. */
#ifndef FRESHET_TESTS_REFDATA_LOAD_H
#define FRESHET_TESTS_REFDATA_LOAD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "modules/refdata/catalog.h"
#include "modules/refdata/settings.h"

/* The lines that every file here begins with; what follows stands at line 4. */
#define FILE_HEAD "refdata:\n  postgres: {jdbcUrl: \"postgresql://127.0.0.1:1/none\"}\n  dictionaries:\n"

static inline struct config *load(const char *yaml)
{
    const struct config_section sections[] = {refdata_section, {0}};
    struct config *config = NULL;
    struct error error = {0};

    if (config_load_text("t.yaml", str_from(yaml), sections, &config, NULL, &error) != STATUS_OK)
        fail_msg("not loaded: %s", error.message);
    return config;
}

static inline const struct refdata_settings *settings_of(const struct config *config)
{
    return config_section(config, "refdata");
}

static inline struct refdata_catalog *catalog_of(const char *yaml, const struct refdata_catalog *before)
{
    struct config *config = load(yaml);
    struct refdata_catalog *catalog = NULL;
    struct error error = {0};

    if (refdata_catalog_check(config, settings_of(config), &error) != STATUS_OK)
        fail_msg("refused: %s", error.message);
    if (refdata_catalog_create(settings_of(config), NULL, before, &catalog, &error) != STATUS_OK)
        fail_msg("no catalog: %s", error.message);
    config_free(config); /* a catalog owns what it needs of it */
    return catalog;
}

/* The check refuses the file with this very message. */
static inline void refused(const char *yaml, const char *message)
{
    struct config *config = load(yaml);
    struct error error = {0};

    assert_int_equal(refdata_catalog_check(config, settings_of(config), &error), STATUS_CONFIG);
    assert_string_equal(error.message, message);
    config_free(config);
}

#endif
