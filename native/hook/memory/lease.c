/* lease.c: bytes of this GPU's memory limit.
 *
 * The arbiter leases slabs to the process, so that most allocations send no message; what is leased and not used is ours to
 * use or give back. Reserve before the driver is called: over the limit the driver never hears of it.
 *
 * An arbiter that is being replaced is waited for: only its own word is a reason to say OUT_OF_MEMORY, which ends most
 * programs. What other processes of the tenant have leased and do not use comes back when the arbiter shows demand in
 * the page: each helper thread (memory_tick) returns it and says so, and only then a refusal is final.
 *
 * What the tenant has beyond its guarantee is lent, and the arbiter calls it back when another's guarantee needs it: first
 * what the program does not use, pools and graph memory too; then the program is asked, where it listens. An allocation
 * for which others are called waits as long as the arbiter says so, which bounds it.
 */
#include "memory/charge.h"

#define NAP_NS 20000000
#define SHORT_NAP_NS 1000000
#define CONTENDED_NS 500000000ull /* a process that does not answer, a stopped one say, is waited for this long */
#define IDLE_NS 1000000000ull     /* a slab that nothing was taken of for this long goes back */
#define RELEASE_EVERY_NS 10000000ull
#define RECALL_EVERY_NS 50000000ull /* while memory is called back, what was freed since is looked for */
#define PATIENCE_NS 60000000000ull
#define MESSAGE_NS 400000ull          /* half of what the arbiter reads of one process, 5000 a second, is for turns */
#define MESSAGE_BURST_NS 400000000ull /* 1000 messages */
#define MESSAGE_WAIT_NS 1000000000ull /* nothing sleeps for longer */

/* With link.lock held: no more is unused than is leased. */
static bool lease_is_valid(const struct slot *slot) { return slot->memory.unused <= slot->memory.leased; }

enum outcome { GRANTED, OVER, CONTENDED, CALLED_BACK, UNANSWERED };

static _Atomic uint64_t messages_due_ns; /* when all messages counted so far are paid for, at one each MESSAGE_NS */

/* The arbiter stops reading a process that sends too many messages, and WANT and DRAINED are among them: a thread that
 * retries refused allocations would stop the kernels of the others. So messages about memory are counted, and who sends
 * more of them than a burst sleeps, without slot->link.lock, in memory_pace(). */
static void count_messages(unsigned count)
{
    uint64_t now = now_ns(), due = atomic_load(&messages_due_ns), next;
    do {
        next = (due > now ? due : now) + count * MESSAGE_NS;
        if (next > now + MESSAGE_BURST_NS + MESSAGE_WAIT_NS)
            next = now + MESSAGE_BURST_NS + MESSAGE_WAIT_NS;
    } while (!atomic_compare_exchange_weak(&messages_due_ns, &due, next));
}

static void memory_pace(void)
{
    uint64_t due = atomic_load(&messages_due_ns), free_at = now_ns() + MESSAGE_BURST_NS;
    if (due > free_at)
        nanosleep(&(struct timespec){(time_t)((due - free_at) / 1000000000u), (long)((due - free_at) % 1000000000u)},
                  NULL);
}

/* Asks for at least `bytes`, likes a slab; with slot->link.lock held. */
static enum outcome ask(struct slot *slot, uint64_t bytes, uint16_t flags, uint64_t *granted)
{
    bool exact = flags || !bytes || bytes > UINT64_MAX - SLAB_BYTES;
    uint64_t liked = exact ? bytes : bytes + SLAB_BYTES;
    aliquot_message message = {
        .type = ALIQUOT_MSG_RESERVE, .flags = flags, .gpu = slot->link.number, .a = bytes, .b = liked};
    if (atomic_load(&slot->link.state) != SLOT_HELD || !link_ask(&message, ALIQUOT_MSG_LEASE, NULL))
        return UNANSWERED;
    count_messages(1);
    slot->memory.unheard = false;
    *granted = message.type == ALIQUOT_MSG_LEASE ? message.a : 0;
    if (*granted || message.type != ALIQUOT_MSG_LEASE || !message.b)
        return *granted ? GRANTED : OVER;
    return message.b == ALIQUOT_LEASE_CALLED_BACK ? CALLED_BACK : CONTENDED;
}

static uint64_t patience_ns(void)
{
    return aliquot_conf.patience_ms ? aliquot_conf.patience_ms * 1000000ull : PATIENCE_NS;
}

