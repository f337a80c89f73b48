/* What things are called in JetStream.
 *
 *   topic "refdata.commands"              stream  "refdata_commands"
 *   partition 3 of it                     subject "refdata.commands.3"
 *   group "refdata-apply", partition 3    durable "refdata-apply_3"
 *
 * Names of streams and consumers have no dots, so a dot becomes '_'. A stream's subjects and a consumer's description say
 * what it really is, so that "a.b" and "a_b" are never taken for each other. */
#include <stdio.h>

#include "base/memory.h"
#include "bus/nats/inside.h"

static void undot(char *text)
{
    for (; *text; text++)
        if (*text == '.')
            *text = '_';
}

/* A subject is tokens between dots, none of them empty. */
static bool is_subject(struct str name)
{
    struct str token;

    while (str_split(&name, '.', &token))
        if (token.len == 0)
            return false;
    return true;
}

enum status bus_nats_names_init(struct nats *nats, struct error *error)
{
    struct bus *bus = &nats->bus;

    nats->topics = memory_zalloc(bus->topic_count * sizeof nats->topics[0]);
    for (size_t i = 0; i < bus->topic_count; i++) {
        struct str name = bus->topics[i].name;
        if (!is_subject(name) || name.ptr[name.len - 1] == '.')
            return error_set(error, STATUS_CONFIG, "topic %s has an empty part, which NATS has no name for",
                             bus->topics[i].spec.name);
        snprintf(nats->topics[i].stream, sizeof nats->topics[i].stream, "%s", bus->topics[i].spec.name);
        undot(nats->topics[i].stream);
        for (size_t before = 0; before < i; before++)
            if (strcmp(nats->topics[before].stream, nats->topics[i].stream) == 0)
                return error_set(error, STATUS_CONFIG, "topics %s and %s would be one stream, %s",
                                 bus->topics[before].spec.name, bus->topics[i].spec.name,
                                 nats->topics[i].stream);
    }
    return STATUS_OK;
}

void bus_nats_subject(char out[NATS_NAME_BYTES], const struct bus_topic_state *topic, unsigned partition)
{
    snprintf(out, NATS_NAME_BYTES, "%s.%u", topic->spec.name, partition);
}

void bus_nats_durable(char out[NATS_NAME_BYTES], const char *group, unsigned partition)
{
    snprintf(out, NATS_NAME_BYTES, "%s_%u", group, partition);
    undot(out);
}

struct nats_topic *bus_nats_topic(const struct nats *nats, const struct bus_topic_state *topic)
{
    return &nats->topics[topic - nats->bus.topics];
}
