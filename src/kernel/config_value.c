/* Values: from the text of a scalar to a number and back to words. Pure; messages are put together by the walker.
 * Strict on purpose: what a reader could take for something else (010, 1.5s, 8MB, yes) is refused. */
#include "kernel/config_inside.h"

#include <inttypes.h>

struct unit {
    struct str suffix;
    int64_t factor;
};

/* Largest first, so that a number is printed with the largest unit that divides it. */
static const struct unit durations[] = {
    {{"d", 1}, 86400000}, {{"h", 1}, 3600000}, {{"m", 1}, 60000},
    {{"s", 1}, 1000},     {{"ms", 2}, 1},      {{NULL, 0}, 0},
};
static const struct unit sizes[] = {
    {{"GiB", 3}, (int64_t)1 << 30},
    {{"MiB", 3}, (int64_t)1 << 20},
    {{"KiB", 3}, (int64_t)1 << 10},
    {{NULL, 0}, 0},
};

static bool has_leading_zero(struct str digits)
{
    return digits.len > 1 && digits.ptr[0] == '0';
}

static enum config_fit parse_int(struct str text, int64_t *value)
{
    struct str digits = text;

    if (digits.len > 0 && digits.ptr[0] == '-')
        digits = str_of(digits.ptr + 1, digits.len - 1);
    for (size_t i = 0; i < digits.len; i++)
        if (digits.ptr[i] < '0' || digits.ptr[i] > '9')
            return CONFIG_MALFORMED;
    if (digits.len == 0 || has_leading_zero(digits))
        return CONFIG_MALFORMED;
    return str_to_i64(text, value) ? CONFIG_FITS : CONFIG_OUT_OF_BOUNDS;
}

/* Digits and a unit of the table; digits alone count ones. */
static enum config_fit parse_amount(struct str text, const struct unit *units, int64_t *value)
{
    size_t len = 0;
    int64_t factor = 0;

    while (len < text.len && text.ptr[len] >= '0' && text.ptr[len] <= '9')
        len++;
    struct str digits = str_of(text.ptr, len), suffix = str_of(text.ptr + len, text.len - len);
    if (suffix.len == 0)
        factor = 1;
    for (; units->factor; units++)
        if (str_eq(suffix, units->suffix))
            factor = units->factor;
    if (len == 0 || factor == 0 || has_leading_zero(digits))
        return CONFIG_MALFORMED;
    if (!str_to_i64(digits, value) || __builtin_mul_overflow(*value, factor, value))
        return CONFIG_OUT_OF_BOUNDS;
    return CONFIG_FITS;
}

/* Thousandths, exactly: "1", "0.5", "1.125"; no sign, no exponent, no ".5". */
static enum config_fit parse_decimal(struct str text, int64_t *value)
{
    struct str fraction = text, whole = STR_NONE;
    int64_t thousandths = 0, factor = 100;

    if (!str_split(&fraction, '.', &whole) || (fraction.ptr && fraction.len == 0))
        return CONFIG_MALFORMED;
    for (size_t i = 0; i < fraction.len; i++, factor /= 10) {
        if (fraction.ptr[i] < '0' || fraction.ptr[i] > '9' || factor == 0)
            return CONFIG_MALFORMED;
        thousandths += factor * (fraction.ptr[i] - '0');
    }
    enum config_fit fit = whole.len > 0 && whole.ptr[0] == '-' ? CONFIG_MALFORMED : parse_int(whole, value);
    if (fit == CONFIG_FITS &&
        (__builtin_mul_overflow(*value, 1000, value) || __builtin_add_overflow(*value, thousandths, value)))
        fit = CONFIG_OUT_OF_BOUNDS;
    return fit;
}

static enum config_fit parse_bool(struct str text, int64_t *value)
{
    *value = str_eq(text, STR("true"));
    return *value || str_eq(text, STR("false")) ? CONFIG_FITS : CONFIG_MALFORMED;
}

static enum config_fit parse_choice(const char *const *choices, struct str text, int64_t *value)
{
    for (*value = 0; choices[*value]; ++*value)
        if (str_eq(text, str_from(choices[*value])))
            return CONFIG_FITS;
    return CONFIG_MALFORMED;
}

