/* The order index: records in bytewise key order, in leaves under nodes under a root array.
 *
 * Leaves are allocated for what they hold, rounded up a little: copying one to change it is the moment to
 * give it another size, so half-full leaves cost half the memory. A search compares the first key of nodes,
 * then of leaves, then the keys of one leaf: O(log n). No separator keys are kept. */
#include "cache/internal.h"

#include <stdlib.h>

#include "base/memory.h"

#define LEAF_STEP 32 /* capacity grows by so many */
#define LEAF_SPARSE (ORDER_LEAF_MAX / 4)
#define LEAF_JOINED_MAX (ORDER_LEAF_MAX * 3 / 4)
#define NODE_SPARSE (ORDER_NODE_MAX / 4)
#define NODE_JOINED_MAX (ORDER_NODE_MAX * 3 / 4)
#define PREFETCH_AHEAD 6

/* ---- leaves and nodes ---- */
static size_t leaf_bytes(const struct order_leaf *leaf)
{
    return sizeof(*leaf) + leaf->capacity * sizeof(leaf->records[0]);
}

static struct order_leaf *leaf_create(struct order_index *index, struct build *build, size_t capacity)
{
    struct order_leaf *leaf = memory_alloc(sizeof(*leaf) + capacity * sizeof(leaf->records[0]));

    shared_init(&leaf->shared, build->birth);
    leaf->count = 0;
    leaf->capacity = (uint16_t)capacity;
    index->bytes += leaf_bytes(leaf);
    return leaf;
}

static void leaf_unref(struct order_leaf *leaf)
{
    if (shared_unref(&leaf->shared))
        free(leaf);
}

static void leaf_drop(struct order_index *index, struct order_leaf *leaf)
{
    index->bytes -= leaf_bytes(leaf);
    leaf_unref(leaf);
}

static void leaf_append(struct order_leaf *leaf, const struct order_leaf *from, size_t at, size_t count)
{
    memcpy(leaf->records + leaf->count, from->records + at, count * sizeof(leaf->records[0]));
    leaf->count = (uint16_t)(leaf->count + count);
}

static size_t leaf_capacity(size_t count)
{
    size_t capacity = (count + LEAF_STEP - 1) / LEAF_STEP * LEAF_STEP;
    return capacity < ORDER_LEAF_MAX ? capacity : ORDER_LEAF_MAX;
}

static struct order_node *node_create(struct order_index *index, struct build *build)
{
    struct order_node *node = memory_alloc(sizeof(*node));

    shared_init(&node->shared, build->birth);
    node->count = 0;
    index->bytes += sizeof(*node) + sizeof(struct order_node *);
    return node;
}

static void node_unref(struct order_node *node)
{
    if (!shared_unref(&node->shared))
        return;
    for (uint32_t i = 0; i < node->count; i++)
        leaf_unref(node->leaves[i]);
    free(node);
}

static void node_drop(struct order_index *index, struct order_node *node)
{
    index->bytes -= sizeof(*node) + sizeof(struct order_node *);
    node_unref(node);
}

/* The leaves go on being referenced from where they came. */
static void node_append(struct order_node *node, const struct order_node *from, size_t at, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        node->leaves[node->count++] = from->leaves[at + i];
        shared_ref(&from->leaves[at + i]->shared);
    }
}

static void node_remove_leaf(struct order_index *index, struct order_node *node, size_t at)
{
    leaf_drop(index, node->leaves[at]);
    node->count--;
    memmove(node->leaves + at, node->leaves + at + 1, (node->count - at) * sizeof(node->leaves[0]));
}

/* ---- the root ---- */
static void root_insert(struct order_index *index, size_t at, struct order_node *node)
{
    index->nodes = memory_realloc_array(index->nodes, index->node_count + 1, sizeof(struct order_node *));
    memmove(index->nodes + at + 1, index->nodes + at, (index->node_count - at) * sizeof(struct order_node *));
    index->nodes[at] = node;
    index->node_count++;
}

static void root_remove(struct order_index *index, size_t at)
{
    node_drop(index, index->nodes[at]);
    index->node_count--;
    memmove(index->nodes + at, index->nodes + at + 1, (index->node_count - at) * sizeof(struct order_node *));
}

void cache_order_copy(struct order_index *index, const struct order_index *base)
{
    *index = *base;
    index->nodes = cache_shared_copy(base->nodes, base->node_count);
}

void cache_order_deinit(struct order_index *index)
{
    for (size_t i = 0; i < index->node_count; i++)
        node_unref(index->nodes[i]);
    free(index->nodes);
}

/* ---- searching ---- */
/* How many of `count` things do not begin above the key; first_of(things, i) is what one begins with. */
typedef const struct cache_record *first_fn(const void *things, size_t i);

