/* `freshet top`: a live screen. A sampler takes samples, by HTTP from a pod or straight from the databases; the screen shows the last
 * one. Neither waits for the other. */
#ifndef FRESHET_APP_TOP_H
#define FRESHET_APP_TOP_H

#include "app/client.h"
#include "app/sites.h"

enum { TOP_PODS_MAX = 500, TOP_DICTIONARIES_MAX = 500, TOP_LAGS_MAX = 100, TOP_WARNINGS_MAX = 8 };

struct top_pod {
    const char *id, *state, *roles, *version;
    double reads, writes; /* a second */
    double memory_used, memory_limit;
    int64_t connections, streams;
    bool is_ready;
};

struct top_dictionary {
    const char *name, *database;                 /* TENANT/DICT */
    int64_t version, items, bytes, pods, behind; /* pods that hold it; those of them with an older version */
    double freshness_ms;                         /* < 0 = unknown */
    double changes;         /* versions a second since the sample before; < 0 = unknown */
    const char *last_error; /* NULL = none */
};

struct top_lag {
    const char *topic, *group, *engine;
    int64_t lag;
};

/* All texts are in its arena, and safe for a terminal. A count of -1 is unknown. */
struct top_sample {
    struct arena arena;
    int64_t at_ns, at_us;
    const char *source; /* "http://…", or "the databases" */
    struct top_pod pods[TOP_PODS_MAX];
    struct top_dictionary dictionaries[TOP_DICTIONARIES_MAX];
    struct top_lag lags[TOP_LAGS_MAX]; /* not 0, largest first */
    size_t pod_count, dictionary_count, lag_count, warning_count;
    const char *warnings[TOP_WARNINGS_MAX];
    int64_t updates_pending, oldest_update_s, outbox_pending, outbox_in_flight, outbox_failed, oldest_event_s,
        dead_letters;
    bool has_more_updates;
    bool is_partial;                           /* the pod did not reach every database: zeros may be wrong */
    double freshness_p50_ms, freshness_p99_ms; /* < 0 = unknown */
};

/* ---- top_input.c: on the sampler's thread ---- */
struct top_input {
    const char *config_path;
    struct pod_call call;  /* of the pod; without a URL no pod is asked */
    struct config *config; /* of the databases; NULL = none */
    struct app_sites sites;
    struct db_pool *pools[APP_SITES_MAX];
    struct str wanted; /* --source: "", "pod" or "database" */
    bool pod_is_away;  /* the last time; it is tried again with each sample, for a shorter time */
};
/* What cannot be had is a warning in the sample. */
void top_input_read(struct top_input *input, const struct top_sample *before, struct top_sample *sample);
void top_input_close(struct top_input *input);

/* ---- top_rows.c: rows as the API has them, from JSON ---- */
void top_rows_read(struct top_sample *sample, const char *list,
                   struct str json); /* an object or an array of them */
void top_rows_finish(struct top_sample *sample, const struct top_sample *before); /* order, rates */
void top_add_count(int64_t *sum, int64_t count);                                  /* -1 = unknown, of both */
void top_warn(struct top_sample *sample, const char *format, ...) PRINTF_LIKE(2, 3);

/* ---- top_screen.c ---- */
/* The sample as lines, each at most `columns` wide and ended by `end`; at most `lines` of them, 0 = as many as it takes. */
void top_screen_put(struct buf *out, const struct top_sample *sample, int columns, int lines,
                    const char *end);

/* ---- screen.c: the terminal as a screen; it is given back as it was when the process ends, however it does (but for SIGKILL) ---- */
bool screen_open(void); /* false: standard output is not a terminal */
void screen_close(void);
void screen_size(int *columns, int *lines);
void screen_draw(struct buf *frame); /* what top_screen_put() made with "\x1b[K\r\n" */

#endif
