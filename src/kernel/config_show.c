/* The configuration in force, as JSON for operators: each setting with its value, its default and its line in the file. Secrets are left out:
 * a value that a row marks as one, what a URL has of users and parameters, and the path of a URL that a row marks. */
#include <ctype.h>

#include "base/json.h"
#include "kernel/config_inside.h"

enum { VALUE_BYTES_MAX = 4096, SHOWN_BYTES_MAX = 1 << 20 };
#define HIDDEN STR("***")

struct show {
    struct buf *out;
    struct buf name;           /* refdata.dictionaries[0].code */
    yaml_document_t *document; /* NULL = the text could not be read */
    bool is_cut;
};

/* ---- values ---- */

static const char *find_in(struct str text, const char *what)
{
    return text.len ? memmem(text.ptr, text.len, what, strlen(what)) : NULL;
}

/* Of what follows scheme:// in a URL the user, the password and the query are hidden, and of a private URL the path. Where an @ follows a
 * question mark either may be part of a password: then nothing is shown. */
static void put_after_scheme(struct buf *out, struct str rest, bool hides_path)
{
    const char *at = rest.len ? memrchr(rest.ptr, '@', rest.len) : NULL, *query = find_in(rest, "?");
    if (at && query && at > query) {
        buf_put_str(out, HIDDEN);
        return;
    }
    if (at) {
        buf_put_str(out, HIDDEN);
        rest = str_skip(rest, (size_t)(at - rest.ptr));
    }
    struct str shown = query ? str_of(rest.ptr, (size_t)(query - rest.ptr)) : rest;
    const char *path = hides_path ? find_in(shown, "/") : NULL;
    buf_put(out, shown.ptr, path ? (size_t)(path - shown.ptr) : shown.len);
    if (path)
        buf_printf(out, "/%s", HIDDEN.ptr);
    else if (query)
        buf_printf(out, "?%s", HIDDEN.ptr);
}

/* jdbc:postgresql is one too. */
static bool is_scheme(struct str text)
{
    for (size_t i = 0; i < text.len; i++)
        if (!isalnum((unsigned char)text.ptr[i]) && !strchr("+-.:", text.ptr[i]))
            return false;
    return text.len > 0;
}

void config_show_text(struct buf *out, struct str text, bool is_secret)
{
    const char *end = find_in(text, "://");
    struct str scheme = end ? str_of(text.ptr, (size_t)(end - text.ptr)) : STR_NONE;
    if (is_scheme(scheme)) {
        bool is_http = str_eq(scheme, STR("http")) || str_eq(scheme, STR("https"));
        buf_put(out, text.ptr, scheme.len + 3);
        put_after_scheme(out, str_skip(text, scheme.len + 3), is_secret && is_http);
    } else if (is_secret && text.len) {
        buf_put_str(out, HIDDEN);
    } else {
        config_show_message(out, str_utf8_cut(text, VALUE_BYTES_MAX));
    }
}

/* A password may hold spaces and quotes: all text between :// and the last @ before the next :// is hidden. */
void config_show_message(struct buf *out, struct str text)
{
    for (const char *scheme; (scheme = find_in(text, "://"));) {
        size_t len = (size_t)(scheme - text.ptr) + 3;
        buf_put(out, text.ptr, len);
        text = str_skip(text, len);
        const char *next = find_in(text, "://"),
                   *at = memrchr(text.ptr, '@', next ? (size_t)(next - text.ptr) : text.len);
        size_t url = at ? (size_t)(at - text.ptr) : 0;
        while (url < text.len && !strchr(" \n\"'", text.ptr[url]))
            url++;
        put_after_scheme(out, str_of(text.ptr, url), false);
        text = str_skip(text, url);
    }
    buf_put_str(out, text);
}

static void put_text(struct buf *out, struct str text, bool is_secret)
{
    struct buf shown = {0};
    config_show_text(&shown, text, is_secret);
    json_put_string(out, buf_str(&shown));
    buf_deinit(&shown);
}

