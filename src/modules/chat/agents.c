/* Routing: a message's keywords choose its agent. Letters are compared without case, in the scripts where that is a matter
 * of one distance between code points; a keyword that begins or ends with a Latin letter or a digit does so at a word's
 * edge, others may stand anywhere, as languages with endings or without spaces need it. */
#include "modules/chat/agents.h"

#include "base/buf.h"

static const struct chat_agent repeater = {.name = {"assistant", 9}, .reply = {"{content}", 9}};

/* ---- letters ---- */

static uint32_t decode(const char *bytes, size_t len)
{
    static const uint8_t masks[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t point = (uint8_t)bytes[0] & masks[len];
    for (size_t i = 1; i < len; i++)
        point = point << 6 | ((uint8_t)bytes[i] & 0x3f);
    return point;
}

static uint32_t fold(uint32_t point)
{
    if ((point >= 'A' && point <= 'Z') || (point >= 0xc0 && point <= 0xde && point != 0xd7) ||
        (point >= 0x391 && point <= 0x3a9) || (point >= 0x410 && point <= 0x42f))
        return point + 32;
    if (point >= 0x400 && point <= 0x40f)
        return point + 80;
    return point;
}

/* Two bytes stay two, so the text keeps its length. */
static struct str fold_text(struct str text, struct arena *arena)
{
    char *out = arena_alloc(arena, text.len + 1);
    size_t at = 0;
    while (at < text.len) {
        size_t len = str_utf8_char(str_of(text.ptr + at, text.len - at));
        uint32_t point = len ? fold(decode(text.ptr + at, len)) : 0;
        if (len == 1) {
            out[at] = (char)point;
        } else if (len == 2) {
            out[at] = (char)(0xc0 | point >> 6);
            out[at + 1] = (char)(0x80 | (point & 0x3f));
        } else {
            len = len ? len : 1;
            memcpy(out + at, text.ptr + at, len);
        }
        at += len;
    }
    return str_of(out, text.len);
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

/* Both folded. */
static bool holds(struct str text, struct str keyword)
{
    const char *at = text.ptr, *end = text.ptr + text.len;
    while ((at = memmem(at, (size_t)(end - at), keyword.ptr, keyword.len))) {
        const char *behind = at + keyword.len;
        bool begins = at == text.ptr || !is_word(at[-1]) || !is_word(keyword.ptr[0]);
        bool ends = behind == end || !is_word(*behind) || !is_word(keyword.ptr[keyword.len - 1]);
        if (begins && ends)
            return true;
        at++;
    }
    return false;
}

/* ---- choosing ---- */

static int64_t score(const struct chat_agent *agent, struct str folded, struct arena *arena)
{
    size_t hits = 0;
    for (size_t i = 0; i < agent->keywords.count; i++)
        hits += holds(folded, fold_text(agent->keywords.items[i], arena));
    return agent->keywords.count ? (int64_t)(hits * 1000 / agent->keywords.count) : 0;
}

static const struct chat_agent *default_of(const struct chat_settings *settings)
{
    const struct chat_agent *agents = settings->agents.items;
    for (size_t i = 0; i < settings->agents.count; i++)
        if (str_eq(agents[i].name, settings->default_agent))
            return &agents[i];
    return &repeater;
}

struct chat_choice chat_agent_choose(const struct chat_settings *settings, struct str content,
                                     struct arena *arena)
{
    const struct chat_agent *agents = settings->agents.items;
    struct str folded = settings->agents.count ? fold_text(content, arena) : content;
    struct chat_choice best = {.agent = NULL};
    for (size_t i = 0; i < settings->agents.count; i++) {
        int64_t own = score(&agents[i], folded, arena);
        if (own > best.score)
            best = (struct chat_choice){&agents[i], own};
    }
    if (!best.agent)
        best.agent = default_of(settings);
    return best;
}

struct str chat_agent_fill(struct str reply, struct str content, size_t bytes_max, struct arena *arena)
{
    static const struct str mark = {"{content}", 9};
    struct buf text;
    buf_init(&text);
    while (reply.len && buf_len(&text) <= bytes_max) {
        const char *at = memmem(reply.ptr, reply.len, mark.ptr, mark.len);
        size_t before = at ? (size_t)(at - reply.ptr) : reply.len;
        buf_put(&text, reply.ptr, before);
        if (at)
            buf_put_str(&text, content);
        size_t taken = before + (at ? mark.len : 0);
        reply = str_of(reply.ptr + taken, reply.len - taken);
    }
    struct str filled = arena_str(arena, str_utf8_cut(buf_str(&text), bytes_max));
    buf_deinit(&text);
    return filled;
}
