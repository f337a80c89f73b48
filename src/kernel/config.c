/* The configuration as one object: made from a text and a table of sections, constant afterwards.
 *
 * The sections become one table of OBJECT rows, so that the walk, the comparison and the printing know rows only. */
#include "kernel/config_inside.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"

#define ARENA_BLOCK_BYTES 16384
#define SECTION_ALIGNMENT ((size_t)16)

struct setting_row *config_root_rows(const struct config_section *sections, struct arena *arena,
                                     size_t *bytes)
{
    size_t count = 0, offset = 0;

    while (sections[count].name)
        count++;
    struct setting_row *rows = arena_zalloc(arena, (count + 1) * sizeof(*rows));
    for (size_t i = 0; i < count; i++) {
        rows[i].name = sections[i].name;
        rows[i].type = SETTING_OBJECT;
        rows[i].help = sections[i].help;
        rows[i].rows = sections[i].rows;
        rows[i].offset = offset;
        offset += (sections[i].struct_bytes + SECTION_ALIGNMENT - 1) & ~(SECTION_ALIGNMENT - 1);
    }
    *bytes = offset;
    return rows;
}

/* A wrong table is a mistake of ours, whatever the file holds. */
static void must_be_right(const struct setting_row *rows)
{
    struct buf why;

    buf_init(&why);
    if (!config_check(rows, &why)) {
        fprintf(stderr, "mistake in a settings table: %.*s\n", STR_ARG(buf_str(&why)));
        abort();
    }
    buf_deinit(&why);
}

static struct config *create(const char *path, struct str text, const struct config_section *sections)
{
    struct config *config = memory_zalloc(sizeof(*config));
    struct str mark = STR("\xEF\xBB\xBF");
    size_t bytes;

    if (str_starts_with(text, mark))
        text = str_of(text.ptr + mark.len, text.len - mark.len);
    arena_init(&config->arena, ARENA_BLOCK_BYTES);
    config->path = arena_str(&config->arena, str_from(path)).ptr;
    config->source = arena_str(&config->arena, text);
    config->root = config_root_rows(sections, &config->arena, &bytes);
    config->values = arena_zalloc(&config->arena, bytes);
    must_be_right(config->root);
    return config;
}

static enum status load(const char *path, struct str text, const struct config_section *sections,
                        struct config **config, struct config_report *report)
{
    struct config *made = create(path, text, sections);
    yaml_document_t document;

    if (config_yaml_load(made->source, &document, report)) {
        config_walk(made, &document, report);
        yaml_document_delete(&document);
    }
    config_report_end(report);
    if (report->count > 0) {
        config_free(made);
        return STATUS_CONFIG;
    }
    *config = made;
    return STATUS_OK;
}

enum status config_load_text(const char *path, struct str text, const struct config_section *sections,
                             struct config **config, struct buf *all, struct error *error)
{
    struct config_report report = {.path = path, .error = error, .all = all};

    return load(path, text, sections, config, &report);
}

enum status config_load(const char *path, const struct config_section *sections, struct config **config,
                        struct buf *all, struct error *error)
{
    struct config_report report = {.path = path, .error = error, .all = all};
    enum status status = STATUS_CONFIG;
    struct buf text;

    buf_init(&text);
    if (config_file_read(path, &text, &report))
        status = load(path, buf_str(&text), sections, config, &report);
    buf_deinit(&text);
    return status;
}

void config_free(struct config *config)
{
    if (!config)
        return;
    arena_deinit(&config->arena);
    free(config);
}

const char *config_path(const struct config *config)
{
    return config->path;
}

struct arena *config_arena(struct config *config)
{
    return &config->arena;
}

const void *config_section(const struct config *config, const char *name)
{
    for (const struct setting_row *row = config->root; row->name; row++)
        if (strcmp(row->name, name) == 0)
            return config->values + row->offset;
    return NULL;
}

enum status config_error_at(const struct config *config, struct setting_place place, const char *field,
                            struct error *error, const char *format, ...)
{
    struct config_report report = {.path = config->path, .error = error};
    char message[512];
    va_list args;

    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    config_report_at(&report, place, str_from(field), "%s", message);
    return STATUS_CONFIG;
}
