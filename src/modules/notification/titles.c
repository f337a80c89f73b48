/* Titles of items (H6): a notification says what its item is called, where the item's owner tells in time, and goes without
 * where not. One wait for a batch, at most a policy's wait_timeout_ms; behind one in which a question was not answered, batches
 * take what is at hand till the window of that question has passed: an owner that is away, or one item that it is silent about,
 * must not hold the inbox up. Each further silence doubles that window, until the owner answers. */
#include "base/clock.h"
#include "base/json.h"
#include "modules/notification/event.h"
#include "modules/notification/notification.h"

enum {
    AT_HAND_MS = 1,
    AT_HAND_PAUSE_MS =
        250, /* between two questions while nothing is answered: each one looks into PostgreSQL */
    DOUBLINGS_MAX = 6,
};

void notification_titles_init(struct notification *notification)
{
    notification->titles = notification->settings->hydration.policy;
    notification->titles.module = "notification";
    notification->titles_at_hand = notification->titles;
    notification->titles_at_hand.wait_timeout_ms = AT_HAND_MS;
    if (notification->settings->hydration.enabled)
        kernel_hydration_consumes(notification->kernel, "item");
}

/* The event's user asks: they are told of the item, so it is theirs to see or not. False: no item can be called so. */
static bool make_need(const struct notification_event *event, struct str *field, struct hydration_need *need)
{
    struct error error;
    unsigned count = 1;
    *need = (struct hydration_need){
        .tenant = event->tenant,
        .subject = event->user_id,
        .entity_type = STR("item"),
        .entity_id = event->sku,
        .cover = {.mode = HYDRATION_PARTIAL},
    };
    if (!trace_parse(event->traceparent, &need->trace))
        need->trace = (struct trace){0};
    return hydration_need_check(need, field, &count, &error) == STATUS_OK;
}

/* A title is another module's: what no notification could hold is none. */
static struct str title_of(const struct hydration_outcome *outcome, struct arena *arena)
{
    struct json_value title;
    if (outcome->result != HYDRATION_UPDATED ||
        !json_get(&(struct json_value){JSON_OBJECT, outcome->data}, STR("title"), &title) ||
        title.type != JSON_STRING || json_has_nul_escape(title.raw))
        return STR_NONE;
    return str_utf8_cut(json_str_decode(title.raw, arena), NOTIFICATION_TEXT_BYTES_MAX);
}

/* How many of the questions have an answer. */
static size_t hand_out(struct notification_event **events, const struct hydration_outcome *outcomes,
                       size_t count, struct arena *arena)
{
    size_t answered = 0;
    for (size_t i = 0; i < count; i++) {
        events[i]->item_title = title_of(&outcomes[i], arena);
        answered += outcomes[i].result == HYDRATION_UPDATED || outcomes[i].result == HYDRATION_NOT_FOUND;
    }
    return answered;
}

static void note_answers(struct notification *notification, size_t answered, size_t asked, bool waited)
{
    if (answered)
        atomic_store(&notification->title_silences, 0);
    if (answered == asked || !waited)
        return;
    unsigned silences = answered ? 0 : atomic_fetch_add(&notification->title_silences, 1);
    int64_t window_ms = notification->titles.in_flight_window_ms
                        << (silences < DOUBLINGS_MAX ? silences : DOUBLINGS_MAX);
    atomic_store(&notification->at_hand_until_ns, clock_deadline_ms(window_ms));
}

void notification_titles_take(struct notification *notification, struct notification_event *events,
                              size_t count, struct arena *arena)
{
    struct hydration *hydration = kernel_hydration(notification->kernel);
    struct str field = STR("title");
    size_t asked = 0;
    if (!notification->settings->hydration.enabled || !hydration || !count)
        return;
    struct hydration_need *needs = arena_alloc(arena, count * sizeof *needs);
    struct hydration_outcome *outcomes = arena_zalloc(arena, count * sizeof *outcomes);
    struct notification_event **askers = arena_alloc(arena, count * sizeof(struct notification_event *));
    for (size_t i = 0; i < count; i++)
        if (make_need(&events[i], &field, &needs[asked]))
            askers[asked++] = &events[i];
    int64_t now_ns = clock_mono_ns();
    bool waits = now_ns >= atomic_load(&notification->at_hand_until_ns);
    if (!waits && atomic_load(&notification->title_silences) &&
        now_ns < atomic_load(&notification->at_hand_ns))
        return;
    atomic_store(&notification->at_hand_ns, now_ns + AT_HAND_PAUSE_MS * CLOCK_NS_PER_MS);
    const struct hydration_policy *policy = waits ? &notification->titles : &notification->titles_at_hand;
    hydration_ask_and_wait(hydration, policy, needs, asked, arena, outcomes);
    note_answers(notification, hand_out(askers, outcomes, asked, arena), asked, waits);
}
