/* A source: one external topic, and how its messages become updates. Made of its settings, immutable then.
 *
 * Translating is a pure function of the source and the message: the same message is the same update whenever it comes,
 * so that a redelivery has no second effect. */
#ifndef FRESHET_REFDATA_ADAPTER_SOURCE_H
#define FRESHET_REFDATA_ADAPTER_SOURCE_H

#include "bus/bus.h"
#include "modules/refdata/adapter/pointer.h"
#include "modules/refdata/adapter/settings.h"
#include "modules/refdata/update.h"

struct config;
struct refdata_settings;

enum refdata_from_kind { REFDATA_AT_FIELD, REFDATA_AT_HEADER, REFDATA_AT_KEY, REFDATA_AT_FIXED };

struct refdata_from {
    enum refdata_from_kind kind;
    bool is_default; /* the contract's own place */
    struct str text; /* of HEADER its name, of FIXED the value */
    struct refdata_pointer pointer;
};

struct refdata_adapter_source {
    struct str topic, group;
    struct refdata_from from[REFDATA_PARTS];
    struct setting_strings words[REFDATA_WORDS];
    enum refdata_tombstones tombstones;
    enum refdata_id_form id_form;
    bool is_mapped;        /* only what is named counts; else a message is exactly the contract's */
    bool items_are_mapped; /* each is taken apart */
};

/* Everything is copied into the arena. `config` (may be NULL when the settings were checked before) is for the place in
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

/* The update that a message means: BAD_REQUEST naming the field, or PAYLOAD_TOO_LARGE. Its slices are in the arena. */
enum status refdata_translate(const struct refdata_adapter_source *source, const struct bus_message *message,
                              const struct refdata_limits *limits, struct arena *arena,
                              struct refdata_update *update, struct error *error) MUST_CHECK;

#endif
