/* Configuration: one YAML file, read by setting rows.
 *
 * The rows are the only schema: an unknown key, a wrong type, a value out of bounds, a duplicate key or a missing
 * required one is an error that names file, line, column and field ("config/freshet.yaml:12:7: refdata.cache.memory:
 * …"). ${NAME} and ${NAME:default} in a value come from the environment; a missing NAME without a default is an error
 * at that place. $${NAME} stands for the text ${NAME}; a dollar before anything else is just a dollar.
 *
 * Everything read lives in the configuration's arena and is constant afterwards, so any thread may read it. Loading
 * reads the environment, which must not change meanwhile. */
#ifndef FRESHET_KERNEL_CONFIG_H
#define FRESHET_KERNEL_CONFIG_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/setting.h"
#include "base/status.h"

/* One top-level key of the file and the struct it fills. */
struct config_section {
    const char *name; /* "http", "auth", "refdata" …; NULL ends a table */
    const char *help;
    const struct setting_row *rows;
    size_t struct_bytes;
};

struct config;

/* Reads and checks the file against the sections (the table itself may go afterwards, its rows and names stay). On
 * failure the status is STATUS_CONFIG and *error's message is the whole line for the user. Several errors: the first
 * is in *error, up to 20 are printed to `all`, one line each, and how many more there are (may be NULL). */
enum status config_load(const char *path, const struct config_section *sections, struct config **config,
                        struct buf *all, struct error *error) MUST_CHECK;
/* The same for a text at hand; `path` is only its name in errors. */
enum status config_load_text(const char *path, struct str text, const struct config_section *sections,
                             struct config **config, struct buf *all, struct error *error) MUST_CHECK;
void config_free(struct config *config); /* NULL is fine */
const char *config_path(const struct config *config);
struct arena *config_arena(struct config *config);
/* The filled struct of a section: defaults where the file was silent. Never NULL for a known name. */
const void *config_section(const struct config *config, const char *name);

/* Formats an error at a value's place: "FILE:LINE:COL: FIELD: message" (config-time checks of modules). Returns
 * STATUS_CONFIG. Without a config (NULL: the settings were checked before) there is no name of the file. */
enum status config_error_at(const struct config *config, struct setting_place place, const char *field,
                            struct error *error, const char *format, ...) PRINTF_LIKE(5, 6);
/* The place in the file of text[offset], where `text` is the string that stands at value_place: exact for block
 * scalars and plain ones, the value's own place for quoted ones, the ${ where the environment filled in something. */
struct setting_place config_place_in_text(const struct config *config, struct setting_place value_place,
                                          struct str text, size_t offset);
/* Calls fn for each setting that differs between two configurations (of the same sections) and is not reloadable. A
 * list that grew or shrank is named as a whole. */
void config_each_restart(const struct config *before, const struct config *after,
                         void (*fn)(const char *field, void *arg), void *arg);

void config_print_help(const struct config_section *sections, struct buf *out);     /* for a terminal */
void config_print_markdown(const struct config_section *sections, struct buf *out); /* docs/CONFIG.md */
void config_print_roff(const struct config_section *sections, struct buf *out);     /* for freshet.yaml(5) */

/* For operators: a JSON array of {"name","value","default","is_default","line","reloadable"}, without secrets. False: it was cut at a MiB. */
bool config_show(const struct config *config, struct buf *out);
/* A value as it may be shown: of a URL neither user nor parameters, of a secret one for HTTP no path; of another secret nothing. */
void config_show_text(struct buf *out, struct str text, bool is_secret);
void config_show_message(struct buf *out, struct str text); /* the URLs in it as above */

#endif
