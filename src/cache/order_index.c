/* The order index: records in bytewise key order, in leaves under nodes under a root.
 *
 * Parts are allocated for what they hold, rounded up a little: copying one to change it is the moment to give it another
 * size, so half-full leaves cost half the memory. A search compares the first key of nodes, then of leaves, then the keys
 * of one leaf: O(log n). No separator keys are kept. */
#include "cache/internal.h"

#include <stdlib.h>

#include "base/memory.h"

#define CAPACITY_STEP 32
#define PREFETCH_AHEAD 6

/* What a part is, and one level below, what its items are. */
enum level { RECORD, LEAF, NODE, ROOT };

static const size_t items_max[] = {[LEAF] = ORDER_LEAF_MAX, [NODE] = ORDER_NODE_MAX};

/* ---- parts ---- */
static size_t part_bytes(const struct order_part *part)
{
    return sizeof(*part) + part->capacity * sizeof(part->items[0]);
}

static size_t rounded_capacity(size_t count)
{
    return (count + CAPACITY_STEP - 1) / CAPACITY_STEP * CAPACITY_STEP;
}

static struct order_part *part_create(struct order_index *index, struct build *build, size_t count)
{
    size_t capacity = rounded_capacity(count);
    struct order_part *part = memory_alloc(sizeof(*part) + capacity * sizeof(part->items[0]));

    shared_init(&part->shared, build->birth);
    part->count = 0;
    part->capacity = (uint32_t)capacity;
    index->bytes += part_bytes(part);
    cache_count_bytes(build, (int64_t)part_bytes(part));
    return part;
}

static void part_unref(struct order_part *part, enum level level)
{
    if (!shared_unref(&part->shared))
        return;
    for (uint32_t i = 0; level > LEAF && i < part->count; i++)
        part_unref(part->items[i].part, level - 1);
    cache_count_bytes(NULL, -(int64_t)part_bytes(part));
    free(part);
}

static void part_drop(struct order_index *index, struct order_part *part, enum level level)
{
    index->bytes -= part_bytes(part);
    part_unref(part, level);
}

/* The items go on being referenced from where they came. */
static void part_append(struct order_part *part, enum level level, const struct order_part *from, size_t at,
                        size_t count, struct build *build)
{
    memcpy(part->items + part->count, from->items + at, count * sizeof(part->items[0]));
    for (size_t i = 0; level > LEAF && i < count; i++)
        shared_ref(&from->items[at + i].part->shared);
    part->count += (uint32_t)count;
    if (from->shared.birth != build->birth)
        build->copied_bytes += count * sizeof(part->items[0]);
}

/* Makes a gap of one item; there must be room. */
static union order_item *part_insert(struct order_part *part, size_t at)
{
    memmove(part->items + at + 1, part->items + at, (part->count - at) * sizeof(part->items[0]));
    part->count++;
    return &part->items[at];
}

static void part_remove(struct order_part *part, size_t at)
{
    part->count--;
    memmove(part->items + at, part->items + at + 1, (part->count - at) * sizeof(part->items[0]));
}

/* The part at *link, which becomes this build's own, with room for `more` items. */
static struct order_part *own_part(struct order_index *index, struct build *build, struct order_part **link,
                                   enum level level, size_t more)
{
    struct order_part *part = *link;

    if (part->shared.birth == build->birth && part->capacity >= part->count + more)
        return part;
    *link = part_create(index, build, part->count + more);
    part_append(*link, level, part, 0, part->count, build);
    part_drop(index, part, level);
    return *link;
}

void cache_order_copy(struct order_index *index, const struct order_index *base)
{
    *index = *base;
    if (index->root)
        shared_ref(&index->root->shared);
}

void cache_order_deinit(struct order_index *index)
{
    if (index->root)
        part_unref(index->root, ROOT);
}

/* ---- searching ---- */

