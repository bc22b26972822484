/* charge.h: what the allocating entry points share. */
#ifndef ALIQUOT_CHARGE_H
#define ALIQUOT_CHARGE_H

#include "hook.h"

/* The driver's smallest unit of linear memory. Saturates: an absurd size stays absurd. */
static inline uint64_t granules(uint64_t bytes)
{
    return bytes > UINT64_MAX - 511 ? UINT64_MAX : (bytes + 511) & ~511ull;
}

/* The slot that pays for the current context's allocations; NULL: nobody (no context, no tenant). */
struct slot *charged_slot(void);
/* What the current context's memory ends with: a context of the program's own making is its own key; the primary one,
 * and the green ones that are views of it, stand under their slot. */
uint64_t whose(struct slot *slot);
/* Enters a reserved charge when the driver agreed, gives it back when not; returns `result`. */
CUresult charge_done(CUresult result, struct slot *slot, uint32_t kind, uint64_t key, uint64_t bytes);
/* The handle is gone: gives back what was charged for it, if anything. */
void charge_drop(uint32_t kind, uint64_t key);

#endif