static void put_value(struct buf *out, const struct setting_row *row, const char *at)
{
    const struct setting_strings *list = (const struct setting_strings *)at;
    struct buf number = {0};
    switch (row->type) {
    case SETTING_STRING: put_text(out, *(const struct str *)at, row->secret); break;
    case SETTING_BOOL: buf_put_str(out, *(const bool *)at ? STR("true") : STR("false")); break;
    case SETTING_ENUM: json_put_string(out, str_from(row->choices[*(const int *)at])); break;
    case SETTING_INT: json_put_i64(out, *(const int64_t *)at); break;
    case SETTING_DURATION_MS:
    case SETTING_DECIMAL:
    case SETTING_SIZE:
        config_value_put_number(row, *(const int64_t *)at, &number);
        json_put_string(out, buf_str(&number));
        buf_deinit(&number);
        break;
    case SETTING_STRING_LIST:
        buf_put_char(out, '[');
        for (size_t i = 0; i < list->count; i++) {
            buf_put_str(out, i ? STR(",") : STR(""));
            put_text(out, list->items[i], row->secret);
        }
        buf_put_char(out, ']');
        break;
    case SETTING_OBJECT:
    case SETTING_OBJECT_LIST: break;
    }
}

/* ---- the walk, over the rows and the file's nodes side by side ---- */

static const yaml_node_t *member_of(const struct show *show, const yaml_node_t *mapping, const char *name)
{
    if (!mapping || mapping->type != YAML_MAPPING_NODE)
        return NULL;
    for (const yaml_node_pair_t *pair = mapping->data.mapping.pairs.start;
         pair < mapping->data.mapping.pairs.top; pair++) {
        const yaml_node_t *key = yaml_document_get_node(show->document, pair->key);
        if (key->type == YAML_SCALAR_NODE && strcmp((const char *)key->data.scalar.value, name) == 0)
            return yaml_document_get_node(show->document, pair->value);
    }
    return NULL;
}

static const yaml_node_t *element_of(const struct show *show, const yaml_node_t *node, size_t at)
{
    if (!node || node->type != YAML_SEQUENCE_NODE)
        return node; /* a list of one may stand without its dash */
    return yaml_document_get_node(show->document, node->data.sequence.items.start[at]);
}

static void put_setting(struct show *show, const struct setting_row *row, const char *at,
                        const yaml_node_t *node, bool is_reloadable)
{
    struct buf *out = show->out;
    if (buf_len(out) > SHOWN_BYTES_MAX) {
        show->is_cut = true;
        return;
    }
    json_put_open(out, NULL, '{');
    json_put_member_str(out, "name", buf_str(&show->name));
    json_put_key(out, STR("value"));
    put_value(out, row, at);
    json_put_key(out, STR("default"));
    if (row->fallback)
        put_text(out, str_from(row->fallback), row->secret);
    else
        buf_put_str(out, STR("null"));
    json_put_member_bool(out, "is_default", !node);
    json_put_key(out, STR("line"));
    buf_printf(out, node ? "%u" : "null", node ? config_place_of(node).line : 0);
    json_put_member_bool(out, "reloadable", is_reloadable);
    buf_put_char(out, '}');
}

static void show_rows(struct show *show, const struct setting_row *rows, const char *base,
                      const yaml_node_t *mapping, bool is_reloadable)
{
    size_t end = show->name.end;
    for (const struct setting_row *row = rows; row->name; row++, show->name.end = end) {
        const yaml_node_t *node = member_of(show, mapping, row->name);
        const struct setting_objects *list = (const struct setting_objects *)(base + row->offset);
        bool reloadable = is_reloadable || row->reloadable;
        buf_printf(&show->name, "%s%s", end ? "." : "", row->name);
        size_t named = show->name.end;
        if (row->type == SETTING_OBJECT)
            show_rows(show, row->rows, base + row->offset, node, reloadable);
        else if (row->type != SETTING_OBJECT_LIST)
            put_setting(show, row, base + row->offset, node, reloadable);
        for (size_t i = 0; row->type == SETTING_OBJECT_LIST && i < list->count; i++, show->name.end = named) {
            buf_printf(&show->name, "[%zu]", i);
            show_rows(show, row->rows, (const char *)list->items + i * row->element_bytes,
                      node ? element_of(show, node, i) : NULL, reloadable);
        }
    }
}

bool config_show(const struct config *config, struct buf *out)
{
    yaml_document_t document;
    struct error error;
    struct config_report report = {.path = config->path, .error = &error};
    struct show show = {.out = out};
    bool is_read = config_yaml_load(config->source, &document, &report);
    show.document = is_read ? &document : NULL;
    buf_put_char(out, '[');
    show_rows(&show, config->root, config->values, is_read ? yaml_document_get_root_node(&document) : NULL,
              false);
    buf_put_char(out, ']');
    if (is_read)
        yaml_document_delete(&document);
    buf_deinit(&show.name);
    return !show.is_cut;
}
