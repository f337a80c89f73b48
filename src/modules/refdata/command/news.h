/* Who waits for an update's decision, and how it reaches them (R1): directly where it was decided in this process, by a
 * notice of the database where it was another. Nobody polls, and no thread is held. */
#ifndef FRESHET_REFDATA_NEWS_H
#define FRESHET_REFDATA_NEWS_H

#include "modules/refdata/acceptance.h"
#include "modules/refdata/flow.h"

/* One who waits; embedded in its owner. `message` is posted to `loop` once, unless refdata_news_remove() was in time. */
struct refdata_waiter {
    struct loop_message message; /* first; the owner sets on_message */
    struct loop *loop;
    struct str tenant, event_id;   /* of the owner's memory */
    struct refdata_state decision; /* PENDING: there will be no news, ask the row */
    struct refdata_waiter *next;   /* the table's */
};

void refdata_news_add(struct refdata_news *news, struct refdata_waiter *waiter); /* any thread */
/* Any thread. False: it was posted already, or is about to be. */
bool refdata_news_remove(struct refdata_news *news, struct refdata_waiter *waiter);

/* Any thread: reads the rows of all who wait, soon and once for all of them; for one that no notice may reach. */
void refdata_news_reread(struct refdata_news *news);

#endif