/* Lets go of slot->link.lock for a while; false when `outcome` has lasted too long since `*start`. */
static bool wait_for(struct slot *slot, enum outcome outcome, uint64_t *start)
{
    bool contended = outcome == CONTENDED;
    if (outcome == CALLED_BACK)
        *start = now_ns();
    if (outcome == OVER || (outcome == UNANSWERED && link_crowded()) ||
        now_ns() - *start > (contended ? CONTENDED_NS : patience_ns()))
        return false;
    pthread_mutex_unlock(&slot->link.lock);
    if (outcome == UNANSWERED)
        link_revive();
    memory_pace();
    nanosleep(&(struct timespec){0, contended ? SHORT_NAP_NS : NAP_NS}, NULL);
    pthread_mutex_lock(&slot->link.lock);
    return true;
}

bool memory_reserve(struct slot *slot, uint64_t bytes, enum memory_how how)
{
    uint64_t start = now_ns(), granted = 0;
    pthread_mutex_lock(&slot->link.lock);
    while (slot->memory.unused < bytes && how == MEMORY_ASK) {
        enum outcome outcome = ask(slot, bytes - slot->memory.unused, 0, &granted);
        if (outcome == GRANTED) {
            slot->memory.leased += granted;
            slot->memory.unused += granted;
        } else if (!wait_for(slot, outcome, &start)) {
            break;
        }
    }
    bool fits = slot->memory.unused >= bytes;
    if (fits) {
        slot->memory.unused -= bytes;
        slot->memory.reserved_ns = start;
    }
    CHECK(1, lease_is_valid(slot));
    pthread_mutex_unlock(&slot->link.lock);
    return fits;
}

/* Returns all but `keep` of what is not used; with slot->link.lock held. */
static void give_back(struct slot *slot, uint64_t keep, uint32_t demand)
{
    uint64_t extra = slot->memory.unused > keep ? slot->memory.unused - keep : 0;
    aliquot_message back = {.type = ALIQUOT_MSG_RELEASE, .gpu = slot->link.number, .a = extra, .b = demand};
    if ((!extra && !demand) || atomic_load(&slot->link.state) != SLOT_HELD || !link_send(&back))
        return;
    slot->memory.leased -= extra;
    slot->memory.unused -= extra;
    slot->memory.released_ns = now_ns();
    slot->memory.unheard = true;
    if (demand)
        slot->memory.demand_answered = demand;
}

/* Not at every release: the arbiter bounds the messages of a process, and slabs that come and go would reach it. */
void memory_release(struct slot *slot, uint64_t bytes)
{
    if (!bytes)
        return;
    pthread_mutex_lock(&slot->link.lock);
    uint64_t held = slot->memory.leased - slot->memory.unused;
    if (bytes > held) {
        COUNT(unbalanced);
        bytes = held;
    }
    slot->memory.unused += bytes;
    if (slot->memory.unused > 2 * SLAB_BYTES && now_ns() - slot->memory.released_ns > RELEASE_EVERY_NS)
        give_back(slot, SLAB_BYTES, 0);
    CHECK(1, lease_is_valid(slot));
    pthread_mutex_unlock(&slot->link.lock);
}

/* Reservations that may be larger than what comes of them are settled first, where that takes no time. */
static bool settled(struct slot *slot)
{
    for (int i = 0; i < 10; i++) {
        if (pthread_rwlock_trywrlock(&slot->memory.charge_lock) == 0)
            return true;
        nanosleep(&(struct timespec){0, SHORT_NAP_NS / 5}, NULL);
    }
    return false;
}

/* Called by the helper thread every so often: what lies idle here may be wanted by another process of the tenant. */
void memory_tick(struct slot *slot, const aliquot_page *page)
{
    uint32_t demand = __atomic_load_n(&page->memory_demand, __ATOMIC_ACQUIRE);
    uint32_t calls = __atomic_load_n(&page->memory_calls, __ATOMIC_ACQUIRE);
    bool wanted = demand && demand != slot->memory.demand_answered;
    bool called = page->memory_back_bytes &&
                  (calls != slot->memory.calls_answered || now_ns() - slot->memory.called_ns > RECALL_EVERY_NS);
    if (!wanted && !called && !atomic_load_explicit(&slot->memory.unused, memory_order_relaxed))
        return;
    bool alone = (wanted || called) && settled(slot);
    if (alone && called) {
        aliquot_above.memory_is_scarce(slot);
        slot->memory.calls_answered = calls;
        slot->memory.called_ns = now_ns();
    }
    if (pthread_mutex_trylock(&slot->link.lock) == 0) {
        uint64_t now = now_ns();
        if (wanted || called)
            give_back(slot, 0, wanted ? demand : 0);
        else if (now - slot->memory.reserved_ns > IDLE_NS)
            give_back(slot, 0, 0);
        else if (slot->memory.unused > 2 * SLAB_BYTES && now - slot->memory.released_ns > RELEASE_EVERY_NS)
            give_back(slot, SLAB_BYTES, 0);
        CHECK(1, lease_is_valid(slot));
        pthread_mutex_unlock(&slot->link.lock);
    }
    if (alone)
        pthread_rwlock_unlock(&slot->memory.charge_lock);
}

