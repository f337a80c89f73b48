/* Inside the configuration: what its files share.
 *
 *   config.c         load, look up, compare; mistakes in a table      config_report.c   errors, places in the file, suggestions
 *   config_yaml.c    text -> YAML nodes                               config_value.c    node + row -> one value
 *   config_walk.c    nodes + rows -> structs                          config_print.c    help and docs/CONFIG.md
 */
#ifndef FRESHET_KERNEL_CONFIG_INSIDE_H
#define FRESHET_KERNEL_CONFIG_INSIDE_H

#include <stdarg.h>
#include <yaml.h>

#include "kernel/config.h"

#define CONFIG_FILE_BYTES_MAX ((size_t)4 << 20)
#define CONFIG_ROWS_MAX 128 /* of one table */

struct config {
    struct arena arena;
    const char *path;
    struct str source;        /* the file's text, without a byte order mark */
    struct setting_row *root; /* one OBJECT row per section: the whole file as one table */
    char *values;             /* the struct that `root` describes */
};

/* --- errors, collected in the order in which they are found --- */
struct config_report {
    const char *path;
    struct error *error;
    struct buf *all;
    unsigned count;
};
/* `field` may be empty; a place of line 0 is left out. */
void config_report_at(struct config_report *report, struct setting_place place, struct str field,
                      const char *format, ...) PRINTF_LIKE(4, 5);
void config_report_va(struct config_report *report, struct setting_place place, struct str field,
                      const char *format, va_list args);
void config_report_end(struct config_report *report);

/* --- source and nodes --- */
/* Composes the one document of `source`; false when something was reported. Free it with yaml_document_delete(). */
bool config_yaml_load(struct str source, yaml_document_t *document, struct config_report *report) MUST_CHECK;

struct setting_place config_place_of(const yaml_node_t *node);
struct setting_place config_place_at(struct str source, size_t byte);
size_t config_place_byte(struct str source, struct setting_place place); /* source.len when past the end */

void config_walk(struct config *config, yaml_document_t *document, struct config_report *report);

/* --- values --- */
enum config_fit { CONFIG_FITS, CONFIG_MALFORMED, CONFIG_OUT_OF_BOUNDS };
/* BOOL, INT, DURATION_MS, SIZE and ENUM from their text. */
enum config_fit config_value_parse(const struct setting_row *row, struct str text, int64_t *value);
bool config_value_within(const struct setting_row *row, int64_t value);
bool config_value_bounded(const struct setting_row *row);
/* "whole number"; in a sentence "a whole number such as 42" */
void config_value_put_type(const struct setting_row *row, bool is_sentence, struct buf *out);
void config_value_put_bounds(const struct setting_row *row, struct buf *out); /* "1 to 65535", "10ms to 1h" */

void config_value_put_number(const struct setting_row *row, int64_t value,
                             struct buf *out); /* "10ms", as a file has it */

/* Replaces ${NAME}. *out is `raw` itself when there is nothing to replace; false with the reason in `why`. */
bool config_env_expand(struct arena *arena, struct str raw, struct str *out, struct buf *why);

/* The name that `word` was probably meant to be, or NULL. `names` ends in NULL. */
const char *config_suggest(struct str word, const char *const *names);

/* --- tables --- */
/* A STRING_LIST's default without its brackets, its entries to be split at commas; STR_NONE when empty. */
struct str config_fallback_entries(const struct setting_row *row);
/* False with the first mistake of the table in `why`. */
bool config_check(const struct setting_row *rows, struct buf *why);

#endif
