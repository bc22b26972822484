/* page.c: what linear and managed memory and arrays cost the device.
 *
 * The driver takes memory in pages of 2 MiB. A large allocation has pages of its own; small ones share pages, and which
 * ones do shows in their addresses, since a page is as large and as aligned in the address space. So a page is charged
 * from the first small allocation in it to the last. Arrays have no address: small ones are taken to share pages in the
 * order in which they come, and the room of one that has gone not to be used again while its page is there.
 */
#include "memory/charge.h"

/* What is to be reserved before the address is known. */
uint64_t linear_cost(uint64_t bytes) { return round_up(bytes, PAGE_BYTES); }

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
    charge_enter((struct ledger_entry){.kind = LEDGER_SMALL,
                                       .key = ptr,
                                       .slot = slot,
                                       .bytes = bytes,
                                       .other = charge_owner,
                                       .page = page.key,
                                       .refs = 1});
    pthread_rwlock_unlock(&slot->memory.charge_lock);
    return result;
}

uint64_t block_join(struct slot *slot, uint64_t bytes)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint64_t numbers = 1ull << 63; /* no address is in such a page */
    struct ledger_entry page;
    pthread_mutex_lock(&lock);
    if (slot->memory.block_left >= bytes &&
        ledger_change(LEDGER_PAGE, slot->memory.block, 1, 0, &page) == LEDGER_KEPT) {
        memory_release(slot, PAGE_BYTES); /* another pays for it */
    } else {
        slot->memory.block = ++numbers;
        slot->memory.block_left = PAGE_BYTES;
        ledger_put((struct ledger_entry){.kind = LEDGER_PAGE, .key = slot->memory.block, .slot = slot, .refs = 1},
                   NULL);
    }
    slot->memory.block_left -= bytes;
    uint64_t number = slot->memory.block;
    pthread_mutex_unlock(&lock);
    return number;
}
