/* The value of one setting: ${NAME} in its text, the text as a number, and both from a scalar node or a row's default. */
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

static size_t name_end(struct str rest, size_t at)
{
    while (at < rest.len && (begins_name(rest, at) || (rest.ptr[at] >= '0' && rest.ptr[at] <= '9')))
        at++;
    return at;
}

static bool put_variable(struct str name, const struct str *fallback, struct buf *out, struct buf *why)
{
    char *zname = str_dup(name);
    struct str value = str_from(getenv(zname));

    free(zname);
    if (!value.ptr && !fallback) {
        buf_printf(why, "the environment has no %.*s, and ${%.*s} gives no default", STR_ARG(name),
                   STR_ARG(name));
        return false;
    }
    if (value.ptr && !str_is_utf8(value)) {
        buf_printf(why, "the environment's %.*s is not UTF-8", STR_ARG(name));
        return false;
    }
    buf_put_str(out, value.ptr ? value : *fallback);
    return true;
}

/* `rest` begins with ${ and a letter. Returns how many bytes of it were read, 0 with the reason in `why`. */
static size_t put_reference(struct str rest, struct buf *out, struct buf *why)
{
    const char *brace = memchr(rest.ptr, '}', rest.len);
    size_t end = name_end(rest, 2);
    struct str name = str_of(rest.ptr + 2, end - 2);

    if (!brace) {
        buf_printf(why, "${%.*s has no closing }; for a literal ${ write $${", STR_ARG(name));
        return 0;
    }
    size_t close = (size_t)(brace - rest.ptr);
    if (end != close && rest.ptr[end] != ':') {
        buf_printf(why, "${%.*s must go on with } or :default}; for a literal ${ write $${", STR_ARG(name));
        return 0;
    }
    struct str fallback = end == close ? STR_NONE : str_of(rest.ptr + end + 1, close - end - 1);
    if (!put_variable(name, end == close ? NULL : &fallback, out, why))
        return 0;
    return close + 1;
}

/* The next byte, escape or reference of `rest`; how many bytes it took, 0 on failure. */
static size_t put_next(struct str rest, struct buf *out, struct buf *why)
{
    if (str_starts_with(rest, STR("${")) && begins_name(rest, 2))
        return put_reference(rest, out, why);
    if (str_starts_with(rest, STR("$${")) && begins_name(rest, 3)) {
        buf_put_str(out, STR("${"));
        return 3;
    }
    buf_put_char(out, rest.ptr[0]);
    return 1;
}