static enum config_fit parse_number(const struct setting_row *row, struct str text, int64_t *value)
{
    if (row->type == SETTING_DURATION_MS)
        return parse_amount(text, durations, value);
    if (row->type == SETTING_SIZE)
        return parse_amount(text, sizes, value);
    if (row->type == SETTING_DECIMAL)
        return parse_decimal(text, value);
    return parse_int(text, value);
}

enum config_fit config_value_parse(const struct setting_row *row, struct str text, int64_t *value)
{
    *value = 0;
    if (row->type == SETTING_BOOL)
        return parse_bool(text, value);
    if (row->type == SETTING_ENUM)
        return parse_choice(row->choices, text, value);
    enum config_fit fit = parse_number(row, text, value);
    if (fit == CONFIG_FITS && !config_value_within(row, *value))
        fit = CONFIG_OUT_OF_BOUNDS;
    return fit;
}

bool config_value_bounded(const struct setting_row *row)
{
    return row->min != 0 || row->max != 0;
}

bool config_value_within(const struct setting_row *row, int64_t value)
{
    return !config_value_bounded(row) || (value >= row->min && value <= row->max);
}

static void put_choices(const char *const *choices, struct buf *out)
{
    for (size_t i = 0; choices[i]; i++)
        buf_printf(out, "%s%s", i ? ", " : "", choices[i]);
}

void config_value_put_kind(const struct setting_row *row, struct buf *out)
{
    static const char *const kinds[] = {
        [SETTING_STRING] = "text",
        [SETTING_BOOL] = "true or false",
        [SETTING_INT] = "a whole number such as 42",
        [SETTING_DURATION_MS] = "a duration such as 250ms, 1s, 5m, 1h or 30d",
        [SETTING_DECIMAL] = "a number such as 0.5, with at most three decimals",
        [SETTING_SIZE] = "a size such as 64KiB, 8MiB or 1GiB",
        [SETTING_ENUM] = "one of ",
        [SETTING_STRING_LIST] = "a list of texts",
        [SETTING_OBJECT] = "a mapping of keys to values",
        [SETTING_OBJECT_LIST] = "a list of mappings",
        [SETTING_IGNORED] = "anything",
    };

    buf_put_str(out, str_from(kinds[row->type]));
    if (row->type == SETTING_ENUM)
        put_choices(row->choices, out);
}

static void put_amount(int64_t value, const struct unit *units, struct buf *out)
{
    for (; units->factor; units++)
        if (value != 0 && value % units->factor == 0) {
            buf_printf(out, "%" PRId64 "%s", value / units->factor, units->suffix.ptr);
            return;
        }
    buf_printf(out, "%" PRId64, value);
}

static void put_number(const struct setting_row *row, int64_t value, struct buf *out)
{
    if (row->type == SETTING_DURATION_MS)
        put_amount(value, durations, out);
    else if (row->type == SETTING_SIZE)
        put_amount(value, sizes, out);
    else if (row->type == SETTING_DECIMAL)
        buf_put_double(out, (double)value / 1000);
    else
        buf_printf(out, "%" PRId64, value);
}

void config_value_put_bounds(const struct setting_row *row, struct buf *out)
{
    bool open_below = row->min == INT64_MIN, open_above = row->max == INT64_MAX;

    if (!config_value_bounded(row) || (open_below && open_above)) {
        buf_put_str(out, STR("a number of 64 bits"));
        return;
    }
    if (open_below || open_above)
        buf_put_str(out, open_above ? STR("at least ") : STR("at most "));
    if (!open_below)
        put_number(row, row->min, out);
    if (!open_below && !open_above && row->min != row->max)
        buf_put_str(out, STR(" to "));
    if (!open_above && (open_below || row->min != row->max))
        put_number(row, row->max, out);
    if (row->type == SETTING_STRING)
        buf_put_str(out, STR(" bytes long"));
    else if (row->type == SETTING_STRING_LIST || row->type == SETTING_OBJECT_LIST)
        buf_put_str(out, STR(" entries long"));
}
