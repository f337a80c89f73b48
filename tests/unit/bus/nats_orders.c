#include "nats_orders.h"

#include <stdio.h>

#include "nats_fixture.h"

const struct bus_topic orders_topic = {.name = "orders.events", .partitions = 1};
struct orders orders;
const struct bus_nats_names orders_names = {.topic = "orders.events",
                                            .stream = orders.stream,
                                            .subject = orders.subject,
                                            .duplicate_window_ms = 600000};

int orders_open(void **state)
{
    static unsigned turn;

    (void)state;
    snprintf(orders.stream, sizeof orders.stream, "ORDERS%u", ++turn);
    snprintf(orders.dead_stream, sizeof orders.dead_stream, "%s_dlq", orders.stream);
    snprintf(orders.subject, sizeof orders.subject, "orders.v%u", turn);
    snprintf(orders.dead_subject, sizeof orders.dead_subject, "%s.dlq", orders.subject);
    nats_next.names = &orders_names;
    nats_next.name_count = 1;
    return natsConnection_ConnectTo(&orders.connection, nats_fixture_url()) == NATS_OK &&
                   natsConnection_JetStream(&orders.js, orders.connection, NULL) == NATS_OK
               ? 0
               : -1;
}

int orders_close(void **state)
{
    (void)state;
    jsCtx_Destroy(orders.js);
    natsConnection_Destroy(orders.connection);
    nats_next.names = NULL;
    nats_next.name_count = 0;
    nats_next.advisory_stream = nats_next.terminated_stream = NULL;
    return 0;
}

void open_reader(struct reader *reader, unsigned attempts_max,
                 void (*behave)(struct recorder *recorder, struct bus_batch *batch))
{
    recorder_init(&reader->recorder);
    reader->recorder.behave = behave;
    nats_open_with(&reader->process, &orders_topic, 1);
    subscribe(&reader->process, &reader->recorder,
              (struct bus_subscription){.topic = "orders.events",
                                        .group = "mailer",
                                        .from = BUS_FROM_START,
                                        .attempts_max = attempts_max,
                                        .backoff_min_ms = 20});
    process_start(&reader->process);
    await_ready(&reader->recorder);
}

void close_reader(struct reader *reader)
{
    process_close(&reader->process);
    recorder_deinit(&reader->recorder);
}

bool stream_has(const char *name, const char *only, int64_t window_s)
{
    jsStreamInfo *info = NULL;
    bool good = js_GetStreamInfo(&info, orders.js, name, NULL, NULL) == NATS_OK &&
                info->Config->SubjectsLen == 1 && strcmp(info->Config->Subjects[0], only) == 0 &&
                info->Config->Duplicates == window_s * 1000000000;

    jsStreamInfo_Destroy(info);
    return good;
}

bool take_one(bool terminate)
{
    natsSubscription *subscription = NULL;
    natsMsgList list = {0};
    jsSubOptions options;
    bool good;

    jsSubOptions_Init(&options);
    options.Stream = orders.stream;
    options.Consumer = "mailer";
    good =
        js_PullSubscribe(&subscription, orders.js, orders.subject, NULL, NULL, &options, NULL) == NATS_OK &&
        natsSubscription_Fetch(&list, subscription, 1, 5000, NULL) == NATS_OK && list.Count == 1;
    if (good && terminate)
        good =
            natsMsg_Term(list.Msgs[0], NULL) == NATS_OK && natsConnection_Flush(orders.connection) == NATS_OK;
    natsMsgList_Destroy(&list);
    natsSubscription_Destroy(subscription);
    return good;
}

uint64_t letters(void)
{
    jsStreamInfo *info = NULL;
    uint64_t count = UINT64_MAX;

    if (js_GetStreamInfo(&info, orders.js, orders.dead_stream, NULL, NULL) == NATS_OK)
        count = info->State.Msgs;
    jsStreamInfo_Destroy(info);
    return count;
}
