/* Figures out of bench files: what `./dev bench` writes, or a file of figures alone such as deploy/plan.json, which is built in. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "app/plan.h"
#include "base/json.h"

enum { FILE_BYTES_MAX = 16 << 20, DEPTH_MAX = 16 };

extern const struct str app_plan_text; /* deploy/plan.json */

static const struct figure_row {
    const char *name, *bench, *path, *divisor;
    double factor;
    size_t offset;
} rows[] = {
#define FIGURE_ROW(name, help, bench, path, divisor, factor) \
    {#name, bench, path, divisor, factor, offsetof(struct plan_figures, name)},
    PLAN_FIGURES(FIGURE_ROW)
#undef FIGURE_ROW
};

/* The element of an array of objects whose member has that text: "target=freshet". */
static bool find_element(const struct json_value *array, struct str condition, struct json_value *found)
{
    struct json_iter iter;
    struct json_value text;
    struct str wanted = condition, member;
    str_split(&wanted, '=', &member);
    json_iter_init(&iter, array);
    while (json_iter_next(&iter, NULL, found))
        if (json_get_string(found, member, &text) && json_str_eq(text.raw, wanted))
            return true;
    return false;
}

/* "sections.item_1[target=freshet].rps" */
static bool find_number(const struct json_value *document, const char *path, double *number)
{
    struct str rest = str_from(path), step;
    struct json_value at = *document;
    while (str_split(&rest, '.', &step)) {
        struct str name;
        bool is_list = str_split(&step, '[', &name) && step.len > 0; /* what follows it, with its bracket */
        if (!json_get(&at, name, &at))
            return false;
        if (is_list && !find_element(&at, str_of(step.ptr, step.len - 1), &at))
            return false;
    }
    return json_to_double(&at, number);
}

static enum status check_figure(const struct figure_row *row, double value, struct error *error)
{
    if (value > 0 && value < 1e12)
        return STATUS_OK;
    return error_set(error, STATUS_CONFIG, "the figure %s is %g, which is not a number above 0", row->name,
                     value);
}

static double *figure_of(struct plan_figures *figures, const struct figure_row *row)
{
    return (double *)((char *)figures + row->offset);
}

/* A file of figures alone: each by its name, and none that is not known. */
static enum status take_figures(struct plan_figures *figures, const struct json_value *document,
                                struct error *error)
{
    struct json_value object, value;
    struct json_iter iter;
    struct str name;
    if (!json_get(document, STR("figures"), &object) || object.type != JSON_OBJECT)
        return error_set(error, STATUS_CONFIG, "the bench file has no figures");
    json_iter_init(&iter, &object);
    while (json_iter_next(&iter, &name, &value)) {
        const struct figure_row *row = rows, *end = rows + sizeof rows / sizeof *rows;
        double number = 0;
        while (row < end && !json_str_eq(name, str_from(row->name)))
            row++;
        if (row == end)
            return error_set(error, STATUS_CONFIG, "%.*s is not a figure", STR_ARG(name));
        if (!json_to_double(&value, &number))
            number = 0;
        enum status status = check_figure(row, number, error);
        if (status != STATUS_OK)
            return status;
        *figure_of(figures, row) = number;
    }
    return STATUS_OK;
}

/* The file of one bench: it has all figures of that bench. */
static enum status take_bench(struct plan_figures *figures, const struct json_value *document,
                              struct str bench, struct error *error)
{
    size_t found = 0;
    for (const struct figure_row *row = rows; row < rows + sizeof rows / sizeof *rows; row++) {
        double value, divisor = 1;
        if (!str_eq(bench, str_from(row->bench)))
            continue;
        if (!find_number(document, row->path, &value) ||
            (row->divisor && !find_number(document, row->divisor, &divisor)))
            return error_set(error, STATUS_CONFIG, "the file of bench %.*s lacks %s", STR_ARG(bench),
                             row->path);
        value = value * row->factor / divisor;
        enum status status = check_figure(row, value, error);
        if (status != STATUS_OK)
            return status;
        *figure_of(figures, row) = value;
        found++;
    }
    return found ? STATUS_OK
                 : error_set(error, STATUS_CONFIG,
                             "bench %.*s has no figures for a plan: query, memory, fleet and fanout have",
                             STR_ARG(bench));
}

enum status plan_figures_read(struct plan_figures *figures, struct str text, struct error *error)
{
    struct json_value document;
    struct arena arena = ARENA(1024);
    struct plan_figures fresh = *figures;
    enum status status = json_parse(text, DEPTH_MAX, &document, error);
    struct str bench = STR_NONE, at = STR_NONE;
    if (status == STATUS_OK) {
        bench = json_get_text(&document, STR("bench"), &arena);
        at = json_get_text(&document, STR("at"), &arena);
        if (!bench.len || !at.len)
            status =
                error_set(error, STATUS_CONFIG, "it is not a file of `./dev bench`: bench or at is missing");
        else if (str_eq(bench, STR("plan")))
            status = take_figures(&fresh, &document, error);
        else
            status = take_bench(&fresh, &document, bench, error);
    }
    if (status == STATUS_OK) {
        size_t len = strlen(fresh.origin);
        snprintf(fresh.origin + len, sizeof fresh.origin - len, "%s%.*s of %.10s", len ? ", " : "",
                 STR_ARG(bench), at.ptr);
        *figures = fresh;
    }
    arena_deinit(&arena);
    return status;
}

void plan_figures_init(struct plan_figures *figures)
{
    *figures = (struct plan_figures){0};
    if (plan_figures_read(figures, app_plan_text, NULL) != STATUS_OK)
        *figures = (struct plan_figures){0}; /* a test reads the same file */
}

static enum status load_file(struct plan_figures *figures, const char *path, struct error *error)
{
    struct buf text = {0};
    enum status status = buf_read_file(&text, path, FILE_BYTES_MAX)
                             ? plan_figures_read(figures, buf_str(&text), error)
                             : error_set(error, STATUS_CONFIG, "%s", strerror(errno));
    buf_deinit(&text);
    if (status != STATUS_OK)
        error_context(error, "%s", path);
    return status;
}

enum status plan_figures_load(struct plan_figures *figures, const char *path, struct error *error)
{
    static const char *const names[] = {"query", "memory", "fleet", "fanout"};
    struct stat info;
    size_t found = 0;
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode))
        return load_file(figures, path, error);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char file[4096];
        snprintf(file, sizeof file, "%s/%s.json", path, names[i]);
        if (stat(file, &info) != 0)
            continue;
        enum status status = load_file(figures, file, error);
        if (status != STATUS_OK)
            return status;
        found++;
    }
    return found ? STATUS_OK
                 : error_set(error, STATUS_CONFIG,
                             "%s has none of query.json, memory.json, fleet.json and fanout.json", path);
}
