/* The settings tables in print: for a terminal, as docs/CONFIG.md and as a manual page. All come from one walk over the rows and hold
 * nothing but the rows, so that they are the same on every machine. Secrets' defaults are left out. */
#include "base/roff.h"
#include "kernel/config_inside.h"

#define COLUMNS_MAX 100

struct printer {
    struct buf *out;
    struct buf name; /* refdata.dictionaries[].apply */
    void (*print)(struct printer *printer, const struct setting_row *row, bool reloadable);
};

static void print_rows(struct printer *printer, const struct setting_row *rows, bool reloadable)
{
    for (const struct setting_row *row = rows; row->name; row++) {
        size_t end = printer->name.end;
        buf_printf(&printer->name, ".%s%s", row->name, row->type == SETTING_OBJECT_LIST ? "[]" : "");
        printer->print(printer, row, reloadable || row->reloadable);
        if (row->rows)
            print_rows(printer, row->rows, reloadable || row->reloadable);
        printer->name.end = end;
    }
}

static void print_section(struct printer *printer, const struct config_section *section)
{
    buf_clear(&printer->name);
    buf_put_str(&printer->name, str_from(section->name));
    print_rows(printer, section->rows, false);
}

static const char *default_of(const struct setting_row *row)
{
    if (row->type == SETTING_OBJECT)
        return "";
    if (!row->fallback)
        return "required";
    return row->fallback[0] == '\0' ? "empty" : row->secret ? "not shown" : row->fallback;
}

/* ---- terminal ---- */

/* Words of `text` in lines of at most COLUMNS_MAX, each after `indent` spaces. */
static void put_wrapped(struct buf *out, struct str text, size_t indent)
{
    struct str word;
    size_t column = 0;
    while (str_split(&text, ' ', &word)) {
        if (word.len == 0)
            continue;
        if (column > 0 && column + 1 + word.len > COLUMNS_MAX) {
            buf_put_char(out, '\n');
            column = 0;
        }
        buf_printf(out, "%*s", column ? 1 : (int)indent, "");
        buf_put_str(out, word);
        column += (column ? 1 : indent) + word.len;
    }
    buf_put_char(out, '\n');
}

/* "size, 1KiB to 1GiB; default 8MiB; restart needed" */
static void put_facts(struct buf *out, const struct setting_row *row, bool reloadable)
{
    config_value_put_type(row, false, out);
    if (config_value_bounded(row)) {
        buf_put_str(out, STR(", "));
        config_value_put_bounds(row, out);
    }
    if (row->type != SETTING_OBJECT) {
        bool given = row->fallback && row->fallback[0] != '\0';
        buf_printf(out, "; %s%s; %s", given ? "default " : "", default_of(row),
                   reloadable ? "reloadable" : "restart needed");
    }
}

static void print_help_row(struct printer *printer, const struct setting_row *row, bool reloadable)
{
    struct buf facts = {0};
    put_facts(&facts, row, reloadable);
    buf_printf(printer->out, "  %.*s\n", STR_ARG(buf_str(&printer->name)));
    put_wrapped(printer->out, buf_str(&facts), 6);
    put_wrapped(printer->out, str_from(row->help), 6);
    buf_deinit(&facts);
}

void config_print_help(const struct config_section *sections, struct buf *out)
{
    struct printer printer = {.out = out, .print = print_help_row};
    for (const struct config_section *section = sections; section->name; section++) {
        buf_printf(out, "%s%s\n", section == sections ? "" : "\n", section->name);
        put_wrapped(out, str_from(section->help), 2);
        buf_put_char(out, '\n');
        print_section(&printer, section);
    }
    buf_deinit(&printer.name);
}

/* ---- markdown ---- */

/* A cell of a table: a bar would end it. */
static void put_cell(struct buf *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '|')
            buf_put_char(out, '\\');
        buf_put_char(out, *text == '\n' ? ' ' : *text);
    }
}

static void print_markdown_row(struct printer *printer, const struct setting_row *row, bool reloadable)
{
    struct buf *out = printer->out;
    bool has_value = row->type != SETTING_OBJECT;
    bool is_quoted = has_value && row->fallback && row->fallback[0] != '\0' && !row->secret;
    struct str quote = is_quoted ? STR("`") : STR("");
    buf_printf(out, "| `%.*s` | ", STR_ARG(buf_str(&printer->name)));
    config_value_put_type(row, false, out);
    buf_put_str(out, STR(" | "));
    buf_put_str(out, quote);
    put_cell(out, default_of(row));
    buf_put_str(out, quote);
    buf_put_str(out, STR(" | "));
    if (config_value_bounded(row))
        config_value_put_bounds(row, out);
    buf_printf(out, " | %s | ", !has_value ? "" : reloadable ? "reload" : "restart");
    put_cell(out, row->help);
    buf_put_str(out, STR(" |\n"));
}

void config_print_markdown(const struct config_section *sections, struct buf *out)
{
    struct printer printer = {.out = out, .print = print_markdown_row};
    buf_put_str(
        out, STR("# Configuration\n\n"
                 "<!-- Printed by `freshet config --markdown` from the settings tables: change those. -->\n\n"
                 "One YAML file. `${NAME}` and `${NAME:default}` in a value come from the environment; "
                 "`$${NAME}` is the text `${NAME}`. Durations are `250ms`, `1s`, `5m`, `1h`, `30d` (a bare "
                 "number is milliseconds), sizes `64KiB`, `8MiB`, `1GiB` (a bare number is bytes). A list of "
                 "one may stand without its dash. \"Reload\" settings change on SIGHUP or when the file "
                 "changes, the others need a restart.\n"));
    for (const struct config_section *section = sections; section->name; section++) {
        buf_printf(out, "\n## `%s`\n\n%s\n\n", section->name, section->help);
        buf_put_str(
            out,
            STR("| setting | type | default | bounds | change | meaning |\n|---|---|---|---|---|---|\n"));
        print_section(&printer, section);
    }
    buf_deinit(&printer.name);
}

/* ---- roff ---- */

static void print_roff_row(struct printer *printer, const struct setting_row *row, bool reloadable)
{
    struct buf facts = {0};
    put_facts(&facts, row, reloadable);
    buf_put_str(printer->out, STR(".TP\n"));
    roff_put_bold(printer->out, buf_str(&printer->name));
    buf_put_str(printer->out, STR("\n("));
    roff_put_line(printer->out, buf_str(&facts));
    buf_put_str(printer->out, STR(")\n.br\n"));
    roff_put_text(printer->out, str_from(row->help));
    buf_deinit(&facts);
}

void config_print_roff(const struct config_section *sections, struct buf *out)
{
    struct printer printer = {.out = out, .print = print_roff_row};
    for (const struct config_section *section = sections; section->name; section++) {
        buf_printf(out, ".SS %s\n", section->name);
        roff_put_text(out, str_from(section->help));
        print_section(&printer, section);
    }
    buf_deinit(&printer.name);
}
