/* Titles of items (H6): a notification has the title of its item where the item's owner answers in time. A batch waits once, at most
 * the policy's wait_timeout_ms. After a wait with an unanswered question of a tenant, batches do not wait for that tenant until the
 * window of the question has passed, so that an item whose owner is silent holds up neither the inbox nor the titles of other tenants.
 * Each further wait without any answer doubles that window.
 *
 * An owner that answers no tenant pauses all of them: one wait for each of thousands of tenants would hold up the inbox.
 *
 * Tenants are distinguished by a hash with a secret seed, of 1,024 values. Two with the same one are paused together. */
#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "modules/notification/notification.h"

enum {
    NO_WAIT_MS = 1,
    NO_WAIT_PAUSE_MS = 250, /* between lookups while the owner is silent: each reads PostgreSQL */
    DOUBLINGS_MAX = 6,
    SILENT_TENANTS = 8, /* so many in a row, and no answer for any other: the owner answers no tenant */
};

enum way { WAY_UNKNOWN, WAY_NOT, WAY_NO_WAIT, WAY_WAIT };

/* What a batch asks for the tenants with one pause. */
struct tally {
    size_t slot; /* of the pause */
    enum way way;
    size_t asked, answered;
};

/* One title that is looked up. */
struct lookup {
    struct notification_event *event;
    struct hydration_need need;
    struct tally *tally;
};

void notification_titles_init(struct notification *notification)
{
    struct notification_titles *titles = &notification->titles;
    pthread_mutex_init(&titles->lock, NULL);
    titles->waits = notification->settings->hydration.policy;
    titles->waits.module = "notification";
    titles->no_wait = titles->waits;
    titles->no_wait.wait_timeout_ms = NO_WAIT_MS;
    if (notification->settings->hydration.enabled)
        kernel_hydration_consumes(notification->kernel, "item");
}

void notification_titles_deinit(struct notification *notification)
{
    pthread_mutex_destroy(&notification->titles.lock);
}

/* ---- pauses, under the lock ---- */

static enum way way_of(const struct notification_pause *pause, int64_t now_ns)
{
    if (now_ns >= pause->until_ns)
        return WAY_WAIT;
    return pause->silences && now_ns < pause->next_ns ? WAY_NOT : WAY_NO_WAIT;
}

static void note_asked(struct notification_pause *pause, int64_t now_ns)
{
    pause->next_ns = now_ns + NO_WAIT_PAUSE_MS * CLOCK_NS_PER_MS;
}

static void begin_pause(struct notification_pause *pause, bool has_answer, int64_t window_ms)
{
    unsigned silences = has_answer ? 0 : pause->silences++;
    pause->until_ns = clock_deadline_ms(window_ms << (silences < DOUBLINGS_MAX ? silences : DOUBLINGS_MAX));
}

/* Whether and how each tenant's titles are looked up. */
static void choose_ways(struct notification_titles *titles, const struct lookup *lookups, size_t count)
{
    int64_t now_ns = clock_mono_ns();
    pthread_mutex_lock(&titles->lock);
    enum way most = way_of(&titles->all, now_ns);
    if (most != WAY_NOT)
        note_asked(&titles->all, now_ns);
    for (size_t i = 0; i < count; i++) {
        struct tally *tally = lookups[i].tally;
        struct notification_pause *pause = &titles->tenants[tally->slot];
        if (tally->way != WAY_UNKNOWN)
            continue;
        tally->way = way_of(pause, now_ns);
        if (tally->way > most)
            tally->way = most;
        if (tally->way != WAY_NOT)
            note_asked(pause, now_ns);
    }
    pthread_mutex_unlock(&titles->lock);
}

static void settle(struct notification_titles *titles, const struct tally *tallies, size_t count)
{
    int64_t window_ms = titles->waits.in_flight_window_ms;
    bool has_answer = false, has_waited = false;
    pthread_mutex_lock(&titles->lock);
    for (size_t i = 0; i < count; i++) {
        const struct tally *tally = &tallies[i];
        struct notification_pause *pause = &titles->tenants[tally->slot];
        if (!tally->asked)
            continue;
        bool waited = tally->way == WAY_WAIT, is_silent = waited && !tally->answered;
        has_answer |= tally->answered > 0;
        has_waited |= waited;
        if (tally->answered)
            pause->silences = 0;
        if (waited && tally->answered < tally->asked)
            begin_pause(pause, tally->answered, window_ms);
        if (is_silent && titles->last_silent != tally->slot + 1) {
            titles->silent_tenants++;
            titles->last_silent = tally->slot + 1;
        }
    }
    if (has_answer)
        titles->silent_tenants = titles->all.silences = 0;
    else if (has_waited && titles->silent_tenants >= SILENT_TENANTS)
        begin_pause(&titles->all, false, window_ms);
    pthread_mutex_unlock(&titles->lock);
}

