/* The memory budget: one limit for everything that clients make the process hold, with an account for each kind of user.
 *
 *     | requests        | bodies        | unsent | writes        | … | common |      = limit
 *     |       : reserve |     : reserve |        |     : reserve |   |        |
 *
 * Each account has a share that no other account can take. When its share is used, it takes from the common part; a cache does not.
 * So the sum stays within the limit, and no account is refused its share because another one is full. A setting may give an account a
 * lower bound. Past it the caller refuses a request (503) or disconnects a client.
 *
 * Accounts that are charged by tenant keep an eighth of their share as a reserve. The first budget_first() bytes of each tenant come
 * out of it, as long as it lasts; everything else, charges without a tenant included, comes out of the rest. There a tenant may
 * hold at most as much as is then free: one tenant at most half, two a third each. The invariants, whatever all others do:
 *   - A charge that leaves its tenant with at most budget_first() bytes succeeds while fewer than reserve ÷ budget_first() tenants
 *     hold something: between 8 and 256 of them, 16 with a share of 8 MiB. It is not asked what is used beside the reserve, or by
 *     other accounts, so neither one greedy tenant nor many, nor what cannot be refused (budget_add), make a difference.
 *   - What is used beside the reserves is at most the shares without them and the common part. With the reserves that is the limit.
 * Tenants are distinguished by a hash with a secret seed, of 4,096 values. Two with the same one count as one tenant.
 *
 * Threads: any. A charge is a few atomic additions, so callers charge buffers and structs, not bytes, and never on a read of an item.
 * What was charged is released with the same number. */
#ifndef FRESHET_BASE_BUDGET_H
#define FRESHET_BASE_BUDGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum budget_account {
    BUDGET_REQUESTS,  /* connections and their requests, parked ones included, without bodies */
    BUDGET_BODIES,    /* of requests */
    BUDGET_UNSENT,    /* answers that clients have not read */
    BUDGET_WRITES,    /* updates that wait for their commit */
    BUDGET_STREAMS,   /* what is kept for subscribers */
    BUDGET_VERSIONS,  /* old versions of dictionaries that readers hold */
    BUDGET_QUEUES,    /* messages between an engine and the database */
    BUDGET_HYDRATION, /* copies of entities */
    BUDGET_TOKENS,    /* that were verified */
    BUDGET_ACCOUNTS,
};

/* At start, before threads charge. 0 = no limit, only the bounds of accounts. */
void budget_set_limit(size_t bytes);
void budget_set_bound(enum budget_account account, size_t bytes);
size_t budget_share(enum budget_account account); /* what it can always have */
size_t budget_most(enum budget_account account);  /* with the whole common part */
size_t budget_first(
    enum budget_account account); /* of a tenant, in the reserve; 0 = it is not charged by tenant */
size_t budget_used(enum budget_account account);
size_t budget_limit(void); /* 0 = none */

/* False: there is no room. Nothing is charged then, and a refusal is counted. */
bool budget_charge(enum budget_account account, size_t bytes) __attribute__((warn_unused_result));
bool budget_charge_tenant(enum budget_account account, uint64_t tenant_hash, size_t bytes)
    __attribute__((warn_unused_result));
/* Bytes that the account was charged with already count for this tenant as well. */
bool budget_hold_tenant(enum budget_account account, uint64_t tenant_hash, size_t bytes)
    __attribute__((warn_unused_result));
/* Would such a charge of a tenant find room now? Nothing is reserved; a refusal is counted. */
bool budget_has_room(enum budget_account account, uint64_t tenant_hash, size_t bytes);
/* For what cannot be refused: the caller makes room while budget_is_full(). */
void budget_add(enum budget_account account, size_t bytes);
void budget_add_tenant(enum budget_account account, uint64_t tenant_hash, size_t bytes);
bool budget_is_full(enum budget_account account);
void budget_count_refusal(enum budget_account account);

void budget_release(enum budget_account account, size_t bytes);
void budget_release_tenant(enum budget_account account, uint64_t tenant_hash, size_t bytes);
void budget_leave_tenant(enum budget_account account, uint64_t tenant_hash, size_t bytes); /* hold_tenant's */

/* Set before threads charge. on_freed is called once when FREED_BYTES_MIN (budget.c), or a quarter of a small limit, less is used than
 * at the peak since budget_freed_reset(). A steady load has no such fall, however much it releases. */
void budget_on_freed(void (*on_freed)(void *context), void *context);
void budget_freed_reset(void);

void budget_metrics_register(void);
void budget_metrics_update(void); /* the gauges, before they are printed */

#endif