uint64_t aliquot_memory_wanted(uint32_t *calls, unsigned wait_ms, uint64_t *by_ns)
{
    *by_ns = 0;
    if (conf_load() != MODE_HELD)
        return UINT64_MAX;
    struct slot *slot = slot_at(0);
    const aliquot_page *page = slot ? atomic_load(&slot->link.page) : NULL;
    atomic_fetch_or(&aliquot_counters.stays, ALIQUOT_REPORT_GIVES_BACK);
    if (slot && !link_alive())
        link_revive();
    link_report();
    if (page)
        futex_wait_ms(&page->memory_calls, *calls, wait_ms);
    else
        nanosleep(&(struct timespec){wait_ms / 1000, (long)(wait_ms % 1000) * 1000000}, NULL);
    uint64_t bytes = 0;
    for (unsigned i = 0; slot_at(i); i++) {
        page = atomic_load(&slot_at(i)->link.page);
        if (!page || !page->memory_back_by_ns)
            continue;
        *by_ns = page->memory_back_by_ns;
        bytes += page->memory_back_bytes;
    }
    page = slot ? atomic_load(&slot->link.page) : NULL;
    *calls = page ? page->memory_calls : 0;
    return bytes;
}

/* A context's own memory is measured by the arbiter; the first guess is its allowance. */
bool context_reserve(struct slot *slot)
{
    uint64_t start = now_ns(), granted = 0;
    if (!slot_attach(slot)) {
        COUNT(denied);
        return false;
    }
    pthread_mutex_lock(&slot->link.lock);
    for (;;) {
        enum outcome outcome = ask(slot, 0, ALIQUOT_RESERVE_CONTEXT, &granted);
        if (outcome == GRANTED)
            break;
        if (outcome == OVER && slot->memory.unused) /* our own slab may be what is missing */
            give_back(slot, 0, 0);
        else if (!wait_for(slot, outcome, &start))
            break;
    }
    if (granted) {
        count_messages(1); /* its release, which sleeps for nothing */
        slot->memory.contexts++;
        slot->memory.context_each = granted;
        slot->memory.context_bytes += granted;
    } else {
        COUNT(denied);
    }
    pthread_mutex_unlock(&slot->link.lock);
    memory_pace();
    if (granted)
        helper_start(slot); /* it notices a restarted arbiter for programs that only hold memory */
    return granted != 0;
}

void context_release(struct slot *slot)
{
    pthread_mutex_lock(&slot->link.lock);
    if (slot->memory.contexts) {
        slot->memory.contexts--;
        slot->memory.context_bytes -= slot->memory.context_bytes < slot->memory.context_each
                                          ? slot->memory.context_bytes
                                          : slot->memory.context_each;
        aliquot_message back = {.type = ALIQUOT_MSG_RELEASE,
                                .flags = ALIQUOT_RESERVE_CONTEXT,
                                .gpu = slot->link.number,
                                .a = slot->memory.context_each};
        link_send(&back);
        slot->memory.unheard = true;
    } else {
        COUNT(unbalanced);
    }
    pthread_mutex_unlock(&slot->link.lock);
}

