/* vmm.h: physical memory by handle, as the hook keeps it: one object, under a number of ours that is never used again,
 * with a reference for each handle and each mapping.
 */
#ifndef ALIQUOT_VMM_H
#define ALIQUOT_VMM_H

#include "memory/charge.h"

/* The object that a handle leads to; 0: none that is charged. */
uint64_t object_of(uint64_t handle);
bool object_hold(uint64_t object);
void object_drop(uint64_t object);
/* Another handle of an object, whose reference the caller already holds. */
void handle_enter(uint64_t handle, uint64_t object);

/* share.c: what leaves this process and comes back. */
/* The object behind a file descriptor (type 1) or fabric handle (type 8) seen before, held; 0: it is another's. */
uint64_t shared_object(const void *shared, int type);
/* The descriptor of our own that is kept of it; -1: none. */
int shared_note(uint64_t object, const void *shared, int type);
int shared_descriptor(uint64_t object);
/* No handle and no mapping is left, and the object is out of the ledger. True: a descriptor of this process still keeps
 * the memory, and has the only reference to the object, which is back in the ledger. */
bool shared_keeps(struct ledger_entry object);

#endif