static size_t count_not_above(const void *things, size_t count, first_fn *first_of, struct str key)
{
    size_t low = 0, high = count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (str_compare(record_key(first_of(things, middle)), key) > 0)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static const struct cache_record *first_of_node(const void *nodes, size_t i)
{
    return ((struct order_node *const *)nodes)[i]->leaves[0]->records[0];
}

static const struct cache_record *first_of_leaf(const void *leaves, size_t i)
{
    return ((struct order_leaf *const *)leaves)[i]->records[0];
}

static const struct cache_record *record_itself(const void *records, size_t i)
{
    return ((const struct cache_record *const *)records)[i];
}

static size_t step_back(size_t count)
{
    return count > 0 ? count - 1 : 0;
}

/* Where a key belongs: `at` counts the records of that leaf that are not above it. The index must not be
 * empty. */
static struct order_place place_behind(const struct order_index *index, struct str key)
{
    struct order_place place;
    const struct order_node *node;
    const struct order_leaf *leaf;

    place.node = step_back(count_not_above(index->nodes, index->node_count, first_of_node, key));
    node = index->nodes[place.node];
    place.leaf = step_back(count_not_above(node->leaves, node->count, first_of_leaf, key));
    leaf = node->leaves[place.leaf];
    place.at = count_not_above(leaf->records, leaf->count, record_itself, key);
    return place;
}

struct order_place cache_order_seek(const struct order_index *index, struct str key)
{
    return index->node_count && key.len ? place_behind(index, key) : (struct order_place){0, 0, 0};
}

const struct cache_record *cache_order_next(const struct order_index *index, struct order_place *place)
{
    while (place->node < index->node_count) {
        const struct order_node *node = index->nodes[place->node];
        const struct order_leaf *leaf = node->leaves[place->leaf];
        if (place->at < leaf->count) {
            if (place->at + PREFETCH_AHEAD < leaf->count)
                __builtin_prefetch(leaf->records[place->at + PREFETCH_AHEAD]);
            return leaf->records[place->at++];
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
static struct order_node *own_node(struct order_index *index, struct build *build, size_t at)
{
    struct order_node *node = index->nodes[at], *copy;

    if (node->shared.birth == build->birth)
        return node;
    copy = node_create(index, build);
    node_append(copy, node, 0, node->count);
    build->copied_bytes += sizeof(*copy);
    node_drop(index, node);
    index->nodes[at] = copy;
    return copy;
}

/* A leaf of this build's with room for `count` records. */
static struct order_leaf *own_leaf(struct order_index *index, struct build *build, struct order_node *node,
                                   size_t at, size_t count)
{
    struct order_leaf *leaf = node->leaves[at], *copy;

    if (leaf->shared.birth == build->birth && leaf->capacity >= count)
        return leaf;
    copy = leaf_create(index, build, leaf_capacity(count));
    leaf_append(copy, leaf, 0, leaf->count);
    build->copied_bytes += leaf->count * sizeof(leaf->records[0]);
    leaf_drop(index, leaf);
    node->leaves[at] = copy;
    return copy;
}

static void split_node(struct order_index *index, struct build *build, size_t at)
{
    struct order_node *node = index->nodes[at];
    size_t half = node->count / 2;

    for (size_t i = 0; i < 2; i++) {
        struct order_node *part = node_create(index, build);
        node_append(part, node, i * half, i ? node->count - half : half);
        build->copied_bytes += sizeof(*part);
        root_insert(index, at + 1 + i, part);
    }
    root_remove(index, at);
}

static struct order_leaf *leaf_part(struct order_index *index, struct build *build,
                                    const struct order_leaf *leaf, size_t at, size_t count)
{
    struct order_leaf *part = leaf_create(index, build, leaf_capacity(count + 1));

    leaf_append(part, leaf, at, count);
    build->copied_bytes += count * sizeof(leaf->records[0]);
    return part;
}

/* True when something had to be split first, and the place must be looked for again. */
static bool make_room(struct order_index *index, struct build *build, const struct order_place *place)
{
    struct order_node *node = index->nodes[place->node];
    struct order_leaf *leaf = node->leaves[place->leaf];
    size_t half = leaf->count / 2, behind = place->leaf + 1;

    if (leaf->count < ORDER_LEAF_MAX)
        return false;
    if (node->count == ORDER_NODE_MAX) {
        split_node(index, build, place->node);
        return true;
    }
    node = own_node(index, build, place->node);
    memmove(node->leaves + behind + 1, node->leaves + behind,
            (node->count - behind) * sizeof(node->leaves[0]));
    node->leaves[behind - 1] = leaf_part(index, build, leaf, 0, half);
    node->leaves[behind] = leaf_part(index, build, leaf, half, leaf->count - half);
    node->count++;
    leaf_drop(index, leaf);
    return true;
}

/* The leaf at the place, this build's own, with room for `more`. */
static struct order_leaf *own_place(struct order_index *index, struct build *build,
                                    const struct order_place *place, size_t more)
{
    struct order_node *node = own_node(index, build, place->node);

    return own_leaf(index, build, node, place->leaf, node->leaves[place->leaf]->count + more);
}

void cache_order_put(struct order_index *index, struct build *build, const struct cache_record *record)
{
    struct str key = record_key(record);

    if (index->node_count == 0) {
        cache_order_append(index, build, record);
        cache_order_trim(index);
        return;
    }
    struct order_place place = place_behind(index, key);
    const struct order_leaf *found = index->nodes[place.node]->leaves[place.leaf];
    if (place.at > 0 && record_has_key(found->records[place.at - 1], key)) {
        own_place(index, build, &place, 0)->records[place.at - 1] = record;
        return;
    }
    while (make_room(index, build, &place))
        place = place_behind(index, key);
    struct order_leaf *leaf = own_place(index, build, &place, 1);
    memmove(leaf->records + place.at + 1, leaf->records + place.at,
            (leaf->count - place.at) * sizeof(leaf->records[0]));
    leaf->records[place.at] = record;
    leaf->count++;
}

void cache_order_append(struct order_index *index, struct build *build, const struct cache_record *record)
{
    struct order_node *node = index->node_count ? index->nodes[index->node_count - 1] : NULL;
    struct order_leaf *leaf = node ? node->leaves[node->count - 1] : NULL;

    if (!leaf || leaf->count == ORDER_LEAF_LOADED) {
        if (!node || node->count == ORDER_NODE_MAX) {
            node = node_create(index, build);
            root_insert(index, index->node_count, node);
        }
        leaf = leaf_create(index, build, ORDER_LEAF_LOADED);
        node->leaves[node->count++] = leaf;
    }
    leaf->records[leaf->count++] = record;
}

void cache_order_trim(struct order_index *index)
{
    struct order_node *node = index->node_count ? index->nodes[index->node_count - 1] : NULL;
    struct order_leaf **last = node ? &node->leaves[node->count - 1] : NULL;

    if (!last || (*last)->capacity == leaf_capacity((*last)->count))
        return;
    index->bytes -= leaf_bytes(*last);
    (*last)->capacity = (uint16_t)leaf_capacity((*last)->count);
    *last = memory_realloc(*last, leaf_bytes(*last));
    index->bytes += leaf_bytes(*last);
}

/* Joins a sparse leaf with a neighbour in its node, where both fit well into one. */
static void join_leaf(struct order_index *index, struct build *build, struct order_node *node, size_t at)
{
    size_t left = at > 0 ? at - 1 : at;
    struct order_leaf *joined;

    if (node->count < 2 || node->leaves[at]->count >= LEAF_SPARSE ||
        node->leaves[left]->count + node->leaves[left + 1]->count > LEAF_JOINED_MAX)
        return;
    joined =
        own_leaf(index, build, node, left, (size_t)node->leaves[left]->count + node->leaves[left + 1]->count);
    build->copied_bytes += node->leaves[left + 1]->count * sizeof(joined->records[0]);
    leaf_append(joined, node->leaves[left + 1], 0, node->leaves[left + 1]->count);
    node_remove_leaf(index, node, left + 1);
}

static void join_node(struct order_index *index, struct build *build, size_t at)
{
    size_t left = at > 0 ? at - 1 : at;
    struct order_node *joined;

    if (index->node_count < 2 || index->nodes[at]->count >= NODE_SPARSE ||
        index->nodes[left]->count + index->nodes[left + 1]->count > NODE_JOINED_MAX)
        return;
    joined = own_node(index, build, left);
    build->copied_bytes += index->nodes[left + 1]->count * sizeof(joined->leaves[0]);
    node_append(joined, index->nodes[left + 1], 0, index->nodes[left + 1]->count);
    root_remove(index, left + 1);
}

void cache_order_remove(struct order_index *index, struct build *build, struct str key)
{
    struct order_place place = place_behind(index, key);
    struct order_leaf *leaf = own_place(index, build, &place, 0);
    struct order_node *node = index->nodes[place.node];

    memmove(leaf->records + place.at - 1, leaf->records + place.at,
            (leaf->count - place.at) * sizeof(leaf->records[0]));
    leaf->count--;
    if (leaf->count > 0)
        join_leaf(index, build, node, place.leaf);
    else
        node_remove_leaf(index, node, place.leaf);
    if (node->count > 0)
        join_node(index, build, place.node);
    else
        root_remove(index, place.node);
}
