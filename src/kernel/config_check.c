/* Mistakes in the tables themselves: found at start, in every run, before a file can hide them. */
#include "kernel/config_inside.h"

static bool is_list(const struct setting_row *row)
{
    return row->type == SETTING_STRING_LIST || row->type == SETTING_OBJECT_LIST;
}

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
    if (row->type == SETTING_OBJECT || row->type == SETTING_OBJECT_LIST || row->type == SETTING_IGNORED)
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

static const char *row_mistake(const struct setting_row *row)
{
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
    if ((row->type == SETTING_STRING || is_list(row)) && row->min < 0)
        return "a length cannot be below 0";
    return fallback_mistake(row);
}

static bool is_repeated(const struct setting_row *rows, const struct setting_row *row)
{
    for (const struct setting_row *earlier = rows; earlier < row; earlier++)
        if (strcmp(earlier->name, row->name) == 0)
            return true;
    return false;
}

bool config_check(const struct setting_row *rows, struct buf *why)
{
    for (const struct setting_row *row = rows; row->name; row++) {
        const char *mistake = row - rows >= CONFIG_ROWS_MAX ? "the table has too many rows"
                              : is_repeated(rows, row)      ? "the name stands twice in its table"
                                                            : row_mistake(row);
        if (mistake)
            buf_printf(why, "%s: %s", row->name, mistake);
        if (mistake || (row->rows && !config_check(row->rows, why)))
            return false;
    }
    return true;
}
