/* What things are called in JetStream.
 *
 *   topic "refdata.commands"              stream  "refdata_commands"
 *   partition 3 of it                     subject "refdata.commands.3"
 *   group "refdata-apply", partition 3    durable "refdata-apply_3"
 *
 * A topic whose owner names its stream and subject (bus_nats_names) has exactly those, and with one partition its groups'
 * durables are the groups' names: others can be told them, or have made them. Its dead letters are beside it.
 *
 * Names of streams and consumers have no dots, so a dot becomes '_'. A stream's subjects and a consumer's description say
 * what it really is, so that "a.b" and "a_b" are never taken for each other. */
#include <stdio.h>

#include "base/memory.h"
#include "bus/nats/inside.h"

enum { NAME_MAX_LEN = 170 /* with what is added to it JetStream still takes it */ };

static void undot(char *text)
{
    for (; *text; text++)
        if (*text == '.')
            *text = '_';
}

/* A subject is tokens between dots, none of them empty. */
static bool is_subject(struct str name)
{
    struct str rest = name, token;

    while (str_split(&rest, '.', &token))
        if (token.len == 0)
            return false;
    return name.len > 0 && name.ptr[name.len - 1] != '.';
}

static bool has_only(struct str name, const char *never)
{
    for (size_t i = 0; i < name.len; i++)
        if (name.ptr[i] <= ' ' || name.ptr[i] >= 0x7f || strchr(never, name.ptr[i]))
            return false;
    return true;
}

bool bus_nats_is_stream_name(const char *name)
{
    struct str text = str_from(name);

    return text.len > 0 && text.len <= NAME_MAX_LEN && has_only(text, ".*>/\\");
}

static enum status check_names(const struct bus_nats_names *names, struct error *error)
{
    struct str subject = str_from(names->subject ? names->subject : names->topic);

    if (names->stream && !bus_nats_is_stream_name(names->stream))
        return error_set(
            error, STATUS_CONFIG,
            "topic %s: a stream of NATS is called by 1 to %d characters without spaces, dots, '*', "
            "'>', '/' and '\\'",
            names->topic, NAME_MAX_LEN);
    if (!is_subject(subject) || subject.len > NAME_MAX_LEN || !has_only(subject, "*>") ||
        str_starts_with(subject, STR("$")))
        return error_set(
            error, STATUS_CONFIG,
            "topic %s: a subject of NATS is 1 to %d characters, parts between dots, without spaces, "
            "'*' and '>', and does not begin with '$'",
            names->topic, NAME_MAX_LEN);
    if (names->duplicate_window_ms < 0 || names->duplicate_window_ms > NATS_WINDOW_MS_MAX)
        return error_set(error, STATUS_CONFIG, "topic %s: a duplicate window is at most a year",
                         names->topic);
    return STATUS_OK;
}

/* `suffix`: "" or that of dead letters. */
static void take_names(struct nats_topic *there, const struct bus_nats_names *names, const char *suffix)
{
    if (names->stream)
        snprintf(there->stream, sizeof there->stream, "%s%s", names->stream, suffix);
    undot(there->stream);
    if (names->subject)
        snprintf(there->subject, sizeof there->subject, "%s%s", names->subject, suffix);
    there->window_ns = names->duplicate_window_ms * 1000000;
    there->exact = true;
}

static enum status name_topic(struct nats_topic *there, struct str topic,
                              const struct bus_nats_config *config, struct error *error)
{
    bool dead = str_ends_with(topic, STR(BUS_DEAD_SUFFIX));
    struct str base = str_of(topic.ptr, topic.len - (dead ? strlen(BUS_DEAD_SUFFIX) : 0));

    if (!is_subject(topic))
        return error_set(error, STATUS_CONFIG, "topic %.*s has an empty part, which NATS has no name for",
                         STR_ARG(topic));
    snprintf(there->subject, sizeof there->subject, "%.*s", STR_ARG(topic));
    snprintf(there->stream, sizeof there->stream, "%.*s", STR_ARG(topic));
    undot(there->stream);
    for (size_t i = 0; i < config->name_count; i++) {
        const struct bus_nats_names *names = &config->names[i];
        bool its_own = str_eq(str_from(names->topic), topic);
        if (!its_own && !(dead && !there->exact && str_eq(str_from(names->topic), base)))
            continue;
        enum status status = check_names(names, error);
        if (status != STATUS_OK)
            return status;
        take_names(there, names, its_own ? "" : BUS_DEAD_SUFFIX);
    }
    return STATUS_OK;
}

enum status bus_nats_names_init(struct nats *nats, const struct bus_nats_config *config, struct error *error)
{
    struct bus *bus = &nats->bus;

    nats->topics = memory_zalloc(bus->topic_count * sizeof nats->topics[0]);
    for (size_t i = 0; i < bus->topic_count; i++) {
        enum status status = name_topic(&nats->topics[i], bus->topics[i].name, config, error);
        if (status != STATUS_OK)
            return status;
        for (size_t before = 0; before < i; before++)
            if (strcmp(nats->topics[before].stream, nats->topics[i].stream) == 0)
                return error_set(error, STATUS_CONFIG, "topics %s and %s would be one stream, %s",
                                 bus->topics[before].spec.name, bus->topics[i].spec.name,
                                 nats->topics[i].stream);
    }
    return STATUS_OK;
}

static bool is_exact(const struct nats_topic *there, const struct bus_topic_state *topic)
{
    return there->exact && topic->spec.partitions == 1;
}

void bus_nats_subject(char out[NATS_NAME_BYTES], const struct nats *nats, const struct bus_topic_state *topic,
                      unsigned partition)
{
    const struct nats_topic *there = bus_nats_topic(nats, topic);

    if (is_exact(there, topic))
        snprintf(out, NATS_NAME_BYTES, "%s", there->subject);
    else
        snprintf(out, NATS_NAME_BYTES, "%s.%u", there->subject, partition);
}

void bus_nats_durable(char out[NATS_NAME_BYTES], const struct nats_reader *reader, unsigned partition)
{
    const char *group = reader->consumer.spec.group;

    if (is_exact(reader->topic, reader->consumer.topic))
        snprintf(out, NATS_NAME_BYTES, "%s", group);
    else
        snprintf(out, NATS_NAME_BYTES, "%s_%u", group, partition);
    undot(out);
}

struct nats_topic *bus_nats_topic(const struct nats *nats, const struct bus_topic_state *topic)
{
    return &nats->topics[topic - nats->bus.topics];
}
