/* entry.h: the ways into the hook, above all layers: exported names, dlsym, cuGetProcAddress, forks, and the counters.
 *
 * Leads a call to the layer that it belongs to and tells the layers of each other (layers.c); decides nothing itself.
 */
#ifndef ALIQUOT_ENTRY_H
#define ALIQUOT_ENTRY_H

#include "slot.h"

/* What tests and benches read; fields are only ever added at the end. The caller says in `size` how many bytes it has room
 * for and gets no more; `size` is then how many there are. */
struct aliquot_stats {
    uint64_t size, mode, launches, waits, passes, unknown_names, mapped_symbols, names, wants, returns, drains,
        reconnects, reserved_bytes, leased_bytes, unused_bytes, ledger_entries, denied, bounded, captures, disagreed,
        events, fenced, unbalanced;
};
EXPORT int aliquot_stats(struct aliquot_stats *out);

/* procaddr.c: the hook of a real pointer, or NULL; `name` settles pointers that several symbols share. */
void *hook_of(void *pointer, const char *name);
/* fork.c: called by one thread at a time */
void fork_watch(void);

#endif
