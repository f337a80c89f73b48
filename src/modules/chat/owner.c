/* Chat owns the entity type `chat_session` of hydration (H6); the id is the session's UUID as chat writes it, in lower case.
 *
 * A session is visible to its user alone, as on the routes. The user's UUID is made of tenant and `sub` and does not lead back
 * to them, so a change cannot name its user; only a lookup can be checked. The shown entity changes when the session begins
 * and when another agent takes over, not with every message; its version is the session's last sequence. */
#include "bus/bus.h"
#include "hydration/hydration.h"
#include "kernel/audit.h"
#include "modules/chat/chat.h"
#include "outbox/outbox.h"

/* By the primary key. */
static const struct db_statement session_sql = DB_STATEMENT(
    "select row_to_json((select j from (select s.session_id, s.project_id, s.user_id, s.agent,"
    "                                          platform.rfc3339(s.created_at) as created_at) j)),"
    "       s.user_id, s.last_sequence"
    " from chat.chat_sessions s where s.tenant_id = $1 and s.session_id = $2");
enum session_column { SESSION, USER, SEQUENCE };

bool chat_owner_is_id(struct str id)
{
    struct uuid uuid;
    char text[UUID_TEXT_BYTES];
    if (!uuid_parse(id, &uuid))
        return false;
    uuid_format(&uuid, text);
    return str_eq(str_from(text), id); /* a copy under another spelling would miss changes */
}

/* The version is set for a hidden session too: it retires older copies. */
static enum status look_up_session(void *context, const struct hydration_need *need, int64_t deadline_ns,
                                   struct hydration_entity *entity, struct error *error)
{
    struct chat *chat = context;
    struct db_result *rows = NULL;
    char caller[UUID_TEXT_BYTES];
    enum status status = STATUS_OK;
    entity->found = HYDRATION_ENTITY_ABSENT;
    if (chat_owner_is_id(need->entity_id))
        status = kernel_store_query(chat->kernel, &session_sql,
                                    DB_PARAMS(db_text(need->tenant), db_uuid(need->entity_id)), deadline_ns,
                                    &rows, error);
    if (!rows || db_result_rows(rows) == 0) {
        db_result_free(rows);
        return status;
    }
    chat_user_id(need->tenant, need->caller, caller);
    bool is_visible = !need->caller.len || str_eq(str_from(caller), db_result_str(rows, 0, USER));
    entity->is_private = true;
    entity->version = db_result_i64(rows, 0, SEQUENCE);
    entity->found = is_visible ? HYDRATION_ENTITY_EXISTS : HYDRATION_ENTITY_HIDDEN;
    if (is_visible) {
        entity->only_caller = arena_str(entity->arena, need->caller);
        buf_put_str(entity->data, db_result_str(rows, 0, SESSION));
    }
    db_result_free(rows);
    return STATUS_OK;
}

/* ---- changes, from the events of chat ---- */

static bool read_session_event(const struct bus_message *message, struct arena *arena,
                               struct hydration_ref *ref)
{
    (void)arena;
    bool is_first = str_eq(bus_message_header(message, STR(CHAT_HEADER_SEQUENCE)), STR("1"));
    struct str type = bus_message_header(message, STR(OUTBOX_HEADER_EVENT_TYPE));
    ref->tenant = bus_message_header(message, STR(OUTBOX_HEADER_TENANT));
    ref->entity_id = bus_message_header(message, STR(CHAT_HEADER_SESSION));
    return is_first || str_eq(type, STR("agent_switched"));
}

static void on_event_gap(void *context, unsigned partition, int64_t offset)
{
    const struct chat *chat = context;
    kernel_audit_gap(chat->kernel, &chat_outbox_table, CHAT_TOPIC, partition, offset);
}

void chat_owner_provide(struct chat *chat)
{
    hydration_provide(kernel_hydration(chat->kernel), &(struct hydration_owner){.entity_type = "chat_session",
                                                                                .module = "chat",
                                                                                .look = look_up_session,
                                                                                .context = chat,
                                                                                .topic = CHAT_TOPIC,
                                                                                .read = read_session_event,
                                                                                .on_gap = on_event_gap});
}
