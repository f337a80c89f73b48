/* Rows of update_request, read for many events in one round trip. */
#ifndef FRESHET_REFDATA_STATES_H
#define FRESHET_REFDATA_STATES_H

#include "modules/refdata/command/news.h"

struct refdata_states_row {
    size_t asked; /* which of those asked for */
    struct refdata_state state;
    struct str dict_code, content_hash,
        requested_by; /* of the result's memory; requested_by.ptr NULL = not known */
    int64_t created_us, updated_us;
};

/* Texts as text[] literals: tenants[i] and event_ids[i] are one event. Those that are not there are not in the
 * result. */
enum status refdata_states_query(struct db_conn *conn, struct str tenants, struct str event_ids,
                                 int64_t deadline_ns, struct db_result **result,
                                 struct error *error) MUST_CHECK;
void refdata_states_row(const struct db_result *result, size_t row, struct refdata_states_row *out);

#endif
