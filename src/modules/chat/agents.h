/* Agents: who answers a message, and what (M2). Choosing is a pure function of the settings and the message. */
#ifndef FRESHET_CHAT_AGENTS_H
#define FRESHET_CHAT_AGENTS_H

#include "base/arena.h"
#include "modules/chat/settings.h"

struct chat_choice {
    const struct chat_agent *agent;
    int64_t score; /* thousandths: the share of its keywords that the message holds */
};
/* The highest score; of equal ones the first in the file; without any, the default agent with 0. */
struct chat_choice chat_agent_choose(const struct chat_settings *settings, struct str content,
                                     struct arena *arena);
/* The template with {content} filled in, at most `bytes_max`, no character split. */
struct str chat_agent_fill(struct str reply, struct str content, size_t bytes_max, struct arena *arena);

#endif
