/* gate.c: the slow half of the gate: waits for the token, notes the stream, sets up the fast path.
 *
 * Launches into a capturing stream are neither gated nor counted; whatever cannot be decided (no context, a library
 * without a tenant) is left to the driver to answer.
 */
#include "gate.h"
#include "own.h"

/* The slot of the current context's GPU, attached; NULL: no context, or not ours to gate. */
struct slot *thread_slot(void)
{
    int device = -1;
    if (conf_load() != MODE_HELD || REAL(cuCtxGetDevice, int *)(&device) != CUDA_SUCCESS)
        return NULL;
    struct slot *slot = slot_of_device(device);
    return slot && slot_attach(slot) ? slot : NULL;
}

/* What a launch was let in by: good while the page's word is this one and until this time. */
struct pass {
    const aliquot_page *page;
    uint32_t word;
    uint64_t until_ns;
};

/* May the slot be launched into, with this thread inside? */
static bool allowed(struct slot *slot, struct pass *pass)
{
    const aliquot_page *page = pass->page = atomic_load(&slot->page);
    uint64_t now = now_ns();
    pass->word = page ? page_word(page) : 0;
    pass->until_ns = page ? page_deadline(page) : 0;
    if ((pass->word & 3) == ALIQUOT_WORD_VALID && pass->word != atomic_load(&slot->given_back) && now < pass->until_ns)
        return true;
    pass->until_ns = atomic_load(&slot->pace_until_ns);
    return now < pass->until_ns;
}

/* Returns inside the launch, with a token or permitted to go without one. */
static struct pass enter(struct slot *slot, struct record *record)
{
    for (struct pass pass;;) {
        record_step(record);
        atomic_thread_fence(memory_order_seq_cst);
        if (allowed(slot, &pass))
            return pass;
        atomic_store_explicit(&record->seq, record->seq - 1, memory_order_relaxed);
        if (!wait_for_token(slot, &pass.until_ns)) {
            record_step(record);
            return pass;
        }
    }
}

static void note(struct gate_entry *entry)
{
    unsigned epoch = atomic_load(&entry->context->slot->stream_epoch);
    if (entry->noted_epoch == epoch)
        return;
    note_stream(entry->context, entry->life, entry->own ? own_stream_key(entry->record) : entry->stream);
    entry->noted_epoch = epoch;
}

/* The fast path looks up again at the deadline, and in time to see whether earlier work has ended. */
static void remember(struct gate_entry *entry, const struct pass *pass)
{
    uint32_t contended = pass->page && page_waiters(pass->page) != 0;
    uint64_t bound = backlog_bound(entry), now = now_ns(), until = pass->until_ns;
    if (!pass->page)
        return;
    entry->page = pass->page;
    entry->word = pass->word;
    if (entry->contended != contended) {
        if (entry->contended == 0)
            entry->record->lifted_until_ns = entry->record->strikes = 0; /* found out while it mattered less */
        entry->contended = contended;
        bound = backlog_bound(entry);
        backlog_credit(entry);
    }
    entry->look_ns = now + bound / 2;
    if (bound && until > entry->look_ns)
        until = entry->look_ns;
    if (entry->count[LAUNCH_KERNEL] + entry->count[LAUNCH_GRAPH] == 0)
        entry->began_ns = now;
    entry->until_tsc = tsc_at(until);
}

struct gate_entry *gate_slow(void *stream, bool own)
{
    UNCANCELLED();
    if (conf_load() != MODE_HELD || (capture_running() && stream_captures(stream, own)))
        return NULL;
    struct gate_entry *entry = entry_of(stream, own);
    if (!entry) {
        COUNT(passes);
        return NULL;
    }
    struct record *record = entry->record;
    if (atomic_load(&record->seq) & 1) { /* from within another launch on this GPU, which goes with its token */
        note(entry);
        return NULL;
    }
    if (now_ns() >= entry->look_ns)
        entry->credit_ns = 0; /* an event after this launch says how far behind the GPU is */
    backlog_wait(entry);
    struct pass pass = enter(record->slot, record);
    note(entry);
    remember(entry, &pass);
    return entry;
}

/* After a launch and still inside it: an event behind it, and credit for those to come. */
void gate_checkpoint(struct gate_entry *entry)
{
    UNCANCELLED();
    struct own_call call;
    if (entry->own)
        own_stream_record(entry->context, entry->life, own_stream_key(entry->record));
    if (entry->credit_ns >= 0)
        return;
    if (backlog_bound(entry) && own_begin(&call, entry->context, entry->life, true) == OWN_YES) {
        bool untouchable = capture_running() && (entry->stream == STREAM_LEGACY || stream_captures(entry->stream, false));
        if (!untouchable && !backlog_add(entry, now_ns()))
            entry->word = GATE_CLOSED; /* the next launch waits first */
        own_end(&call);
    }
    backlog_credit(entry);
}

/* A launch on many GPUs: all their tokens, in the order of the list; the arbiter grants a gang at once. */
CUresult on_launch_multi(enum aliquot_symbol symbol, struct launch_params *list, unsigned count, unsigned flags)
{
    struct gate_entry *inside[MAX_SLOTS];
    unsigned entered = 0;
    for (unsigned i = 0; list && i < count; i++) {
        struct gate_entry *entry = gate_enter(list[i].stream, false);
        if (entry && entered < MAX_SLOTS)
            inside[entered++] = entry;
    }
    CUresult result = REAL_AT(symbol, struct launch_params *, unsigned, unsigned)(list, count, flags);
    while (entered)
        gate_leave(inside[--entered], LAUNCH_KERNEL);
    return result;
}
