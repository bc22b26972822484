/* page.c: what linear memory costs the device.
 *
 * The driver takes memory in pages of 2 MiB. A large allocation has pages of its own; small ones share pages, and which
 * ones do shows in their addresses, since a page is as large and as aligned in the address space. So a page is charged
 * from the first small allocation in it to the last.
 */
#include "charge.h"

#define SMALL_BYTES (1ull << 20)

/* What is to be reserved before the address is known. */
uint64_t linear_cost(uint64_t bytes)
{
    return round_up(bytes, PAGE_BYTES);
}

/* Of memory whose address does not say with what it shares pages. */
uint64_t pages_cost(uint64_t bytes)
{
    return bytes > SMALL_BYTES ? linear_cost(bytes) : granules(bytes);
}

static bool shares_a_page(uint64_t ptr, uint64_t bytes)
{
    return bytes && bytes < SMALL_BYTES && ptr / PAGE_BYTES == (ptr + bytes - 1) / PAGE_BYTES;
}

CUresult linear_end(CUresult result, struct slot *slot, uint64_t ptr, uint64_t bytes)
{
    if (!slot || result != CUDA_SUCCESS || !shares_a_page(ptr, bytes))
        return charge_end(result, slot, LEDGER_POINTER, ptr, linear_cost(bytes));
    struct ledger_entry page = {.kind = LEDGER_PAGE, .key = ptr / PAGE_BYTES, .slot = slot, .refs = 1};
    if (!ledger_join(page))
        memory_release(slot, PAGE_BYTES); /* another pays for it */
    return charge_end(result, slot, LEDGER_SMALL, ptr, bytes);
}

void page_leave(const struct ledger_entry *entry)
{
    struct ledger_entry gone;
    if (ledger_change(LEDGER_PAGE, entry->key / PAGE_BYTES, -1, 0, &gone) == LEDGER_GONE)
        memory_release(entry->slot, PAGE_BYTES);
}
