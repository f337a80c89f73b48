/* The configuration as one object: made from a text and a table of sections, constant afterwards.
 *
 * The sections become one table of OBJECT rows, so that the walk, the comparison and the check know rows only. Mistakes in the
 * tables themselves are found at start, in every run, before a file can hide them. */
#include "kernel/config_inside.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"

#define ARENA_BLOCK_BYTES 16384
#define SECTION_ALIGNMENT ((size_t)16)

/* ---- tables ---- */

struct str config_fallback_entries(const struct setting_row *row)
{
    struct str text = str_from(row->fallback);
    if (str_starts_with(text, STR("[")) && str_ends_with(text, STR("]")))
        text = str_trim(str_of(text.ptr + 1, text.len - 2));
    return text.len > 0 ? text : STR_NONE;
}

/* The default must be a value that the row would accept from a file; the empty one means "absent" and is always accepted. */
static const char *fallback_mistake(const struct setting_row *row)
{
    int64_t value = 0;
    if (!row->fallback || row->fallback[0] == '\0')
        return NULL;
    if (row->type == SETTING_OBJECT || row->type == SETTING_OBJECT_LIST)
        return "its fallback can only be NULL or empty";
    if (row->type == SETTING_STRING) {
        value = (int64_t)strlen(row->fallback);
    } else if (row->type == SETTING_STRING_LIST) {
        struct str rest = config_fallback_entries(row), entry;
        while (str_split(&rest, ',', &entry))
            value++;
    } else {
        return config_value_parse(row, str_from(row->fallback), &value) == CONFIG_FITS
                   ? NULL
                   : "its fallback is not a value it accepts";
    }
    return config_value_within(row, value) ? NULL : "its fallback is out of its bounds";
}

static const char *row_mistake(const struct setting_row *rows, const struct setting_row *row)
{
    bool is_list = row->type == SETTING_STRING_LIST || row->type == SETTING_OBJECT_LIST;
    if (row - rows >= CONFIG_ROWS_MAX)
        return "the table has too many rows";
    for (const struct setting_row *earlier = rows; earlier < row; earlier++)
        if (strcmp(earlier->name, row->name) == 0)
            return "the name stands twice in its table";
    if (row->name[0] == '\0')
        return "it has no name";
    if (!row->help)
        return "it has no help";
    if (row->min > row->max)
        return "min is above max";
    if (row->type == SETTING_ENUM && (!row->choices || !row->choices[0]))
        return "an ENUM needs choices";
    if ((row->type == SETTING_OBJECT || row->type == SETTING_OBJECT_LIST) && !row->rows)
        return "an object needs rows";
    if (row->type == SETTING_OBJECT_LIST && row->element_bytes == 0)
        return "an OBJECT_LIST needs element_bytes";
    if ((row->type == SETTING_STRING || is_list) && row->min < 0)
        return "a length cannot be below 0";
    return fallback_mistake(row);
}

bool config_check(const struct setting_row *rows, struct buf *why)
{
    for (const struct setting_row *row = rows; row->name; row++) {
        const char *mistake = row_mistake(rows, row);
        if (mistake)
            buf_printf(why, "%s: %s", row->name, mistake);
        if (mistake || (row->rows && !config_check(row->rows, why)))
            return false;
    }
    return true;
}

/* ---- life ---- */

static struct config *create_config(const char *path, struct str text, const struct config_section *sections)
{
    struct config *config = memory_zalloc(sizeof *config);
    struct buf why = {0};
    size_t count = 0, bytes = 0;
    if (str_starts_with(text, STR("\xEF\xBB\xBF"))) /* a byte order mark */
        text = str_of(text.ptr + 3, text.len - 3);
    config->arena = ARENA(ARENA_BLOCK_BYTES);
    config->path = arena_str(&config->arena, str_from(path)).ptr;
    config->source = arena_str(&config->arena, text);
    while (sections[count].name)
        count++;
    config->root = arena_zalloc(&config->arena, (count + 1) * sizeof *config->root);
    for (size_t i = 0; i < count; i++) {
        config->root[i] = (struct setting_row){.name = sections[i].name,
                                               .type = SETTING_OBJECT,
                                               .help = sections[i].help,
                                               .rows = sections[i].rows,
                                               .offset = bytes};
        bytes += (sections[i].struct_bytes + SECTION_ALIGNMENT - 1) & ~(SECTION_ALIGNMENT - 1);
    }
    config->values = arena_zalloc(&config->arena, bytes);
    if (!config_check(config->root, &why)) { /* a mistake of ours, whatever the file holds */
        fprintf(stderr, "mistake in a settings table: %.*s\n", STR_ARG(buf_str(&why)));
        abort();
    }
    return config;
}

