/* Sources (H6): a question is looked up by its owner and answered with as much as was asked for; a change is told with all
 * of the entity. What a source finds is made into an event in one place, so that no way out forgets whose it is.
 *
 * Whose: what only some may see is answered to the caller who asked, by name, and told to its owner where the source can name
 * one; else only that something changed is told, and consumers forget what they had. A question without a caller is answered
 * as if by somebody who may see nothing private. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/memory.h"
#include "hydration/inside.h"

#define ARENA_BYTES 4096

/* A look at one entity, and the event that comes of it. */
struct look {
    const struct hydration_source *source;
    struct hydration_question question;
    struct arena arena;
    struct buf whole, cut;
    struct hydration_entity entity;
    struct hydration_event event;
};

static const struct hydration_source *find_source(const struct hydration *hydration, struct str entity_type)
{
    for (size_t i = 0; i < hydration->source_count; i++)
        if (str_eq(str_from(hydration->sources[i].entity_type), entity_type))
            return &hydration->sources[i];
    return NULL;
}

static enum status look_open(struct look *look, const struct hydration_source *source, int64_t deadline_ns,
                             struct error *error)
{
    look->source = source;
    arena_init(&look->arena, ARENA_BYTES);
    buf_init(&look->whole);
    buf_init(&look->cut);
    look->entity = (struct hydration_entity){.data = &look->whole, .arena = &look->arena};
    return source->look(source->context, &look->question, deadline_ns, &look->entity, error);
}

static void look_close(struct look *look)
{
    buf_deinit(&look->whole);
    buf_deinit(&look->cut);
    arena_deinit(&look->arena);
}

static struct hydration_event *begin_event(struct look *look, enum hydration_kind kind)
{
    const struct hydration_question *question = &look->question;
    look->event = (struct hydration_event){
        .kind = kind,
        .tenant = question->tenant,
        .entity_type = question->entity_type,
        .entity_id = question->entity_id,
        .module = str_from(look->source->module),
        .version = look->entity.version,
    };
    return &look->event;
}

static void put_data(struct look *look, const struct hydration_cover *cover)
{
    hydration_cover_cut(cover, buf_str(&look->whole), &look->cut);
    look->event.data = buf_str(&look->cut);
    look->event.cover = *cover;
    look->event.has_cover = true;
}

/* ---- answers ---- */

static void make_answer(struct look *look, const struct hydration_event *question)
{
    const struct hydration_entity *entity = &look->entity;
    bool is_hidden = entity->found == HYDRATION_IS_HIDDEN ||
                     (entity->found == HYDRATION_IS && entity->is_private && !question->subject.len);
    bool is_there = entity->found == HYDRATION_IS && !is_hidden;
    struct hydration_event *event =
        begin_event(look, is_there ? HYDRATION_EVENT_UPDATED : HYDRATION_EVENT_NOT_FOUND);

    event->correlation_id = question->correlation_id;
    event->traceparent = question->traceparent;
    event->is_private = is_hidden || (is_there && entity->is_private);
    event->reason = is_hidden ? HYDRATION_INACCESSIBLE : HYDRATION_ABSENT;
    if (event->is_private)
        event->subject = question->subject;
    if (is_there)
        put_data(look, &question->cover);
}

static void log_answer(const struct hydration_event *question, const struct hydration_event *answer)
{
    log_info("hydration_answered", LOG_STR("entity_type", question->entity_type),
             LOG_STR("entity_id", question->entity_id),
             LOG_CSTR("hydration_mode", hydration_mode_names[question->cover.mode]),
             LOG_STR("requester_module", question->module), LOG_STR("source_module", answer->module),
             LOG_STR("correlation_id", question->correlation_id), LOG_STR("tenant_id", question->tenant),
             LOG_CSTR("result", answer->kind == HYDRATION_EVENT_UPDATED ? "updated" : "not-found"));
}

/* In an outage every question has one: a line a second is enough. */
static void log_failure(struct hydration *hydration, const struct hydration_event *question,
                        const struct error *error)
{
    long long now_ns = clock_mono_ns(), due_ns = atomic_load(&hydration->complain_at_ns);
    if (now_ns < due_ns ||
        !atomic_compare_exchange_strong(&hydration->complain_at_ns, &due_ns, now_ns + CLOCK_NS_PER_S))
        return;
    log_warn("hydration_unanswered", LOG_STR("entity_type", question->entity_type),
             LOG_STR("entity_id", question->entity_id), LOG_STR("requester_module", question->module),
             LOG_STR("correlation_id", question->correlation_id), LOG_ERROR_FIELDS(error));
}

static void note_asked(struct hydration *hydration, const struct hydration_source *source)
{
    long long until_ns = clock_deadline_ms(hydration_held_ms(hydration));
    atomic_store_explicit(&hydration->asked_until_ns[source - hydration->sources], until_ns,
                          memory_order_relaxed);
}

bool hydration_is_asked_for(const struct hydration *hydration, const char *entity_type)
{
    const struct hydration_source *source = find_source(hydration, str_from(entity_type));
    return source && atomic_load_explicit(&hydration->asked_until_ns[source - hydration->sources],
                                          memory_order_relaxed) > clock_mono_ns();
}

