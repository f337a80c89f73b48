/* Chat owns the entity type `chat_session` of hydration (H6); the id is the session's UUID as chat writes it, in lower case.
 *
 * A session is visible to its user alone, as on the routes. The user's UUID is made of tenant and `sub` and does not lead back
 * to them, so a change cannot name its user; only a lookup can be checked. The shown entity changes when the session begins
 * and when another agent takes over, not with every message; its version is the session's last sequence. */
#include "base/json.h"
#include "bus/bus.h"
#include "hydration/hydration.h"
#include "modules/chat/chat.h"
#include "outbox/messages.h"

#define ENTITY_TYPE "chat_session"

/* By the primary key. */
static const struct db_statement session_sql = DB_STATEMENT(
    "select s.session_id, s.project_id, s.user_id, s.agent, platform.rfc3339(s.created_at), s.last_sequence"
    " from chat.chat_sessions s where s.tenant_id = $1 and s.session_id = $2");
enum session_column { SESSION, PROJECT, USER, AGENT, CREATED_AT, SEQUENCE };

static void put_session(struct buf *out, const struct db_result *rows)
{
    buf_put_char(out, '{');
    json_put_member_str(out, "session_id", db_result_str(rows, 0, SESSION));
    json_put_member_str(out, "project_id", db_result_str(rows, 0, PROJECT));
    json_put_member_str(out, "user_id", db_result_str(rows, 0, USER));
    if (db_result_is_null(rows, 0, AGENT))
        json_put_member_raw(out, "agent", STR("null"));
    else
        json_put_member_str(out, "agent", db_result_str(rows, 0, AGENT));
    json_put_member_str(out, "created_at", db_result_str(rows, 0, CREATED_AT));
    buf_put_char(out, '}');
}

/* The version is set for a hidden session too: it retires older copies. */
static void take_session(const struct hydration_question *question, const struct db_result *rows,
                         struct hydration_entity *entity)
{
    char caller[UUID_TEXT_BYTES];
    chat_user_id(question->tenant, question->subject, caller);
    bool is_visible = !question->subject.len || str_eq(str_from(caller), db_result_str(rows, 0, USER));
    entity->is_private = true;
    entity->version = db_result_i64(rows, 0, SEQUENCE);
    entity->found = is_visible ? HYDRATION_IS : HYDRATION_IS_HIDDEN;
    if (!is_visible)
        return;
    entity->only_subject = arena_str(entity->arena, question->subject);
    put_session(entity->data, rows);
}

bool chat_owner_is_id(struct str id)
{
    struct uuid uuid;
    char text[UUID_TEXT_BYTES];
    if (!uuid_parse(id, &uuid))
        return false;
    uuid_format(&uuid, text);
    return str_eq(str_from(text), id); /* a copy under another spelling would miss changes */
}

static enum status look_up_session(void *context, const struct hydration_question *question,
                                   int64_t deadline_ns, struct hydration_entity *entity, struct error *error)
{
    struct chat *chat = context;
    struct db_conn *conn = NULL;
    struct db_result *rows = NULL;
    entity->found = HYDRATION_IS_NOT;
    if (!chat_owner_is_id(question->entity_id))
        return STATUS_OK;
    enum status status = chat_acquire(chat, deadline_ns, &conn, error);
    if (status == STATUS_OK)
        status =
            db_query(conn, &session_sql, DB_PARAMS(db_text(question->tenant), db_uuid(question->entity_id)),
                     deadline_ns, &rows, error);
    if (status == STATUS_OK && db_result_rows(rows))
        take_session(question, rows, entity);
    db_result_free(rows);
    db_release(conn);
    return status;
}

void chat_owner_provide(struct chat *chat)
{
    hydration_provide(kernel_hydration(chat->kernel), &(struct hydration_owner){.entity_type = ENTITY_TYPE,
                                                                                .module = "chat",
                                                                                .look = look_up_session,
                                                                                .context = chat});
}

/* ---- changes, from the events of chat ---- */

static bool read_subject(void *context, const void *bus_message, struct arena *arena,
                         struct hydration_ref *ref)
{
    (void)context;
    (void)arena;
    bool is_first = str_eq(bus_message_header(bus_message, STR(CHAT_HEADER_SEQUENCE)), STR("1"));
    struct str type = bus_message_header(bus_message, STR(OUTBOX_HEADER_EVENT_TYPE));
    if (!is_first && !str_eq(type, STR("agent_switched")))
        return false;
    ref->tenant = bus_message_header(bus_message, STR(OUTBOX_HEADER_TENANT));
    ref->entity_id = bus_message_header(bus_message, STR(CHAT_HEADER_SESSION));
    return true;
}

enum status chat_owner_follow(struct chat *chat, struct bus *events, struct error *error)
{
    return hydration_follow(kernel_hydration(chat->kernel), events, CHAT_TOPIC, ENTITY_TYPE, read_subject,
                            chat, error);
}
