/* The overview: what overview_pods.c reads about processes, and what overview.c makes of it and of the databases. */
#ifndef FRESHET_MODULES_OPS_OVERVIEW_H
#define FRESHET_MODULES_OPS_OVERVIEW_H

#include "modules/ops/ops.h"

enum { OVERVIEW_PODS_MAX = 2000, OVERVIEW_BUCKETS_MAX = 32 };

/* A process, as its newest row in any database shows it. Texts are in the arena. */
struct overview_pod {
    struct str pod_id, seen_at, state; /* up, gone, stopped */
    bool is_ready;
    struct json_value roles, health, freshness; /* raw is empty where there is none */
    double reads_per_second, writes_per_second;
    int64_t failing_pairs, engine_lag;
};

struct overview_pods {
    struct overview_pod *items;
    size_t count;
};

/* The statement; $1 the tenant whose pairs are counted, null = of all. */
extern const struct db_statement overview_pods_sql;
/* Adds the rows of a database: of a process that is known the newer one stays. */
void overview_pods_add(struct overview_pods *pods, const struct db_result *rows, struct arena *arena);
/* "pods", "roles", "reads_per_second", "writes_per_second", "freshness_ms" */
void overview_pods_put(const struct overview_pods *pods, struct buf *out, struct arena *arena);
/* UP, DOWN or unknown: of the components whose names begin so, in the processes that are up. */
enum overview_state { OVERVIEW_UNKNOWN, OVERVIEW_UP, OVERVIEW_DOWN };
enum overview_state overview_engine_state(const struct overview_pods *pods, const char *prefix,
                                          struct str *detail, struct arena *arena);

/* What waits for processes with a role. */
struct overview_work {
    const char *role, *noun; /* "apply", "update" */
    int64_t count;
    bool has_more;
};
enum { OVERVIEW_WORKS_MAX = 16 };
struct overview_works {
    struct overview_work items[OVERVIEW_WORKS_MAX];
    size_t count;
};

/* problems.c: {"severity","what","help"} each, the most serious first. */
struct overview_problems {
    struct buf critical, warnings;
};
void overview_problem(struct overview_problems *problems, bool is_critical, const char *help,
                      const char *format, ...) PRINTF_LIKE(4, 5);
void overview_pods_find_problems(const struct overview_pods *pods, struct overview_problems *problems);
/* Roles that no process runs although work waits for them; nothing while no process is known. */
void overview_works_find_problems(const struct overview_works *works, const struct overview_pods *pods,
                                  struct overview_problems *problems, struct arena *arena);

#endif
