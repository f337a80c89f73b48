/* A bounded set of (channel, payload) waiting to be sent: the same one twice is one. Not thread-safe. */
#ifndef FRESHET_DB_NOTICES_H
#define FRESHET_DB_NOTICES_H

#include "base/buf.h"

#define DB_NOTICES_MAX 10000
#define DB_NOTICES_SPARE 100 /* room for channels with their payload dropped, once the set is full */

struct db_notice {
    char *text; /* channel, NUL, payload, NUL */
    size_t channel_len, payload_len;
};

struct db_notices {
    struct db_notice *at;
    size_t count, capacity;
    uint16_t *slots; /* hash to index + 1; 0 = free */
};

void db_notices_init(struct db_notices *notices);
void db_notices_deinit(struct db_notices *notices);
void db_notices_clear(struct db_notices *notices);
/* A payload PostgreSQL would refuse (8,000 bytes, NUL, not UTF-8) or that finds the set full becomes "". */
void db_notices_add(struct db_notices *notices, struct str channel, struct str payload);
/* As two text[] literals. */
void db_notices_print(const struct db_notices *notices, struct buf *channels, struct buf *payloads);

#endif
