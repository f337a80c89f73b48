#include <stdlib.h>

#include "base/memory.h"
#include "modules/refdata/flow.h"

struct refdata_news {
    struct refdata_flow *flow;
};

struct refdata_news *refdata_news_create(struct refdata_flow *flow)
{
    struct refdata_news *news = memory_zalloc(sizeof *news);
    news->flow = flow;
    return news;
}

void refdata_news_stop(struct refdata_news *news)
{
    (void)news;
}

void refdata_news_destroy(struct refdata_news *news)
{
    free(news);
}

void refdata_news_decided(struct refdata_news *news, const struct refdata_outcome *outcomes,
                          const bool *waited, size_t count)
{
    (void)news, (void)outcomes, (void)waited, (void)count;
}
