/* Who is asking, and about what: ids of the path, and the user as a UUID (M1). */
#include "modules/chat/chat.h"

/* Named UUIDs of users are made in a space of their tenant, which is named in this one (RFC 9562's for object ids). */
static const struct uuid tenants_space = {
    {0x6b, 0xa7, 0xb8, 0x12, 0x9d, 0xad, 0x11, 0xd1, 0x80, 0xb4, 0x00, 0xc0, 0x4f, 0xd4, 0x30, 0xc8}};

void chat_user_id(struct str tenant, struct str subject, char out[UUID_TEXT_BYTES])
{
    struct uuid user;
    if (!uuid_parse(subject, &user)) {
        struct uuid space = uuid_named(&tenants_space, tenant);
        user = uuid_named(&space, subject);
    }
    uuid_format(&user, out);
}

static enum status read_id(const struct http_request *request, const char *name, char out[UUID_TEXT_BYTES],
                           struct error *error)
{
    struct str text;
    struct uuid id;
    enum status status = http_request_param(request, name, &text, error);
    if (status == STATUS_OK && !uuid_parse(text, &id))
        return error_set_field(error, STATUS_BAD_REQUEST, name, "must be a UUID");
    if (status == STATUS_OK)
        uuid_format(&id, out);
    return status;
}

enum status chat_caller_read(const struct http_request *request, struct chat_caller *caller,
                             struct error *error)
{
    const struct auth_identity *identity = kernel_identity(request);
    caller->tenant = identity->tenant;
    caller->session[0] = '\0';
    chat_user_id(identity->tenant, identity->subject, caller->user);
    enum status status = read_id(request, "project_id", caller->project, error);
    if (status == STATUS_OK && strstr(request->route->path, "{session_id}"))
        status = read_id(request, "session_id", caller->session, error);
    return status;
}

enum status chat_store_check(const struct chat *chat, struct error *error)
{
    return kernel_store_is_ready(chat->kernel)
               ? STATUS_OK
               : error_set(error, STATUS_UNAVAILABLE, "the database is not there yet");
}
