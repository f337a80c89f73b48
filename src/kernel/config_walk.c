/* The walk: setting rows lead through the YAML nodes and fill the structs they describe; what the file leaves out is
 * filled from the rows' defaults. It goes on after an error, to report several at once.
 *
 * An alias is a node that is met again. The rows bound how deep that goes, the budget below how often, so that a few
 * lines of aliases cannot grow into gigabytes. An error shows a value as it stands in the file: the value from the
 * environment may be a secret. */
#include "kernel/config_inside.h"

#include <stdio.h>

#define NODES_MAX 250000                  /* values and list entries, aliases counted each time */
#define TEXT_BYTES_MAX ((size_t)64 << 20) /* of strings, likewise */
#define NAMES_SHOWN_MAX 12
#define KEY_BYTES_SHOWN_MAX 64
#define SHOWN_BYTES_MAX 60

struct walk {
    struct arena *arena;
    yaml_document_t *document;
    struct config_report *report;
    struct buf field; /* refdata.dictionaries[1].apply */
    size_t nodes, text_bytes;
    bool spent; /* the budget is gone: everything returns */
};

static struct str text_of(const yaml_node_t *node)
{
    return str_of((const char *)node->data.scalar.value, node->data.scalar.length);
}

static bool is_plain(const yaml_node_t *node)
{
    return node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

/* Nothing after the key, or YAML's words for it. */
static bool is_null(const yaml_node_t *node)
{
    static const char *const words[] = {"", "~", "null", "Null", "NULL"};
    if (node->type != YAML_SCALAR_NODE || !is_plain(node))
        return false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (str_eq(text_of(node), str_from(words[i])))
            return true;
    return false;
}

static bool mentions_env(const yaml_node_t *node)
{
    struct str raw = text_of(node);
    return raw.len > 0 && memmem(raw.ptr, raw.len, "${", 2) != NULL;
}

/* ---- messages ---- */

static void report_at(struct walk *walk, const yaml_node_t *node, const char *format, ...) PRINTF_LIKE(3, 4);

/* An error at the node, in the field the walk is at. */
static void report_at(struct walk *walk, const yaml_node_t *node, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    config_report_va(walk->report, config_place_of(node), buf_str(&walk->field), format, args);
    va_end(args);
}

/* "must be 1 to 64, not 65" */
static void report_misfit(struct walk *walk, const struct setting_row *row, const yaml_node_t *node,
                          enum config_fit fit, struct str found)
{
    struct buf expected = {0};
    if (fit == CONFIG_OUT_OF_BOUNDS)
        config_value_put_bounds(row, &expected);
    else
        config_value_put_type(row, true, &expected);
    report_at(walk, node, "must be %.*s, not %.*s", STR_ARG(buf_str(&expected)), STR_ARG(found));
    buf_deinit(&expected);
}

/* Takes from the budget; false, once with a report, when it is gone. */
static bool spend(struct walk *walk, const yaml_node_t *node, size_t nodes, size_t text_bytes)
{
    if (walk->spent)
        return false;
    walk->nodes += nodes;
    walk->text_bytes += text_bytes;
    walk->spent = walk->nodes > NODES_MAX || walk->text_bytes > TEXT_BYTES_MAX;
    if (walk->spent)
        report_at(walk, node,
                  "the file holds too much: over %d values or %zu MiB of text, aliases counted each time",
                  NODES_MAX, TEXT_BYTES_MAX >> 20);
    return !walk->spent;
}

static const char *form_of(const yaml_node_t *node)
{
    if (is_null(node))
        return "empty";
    return node->type == YAML_SEQUENCE_NODE  ? "a list"
           : node->type == YAML_MAPPING_NODE ? "a mapping"
                                             : "a single value";
}

static void report_unknown(struct walk *walk, const struct setting_row *rows, const yaml_node_t *key)
{
    const char *names[CONFIG_ROWS_MAX + 1];
    size_t count = 0;
    struct buf hint = {0};
    for (; rows[count].name; count++)
        names[count] = rows[count].name;
    names[count] = NULL;
    const char *near = config_suggest(text_of(key), names);
    if (near)
        buf_printf(&hint, "; did you mean %s?", near);
    if (count <= NAMES_SHOWN_MAX) {
        for (size_t i = 0; i < count; i++)
            buf_printf(&hint, "%s %s", i ? "," : " (known here:", names[i]);
        buf_put_char(&hint, ')');
    } else if (!near) {
        buf_put_str(&hint, STR("; `freshet config --describe` lists the known ones"));
    }
    report_at(walk, key, "unknown key%.*s", STR_ARG(buf_str(&hint)));
    buf_deinit(&hint);
}

/* Adds to the field's name; returns the end that it had, to go back to. */
static size_t push_name(struct walk *walk, struct str name)
{
    size_t before = walk->field.end;
    struct str cut = str_utf8_cut(name, KEY_BYTES_SHOWN_MAX);
    if (before > 0)
        buf_put_char(&walk->field, '.');
    for (size_t i = 0; i < cut.len; i++)
        buf_put_char(&walk->field, (unsigned char)cut.ptr[i] < 0x20 ? ' ' : cut.ptr[i]);
    return before;
}

/* ---- scalars ---- */

/* The scalar's text with the environment filled in, in the arena; false when something was reported. */
static bool expand(struct walk *walk, const yaml_node_t *node, struct str *text)
{
    struct buf why = {0};
    bool fine = config_env_expand(walk->arena, text_of(node), text, &why);
    if (!fine)
        report_at(walk, node, "%.*s", STR_ARG(buf_str(&why)));
    buf_deinit(&why);
    return fine && spend(walk, node, 0, text->len);
}

static bool read_text(struct walk *walk, const yaml_node_t *node, struct str *value)
{
    struct str text;
    if (!expand(walk, node, &text))
        return false;
    if (text.len > 0 && memchr(text.ptr, '\0', text.len)) {
        report_at(walk, node, "must not hold a NUL character");
        return false;
    }
    *value = text.ptr == text_of(node).ptr ? arena_str(walk->arena, text) : text;
    return true;
}

/* The value as it was found, in quotes, shortened, on one line. */
static void report_value(struct walk *walk, const struct setting_row *row, const yaml_node_t *node,
                         enum config_fit fit)
{
    const char *near = row->type == SETTING_ENUM ? config_suggest(text_of(node), row->choices) : NULL;
    struct str text = text_of(node), cut = str_utf8_cut(text, SHOWN_BYTES_MAX);
    struct buf found = {0};
    if (row->secret) {
        buf_put_str(&found, STR("what is given (a secret)"));
    } else {
        buf_printf(&found, "%s'", mentions_env(node) ? "what the environment makes of " : "");
        for (size_t i = 0; i < cut.len; i++) {
            unsigned char c = (unsigned char)cut.ptr[i];
            buf_put_char(&found, c < 0x20 || c == 0x7F ? ' ' : (char)c);
        }
        buf_put_str(&found, cut.len < text.len ? STR("…'") : STR("'"));
        if (near)
            buf_printf(&found, "; did you mean %s?", near);
    }
    report_misfit(walk, row, node, fit, buf_str(&found));
    buf_deinit(&found);
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

static void fill_scalar(struct walk *walk, const struct setting_row *row, char *base, const yaml_node_t *node)
{
    struct str text;
    int64_t number;
    if (row->type == SETTING_STRING) {
        struct str *value = (struct str *)(base + row->offset);
        if (read_text(walk, node, value) && !config_value_within(row, (int64_t)value->len))
            report_value(walk, row, node, CONFIG_OUT_OF_BOUNDS);
        return;
    }
    if (!expand(walk, node, &text))
        return;
    enum config_fit fit = config_value_parse(row, text, &number);
    /* In YAML "8080" is text and 8080 a number; a value with a unit is text either way, and ${NAME} often has to be
     * quoted, so those are let through. */
    bool is_quoted =
        !is_plain(node) && !mentions_env(node) && (row->type == SETTING_INT || row->type == SETTING_BOOL);
    if (fit != CONFIG_FITS)
        report_value(walk, row, node, fit);
    else if (is_quoted)
        report_at(walk, node, "must be %s, not text: remove the quotes",
                  row->type == SETTING_BOOL ? "true or false" : "a whole number");
    else
        store_number(row, base, number);
}

/* ---- lists ---- */

static void fill_object(struct walk *walk, const struct setting_row *rows, char *base,
                        const yaml_node_t *mapping, struct setting_place place, bool may_lack);

/* Of a sequence's items, or of the node itself where it stands for a list of one. */
static void fill_list(struct walk *walk, const struct setting_row *row, char *base, yaml_node_t *node)
{
    bool is_sequence = node->type == YAML_SEQUENCE_NODE, of_texts = row->type == SETTING_STRING_LIST;
    const yaml_node_item_t *items = is_sequence ? node->data.sequence.items.start : NULL;
    size_t count = is_sequence ? (size_t)(node->data.sequence.items.top - items) : !is_null(node);
    struct setting_strings *strings = (struct setting_strings *)(base + row->offset);
    struct setting_objects *objects = (struct setting_objects *)(base + row->offset);
    if (!spend(walk, node, count, 0))
        return;
    if (of_texts) {
        *strings = (struct setting_strings){arena_zalloc(walk->arena, count * sizeof *strings->items), count};
    } else {
        objects->items = arena_zalloc(walk->arena, count * row->element_bytes);
        objects->places = arena_zalloc(walk->arena, count * sizeof *objects->places);
        objects->count = count;
    }
    for (size_t i = 0, before = walk->field.end; i < count && (of_texts || !walk->spent); i++) {
        yaml_node_t *entry = is_sequence ? yaml_document_get_node(walk->document, items[i]) : node;
        if (is_sequence)
            buf_printf(&walk->field, "[%zu]", i);
        if (!of_texts)
            objects->places[i] = config_place_of(entry);
        if (of_texts ? entry->type != YAML_SCALAR_NODE || is_null(entry) : entry->type != YAML_MAPPING_NODE)
            report_at(walk, entry, "must be %s, not %s", of_texts ? "text" : "a mapping of keys to values",
                      form_of(entry));
        else if (!of_texts)
            fill_object(walk, row->rows, (char *)objects->items + i * row->element_bytes, entry,
                        objects->places[i], false);
        else if (!read_text(walk, entry, &strings->items[i]))
            strings->items[i] = STR("");
        walk->field.end = before;
    }
    char found[24];
    snprintf(found, sizeof found, "%zu", count);
    if (!config_value_within(row, (int64_t)count))
        report_misfit(walk, row, node, CONFIG_OUT_OF_BOUNDS, str_from(found));
}

/* ---- one value ---- */

/* Whether the node has a form that the row can take: a tag (!!int, !secret) asks for a meaning that nothing here
 * gives it, an empty value means an empty list or object but no text or number. */
static bool check_form(struct walk *walk, const struct setting_row *row, const yaml_node_t *node)
{
    static const char *const usual_tags[] = {
        [YAML_SCALAR_NODE] = YAML_DEFAULT_SCALAR_TAG,
        [YAML_SEQUENCE_NODE] = YAML_DEFAULT_SEQUENCE_TAG,
        [YAML_MAPPING_NODE] = YAML_DEFAULT_MAPPING_TAG,
    };
    bool list = row->type == SETTING_STRING_LIST || row->type == SETTING_OBJECT_LIST;
    bool object = row->type == SETTING_OBJECT || row->type == SETTING_OBJECT_LIST;
    if (node->tag && strcmp((const char *)node->tag, usual_tags[node->type]) != 0) {
        report_at(walk, node, "tags such as !!int have no meaning here: remove it");
        return false;
    }
    if (is_null(node) && !list && !object) {
        report_at(walk, node, "has no value: %s",
                  row->fallback ? "give one, or remove the key to take the default" : "it needs one");
        return false;
    }
    bool fits = node->type == YAML_SEQUENCE_NODE  ? list
                : node->type == YAML_MAPPING_NODE ? object
                                                  : !object || is_null(node);
    if (!fits)
        report_misfit(walk, row, node, CONFIG_MALFORMED, str_from(form_of(node)));
    return fits;
}

static void fill_value(struct walk *walk, const struct setting_row *row, char *base, yaml_node_t *node)
{
    if (row->place_offset)
        *(struct setting_place *)(base + row->place_offset - 1) = config_place_of(node);
    if (!spend(walk, node, 1, 0) || !check_form(walk, row, node))
        return;
    if (row->type == SETTING_STRING_LIST || row->type == SETTING_OBJECT_LIST)
        fill_list(walk, row, base, node);
    else if (row->type == SETTING_OBJECT)
        fill_object(walk, row->rows, base + row->offset, is_null(node) ? NULL : node, config_place_of(node),
                    false);
    else
        fill_scalar(walk, row, base, node);
}

/* The file has no such key. `place` is that of the mapping it is missing from. */
static void fill_default(struct walk *walk, const struct setting_row *row, char *base,
                         struct setting_place place, bool may_lack)
{
    size_t before = push_name(walk, str_from(row->name));
    struct str text = str_from(row->fallback ? row->fallback : ""), rest, entry;
    int64_t number;
    if (row->type == SETTING_OBJECT) {
        fill_object(walk, row->rows, base + row->offset, NULL, place, may_lack || row->fallback);
    } else if (!row->fallback && !may_lack) {
        config_report_at(walk->report, place, buf_str(&walk->field), "is missing, and has no default");
    } else if (row->type == SETTING_STRING_LIST && row->fallback) {
        struct setting_strings *list = (struct setting_strings *)(base + row->offset);
        for (rest = config_fallback_entries(row); str_split(&rest, ',', &entry);)
            list->count++;
        list->items = arena_zalloc(walk->arena, list->count * sizeof *list->items);
        rest = config_fallback_entries(row);
        for (size_t i = 0; str_split(&rest, ',', &entry); i++)
            list->items[i] = arena_str(walk->arena, str_trim(entry));
    } else if (row->type == SETTING_STRING) {
        *(struct str *)(base + row->offset) = text;
    } else if (row->type < SETTING_STRING_LIST && text.len > 0 &&
               config_value_parse(row, text, &number) == CONFIG_FITS) {
        store_number(row, base, number);
    }
    walk->field.end = before;
}

/* ---- objects ---- */

static void fill_pair(struct walk *walk, const struct setting_row *rows, char *base,
                      const yaml_node_pair_t *pair, unsigned seen_at[CONFIG_ROWS_MAX + 1])
{
    yaml_node_t *key = yaml_document_get_node(walk->document, pair->key);
    const struct setting_row *row = rows;
    if (key->type != YAML_SCALAR_NODE) {
        report_at(walk, key, "a key must be a name, not %s", form_of(key));
        return;
    }
    while (row->name && !str_eq(text_of(key), str_from(row->name)))
        row++;
    unsigned *seen = &seen_at[row - rows];
    size_t before = push_name(walk, text_of(key));
    if (!row->name && str_eq(text_of(key), STR("<<"))) {
        report_at(walk, key,
                  "merging (<<) is not supported: use an alias for a whole value, or repeat the keys");
    } else if (!row->name) {
        report_unknown(walk, rows, key);
    } else if (*seen) {
        report_at(walk, key, "stands here a second time; the first is on line %u", *seen);
    } else {
        *seen = config_place_of(key).line;
        fill_value(walk, row, base, yaml_document_get_node(walk->document, pair->value));
    }
    walk->field.end = before;
}

/* Fills a struct from a mapping (NULL: from defaults alone). With may_lack, required rows may be absent: the object
 * itself is optional and was left out. */
static void fill_object(struct walk *walk, const struct setting_row *rows, char *base,
                        const yaml_node_t *mapping, struct setting_place place, bool may_lack)
{
    unsigned seen_at[CONFIG_ROWS_MAX + 1] = {0}; /* the line of each row's key */
    if (mapping)
        for (yaml_node_pair_t *pair = mapping->data.mapping.pairs.start;
             pair < mapping->data.mapping.pairs.top && !walk->spent; pair++)
            fill_pair(walk, rows, base, pair, seen_at);
    for (const struct setting_row *row = rows; row->name && !walk->spent; row++)
        if (!seen_at[row - rows])
            fill_default(walk, row, base, place, may_lack);
}

void config_walk(struct config *config, yaml_document_t *document, struct config_report *report)
{
    struct walk walk = {.arena = &config->arena, .document = document, .report = report};
    struct setting_row file = {.type = SETTING_OBJECT, .rows = config->root};
    yaml_node_t *root = yaml_document_get_root_node(document);
    if (root)
        fill_value(&walk, &file, config->values, root);
    else
        fill_object(&walk, config->root, config->values, NULL, (struct setting_place){1, 1}, false);
    buf_deinit(&walk.field);
}
