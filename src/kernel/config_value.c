/* The value of one setting: ${NAME} in its text, the text as a number, and a number in words. */
#include "kernel/config_inside.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- ${NAME} and ${NAME:default} ----
 * Runs on the text of a parsed scalar, so that the environment can never add structure, and once only: a value is not
 * searched again.
 *
 * A reference is ${ before a letter or an underscore; its default runs to the next }. A variable that is set counts
 * even when it is empty. $${ before a letter is the text ${. Every other dollar is a dollar: SQL's $1, $$ and $tag$
 * (and $${"a":1}$$) stay as they are. */

static bool begins_name(struct str rest, size_t at)
{
    char c = at < rest.len ? rest.ptr[at] : '\0';
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

/* `rest` begins with ${ and a letter. Returns how many bytes of it were read, 0 with the reason in `why`. */
static size_t put_reference(struct str rest, struct buf *out, struct buf *why)
{
    const char *brace = memchr(rest.ptr, '}', rest.len);
    size_t end = 2, close = brace ? (size_t)(brace - rest.ptr) : 0;
    while (end < rest.len && (begins_name(rest, end) || (rest.ptr[end] >= '0' && rest.ptr[end] <= '9')))
        end++;
    struct str name = str_of(rest.ptr + 2, end - 2);
    char *zname = str_dup(name);
    struct str value = str_from(getenv(zname));
    free(zname);
    if (!brace)
        buf_printf(why, "${%.*s has no closing }; for a literal ${ write $${", STR_ARG(name));
    else if (end != close && rest.ptr[end] != ':')
        buf_printf(why, "${%.*s must go on with } or :default}; for a literal ${ write $${", STR_ARG(name));
    else if (!value.ptr && end == close)
        buf_printf(why, "the environment has no %.*s, and ${%.*s} gives no default", STR_ARG(name),
                   STR_ARG(name));
    else if (value.ptr && !str_is_utf8(value))
        buf_printf(why, "the environment's %.*s is not UTF-8", STR_ARG(name));
    if (buf_len(why) > 0)
        return 0;
    buf_put_str(out, value.ptr ? value : str_of(rest.ptr + end + 1, close - end - 1));
    return close + 1;
}

bool config_env_expand(struct arena *arena, struct str raw, struct str *out, struct buf *why)
{
    struct buf filled = {0};
    size_t taken = 1;
    *out = raw;
    if (raw.len == 0 || !memmem(raw.ptr, raw.len, "${", 2))
        return true;
    for (struct str rest = raw; taken > 0 && rest.len > 0;
         rest = str_of(rest.ptr + taken, rest.len - taken)) {
        taken = 1;
        if (str_starts_with(rest, STR("${")) && begins_name(rest, 2)) {
            taken = put_reference(rest, &filled, why);
        } else if (str_starts_with(rest, STR("$${")) && begins_name(rest, 3)) {
            buf_put_str(&filled, STR("${"));
            taken = 3;
        } else {
            buf_put_char(&filled, rest.ptr[0]);
        }
        if (buf_len(&filled) > CONFIG_FILE_BYTES_MAX) {
            buf_put_str(why, STR("the environment makes it larger than 4 MiB"));
            taken = 0;
        }
    }
    if (taken > 0)
        *out = arena_str(arena, buf_str(&filled));
    buf_deinit(&filled);
    return taken > 0;
}

/* ---- text to number, and numbers in words ----
 * Strict on purpose: text with more than one reading (010, 1.5s, 8MB, yes) is refused. */

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

enum config_fit config_value_parse(const struct setting_row *row, struct str text, int64_t *value)
{
    static const char *const bools[] = {"false", "true", NULL};
    enum config_fit fit;
    *value = 0;
    if (row->type == SETTING_BOOL || row->type == SETTING_ENUM) {
        const char *const *choices = row->type == SETTING_BOOL ? bools : row->choices;
        for (; choices[*value]; ++*value)
            if (str_eq(text, str_from(choices[*value])))
                return CONFIG_FITS;
        return CONFIG_MALFORMED;
    }
    switch (row->type) {
    case SETTING_DURATION_MS: fit = parse_amount(text, durations, value); break;
    case SETTING_SIZE: fit = parse_amount(text, sizes, value); break;
    case SETTING_DECIMAL: fit = parse_decimal(text, value); break;
    default: fit = parse_int(text, value); break;
    }
    return fit == CONFIG_FITS && !config_value_within(row, *value) ? CONFIG_OUT_OF_BOUNDS : fit;
}

bool config_value_bounded(const struct setting_row *row)
{
    return row->min != 0 || row->max != 0;
}

bool config_value_within(const struct setting_row *row, int64_t value)
{
    return !config_value_bounded(row) || (value >= row->min && value <= row->max);
}

void config_value_put_type(const struct setting_row *row, bool is_sentence, struct buf *out)
{
    static const char *const names[][2] = {
        [SETTING_STRING] = {"text", "text"},
        [SETTING_BOOL] = {"true or false", "true or false"},
        [SETTING_INT] = {"whole number", "a whole number such as 42"},
        [SETTING_DURATION_MS] = {"duration", "a duration such as 250ms, 1s, 5m, 1h or 30d"},
        [SETTING_DECIMAL] = {"decimal number", "a number such as 0.5, with at most three decimals"},
        [SETTING_SIZE] = {"size", "a size such as 64KiB, 8MiB or 1GiB"},
        [SETTING_ENUM] = {"one of ", "one of "},
        [SETTING_STRING_LIST] = {"list", "a list of texts"},
        [SETTING_OBJECT] = {"object", "a mapping of keys to values"},
        [SETTING_OBJECT_LIST] = {"list of objects", "a list of mappings"},
    };
    buf_put_str(out, str_from(names[row->type][is_sentence]));
    if (row->type == SETTING_ENUM)
        for (size_t i = 0; row->choices[i]; i++)
            buf_printf(out, "%s%s", i ? ", " : "", row->choices[i]);
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

void config_value_put_number(const struct setting_row *row, int64_t value, struct buf *out)
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
        config_value_put_number(row, row->min, out);
    if (!open_below && !open_above && row->min != row->max)
        buf_put_str(out, STR(" to "));
    if (!open_above && (open_below || row->min != row->max))
        config_value_put_number(row, row->max, out);
    if (row->type == SETTING_STRING)
        buf_put_str(out, STR(" bytes long"));
    else if (row->type == SETTING_STRING_LIST || row->type == SETTING_OBJECT_LIST)
        buf_put_str(out, STR(" entries long"));
}