bool memory_share(struct slot *slot, uint64_t object, uint64_t bytes, int fd, bool exported, bool *over)
{
    struct ledger_entry entry;
    *over = false;
    if (!link_shares() || fd < 0)
        return false;
    pthread_mutex_lock(&slot->link.lock); /* held until the number is entered: see memory_restore */
    aliquot_message message = {.type = ALIQUOT_MSG_SHARE,
                               .flags = exported ? ALIQUOT_SHARE_EXPORT : 0,
                               .gpu = slot->link.number,
                               .a = bytes,
                               .b = (uint64_t)fd};
    bool known = atomic_load(&slot->link.state) == SLOT_HELD && ledger_get(LEDGER_OBJECT, object, &entry);
    message.c = known ? entry.page : 0;
    if (!known || !link_ask(&message, ALIQUOT_MSG_SHARED, NULL) || message.type != ALIQUOT_MSG_SHARED)
        message.a = message.b = 0;
    if (message.a && exported && !entry.page)
        slot->memory.leased -= bytes;
    if (message.a)
        ledger_page(LEDGER_OBJECT, object, message.a);
    *over = message.b;
    CHECK(1, lease_is_valid(slot));
    pthread_mutex_unlock(&slot->link.lock);
    count_messages(2); /* and UNSHARE, which may come at a completion point */
    memory_pace();
    return message.a != 0;
}

void memory_unshare(struct slot *slot, uint64_t number)
{
    aliquot_message message = {.type = ALIQUOT_MSG_UNSHARE, .gpu = slot->link.number, .a = number};
    pthread_mutex_lock(&slot->link.lock);
    if (atomic_load(&slot->link.state) == SLOT_HELD && link_send(&message))
        slot->memory.unheard = true;
    pthread_mutex_unlock(&slot->link.lock);
}

/* A new arbiter knows nothing of what is shared: each process is charged for it until it is shared again. */
static void take_back(struct ledger_entry *object, void *slot)
{
    if (!object->page || object->slot != slot)
        return;
    object->slot->memory.leased += object->bytes;
    object->page = 0;
}

/* After a reconnect, with slot->link.lock held: the arbiter learns what we hold. It charges us what we held before until the
 * last message, which is sent for nothing too. */
void memory_restore(struct slot *slot)
{
    aliquot_message ask;
    for (unsigned i = 0; i < slot->memory.contexts; i++) {
        ask = (aliquot_message){.type = ALIQUOT_MSG_RESERVE,
                                .flags = ALIQUOT_RESERVE_CONTEXT | ALIQUOT_RESERVE_RESTORE,
                                .gpu = slot->link.number};
        link_ask(&ask, ALIQUOT_MSG_LEASE, NULL);
    }
    slot->memory.demand_answered = 0;
    ledger_each(LEDGER_OBJECT, take_back, slot);
    ask = (aliquot_message){.type = ALIQUOT_MSG_RESERVE,
                            .flags = ALIQUOT_RESERVE_RESTORE,
                            .gpu = slot->link.number,
                            .a = slot->memory.leased,
                            .b = slot->memory.leased};
    link_ask(&ask, ALIQUOT_MSG_LEASE, NULL);
    CHECK(1, lease_is_valid(slot));
}

uint64_t memory_held(struct slot *slot) { return slot->memory.leased - slot->memory.unused; }

/* What the tenant is charged on this GPU. The page is the arbiter's and knows of our slabs, not of our use of them; what
 * was given back and not yet heard of is heard of with its next answer, so a question is asked. */
uint64_t memory_charged(struct slot *slot, const aliquot_page *page)
{
    uint64_t nothing = 0;
    pthread_mutex_lock(&slot->link.lock);
    bool asks = slot->memory.unheard;
    if (asks)
        ask(slot, 0, 0, &nothing);
    uint64_t leased = __atomic_load_n(&page->memory_leased_bytes, __ATOMIC_RELAXED) +
                      __atomic_load_n(&page->memory_context_bytes, __ATOMIC_RELAXED);
    uint64_t charged = leased > slot->memory.unused ? leased - slot->memory.unused : 0;
    pthread_mutex_unlock(&slot->link.lock);
    if (asks)
        memory_pace();
    return charged;
}

bool memory_may_fit(struct slot *slot, uint64_t bytes, uint64_t coming)
{
    const aliquot_page *page = atomic_load(&slot->link.page);
    uint64_t charged = page ? memory_charged(slot, page) : 0, most = 0;
    if (page)
        most = page->memory_max_bytes > page->memory_limit_bytes ? page->memory_max_bytes : page->memory_limit_bytes;
    return page && (bytes <= coming || (most > charged && bytes - coming <= most - charged));
}

void memory_denied(const struct slot *slot)
{
    COUNT(denied);
    aliquot_message denied = {.type = ALIQUOT_MSG_DENIED, .gpu = slot->link.number};
    link_send(&denied);
    count_messages(1);
    memory_pace();
}
