/* Parked work: slots that hold an owner until a message takes it or its timer runs out, whichever comes first.
 *
 * A slot's generation is odd while it is occupied and grows with every use, so that a reference kept by another
 * thread for too long finds nothing instead of another owner. */
#include "base/clock.h"
#include "base/memory.h"
#include "loop/loop_inside.h"

static struct loop_parked *slot_at(const struct loop_parking *parking, uint32_t slot)
{
    return &parking->pages[slot / LOOP_PARKED_PAGE][slot % LOOP_PARKED_PAGE];
}

static void free_slot(struct loop_parking *parking, uint32_t slot)
{
    struct loop_parked *parked = slot_at(parking, slot);
    parked->generation++;
    parked->next_free = parking->first_free;
    parking->first_free = slot + 1;
    parking->occupied--;
}

static void on_due(struct loop_timer *timer)
{
    struct loop_parked *parked = CONTAINER_OF(timer, struct loop_parked, timer);
    struct loop_parking *parking = &parked->loop->parking;
    void *owner = parked->owner;
    loop_park_timeout_fn *on_timeout = parked->on_timeout;
    free_slot(parking, parked->slot);
    on_timeout(owner);
}

bool loop_park(struct loop *loop, void *owner, int64_t deadline_ns, loop_park_timeout_fn *on_timeout,
               struct loop_park_ref *ref)
{
    struct loop_parking *parking = &loop->parking;
    if (parking->occupied >= parking->slot_max)
        return false;
    if (!parking->first_free) {
        uint32_t page = parking->slot_count / LOOP_PARKED_PAGE;
        parking->pages = memory_realloc_array(parking->pages, page + 1, sizeof(struct loop_parked *));
        parking->pages[page] = memory_zalloc(LOOP_PARKED_PAGE * sizeof(struct loop_parked));
        parking->slot_count += LOOP_PARKED_PAGE;
        for (uint32_t i = LOOP_PARKED_PAGE; i-- > 0;) {
            parking->pages[page][i].next_free = parking->first_free;
            parking->first_free = page * LOOP_PARKED_PAGE + i + 1;
        }
    }
    uint32_t slot = parking->first_free - 1;
    struct loop_parked *parked = slot_at(parking, slot);
    parking->first_free = parked->next_free;
    parking->occupied++;
    parked->generation++;
    parked->owner = owner;
    parked->on_timeout = on_timeout;
    parked->loop = loop;
    parked->slot = slot;
    if (deadline_ns != CLOCK_NEVER)
        loop_timer_start(loop, &parked->timer, deadline_ns, on_due);
    *ref = (struct loop_park_ref){loop, slot, parked->generation};
    return true;
}

static struct loop_parked *find(struct loop_park_ref ref)
{
    if (!ref.generation || ref.slot >= ref.loop->parking.slot_count)
        return NULL;
    struct loop_parked *parked = slot_at(&ref.loop->parking, ref.slot);
    return parked->generation == ref.generation ? parked : NULL;
}

void *loop_park_take(struct loop_park_ref ref)
{
    struct loop_parked *parked = find(ref);
    if (!parked)
        return NULL;
    loop_timer_stop(ref.loop, &parked->timer);
    free_slot(&ref.loop->parking, ref.slot);
    return parked->owner;
}

void *loop_park_peek(struct loop_park_ref ref)
{
    struct loop_parked *parked = find(ref);
    return parked ? parked->owner : NULL;
}
