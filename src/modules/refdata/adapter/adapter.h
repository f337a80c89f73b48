/* The adapter (R9): messages of external topics are translated and accepted, each in the transaction before the commit of
 * its position.
 *
 *     topic ─ translate.c ─ adapter.c: dictionary, accept ─ commands.h ─ commit ─ Kafka's offset
 *           └ what cannot be an update ─ topic.dlq, with the reason
 *
 * A redelivered message finds its event's row and has no second effect. */
#ifndef FRESHET_REFDATA_ADAPTER_H
#define FRESHET_REFDATA_ADAPTER_H

#include "base/json.h"
#include "bus/bus.h"
#include "modules/refdata/acceptance.h"
#include "modules/refdata/adapter/settings.h"
#include "modules/refdata/commands.h"

struct config;
struct refdata_settings;

/* ---- source.c: JSON pointers (RFC 6901) ----
 * "/a/0/b~1c" is the member "b/c" of the first element of the member "a"; "" is the whole. */

#define REFDATA_POINTER_STEPS_MAX 32

struct refdata_pointer {
    struct str text;
    struct str *steps; /* without their escapes */
    size_t count;
};

/* CONFIG where it is invalid, with the reason. Everything lives in the arena. */
enum status refdata_pointer_compile(struct str text, struct arena *arena, struct refdata_pointer *pointer,
                                    struct error *error) MUST_CHECK;
/* What it points at in `root`; without bytes where there is nothing. BAD_REQUEST, naming the pointer, where a member on
 * the way comes more than once: which one is meant is not known. */
enum status refdata_pointer_find(const struct refdata_pointer *pointer, const struct json_value *root,
                                 struct json_value *value, struct error *error) MUST_CHECK;

/* ---- one external topic, and how its messages become updates; immutable ---- */

enum refdata_from_kind { REFDATA_AT_FIELD, REFDATA_AT_HEADER, REFDATA_AT_KEY, REFDATA_AT_FIXED };

struct refdata_from {
    enum refdata_from_kind kind;
    bool is_default; /* the contract's own place */
    struct str text; /* of HEADER its name, of FIXED the value */
    struct refdata_pointer pointer;
};

struct refdata_adapter_source {
    const struct refdata_source_settings *settings; /* borrowed: they live as long */
    struct refdata_from from[REFDATA_PARTS];
    bool is_mapped;        /* only what is named counts; else a message is exactly the contract's */
    bool items_are_mapped; /* each is taken apart */
};

/* What is made of the settings is in the arena. `config` (may be NULL when the settings were checked before) is for the place in
 * errors. */
enum status refdata_source_init(struct refdata_adapter_source *source,
                                const struct refdata_source_settings *settings, size_t index,
                                const struct config *config, struct arena *arena,
                                struct error *error) MUST_CHECK;
/* All of them, with what they refer to: each other, dictionaries and databases. */
enum status refdata_sources_check(const struct config *config, const struct refdata_settings *settings,
                                  struct error *error) MUST_CHECK;
/* Index of the postgres block whose transactions take a source's updates; -1 = it names none that is there. */
int refdata_source_database(const struct refdata_settings *settings,
                            const struct refdata_source_settings *source);

const char *refdata_part_name(enum refdata_part part); /* as the contract calls it */

/* ---- translate.c ----
 * A pure function of the source and the message: the same message is the same update whenever it comes, so that a redelivery has no
 * second effect. */

/* The update that a message means: BAD_REQUEST naming the field, or PAYLOAD_TOO_LARGE. Its slices are in the arena. */
enum status refdata_translate(const struct refdata_adapter_source *source, const struct bus_message *message,
                              const struct refdata_limits *limits, struct arena *arena,
                              struct refdata_update *update, struct error *error) MUST_CHECK;

/* ---- adapter.c ---- */

/* One source, read for one database: the context of its handler. */
struct refdata_reader {
    struct refdata_database *database;
    const struct refdata_adapter_source *source;
    struct metric_series *outcomes[3]; /* enum refdata_verdict */
};

/* The bus's callbacks; their context is a struct refdata_reader. */
void refdata_reader_handle(void *context, struct bus_batch *batch);
void refdata_reader_committed(void *context, const struct bus_batch *batch, size_t settled);
void refdata_reader_uncommitted(void *context, const struct bus_batch *batch);
void refdata_reader_gap(void *context, unsigned partition, int64_t offset, int64_t next);

extern struct metric_family refdata_adapter_messages_family;

#endif
