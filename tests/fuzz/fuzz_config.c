/* Any bytes as a configuration: they load or are refused with lines of our form; what loaded is whole, equals itself
 * and has its places inside the file. */
#include <stdlib.h>

#include "kernel/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct leaf {
    struct str text;
    struct setting_place place;
    struct setting_strings words;
};

struct branch {
    struct setting_objects leaves;
    int64_t number;
};

struct tree {
    struct str text;
    struct setting_place place;
    bool flag;
    int64_t number, duration_ms, bytes;
    int choice;
    struct setting_strings words;
    struct leaf leaf;
    struct setting_objects branches;
};

#define LEAF(member) .offset = offsetof(struct leaf, member)
static const struct setting_row leaf_rows[] = {
    {"text", SETTING_STRING, LEAF(text), "h", "", 0, 1000, .place_offset = 1 + offsetof(struct leaf, place)},
    {"words", SETTING_STRING_LIST, LEAF(words), "h", "[a, b]", 0, 100},
    {0},
};

#define BRANCH(member) .offset = offsetof(struct branch, member)
static const struct setting_row branch_rows[] = {
    {"leaves", SETTING_OBJECT_LIST, BRANCH(leaves), "h", "", .rows = leaf_rows,
     .element_bytes = sizeof(struct leaf)},
    {"number", SETTING_INT, BRANCH(number), "h", NULL, -5, 5},
    {0},
};

#define TREE(member) .offset = offsetof(struct tree, member)
static const char *const choices[] = {"one", "two", NULL};
static const struct setting_row tree_rows[] = {
    {"text", SETTING_STRING, TREE(text), "h", "x", .place_offset = 1 + offsetof(struct tree, place)},
    {"flag", SETTING_BOOL, TREE(flag), "h", "true"},
    {"number", SETTING_INT, TREE(number), "h", "1"},
    {"duration", SETTING_DURATION_MS, TREE(duration_ms), "h", "1s", 0, INT64_MAX},
    {"size", SETTING_SIZE, TREE(bytes), "h", "1KiB", 1, 1 << 30},
    {"choice", SETTING_ENUM, TREE(choice), "h", "one", .choices = choices, .reloadable = true},
    {"words", SETTING_STRING_LIST, TREE(words), "h", ""},
    {"leaf", SETTING_OBJECT, TREE(leaf), "h", .rows = leaf_rows},
    {"branches", SETTING_OBJECT_LIST, TREE(branches), "h", "", .rows = branch_rows,
     .element_bytes = sizeof(struct branch)},
    {0},
};

static const struct config_section sections[] = {
    {"tree", "h", tree_rows, sizeof(struct tree)},
    {0},
};

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void check_text(struct str text)
{
    check(text.ptr && text.ptr[text.len] == '\0' && strlen(text.ptr) == text.len && str_is_utf8(text));
}

static void check_words(const struct setting_strings *words)
{
    for (size_t i = 0; i < words->count; i++)
        check_text(words->items[i]);
}

/* Places inside a text never go back, nor beyond the file. */
static void check_places(const struct config *config, struct str text, struct setting_place place,
                         size_t file_bytes)
{
    struct setting_place last = {0};

    for (size_t offset = 0; offset <= text.len && offset < 200; offset++) {
        struct setting_place at = config_place_in_text(config, place, text, offset);
        check((at.line == 0) == (place.line == 0) && at.line <= file_bytes + 1 &&
              at.column <= file_bytes + 1);
        check(at.line > last.line || (at.line == last.line && at.column >= last.column));
        last = at;
    }
}

static void check_leaf(const struct config *config, const struct leaf *leaf, size_t file_bytes)
{
    check_text(leaf->text);
    check_words(&leaf->words);
    check_places(config, leaf->text, leaf->place, file_bytes);
}

static void check_tree(const struct config *config, const struct tree *tree, size_t file_bytes)
{
    const struct branch *branches = tree->branches.items;

    check_text(tree->text);
    check_words(&tree->words);
    check_places(config, tree->text, tree->place, file_bytes);
    check(tree->duration_ms >= 0 && tree->bytes >= 1 && tree->choice >= 0 && tree->choice < 2);
    check_leaf(config, &tree->leaf, file_bytes);
    for (size_t i = 0; i < tree->branches.count; i++) {
        const struct leaf *leaves = branches[i].leaves.items;
        check(branches[i].number >= -5 && branches[i].number <= 5 && tree->branches.places[i].line > 0);
        for (size_t j = 0; j < branches[i].leaves.count; j++)
            check_leaf(config, &leaves[j], file_bytes);
    }
}

static void check_lines(struct str lines, const struct error *error)
{
    struct str line;
    unsigned count = 0;

    check(error->status == STATUS_CONFIG && strncmp(error->message, "f.yaml:", 7) == 0);
    check(lines.len > 0 && lines.ptr[lines.len - 1] == '\n' && str_is_utf8(lines));
    lines.len--;
    for (; str_split(&lines, '\n', &line); count++)
        check(str_starts_with(line, STR("f.yaml:")));
    check(count >= 1 && count <= 21);
}

static void never(const char *field, void *arg)
{
    (void)field;
    (void)arg;
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str text = str_of((const char *)data, size);
    struct config *config = NULL;
    struct error error = {0};
    struct buf all = {0};

    setenv("F_ONE", "1", 1);
    if (config_load_text("f.yaml", text, sections, &config, &all, &error) == STATUS_OK) {
        check(buf_len(&all) == 0);
        check_tree(config, config_section(config, "tree"), size);
        config_each_restart(config, config, never, NULL);
        config_free(config);
    } else {
        check_lines(buf_str(&all), &error);
    }
    buf_deinit(&all);
    return 0;
}
