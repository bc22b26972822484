/* gate.c: the slow half of the gate: waits for the token, notes the stream, sets up the fast path.
 *
 * Launches into a capturing stream are neither gated nor counted; whatever cannot be decided (no context, a library
 * without a tenant) is left to the driver to answer.
 */
#include "work/gate.h"
#include "work/own.h"

#define SAMPLE_NS 20000000u

/* What a launch was let in by. */
struct pass {
    const aliquot_page *page;
    uint32_t word;
    bool granted; /* good while the page's word is this one; else for this launch */
};

/* A token that was about to be given back is taken up again by the first that launches. */
static bool kept(struct slot *slot, uint32_t word)
{
    uint32_t back = atomic_load(&slot->token.given_back);
    if (back != parked(word))
        return back != word;
    if (!atomic_compare_exchange_strong(&slot->token.given_back, &back, ~0u))
        return back != word;
    stay_pause_ends(slot);
    return true;
}

/* May the slot be launched into, with this thread inside? */
static bool allowed(struct slot *slot, struct pass *pass)
{
    const aliquot_page *page = pass->page = atomic_load(&slot->link.page);
    uint64_t now = now_ns();
    pass->word = page ? page_word(page) : 0;
    pass->granted = (pass->word & 3) == ALIQUOT_WORD_VALID && now < page_deadline(page) && kept(slot, pass->word);
    return pass->granted || now < atomic_load(&slot->token.pace_until_ns);
}

/* Returns inside the launch, with a token or permitted to go without one. */
static struct pass enter(struct slot *slot, struct record *record)
{
    for (struct pass pass;;) {
        uint64_t until_ns;
        record_step(record);
        atomic_thread_fence(memory_order_seq_cst);
        if (allowed(slot, &pass))
            return pass;
        atomic_store_explicit(&record->seq, record->seq - 1, memory_order_relaxed);
        if (!wait_for_token(slot, has_drained, &until_ns)) {
            record_step(record);
            return pass;
        }
    }
}

static void note(struct gate_entry *entry)
{
    unsigned epoch = atomic_load(&entry->context->slot->work.stream_epoch);
    if (entry->noted_epoch == epoch)
        return;
    note_stream(entry->context, entry->life, entry->own ? own_stream_key(entry->record) : entry->stream);
    own_at_exit();
    helper_start(entry->context->slot);
    entry->noted_epoch = epoch;
}

/* Sets up the fast path, by a revision of before the pass. The helper raises it at the deadline and every so often, in
 * time to see whether earlier work has ended. */
static void remember(struct gate_entry *entry, const struct pass *pass, uint64_t revision)
{
    uint64_t bound = backlog_bound(entry), now = now_ns();
    entry->revision = GATE_CLOSED;
    if (!pass->page)
        return;
    uint32_t in_flight_us = page_in_flight_us(pass->page);
    entry->page = pass->page;
    entry->word = pass->word;
    if (entry->in_flight_us != in_flight_us || entry->fresh) {
        if (in_flight_us < entry->in_flight_us)
            entry->record->lifted_until_ns = entry->record->strikes = 0; /* found out while it mattered less */
        entry->in_flight_us = in_flight_us;
        entry->fresh = false;
        backlog_credit(entry);
    }
    entry->look_ns = now + bound / 2;
    if (entry->count[LAUNCH_KERNEL] + entry->count[LAUNCH_GRAPH] == 0)
        entry->backlog.began_ns = now;
    if (pass->granted && !capture_running() && atomic_load(&entry->record->slot->work.helper_running))
        entry->revision = revision;
}

/* Now and then an event on either side of the next launch but one says how long that is by itself. */
static void sample(struct gate_entry *entry)
{
    uint64_t now = now_ns();
    if (now < entry->sample_ns || !backlog_bound(entry))
        return;
    entry->sample_ns = now + SAMPLE_NS;
    entry->backlog.sampling = 1;
    entry->credit_ns = 0;
}

struct gate_entry *gate_slow(void *stream, bool own)
{
    UNCANCELLED();
    park_look();
    uint64_t revision = atomic_load(&gate_shared.revision);
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
    sample(entry);
    backlog_wait(entry);
    struct pass pass = enter(record->slot, record);
    note(entry);
    remember(entry, &pass, revision);
    return entry;
}

/* An event behind what was launched; within an own call. */
static void add_event(struct gate_entry *entry)
{
    bool untouchable = capture_running() && (entry->stream == STREAM_LEGACY || stream_captures(entry->stream, false));
    if (!untouchable && !backlog_add(entry, now_ns()))
        entry->revision = GATE_CLOSED; /* the next launch waits first */
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
    if (backlog_bound(entry) && own_begin(&call, entry->context, entry->life, OWN_LAUNCHED) == OWN_YES) {
        add_event(entry);
        own_end(&call);
    }
    backlog_credit(entry);
}

/* Now and then before a wait. Without it a program that waits after a few launches would be seen to have ended the last
 * of them only when it launches again, so their length would never be known. The lock is not waited for: a thread that
 * holds it while a context ends may be waiting for work that this one is about to let go on. */
void gate_checkpoint_awaited(struct gate_entry *entry)
{
    struct own_call call;
    uint64_t now = now_ns();
    if (now < entry->await_ns || atomic_load(&entry->record->seq) & 1)
        return;
    UNCANCELLED();
    enum own_answer answer = own_begin(&call, entry->context, entry->life, OWN_LOOK);
    entry->await_ns = answer == OWN_BUSY ? 0 : now + SAMPLE_NS;
    if (answer != OWN_YES)
        return;
    if (backlog_bound(entry) && entry->epoch == atomic_load(&gate_shared.epoch)) { /* no stream has ended since */
        add_event(entry);
        backlog_credit(entry);
    }
    own_end(&call);
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