void hydration_source_answer(void *context, const struct hydration_event *question, int64_t deadline_ns,
                             struct hydration_reply *reply)
{
    const struct hydration_source *source = find_source(context, question->entity_type);
    struct look look = {.question = {question->tenant, question->subject, question->entity_type,
                                     question->entity_id, question->cover}};
    struct error error = {0};
    if (!source)
        return;
    note_asked(context, source); /* before the look: a change that it does not see wakes its follower */
    enum status status = look_open(&look, source, deadline_ns, &error);
    FAILPOINT("hydration.before_answer");
    if (status == STATUS_OK) {
        make_answer(&look, question);
        status = hydration_reply_send(reply, &look.event, &error);
    }
    FAILPOINT("hydration.after_answer");
    if (status == STATUS_OK)
        log_answer(question, &look.event);
    else
        log_failure(context, question, &error);
    look_close(&look);
}

/* ---- changes ---- */

static void make_change(struct look *look)
{
    static const struct hydration_cover existence = {.mode = HYDRATION_EXISTENCE};
    const struct hydration_entity *entity = &look->entity;
    bool is_gone = entity->found == HYDRATION_IS_NOT;
    bool is_private = entity->is_private || entity->found == HYDRATION_IS_HIDDEN;
    struct hydration_event *event =
        begin_event(look, is_gone ? HYDRATION_EVENT_NOT_FOUND : HYDRATION_EVENT_UPDATED);

    if (is_gone) /* for everybody */
        return;
    event->is_private = is_private;
    event->subject = is_private ? entity->owner : STR_NONE;
    put_data(look, is_private && !entity->owner.len ? &existence : &look->question.cover);
}

static enum status tell(struct hydration_wire *wire, const struct hydration_source *source, struct str tenant,
                        struct str entity_id, int64_t deadline_ns, struct error *error)
{
    struct look look = {.question = {.tenant = tenant,
                                     .entity_type = str_from(source->entity_type),
                                     .entity_id = entity_id,
                                     .cover.mode = HYDRATION_FULL}};
    enum status status = look_open(&look, source, deadline_ns, error);
    if (status == STATUS_OK) {
        make_change(&look);
        FAILPOINT("hydration.before_tell");
        status = hydration_wire_tell(wire, &look.event, deadline_ns, error);
    }
    look_close(&look);
    return status;
}

static enum status find_teller(struct hydration *hydration, const char *entity_type,
                               const struct hydration_source **source, struct hydration_wire **wire,
                               struct error *error)
{
    *source = find_source(hydration, str_from(entity_type));
    *wire = atomic_load(&hydration->wire);
    if (!*source)
        return error_set(error, STATUS_CONFIG, "nobody here provides %s", entity_type);
    if (!*wire)
        return error_set(error, STATUS_UNAVAILABLE, "the bus of events is not open yet");
    return STATUS_OK;
}

enum status hydration_tell(struct hydration *hydration, const char *entity_type, struct str tenant,
                           struct str entity_id, int64_t deadline_ns, struct error *error)
{
    const struct hydration_source *source;
    struct hydration_wire *wire;
    enum status status = find_teller(hydration, entity_type, &source, &wire, error);
    if (status == STATUS_OK)
        status = tell(wire, source, tenant, entity_id, deadline_ns, error);
    return status;
}

/* ---- changes of entities that consumers hold ---- */

enum status hydration_find_held(struct hydration *hydration, const char *entity_type,
                                const struct hydration_subject *subjects, size_t count, int64_t deadline_ns,
                                bool *held, struct error *error)
{
    const struct hydration_source *source = find_source(hydration, str_from(entity_type));
    enum status status = STATUS_OK;
    if (hydration->config.is_plain)
        memset(held, true, count * sizeof *held);
    else
        status = hydration_ledger_held_of(hydration->config.pool, str_from(entity_type), subjects, count,
                                          deadline_ns, held, error);
    if (status == STATUS_OK && source && memchr(held, true, count * sizeof *held))
        note_asked(hydration, source);
    return status;
}

struct held {
    struct arena *arena;
    struct held_id {
        struct held_id *next;
        struct str id;
    } * last;
    size_t count;
};

static void keep_id(struct str entity_id, void *arg)
{
    struct held *held = arg;
    struct held_id *own = arena_alloc(held->arena, sizeof *own);
    *own = (struct held_id){held->last, arena_str(held->arena, entity_id)};
    held->last = own;
    held->count++;
}

enum status hydration_list_held(struct hydration *hydration, const char *entity_type, struct str tenant,
                                struct str id_prefix, int64_t deadline_ns, struct arena *arena,
                                struct hydration_subject **subjects, size_t *count, struct error *error)
{
    struct held held = {.arena = arena};
    enum status status = hydration_ledger_held(hydration->config.pool, str_from(entity_type), tenant,
                                               id_prefix, deadline_ns, keep_id, &held, error);
    *count = held.count;
    *subjects = arena_alloc(arena, (held.count + 1) * sizeof **subjects);
    for (size_t i = held.count; i--; held.last = held.last->next)
        (*subjects)[i] = (struct hydration_subject){tenant, held.last->id};
    return status;
}

int64_t hydration_held_ms(const struct hydration *hydration)
{
    const struct hydration_settings *settings = hydration->config.settings;
    int64_t negative_ms = settings->policy.negative_cache_ttl_ms, copy_ms = settings->copy_ttl_ms;
    return (copy_ms > negative_ms ? copy_ms : negative_ms) + HYDRATION_EXPIRED_COPY_MS;
}
