/* Single values of the walk: text, numbers and choices from a scalar node or from a row's default.
 * A value is shown in an error as it stands in the file: what the environment gave for it may be a secret. */
#include "kernel/config_inside.h"

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