bool config_env_expand(struct arena *arena, struct str raw, struct str *out, struct buf *why)
{
    struct buf filled;
    bool fine = true;

    *out = raw;
    if (raw.len == 0 || !memmem(raw.ptr, raw.len, "${", 2))
        return true;
    buf_init(&filled);
    for (size_t at = 0, taken; fine && at < raw.len; at += taken) {
        taken = put_next(str_of(raw.ptr + at, raw.len - at), &filled, why);
        fine = taken > 0;
        if (fine && buf_len(&filled) > CONFIG_FILE_BYTES_MAX) {
            buf_put_str(why, STR("the environment makes it larger than 4 MiB"));
            fine = false;
        }
    }
    if (fine)
        *out = arena_str(arena, buf_str(&filled));
    buf_deinit(&filled);
    return fine;
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

/* ---- from a scalar node, or from a row's default ----
 * An error shows a value as it stands in the file: the value from the environment may be a secret. */

static struct str raw_of(const yaml_node_t *node)
{
    return str_of((const char *)node->data.scalar.value, node->data.scalar.length);
}

static bool is_plain(const yaml_node_t *node)
{
    return node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

static bool mentions_env(const yaml_node_t *node)
{
    struct str raw = raw_of(node);

    return raw.len > 0 && memmem(raw.ptr, raw.len, "${", 2) != NULL;
}

static void put_found(const struct setting_row *row, const yaml_node_t *node, struct buf *out)
{
    const char *near = row->type == SETTING_ENUM ? config_suggest(raw_of(node), row->choices) : NULL;

    if (row->secret) {
        buf_put_str(out, STR("what is given (a secret)"));
        return;
    }
    if (mentions_env(node))
        buf_put_str(out, STR("what the environment makes of "));
    config_shown_put(out, raw_of(node));
    if (near)
        buf_printf(out, "; did you mean %s?", near);
}

static void report_misfit(struct config_walk *walk, const struct setting_row *row, const yaml_node_t *node,
                          enum config_fit fit)
{
    struct buf expected, found;

    buf_init(&expected);
    buf_init(&found);
    if (fit == CONFIG_OUT_OF_BOUNDS)
        config_value_put_bounds(row, &expected);
    else
        config_value_put_kind(row, &expected);
    put_found(row, node, &found);
    config_walk_report(walk, node, "must be %.*s, not %.*s", STR_ARG(buf_str(&expected)),
                       STR_ARG(buf_str(&found)));
    buf_deinit(&found);
    buf_deinit(&expected);
}

/* The scalar's text with the environment filled in; false when something was reported. */
static bool expand(struct config_walk *walk, const yaml_node_t *node, struct str *text)
{
    struct buf why;

    buf_init(&why);
    bool fine = config_env_expand(walk->arena, raw_of(node), text, &why);
    if (!fine)
        config_walk_report(walk, node, "%.*s", STR_ARG(buf_str(&why)));
    buf_deinit(&why);
    return fine && config_walk_spend(walk, node, 0, text->len);
}

bool config_scalar_text(struct config_walk *walk, const yaml_node_t *node, struct str *value)
{
    struct str text;

    if (!expand(walk, node, &text))
        return false;
    if (text.len > 0 && memchr(text.ptr, '\0', text.len)) {
        config_walk_report(walk, node, "must not hold a NUL character");
        return false;
    }
    *value = text.ptr == raw_of(node).ptr ? arena_str(walk->arena, text) : text;
    return true;
}

static void fill_text(struct config_walk *walk, const struct setting_row *row, char *base,
                      const yaml_node_t *node)
{
    struct str *value = (struct str *)(base + row->offset);

    if (config_scalar_text(walk, node, value) && !config_value_within(row, (int64_t)value->len))
        report_misfit(walk, row, node, CONFIG_OUT_OF_BOUNDS);
}

static void store_number(const struct setting_row *row, char *base, int64_t number)
{
    void *to = base + row->offset;

    if (row->type == SETTING_BOOL)
        *(bool *)to = number != 0;
    else if (row->type == SETTING_ENUM)
        *(int *)to = (int)number;
    else
        *(int64_t *)to = number;
}

/* In YAML "8080" is text and 8080 a number; a value with a unit is text either way, and ${NAME} often has to be
 * quoted, so those are let through. */
static bool is_quoted_number(const struct setting_row *row, const yaml_node_t *node)
{
    return !is_plain(node) && !mentions_env(node) && (row->type == SETTING_INT || row->type == SETTING_BOOL);
}

static void fill_number(struct config_walk *walk, const struct setting_row *row, char *base,
                        const yaml_node_t *node)
{
    struct str text;
    int64_t number;

    if (!expand(walk, node, &text))
        return;
    enum config_fit fit = config_value_parse(row, text, &number);
    if (fit != CONFIG_FITS)
        report_misfit(walk, row, node, fit);
    else if (is_quoted_number(row, node))
        config_walk_report(walk, node, "must be %s, not text: remove the quotes",
                           row->type == SETTING_BOOL ? "true or false" : "a whole number");
    else
        store_number(row, base, number);
}

void config_scalar_fill(struct config_walk *walk, const struct setting_row *row, char *base,
                        const yaml_node_t *node)
{
    if (row->type == SETTING_STRING)
        fill_text(walk, row, base, node);
    else
        fill_number(walk, row, base, node);
}

void config_scalar_default(const struct setting_row *row, char *base)
{
    struct str text = str_from(row->fallback ? row->fallback : "");
    int64_t number;

    if (row->type == SETTING_STRING)
        *(struct str *)(base + row->offset) = text;
    else if (text.len > 0 && config_value_parse(row, text, &number) == CONFIG_FITS)
        store_number(row, base, number);
}