/* How many items of a part do not begin above the key. */
static size_t count_not_above(const struct order_part *part, enum level level, struct str key)
{
    size_t low = 0, high = part->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        union order_item first = part->items[middle];
        for (enum level below = level - 1; below > RECORD; below--)
            first = first.part->items[0];
        if (str_compare(record_key(first.record), key) > 0)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Which child the key belongs to. */
static size_t child_at(const struct order_part *part, enum level level, struct str key)
{
    size_t count = count_not_above(part, level, key);

    return count > 0 ? count - 1 : 0;
}

static struct order_part *node_of(const struct order_index *index, const struct order_place *place)
{
    return index->root->items[place->node].part;
}

static struct order_part *leaf_of(const struct order_index *index, const struct order_place *place)
{
    return node_of(index, place)->items[place->leaf].part;
}

/* `at` of the place counts the records of that leaf that are not above the key. */
struct order_place cache_order_seek(const struct order_index *index, struct str key)
{
    struct order_place place = {0, 0, 0};

    if (index->root && key.len > 0) {
        place.node = child_at(index->root, ROOT, key);
        place.leaf = child_at(node_of(index, &place), NODE, key);
        place.at = count_not_above(leaf_of(index, &place), LEAF, key);
    }
    return place;
}

const struct cache_record *cache_order_next(const struct order_index *index, struct order_place *place)
{
    while (index->root && place->node < index->root->count) {
        const struct order_part *node = node_of(index, place), *leaf = leaf_of(index, place);
        if (place->at < leaf->count) {
            if (place->at + PREFETCH_AHEAD < leaf->count)
                __builtin_prefetch(leaf->items[place->at + PREFETCH_AHEAD].record);
            return leaf->items[place->at++].record;
        }
        place->at = 0;
        if (++place->leaf == node->count) {
            place->leaf = 0;
            place->node++;
        }
    }
    return NULL;
}

/* ---- changing ---- */

/* Splits a child of a part that is this build's own and has room for one more. */
static void split_child(struct order_index *index, struct build *build, struct order_part *parent,
                        enum level level, size_t at)
{
    struct order_part *child = parent->items[at].part;
    size_t half = child->count / 2;
    struct order_part *left = part_create(index, build, half + 1);
    struct order_part *right = part_create(index, build, child->count - half + 1);

    part_append(left, level, child, 0, half, build);
    part_append(right, level, child, half, child->count - half, build);
    part_drop(index, child, level);
    parent->items[at].part = left;
    part_insert(parent, at + 1)->part = right;
}

/* True when something had to be split first, and the place must be looked for again. */
static bool make_room(struct order_index *index, struct build *build, const struct order_place *place)
{
    if (leaf_of(index, place)->count < ORDER_LEAF_MAX)
        return false;
    struct order_part *root = own_part(index, build, &index->root, ROOT, 1);
    if (root->items[place->node].part->count == ORDER_NODE_MAX)
        split_child(index, build, root, NODE, place->node);
    else
        split_child(index, build, own_part(index, build, &root->items[place->node].part, NODE, 1), LEAF,
                    place->leaf);
    return true;
}

/* The leaf at the place, this build's own, with room for `more`. */
static struct order_part *own_leaf(struct order_index *index, struct build *build,
                                   const struct order_place *place, size_t more)
{
    struct order_part *root = own_part(index, build, &index->root, ROOT, 0);
    struct order_part *node = own_part(index, build, &root->items[place->node].part, NODE, 0);

    return own_part(index, build, &node->items[place->leaf].part, LEAF, more);
}

void cache_order_put(struct order_index *index, struct build *build, const struct cache_record *record)
{
    struct str key = record_key(record);

    if (!index->root) {
        cache_order_append(index, build, record);
        cache_order_trim(index);
        return;
    }
    struct order_place place = cache_order_seek(index, key);
    if (place.at > 0 && record_has_key(leaf_of(index, &place)->items[place.at - 1].record, key)) {
        own_leaf(index, build, &place, 0)->items[place.at - 1].record = record;
        return;
    }
    while (make_room(index, build, &place))
        place = cache_order_seek(index, key);
    part_insert(own_leaf(index, build, &place, 1), place.at)->record = record;
}

void cache_order_append(struct order_index *index, struct build *build, const struct cache_record *record)
{
    if (!index->root)
        index->root = part_create(index, build, 1);
    struct order_part *root = index->root;
    struct order_part **node = root->count > 0 ? &root->items[root->count - 1].part : NULL;
    struct order_part *leaf = node ? (*node)->items[(*node)->count - 1].part : NULL;

    if (!leaf || leaf->count == ORDER_LEAF_LOADED) {
        if (!node || (*node)->count == ORDER_NODE_MAX) {
            root = own_part(index, build, &index->root, ROOT, 1);
            node = &part_insert(root, root->count)->part;
            *node = part_create(index, build, 1);
        }
        struct order_part *last = own_part(index, build, node, NODE, 1);
        leaf = part_create(index, build, ORDER_LEAF_LOADED);
        part_insert(last, last->count)->part = leaf;
    }
    leaf->items[leaf->count++].record = record;
}

void cache_order_trim(struct order_index *index)
{
    if (!index->root)
        return;
    struct order_part *node = index->root->items[index->root->count - 1].part;
    struct order_part **leaf = &node->items[node->count - 1].part;
    index->bytes -= part_bytes(*leaf);
    cache_count_bytes(NULL, -(int64_t)part_bytes(*leaf));
    (*leaf)->capacity = (uint32_t)rounded_capacity((*leaf)->count);
    *leaf = memory_realloc(*leaf, part_bytes(*leaf));
    index->bytes += part_bytes(*leaf);
    cache_count_bytes(NULL, (int64_t)part_bytes(*leaf));
}

/* After a removal: an empty child goes, a sparse one is joined with a neighbour where both fit well into one. */
static void tidy_child(struct order_index *index, struct build *build, struct order_part *parent,
                       enum level level, size_t at)
{
    struct order_part *child = parent->items[at].part;
    size_t left = at > 0 ? at - 1 : at;

    if (child->count > 0) {
        if (parent->count < 2 || child->count >= items_max[level] / 4)
            return;
        const struct order_part *right = parent->items[left + 1].part;
        if (parent->items[left].part->count + right->count > items_max[level] * 3 / 4)
            return;
        part_append(own_part(index, build, &parent->items[left].part, level, right->count), level, right, 0,
                    right->count, build);
        at = left + 1;
    }
    part_drop(index, parent->items[at].part, level);
    part_remove(parent, at);
}

void cache_order_remove(struct order_index *index, struct build *build, struct str key)
{
    struct order_place place = cache_order_seek(index, key);

    part_remove(own_leaf(index, build, &place, 0), place.at - 1);
    tidy_child(index, build, node_of(index, &place), LEAF, place.leaf);
    tidy_child(index, build, index->root, NODE, place.node);
    if (index->root->count == 0) {
        part_drop(index, index->root, ROOT);
        index->root = NULL;
    }
}