enum status config_load_text(const char *path, struct str text, const struct config_section *sections,
                             struct config **config, struct buf *all, struct error *error)
{
    struct config_report report = {.path = path, .error = error, .all = all};
    struct config *made = create_config(path, text, sections);
    yaml_document_t document;
    if (config_yaml_load(made->source, &document, &report)) {
        config_walk(made, &document, &report);
        yaml_document_delete(&document);
    }
    config_report_end(&report);
    if (report.count > 0) {
        config_free(made);
        return STATUS_CONFIG;
    }
    *config = made;
    return STATUS_OK;
}

enum status config_load(const char *path, const struct config_section *sections, struct config **config,
                        struct buf *all, struct error *error)
{
    struct config_report report = {.path = path, .error = error, .all = all};
    struct buf text = {0};
    enum status status = STATUS_CONFIG;
    if (buf_read_file(&text, path, CONFIG_FILE_BYTES_MAX)) /* a text that is too large is refused later */
        status = config_load_text(path, buf_str(&text), sections, config, all, error);
    else
        config_report_at(&report, (struct setting_place){0}, STR_NONE, "cannot be read: %s", strerror(errno));
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
    struct config_report report = {.path = config ? config->path : "configuration", .error = error};
    va_list args;
    va_start(args, format);
    config_report_va(&report, place, str_from(field), format, args);
    va_end(args);
    return STATUS_CONFIG;
}

/* ---- what differs between two, and cannot change while the program runs ----
 * Compares values, not texts: 60s and 1m are the same. Names fields only, so that no secret gets into a log. */

struct diff {
    void (*fn)(const char *field, void *arg);
    void *arg;
    struct buf field;
};

static void compare_rows(struct diff *diff, const struct setting_row *rows, const char *before_values,
                         const char *after_values)
{
    for (const struct setting_row *row = rows; row->name; row++) {
        const void *before = before_values + row->offset, *after = after_values + row->offset;
        size_t end = diff->field.end;
        bool equal = true;
        if (row->reloadable)
            continue;
        buf_printf(&diff->field, "%s%s", end ? "." : "", row->name);
        switch (row->type) {
        case SETTING_STRING: equal = str_eq(*(const struct str *)before, *(const struct str *)after); break;
        case SETTING_BOOL: equal = *(const bool *)before == *(const bool *)after; break;
        case SETTING_INT:
        case SETTING_DURATION_MS:
        case SETTING_DECIMAL:
        case SETTING_SIZE: equal = *(const int64_t *)before == *(const int64_t *)after; break;
        case SETTING_ENUM: equal = *(const int *)before == *(const int *)after; break;
        case SETTING_STRING_LIST: {
            const struct setting_strings *old = before, *new = after;
            equal = old->count == new->count;
            for (size_t i = 0; equal && i < old->count; i++)
                equal = str_eq(old->items[i], new->items[i]);
            break;
        }
        case SETTING_OBJECT: compare_rows(diff, row->rows, before, after); break;
        case SETTING_OBJECT_LIST: {
            const struct setting_objects *old = before, *new = after;
            size_t list_end = diff->field.end;
            equal = old->count == new->count;
            for (size_t i = 0; equal && i < old->count; i++) {
                buf_printf(&diff->field, "[%zu]", i);
                compare_rows(diff, row->rows, (const char *)old->items + i * row->element_bytes,
                             (const char *)new->items + i * row->element_bytes);
                diff->field.end = list_end;
            }
            break;
        }
        }
        if (!equal) {
            buf_put_char(&diff->field, '\0');
            diff->fn(diff->field.data, diff->arg);
        }
        diff->field.end = end;
    }
}

void config_each_restart(const struct config *before, const struct config *after,
                         void (*fn)(const char *field, void *arg), void *arg)
{
    struct diff diff = {.fn = fn, .arg = arg};
    compare_rows(&diff, before->root, before->values, after->values);
    buf_deinit(&diff.field);
}
