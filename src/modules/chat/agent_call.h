/* An agent behind a URL. Blocking: on a worker. */
#ifndef FRESHET_CHAT_AGENT_CALL_H
#define FRESHET_CHAT_AGENT_CALL_H

#include "modules/chat/chat.h"

/* Its reply, in the arena, 1 to `bytes_max` bytes. A failure has been logged. */
enum status chat_agent_ask(const struct chat_agent *agent, const struct chat_caller *caller,
                           struct str content, size_t bytes_max, struct arena *arena, struct str *reply,
                           struct error *error) MUST_CHECK;

#endif
