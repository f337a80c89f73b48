/* Those who are led up to the chain: page by page out of whatever keeps what was said longer than the chain does.
 *
 *   loop     all that it had was given ─ ask ──▶ owner   is its position one that is kept? Then it is on the chain
 *                                                        yet to come? It waits for it
 *                                                        else a page is read; it is handed back with it
 *
 * The place on the chain is looked for only when the reader has taken all before it, so that nothing is kept for one that
 * is still reading what is old. */
#include <stddef.h>

#include "stream/stream_inside.h"

static void hand_back(struct stream_subscriber *subscriber)
{
    subscriber->lead = STREAM_LEAD_NONE;
    subscriber->message.on_message = stream_subscriber_resume;
    loop_post(subscriber->ref.loop, &subscriber->message);
}

static void lead(struct stream_subscriber *subscriber)
{
    struct stream_topic *topic = subscriber->topic;
    struct stream_segment *place = stream_topic_find(topic, subscriber->after);
    if (place) {
        stream_segment_ref(place);
        subscriber->handed_at = place;
        hand_back(subscriber);
    } else if (!topic->config.read_page) { /* the topic was closed, which the loop knows or will */
        hand_back(subscriber);
    } else if (subscriber->after > topic->newest->to) {
        subscriber->lead = STREAM_LEAD_AHEAD;
        subscriber->ahead_next = topic->ahead;
        topic->ahead = subscriber;
    } else {
        subscriber->lead = STREAM_LEAD_READING;
        topic->config.read_page(topic->config.context, subscriber, subscriber->after);
    }
}

void stream_subscriber_ask(struct loop *loop, struct loop_message *message)
{
    (void)loop;
    lead((struct stream_subscriber *)message);
}

static void end_reading(struct stream_subscriber *subscriber)
{
    if (subscriber->is_gone)
        stream_subscriber_left(subscriber->topic->config.owner, &subscriber->message);
    else
        hand_back(subscriber);
}

void stream_page_give(struct stream_subscriber *subscriber, struct stream_segment *page)
{
    if (!page || subscriber->is_gone) { /* nothing follows that could be read, and yet the chain is further */
        stream_segment_unref(page);
        stream_page_refuse(subscriber);
        return;
    }
    subscriber->handed_opening = page;
    subscriber->after = page->to;
    end_reading(subscriber);
}

void stream_page_refuse(struct stream_subscriber *subscriber)
{
    subscriber->handed_refusal = true;
    end_reading(subscriber);
}

void stream_ahead_advance(struct stream_topic *topic)
{
    struct stream_subscriber *ahead = topic->ahead;
    topic->ahead = NULL;
    while (ahead) {
        struct stream_subscriber *next = ahead->ahead_next;
        lead(ahead);
        ahead = next;
    }
}

void stream_subscriber_gone(struct loop *loop, struct loop_message *message)
{
    struct stream_subscriber *subscriber =
        (struct stream_subscriber *)((char *)message - offsetof(struct stream_subscriber, gone_message));
    if (subscriber->lead == STREAM_LEAD_READING)
        subscriber->is_gone = true;
    if (subscriber->lead != STREAM_LEAD_AHEAD)
        return; /* handed back: its loop sends it on */
    struct stream_subscriber **link = &subscriber->topic->ahead;
    while (*link != subscriber)
        link = &(*link)->ahead_next;
    *link = subscriber->ahead_next;
    stream_subscriber_left(loop, &subscriber->message);
}
