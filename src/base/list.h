/* Lists: <sys/queue.h>, and the walks that allow removal of the current entry, which glibc's header lacks.
 *
 *     TAILQ  queue with removal anywhere: waiting lines, LRU      LIST   removal anywhere, no tail: sets
 *     STAILQ queue, removal at the head: work to do, batches      SLIST  stack */
#ifndef FRESHET_BASE_LIST_H
#define FRESHET_BASE_LIST_H

#include <sys/queue.h>

#ifndef TAILQ_FOREACH_SAFE
#define TAILQ_FOREACH_SAFE(var, head, field, next) \
    for ((var) = TAILQ_FIRST(head); (var) && ((next) = TAILQ_NEXT((var), field), 1); (var) = (next))
#endif
#ifndef LIST_FOREACH_SAFE
#define LIST_FOREACH_SAFE(var, head, field, next) \
    for ((var) = LIST_FIRST(head); (var) && ((next) = LIST_NEXT((var), field), 1); (var) = (next))
#endif
#ifndef STAILQ_FOREACH_SAFE
#define STAILQ_FOREACH_SAFE(var, head, field, next) \
    for ((var) = STAILQ_FIRST(head); (var) && ((next) = STAILQ_NEXT((var), field), 1); (var) = (next))
#endif

#endif
