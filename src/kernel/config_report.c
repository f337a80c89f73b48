/* The list of configuration errors: the first goes to the caller's struct error, the first twenty to a buffer, one
 * line each in the form that editors and terminals can jump to. Never shows more than a glimpse of a value. */
#include "kernel/config_inside.h"

#include <stdarg.h>
#include <stdio.h>

#define LINES_MAX 20
#define SHOWN_BYTES_MAX 60

void config_line_put(struct buf *out, const char *path, struct setting_place place, struct str field)
{
    buf_put_str(out, str_from(path));
    if (place.line > 0)
        buf_printf(out, ":%u:%u", place.line, place.column);
    buf_put_str(out, STR(": "));
    if (field.len > 0) {
        buf_put_str(out, field);
        buf_put_str(out, STR(": "));
    }
}

static void put_va(struct buf *out, const char *format, va_list args)
{
    char message[1024];

    vsnprintf(message, sizeof(message), format, args);
    buf_put_str(out, str_from(message));
}

void config_report_at(struct config_report *report, struct setting_place place, struct str field,
                      const char *format, ...)
{
    struct buf line;
    va_list args;

    report->count++;
    if (report->count > LINES_MAX || (report->count > 1 && !report->all))
        return;
    buf_init(&line);
    config_line_put(&line, report->path, place, field);
    va_start(args, format);
    put_va(&line, format, args);
    va_end(args);
    if (report->all) {
        buf_put_str(report->all, buf_str(&line));
        buf_put_char(report->all, '\n');
    }
    if (report->count == 1 && report->error) {
        char name[sizeof(report->error->field)];
        snprintf(name, sizeof(name), "%.*s", STR_ARG(str_utf8_cut(field, sizeof(name) - 1)));
        error_set_field(report->error, STATUS_CONFIG, name, "%.*s", STR_ARG(buf_str(&line)));
    }
    buf_deinit(&line);
}

void config_report_end(struct config_report *report)
{
    if (report->all && report->count > LINES_MAX)
        buf_printf(report->all, "%s: and %u more\n", report->path, report->count - LINES_MAX);
}

void config_shown_put(struct buf *out, struct str text)
{
    struct str cut = str_utf8_cut(text, SHOWN_BYTES_MAX);

    buf_put_char(out, '\'');
    for (size_t i = 0; i < cut.len; i++) {
        unsigned char c = (unsigned char)cut.ptr[i];
        buf_put_char(out, c < 0x20 || c == 0x7F ? ' ' : (char)c);
    }
    buf_put_str(out, cut.len < text.len ? STR("…'") : STR("'"));
}
