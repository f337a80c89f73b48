/* The notifier's waiting set: a vector for the order, a hash for "is it there already". */
#include "db/notices.h"

#include <stdlib.h>

#include "base/hash.h"
#include "base/memory.h"
#include "db/db.h"

#define SLOTS 32768 /* a power of two, over twice the most that can be in it */
#define PAYLOAD_BYTES_MAX 7999
#define CHANNEL_BYTES_MAX 63

void db_notices_init(struct db_notices *notices)
{
    *notices = (struct db_notices){.slots = memory_zalloc(SLOTS * sizeof(uint16_t))};
}

void db_notices_deinit(struct db_notices *notices)
{
    for (size_t i = 0; i < notices->count; i++)
        free(notices->at[i].text);
    free(notices->at);
    free(notices->slots);
    *notices = (struct db_notices){0};
}

static struct str text_of(const struct db_notice *notice)
{
    return str_of(notice->text, notice->channel_len + 1 + notice->payload_len);
}

/* Where `text` is, or the free slot where it belongs. */
static size_t slot_of(const struct db_notices *notices, struct str text)
{
    size_t slot = hash_seeded(text) % SLOTS;

    while (notices->slots[slot] && !str_eq(text_of(&notices->at[notices->slots[slot] - 1]), text))
        slot = (slot + 1) % SLOTS;
    return slot;
}

void db_notices_clear(struct db_notices *notices)
{
    memset(notices->slots, 0, SLOTS * sizeof(uint16_t));
    for (size_t i = 0; i < notices->count; i++)
        free(notices->at[i].text);
    notices->count = 0;
}

static bool is_sendable(struct str payload)
{
    return payload.len <= PAYLOAD_BYTES_MAX && str_is_utf8(payload) &&
           (payload.len == 0 || !memchr(payload.ptr, '\0', payload.len));
}

void db_notices_add(struct db_notices *notices, struct str channel, struct str payload)
{
    char text[CHANNEL_BYTES_MAX + 1 + PAYLOAD_BYTES_MAX + 1];

    if (channel.len == 0 || channel.len > CHANNEL_BYTES_MAX)
        return;
    if (notices->count >= DB_NOTICES_MAX || !is_sendable(payload))
        payload = STR("");
    memcpy(text, channel.ptr, channel.len);
    text[channel.len] = '\0';
    memcpy(text + channel.len + 1, payload.ptr, payload.len);
    struct str whole = str_of(text, channel.len + 1 + payload.len);
    size_t slot = slot_of(notices, whole);
    if (notices->slots[slot] || notices->count >= DB_NOTICES_MAX + DB_NOTICES_SPARE)
        return;
    if (notices->count == notices->capacity) {
        notices->capacity = notices->capacity ? 2 * notices->capacity : 64;
        notices->at = memory_realloc_array(notices->at, notices->capacity, sizeof notices->at[0]);
    }
    notices->at[notices->count++] = (struct db_notice){str_dup(whole), channel.len, payload.len};
    notices->slots[slot] = (uint16_t)notices->count;
}

void db_notices_print(const struct db_notices *notices, struct buf *channels, struct buf *payloads)
{
    db_array_begin(channels);
    db_array_begin(payloads);
    for (size_t i = 0; i < notices->count; i++) {
        const struct db_notice *notice = &notices->at[i];
        db_array_put(channels, str_of(notice->text, notice->channel_len));
        db_array_put(payloads, str_of(notice->text + notice->channel_len + 1, notice->payload_len));
    }
    db_array_end(channels);
    db_array_end(payloads);
}
