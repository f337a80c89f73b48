/* What differs between two configurations and cannot change while the program runs. Compares values, not texts: 60s
 * and 1m are the same. Names fields only, so that no secret gets into a log. */
#include "kernel/config_inside.h"

struct diff {
    void (*fn)(const char *field, void *arg);
    void *arg;
    struct buf field;
};

static bool strings_equal(const struct setting_strings *a, const struct setting_strings *b)
{
    if (a->count != b->count)
        return false;
    for (size_t i = 0; i < a->count; i++)
        if (!str_eq(a->items[i], b->items[i]))
            return false;
    return true;
}

/* Everything that is not an object. */
static bool values_equal(enum setting_type type, const void *a, const void *b)
{
    switch (type) {
    case SETTING_STRING: return str_eq(*(const struct str *)a, *(const struct str *)b);
    case SETTING_BOOL: return *(const bool *)a == *(const bool *)b;
    case SETTING_INT:
    case SETTING_DURATION_MS:
    case SETTING_DECIMAL:
    case SETTING_SIZE: return *(const int64_t *)a == *(const int64_t *)b;
    case SETTING_ENUM: return *(const int *)a == *(const int *)b;
    case SETTING_STRING_LIST: return strings_equal(a, b);
    case SETTING_OBJECT:
    case SETTING_OBJECT_LIST:
    case SETTING_IGNORED: break;
    }
    return true;
}

static void tell(struct diff *diff)
{
    buf_put_char(&diff->field, '\0');
    diff->fn(diff->field.data, diff->arg);
    diff->field.end--;
}

static void compare_rows(struct diff *diff, const struct setting_row *rows, const char *before,
                         const char *after);

static void compare_lists(struct diff *diff, const struct setting_row *row,
                          const struct setting_objects *before, const struct setting_objects *after)
{
    if (before->count != after->count) {
        tell(diff);
        return;
    }
    for (size_t i = 0; i < before->count; i++) {
        size_t end = diff->field.end;
        buf_printf(&diff->field, "[%zu]", i);
        compare_rows(diff, row->rows, (const char *)before->items + i * row->element_bytes,
                     (const char *)after->items + i * row->element_bytes);
        diff->field.end = end;
    }
}

static void compare_row(struct diff *diff, const struct setting_row *row, const char *before,
                        const char *after)
{
    if (row->reloadable)
        return;
    if (row->type == SETTING_OBJECT)
        compare_rows(diff, row->rows, before, after);
    else if (row->type == SETTING_OBJECT_LIST)
        compare_lists(diff, row, (const struct setting_objects *)before,
                      (const struct setting_objects *)after);
    else if (!values_equal(row->type, before, after))
        tell(diff);
}

static void compare_rows(struct diff *diff, const struct setting_row *rows, const char *before,
                         const char *after)
{
    for (const struct setting_row *row = rows; row->name; row++) {
        size_t end = diff->field.end;
        buf_printf(&diff->field, "%s%s", end ? "." : "", row->name);
        compare_row(diff, row, before + row->offset, after + row->offset);
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
