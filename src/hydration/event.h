/* The three events (H1) as messages: a JSON payload with exactly the members of their schemas, and headers. A question is an
 * entity.unknown; an answer is one of the other two with the question's correlation_id; without one, these two are a change.
 *
 *   entity.unknown    entity_type, entity_id, requester_module, hydration_mode, fields     headers correlation_id, tenant_id, sub
 *   entity.updated    entity_type, entity_id, source_module, data                          headers correlation_id, tenant_id, version
 *   entity.not-found  entity_type, entity_id, source_module, reason                        headers correlation_id, tenant_id, version
 *
 * Optional headers: of answers `hydration_mode` and `fields` (a JSON array: the cover of `data`; without them it is the cover of the
 * question with that correlation id), `visibility: caller` with `sub` (the one caller that it is for); of questions
 * `wait_timeout_ms` (how long their lookup still waits); of all `traceparent`. A question without `sub` gets what every caller of the
 * tenant may see. Both sides validate: api/schemas/entity-*.schema.json. */
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
#define HYDRATION_CALLER_BYTES_MAX 1024
#define HYDRATION_MODULE_BYTES_MAX 128
#define HYDRATION_WAIT_MS_MAX 60000
#define HYDRATION_DATA_BYTES_MAX (1024 * 1024)
#define HYDRATION_EVENT_HEADERS_MAX 9

struct hydration_event {
    enum hydration_kind kind;
    struct str tenant, caller, correlation_id; /* headers; the last two may be empty */
    struct str entity_type, entity_id;
    struct str module; /* requester_module or source_module */
    bool has_cover;    /* of answers: `cover` is known */
    struct hydration_cover cover;
    struct str data; /* raw JSON object */
    enum hydration_reason reason;
    int64_t version; /* 0 = none */
    int64_t wait_ms; /* of questions: how long its lookup still waits; 0 = not known */
    bool is_private; /* visibility: caller; every `inaccessible` is */
    struct str traceparent;
};

extern const char *const hydration_mode_names[];

/* ---- cover.c: names ---- */
bool hydration_is_type(struct str text);
bool hydration_is_text(struct str text, size_t bytes_max); /* 1 to bytes_max, UTF-8, no control characters */

/* Texts are slices of the message or in the arena. BAD_REQUEST: the message is invalid; the error names what is wrong. */
enum status hydration_event_read(enum hydration_kind kind, struct str payload,
                                 const struct bus_header *headers, unsigned header_count, struct arena *arena,
                                 struct hydration_event *event, struct error *error) MUST_CHECK;
/* Writes the payload into `out` and the headers into `headers` (texts of the event and the arena). Returns the number of headers. */
unsigned hydration_event_put(const struct hydration_event *event, struct arena *arena, struct buf *out,
                             struct bus_header headers[HYDRATION_EVENT_HEADERS_MAX]);

#endif