/* ---- lookups ---- */

/* A batch has few tenants. */
static struct tally *tally_of(struct tally *tallies, size_t *tally_count, struct str tenant)
{
    size_t slot = hash_seeded(tenant) % NOTIFICATION_TITLE_TENANTS, at = 0;
    while (at < *tally_count && tallies[at].slot != slot)
        at++;
    if (at == *tally_count)
        tallies[(*tally_count)++] = (struct tally){.slot = slot};
    return &tallies[at];
}

static size_t list_lookups(struct notification_event *events, size_t count, struct str *field,
                           struct tally *tallies, size_t *tally_count, struct lookup *lookups)
{
    size_t asked = 0;
    for (size_t i = 0; i < count; i++) {
        struct hydration_need need = {
            .tenant = events[i].tenant,
            .caller = events[i].user_id,
            .entity_type = STR("item"),
            .entity_id = events[i].sku,
            .cover = {.mode = HYDRATION_PARTIAL},
        };
        struct error error;
        if (!trace_parse(events[i].traceparent, &need.trace))
            need.trace = (struct trace){0};
        struct lookup *lookup = &lookups[asked];
        *lookup = (struct lookup){&events[i], need, tally_of(tallies, tally_count, events[i].tenant)};
        if (hydration_need_check(&lookup->need, field, 1, &error) ==
            STATUS_OK) /* else the sku is no item's id */
            asked++;
    }
    return asked;
}

static void take_outcome(struct lookup *lookup, const struct hydration_outcome *outcome, struct arena *arena)
{
    bool is_known = outcome->result == HYDRATION_UPDATED;
    struct json_value title;
    /* Another module's text: one that a notification cannot hold is ignored. */
    if (is_known && json_get_string(&(struct json_value){JSON_OBJECT, outcome->data}, STR("title"), &title) &&
        !json_has_nul_escape(title.raw))
        lookup->event->item_title =
            str_utf8_cut(json_str_decode(title.raw, arena), NOTIFICATION_TEXT_BYTES_MAX);
    lookup->tally->asked++;
    lookup->tally->answered += is_known || outcome->result == HYDRATION_NOT_FOUND;
}

static void ask_for_titles(struct hydration *hydration, const struct hydration_policy *policy, enum way way,
                           struct lookup *lookups, size_t count, struct arena *arena)
{
    struct hydration_need *needs = arena_alloc(arena, (count + 1) * sizeof *needs);
    struct hydration_outcome *outcomes = arena_zalloc(arena, (count + 1) * sizeof *outcomes);
    size_t asked = 0, at = 0;
    for (size_t i = 0; i < count; i++)
        if (lookups[i].tally->way == way)
            needs[asked++] = lookups[i].need;
    if (asked == 0)
        return;
    hydration_ask_and_wait(hydration, policy, needs, asked, arena, outcomes);
    for (size_t i = 0; i < count; i++)
        if (lookups[i].tally->way == way)
            take_outcome(&lookups[i], &outcomes[at++], arena);
}

void notification_titles_take(struct notification *notification, struct notification_event *events,
                              size_t count, struct arena *arena)
{
    struct notification_titles *titles = &notification->titles;
    struct hydration *hydration = kernel_hydration(notification->kernel);
    struct str field = STR("title"); /* of all needs */
    if (!notification->settings->hydration.enabled || !hydration || !count)
        return;
    struct tally *tallies = arena_alloc(arena, count * sizeof *tallies);
    struct lookup *lookups = arena_alloc(arena, count * sizeof *lookups);
    size_t tally_count = 0;
    size_t asked = list_lookups(events, count, &field, tallies, &tally_count, lookups);
    choose_ways(titles, lookups, asked);
    ask_for_titles(hydration, &titles->no_wait, WAY_NO_WAIT, lookups, asked, arena);
    ask_for_titles(hydration, &titles->waits, WAY_WAIT, lookups, asked, arena);
    settle(titles, tallies, tally_count);
}
