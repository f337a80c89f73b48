/* The three events of seed 001 §7 as they travel: a JSON payload, exactly the seed's members, and headers.
 *
 *   entity/unknown    entity_type, entity_id, requester_module, hydration_mode, fields     headers correlation_id, tenant_id, sub
 *   entity/updated    entity_type, entity_id, source_module, data                          headers correlation_id, tenant_id, version
 *   entity/not-found  entity_type, entity_id, source_module, reason                        headers correlation_id, tenant_id, version
 *
 * Beside these, all optional: on answers `hydration_mode` and `fields` (how much of the entity `data` is; without them the
 * one who asked goes by what was asked under that correlation id; `fields` as in the payload, ["a","b"]), `visibility: caller`
 * with `sub` (whom it is for); on questions `wait_timeout_ms` (nobody waits for an answer that comes later); everywhere
 * `traceparent`. An answer without correlation_id tells of a change. A question without
 * `sub` is nobody's: it is told what everybody may know. Both sides validate (H1): JSON Schemas in
 * api/schemas/entity-*.schema.json say the same. Members of a payload that are not named here are a later version's. */
#ifndef FRESHET_HYDRATION_EVENT_H
#define FRESHET_HYDRATION_EVENT_H

#include "base/json.h"
#include "bus/bus.h"
#include "hydration/hydration.h"

enum hydration_kind {
    HYDRATION_EVENT_UNKNOWN,
    HYDRATION_EVENT_UPDATED,
    HYDRATION_EVENT_NOT_FOUND,
    HYDRATION_KINDS
};

/* As topics of the embedded bus, and as subjects of NATS. */
extern const char
    *const hydration_topics[HYDRATION_KINDS]; /* entity.unknown, entity.updated, entity.not-found */

#define HYDRATION_CORRELATION_BYTES_MAX 128
#define HYDRATION_SUBJECT_BYTES_MAX 1024
#define HYDRATION_MODULE_BYTES_MAX 128
#define HYDRATION_WAIT_MS_MAX 60000
#define HYDRATION_DATA_BYTES_MAX (1024 * 1024)
#define HYDRATION_EVENT_HEADERS_MAX 9

struct hydration_event {
    enum hydration_kind kind;
    struct str tenant, subject, correlation_id; /* headers; the last two may be empty */
    struct str entity_type, entity_id;
    struct str module; /* requester_module or source_module */
    bool has_cover;    /* of answers: `cover` was said */
    struct hydration_cover cover;
    struct str data; /* raw JSON object */
    enum hydration_reason reason;
    int64_t version; /* 0 = none */
    int64_t wait_ms; /* of questions: how long its asker waits for the answer; 0 = not said */
    bool is_private; /* visibility: caller; every `inaccessible` is */
    struct str traceparent;
};

extern const char *const hydration_mode_names[], *const hydration_reason_names[];

/* ---- cover.c: what may be a name ---- */
bool hydration_is_type(struct str text);
bool hydration_is_text(struct str text,
                       size_t bytes_max); /* 1 to so many bytes, UTF-8, no control characters */
unsigned hydration_fields_sort(struct str *fields, unsigned count); /* in place, each once; how many */

/* Slices are the message's and the arena's. BAD_REQUEST naming what is wrong: the message is then no event. */
enum status hydration_event_read(enum hydration_kind kind, struct str payload,
                                 const struct bus_header *headers, unsigned header_count, struct arena *arena,
                                 struct hydration_event *event, struct error *error) MUST_CHECK;
/* The payload into `out`, the headers into `headers` (texts of the event and the arena); how many. */
unsigned hydration_event_put(const struct hydration_event *event, struct arena *arena, struct buf *out,
                             struct bus_header headers[HYDRATION_EVENT_HEADERS_MAX]);

/* All of it into the arena: it then outlives its message. */
void hydration_event_copy(const struct hydration_event *from, struct arena *arena,
                          struct hydration_event *to);

/* ---- headers.c, for event.c ---- */
enum status hydration_headers_read(const struct bus_header *headers, unsigned count, struct arena *arena,
                                   struct hydration_event *event, struct error *error) MUST_CHECK;
unsigned hydration_headers_put(const struct hydration_event *event, struct arena *arena,
                               struct bus_header headers[HYDRATION_EVENT_HEADERS_MAX]);
/* A JSON array of field names, as payloads and headers have it. */
enum status hydration_fields_read(const struct json_value *value, struct arena *arena,
                                  struct hydration_cover *cover, struct error *error) MUST_CHECK;
void hydration_fields_put(const struct hydration_cover *cover, struct buf *out);

#endif
