/* The walk: setting rows lead through the YAML nodes and fill the structs they describe; what the file leaves out is
 * filled from the rows' defaults. It goes on after an error, to report several at once.
 *
 * An alias is a node that is met again. The rows bound how deep that goes, the budget below how often, so that a few
 * lines of aliases cannot grow into gigabytes. */
#include "kernel/config_inside.h"

#include <stdarg.h>
#include <stdio.h>

#define NODES_MAX 250000                  /* values and list entries, aliases counted each time */
#define TEXT_BYTES_MAX ((size_t)64 << 20) /* of strings, likewise */
#define NAMES_SHOWN_MAX 12
#define KEY_BYTES_SHOWN_MAX 64

static struct str text_of(const yaml_node_t *node)
{
    return str_of((const char *)node->data.scalar.value, node->data.scalar.length);
}

/* Nothing after the key, or YAML's words for it. */
static bool is_null(const yaml_node_t *node)
{
    static const char *const words[] = {"", "~", "null", "Null", "NULL"};

    if (node->type != YAML_SCALAR_NODE || node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        return false;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (str_eq(text_of(node), str_from(words[i])))
            return true;
    return false;
}

/* ---- messages ---- */

void config_walk_report(struct config_walk *walk, const yaml_node_t *node, const char *format, ...)
{
    char message[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    config_report_at(walk->report, config_place_of(node), buf_str(&walk->field), "%s", message);
}

bool config_walk_spend(struct config_walk *walk, const yaml_node_t *node, size_t nodes, size_t text_bytes)
{
    if (walk->spent)
        return false;
    walk->nodes += nodes;
    walk->text_bytes += text_bytes;
    walk->spent = walk->nodes > NODES_MAX || walk->text_bytes > TEXT_BYTES_MAX;
    if (walk->spent)
        config_walk_report(walk, node,
                           "the file holds too much: over %d values or %zu MiB of text, aliases counted "
                           "each time",
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

/* The node has the wrong form for its row: a list where a number is due. */
static void report_form(struct config_walk *walk, const struct setting_row *row, const yaml_node_t *node)
{
    struct buf expected;

    buf_init(&expected);
    config_value_put_kind(row, &expected);
    config_walk_report(walk, node, "must be %.*s, not %s", STR_ARG(buf_str(&expected)), form_of(node));
    buf_deinit(&expected);
}

static void put_names(const char *const *names, struct buf *out)
{
    buf_put_str(out, STR(" (known here:"));
    for (size_t i = 0; names[i]; i++)
        buf_printf(out, "%s %s", i ? "," : "", names[i]);
    buf_put_char(out, ')');
}

static void report_unknown(struct config_walk *walk, const struct setting_row *rows, const yaml_node_t *key)
{
    const char *names[CONFIG_ROWS_MAX + 1];
    size_t count = 0;
    struct buf hint;

    for (; rows[count].name; count++)
        names[count] = rows[count].name;
    names[count] = NULL;
    buf_init(&hint);
    const char *near = config_suggest(text_of(key), names);
    if (near)
        buf_printf(&hint, "; did you mean %s?", near);
    if (count <= NAMES_SHOWN_MAX)
        put_names(names, &hint);
    else if (!near)
        buf_put_str(&hint, STR("; `freshet config --describe` lists the known ones"));
    config_walk_report(walk, key, "unknown key%.*s", STR_ARG(buf_str(&hint)));
    buf_deinit(&hint);
}

/* ---- the field's name: each push returns what pop() takes ---- */

static size_t push_name(struct config_walk *walk, struct str name)
{
    size_t before = walk->field.end;
    struct str cut = str_utf8_cut(name, KEY_BYTES_SHOWN_MAX);

    if (before > 0)
        buf_put_char(&walk->field, '.');
    for (size_t i = 0; i < cut.len; i++)
        buf_put_char(&walk->field, (unsigned char)cut.ptr[i] < 0x20 ? ' ' : cut.ptr[i]);
    return before;
}

static size_t push_index(struct config_walk *walk, size_t index)
{
    size_t before = walk->field.end;

    buf_printf(&walk->field, "[%zu]", index);
    return before;
}

static void pop(struct config_walk *walk, size_t before)
{
    walk->field.end = before;
}

/* ---- lists ---- */

static void fill_object(struct config_walk *walk, const struct setting_row *rows, char *base,
                        const yaml_node_t *mapping, struct setting_place place, bool may_lack);

/* The nodes of a list: a sequence's items, or the node itself where it stands for a list of one. */
struct entries {
    yaml_node_t *node;
    const yaml_node_item_t *items; /* NULL: the node itself */
    size_t count;
};

static struct entries entries_of(yaml_node_t *node)
{
    if (node->type != YAML_SEQUENCE_NODE)
        return (struct entries){node, NULL, is_null(node) ? 0 : 1};
    return (struct entries){node, node->data.sequence.items.start,
                            (size_t)(node->data.sequence.items.top - node->data.sequence.items.start)};
}

static yaml_node_t *entry_begin(struct config_walk *walk, const struct entries *entries, size_t i,
                                size_t *before)
{
    *before = entries->items ? push_index(walk, i) : walk->field.end;
    return entries->items ? yaml_document_get_node(walk->document, entries->items[i]) : entries->node;
}

static void check_count(struct config_walk *walk, const struct setting_row *row,
                        const struct entries *entries)
{
    struct buf expected;

    if (config_value_within(row, (int64_t)entries->count))
        return;
    buf_init(&expected);
    config_value_put_bounds(row, &expected);
    config_walk_report(walk, entries->node, "must be %.*s, not %zu", STR_ARG(buf_str(&expected)),
                       entries->count);
    buf_deinit(&expected);
}

static void fill_strings(struct config_walk *walk, const struct setting_row *row, char *base,
                         yaml_node_t *node)
{
    struct setting_strings *list = (struct setting_strings *)(base + row->offset);
    struct entries entries = entries_of(node);

    if (!config_walk_spend(walk, node, entries.count, 0))
        return;
    list->items = arena_zalloc(walk->arena, entries.count * sizeof(*list->items));
    list->count = entries.count;
    for (size_t i = 0, before; i < entries.count; i++) {
        yaml_node_t *entry = entry_begin(walk, &entries, i, &before);
        if (entry->type != YAML_SCALAR_NODE || is_null(entry))
            config_walk_report(walk, entry, "must be text, not %s", form_of(entry));
        else if (!config_scalar_text(walk, entry, &list->items[i]))
            list->items[i] = STR("");
        pop(walk, before);
    }
    check_count(walk, row, &entries);
}

static void fill_objects(struct config_walk *walk, const struct setting_row *row, char *base,
                         yaml_node_t *node)
{
    struct setting_objects *list = (struct setting_objects *)(base + row->offset);
    struct entries entries = entries_of(node);

    if (!config_walk_spend(walk, node, entries.count, 0))
        return;
    char *items = list->items = arena_zalloc(walk->arena, entries.count * row->element_bytes);
    list->places = arena_zalloc(walk->arena, entries.count * sizeof(*list->places));
    list->count = entries.count;
    for (size_t i = 0, before; i < entries.count && !walk->spent; i++) {
        yaml_node_t *entry = entry_begin(walk, &entries, i, &before);
        list->places[i] = config_place_of(entry);
        if (entry->type != YAML_MAPPING_NODE)
            config_walk_report(walk, entry, "must be a mapping of keys to values, not %s", form_of(entry));
        else
            fill_object(walk, row->rows, items + i * row->element_bytes, entry, list->places[i], false);
        pop(walk, before);
    }
    check_count(walk, row, &entries);
}

/* ---- one value ---- */

/* Whether the node has a form that the row can take: a tag (!!int, !secret) asks for a meaning that nothing here
 * gives it, an empty value means an empty list or object but no text or number. */
static bool check_form(struct config_walk *walk, const struct setting_row *row, const yaml_node_t *node)
{
    static const char *const usual_tags[] = {
        [YAML_SCALAR_NODE] = YAML_DEFAULT_SCALAR_TAG,
        [YAML_SEQUENCE_NODE] = YAML_DEFAULT_SEQUENCE_TAG,
        [YAML_MAPPING_NODE] = YAML_DEFAULT_MAPPING_TAG,
    };
    bool list = row->type == SETTING_STRING_LIST || row->type == SETTING_OBJECT_LIST;
    bool object = row->type == SETTING_OBJECT || row->type == SETTING_OBJECT_LIST;

    if (node->tag && strcmp((const char *)node->tag, usual_tags[node->type]) != 0) {
        config_walk_report(walk, node, "tags such as !!int have no meaning here: remove it");
        return false;
    }
    if (is_null(node) && !list && !object) {
        config_walk_report(walk, node, "has no value: %s",
                           row->fallback ? "give one, or remove the key to take the default"
                                         : "it needs one");
        return false;
    }
    bool fits = node->type == YAML_SEQUENCE_NODE  ? list
                : node->type == YAML_MAPPING_NODE ? object
                                                  : !object || is_null(node);
    if (!fits)
        report_form(walk, row, node);
    return fits;
}

static void fill_value(struct config_walk *walk, const struct setting_row *row, char *base, yaml_node_t *node)
{
    if (row->place_offset)
        *(struct setting_place *)(base + row->place_offset - 1) = config_place_of(node);
    if (row->type == SETTING_IGNORED || !config_walk_spend(walk, node, 1, 0) || !check_form(walk, row, node))
        return;
    if (row->type == SETTING_STRING_LIST)
        fill_strings(walk, row, base, node);
    else if (row->type == SETTING_OBJECT_LIST)
        fill_objects(walk, row, base, node);
    else if (row->type == SETTING_OBJECT)
        fill_object(walk, row->rows, base + row->offset, is_null(node) ? NULL : node, config_place_of(node),
                    false);
    else
        config_scalar_fill(walk, row, base, node);
}

/* ---- defaults ---- */

static void default_strings(struct config_walk *walk, const struct setting_row *row, char *base)
{
    struct setting_strings *list = (struct setting_strings *)(base + row->offset);
    struct str rest = config_fallback_entries(row), entry;

    while (str_split(&rest, ',', &entry))
        list->count++;
    list->items = arena_zalloc(walk->arena, list->count * sizeof(*list->items));
    rest = config_fallback_entries(row);
    for (size_t i = 0; str_split(&rest, ',', &entry); i++)
        list->items[i] = arena_str(walk->arena, str_trim(entry));
}

/* The file has no such key. `place` is that of the mapping it is missing from. */
static void fill_default(struct config_walk *walk, const struct setting_row *row, char *base,
                         struct setting_place place, bool may_lack)
{
    size_t before = push_name(walk, str_from(row->name));

    if (row->type == SETTING_OBJECT)
        fill_object(walk, row->rows, base + row->offset, NULL, place, may_lack || row->fallback);
    else if (!row->fallback && !may_lack && row->type != SETTING_IGNORED)
        config_report_at(walk->report, place, buf_str(&walk->field), "is missing, and has no default");
    else if (row->type == SETTING_STRING_LIST && row->fallback)
        default_strings(walk, row, base);
    else if (row->type < SETTING_STRING_LIST)
        config_scalar_default(row, base);
    pop(walk, before);
}

/* ---- objects ---- */

/* The row of a key, NULL with a report when there is none. */
static const struct setting_row *row_of(struct config_walk *walk, const struct setting_row *rows,
                                        const yaml_node_t *key)
{
    if (key->type != YAML_SCALAR_NODE) {
        config_walk_report(walk, key, "a key must be a name, not %s", form_of(key));
        return NULL;
    }
    for (const struct setting_row *row = rows; row->name; row++)
        if (str_eq(text_of(key), str_from(row->name)))
            return row;
    size_t before = push_name(walk, text_of(key));
    if (str_eq(text_of(key), STR("<<")))
        config_walk_report(
            walk, key, "merging (<<) is not supported: use an alias for a whole value, or repeat the keys");
    else
        report_unknown(walk, rows, key);
    pop(walk, before);
    return NULL;
}

static void fill_pair(struct config_walk *walk, const struct setting_row *rows, char *base,
                      const yaml_node_pair_t *pair, unsigned seen_at[CONFIG_ROWS_MAX])
{
    yaml_node_t *key = yaml_document_get_node(walk->document, pair->key);
    const struct setting_row *row = row_of(walk, rows, key);

    if (!row)
        return;
    unsigned *seen = &seen_at[row - rows];
    size_t before = push_name(walk, str_from(row->name));
    if (*seen) {
        config_walk_report(walk, key, "stands here a second time; the first is on line %u", *seen);
    } else {
        *seen = config_place_of(key).line;
        fill_value(walk, row, base, yaml_document_get_node(walk->document, pair->value));
    }
    pop(walk, before);
}

/* Fills a struct from a mapping (NULL: from defaults alone). With may_lack, required rows may be absent: the object
 * itself is optional and was left out. */
static void fill_object(struct config_walk *walk, const struct setting_row *rows, char *base,
                        const yaml_node_t *mapping, struct setting_place place, bool may_lack)
{
    unsigned seen_at[CONFIG_ROWS_MAX] = {0}; /* the line of each row's key */

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
    struct config_walk walk = {.arena = &config->arena, .document = document, .report = report};
    struct setting_row file = {.type = SETTING_OBJECT, .rows = config->root};
    yaml_node_t *root = yaml_document_get_root_node(document);

    if (root)
        fill_value(&walk, &file, config->values, root);
    else
        fill_object(&walk, config->root, config->values, NULL, (struct setting_place){1, 1}, false);
    buf_deinit(&walk.field);
}
