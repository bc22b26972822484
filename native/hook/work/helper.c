/* helper.c: one thread per GPU that gives the token back when it is idle and says when it is drained.
 *
 * A program that waits for its work before it launches more finds out first that it is drained: its thread is stopped at
 * the gate right after, and says so itself (`has_drained`), for the next tenant would wait for this thread to wake up.
 *
 * It sleeps on the grant word. While the token is ours it looks for a pause now and then; when the word closes it waits
 * for the work launched under it. All signals are blocked in it; it never waits with a lock held. It ends when no thread of
 * the program is left (last.c).
 *
 * Where no thread can be started (a limit of the system's, a filter of system calls) the program's threads do what they can:
 * each launch takes the slow path, a thread that is stopped there looks for the end of the work every millisecond, and at
 * the end of each wait for work the token goes back at once, since no other look is certain to come again later.
 */
#include "work/gate.h"
#include "short_slice.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <signal.h>
#include <sys/prctl.h>

#define LINK_LOOK_NS 100000000u
#define FENCE_NS 1000000u
#define ALONE_NAP_NS 20000000
#define UNHINTED_NS 500000u
#define STACK_BYTES (512ul << 10)
#define STACK_MOST_BYTES (4ul << 30)

/* Makes every thread's last `record_step` visible here, so that the gate needs no fence of its own. Where the kernel
 * has refused it since, launches that have begun without one are given time. */
static void see_all_threads(void)
{
    if (!atomic_load(&gate_shared.fence) && syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0) {
        atomic_store(&gate_shared.fence, 1);
        nanosleep(&(struct timespec){0, FENCE_NS}, NULL);
    }
    atomic_thread_fence(memory_order_seq_cst);
}

static uint64_t gap_ns(const aliquot_page *page) { return (page->burst_gap_us ? page->burst_gap_us : 2000) * 1000ull; }

/* The work has ended, as far as is known since `from`. From now on launches look at the slow path whether the token is
 * still here, and the first takes it up again. */
static void park(struct slot *slot, uint32_t word, uint64_t launches, uint64_t from)
{
    uint32_t here = parked(word);
    bool inside;
    stay_pause_begins(slot, from);
    atomic_store(&slot->token.given_back, here);
    gate_look_anew();
    see_all_threads();
    if (slot_launches(slot, &inside) == launches && !inside && !atomic_load(&slot->token.waiting))
        return;
    atomic_store(&slot->token.stay.idle_ns, 0); /* it was none */
    atomic_compare_exchange_strong(&slot->token.given_back, &here, ~0u);
}

static void give_back(struct slot *slot, uint32_t word, uint64_t now)
{
    uint32_t here = parked(word);
    slot->work.idle_from_ns = 0;
    if (!atomic_compare_exchange_strong(&slot->token.given_back, &here, word))
        return;
    streams_forget(slot);
    send_return(slot, word, now);
    stay_returned(slot, now);
}

/* Is something launched or running? */
static bool is_active(struct slot *slot, uint64_t launches, bool inside)
{
    bool active = inside || launches != slot->work.seen_launches || atomic_load(&slot->token.waiting);
    slot->work.seen_launches = launches;
    if (active || launches == slot->work.finished_launches)
        return active;
    if (!streams_idle(slot, launches))
        return true;
    slot->work.finished_launches = launches;
    return false;
}

/* The nanoseconds that an idle holder has been idle for and is to be. */
static uint64_t stays_until(const struct slot *slot, const aliquot_page *page)
{
    bool used = slot->work.used_word ==
                slot->work.seen_word; /* a grant without a launch may be for one that is on its way */
    return slot->work.idle_from_ns + (used ? stay_ns(slot, page) : gap_ns(page));
}

static void look_for_pause(struct slot *slot, const aliquot_page *page, uint32_t word)
{
    bool inside;
    uint64_t now = now_ns(), launches = slot_launches(slot, &inside), hint = atomic_load(&slot->token.stay.hint_ns);
    if (word != slot->work.seen_word) {
        slot->work.seen_word = word;
        slot->token.burst.last_active_ns = now;
        slot->work.idle_from_ns = 0;
    }
    if (launches != slot->work.seen_launches)
        slot->work.used_word = word;
    bool in_flight = launches != slot->work.finished_launches, active = is_active(slot, launches, inside);
    if (in_flight)
        checkpoints_look(slot, !active);
    burst_tick(slot, active, now);
    if (active) {
        slot->work.idle_from_ns = 0;
        gate_look_anew();
    } else if (!slot->work.idle_from_ns) {
        slot->work.idle_from_ns = hint > slot->work.looked_ns && hint < now ? hint : now;
        park(slot, word, launches, slot->work.idle_from_ns);
    } else if (now >= stays_until(slot, page)) {
        give_back(slot, word, now);
    }
    slot->work.looked_ns = now;
}

/* True: asked for such a look. */
static void stay_await(struct slot *slot, bool wanted)
{
    if (atomic_exchange(&slot->token.stay.awaited, wanted) != wanted)
        atomic_fetch_add(&gate_shared.awaited, wanted ? 1 : -1);
}

/* Half a gap finds a pause in time; a burst that has lasted long may be found to have ended a sixteenth of it later. */
static uint64_t next_look_ns(struct slot *slot, const aliquot_page *page)
{
    uint64_t gap = gap_ns(page), now = now_ns(), deadline = page_deadline(page);
    uint64_t most = page_waiters(page) ? gap : 4 * gap;
    uint64_t look = slot->token.burst.start_ns ? (slot->token.burst.last_active_ns - slot->token.burst.start_ns) / 16
                                               : 0;
    bool idle = slot->work.idle_from_ns != 0;
    uint64_t next = idle || look < gap / 2 ? gap / 2 : look < most ? look : most;
    bool awaited = !idle && stay_is_short(slot, page);
    stay_await(slot, awaited);
    if (awaited && next > UNHINTED_NS)
        next = UNHINTED_NS; /* the program may learn of the end in a way that we do not see */
    if (idle) {
        uint64_t until = stays_until(slot, page);
        next = until <= now ? 0 : until - now < next ? until - now : next;
    }
    return now < deadline && deadline - now < next ? deadline - now : next;
}

/* Asked of the kernel now and then only. */
static bool link_looks_alive(uint64_t *looked_ns)
{
    uint64_t now = now_ns();
    if (now - *looked_ns < LINK_LOOK_NS)
        return true;
    bool alive = link_alive();
    *looked_ns = alive ? now : 0;
    return alive;
}

static bool granted_again(struct slot *slot, uint32_t word)
{
    const aliquot_page *page = atomic_load(&slot->link.page);
    return !page || page_word(page) != word;
}

/* Longer for longer work, but never by much of what the work took. */
static uint64_t nap_since(uint64_t start_ns)
{
    uint64_t nap = (now_ns() - start_ns) / 16;
    return nap < 10000 ? 10000 : nap > 1000000 ? 1000000 : nap;
}

/* Waits for all work launched so far, or until another thread has found that it has ended. False: it has not ended and the
 * tenant is granted again, for the work may wait for what is launched under that grant. */
static bool wait_for_work(struct slot *slot, uint32_t word, uint64_t launches)
{
    uint64_t start = now_ns();
    streams_mark(slot);
    while (atomic_load(&slot->token.answered) != word && !streams_idle(slot, launches)) {
        if (granted_again(slot, word))
            return false;
        checkpoints_look(slot, false);
        longest_tell(slot);
        nanosleep(&(struct timespec){0, (long)nap_since(start)}, NULL);
    }
    return true;
}

/* Has all work of a grant that was revoked ended? For a thread that is stopped at the gate, and never waits. Launches
 * that are counted were noted before, so where none was added until after the fence, none is missing. */
bool has_drained(struct slot *slot, uint32_t word)
{
    bool inside;
    uint64_t launches = slot_launches(slot, &inside);
    if (inside || atomic_load(&slot->token.answered) == word || !streams_idle(slot, launches))
        return false;
    see_all_threads();
    return slot_launches(slot, &inside) == launches && !inside && !granted_again(slot, word);
}

/* A grant that began before the work of an earlier one had ended: the arbiter hears when it has, even so. */
struct behind {
    uint32_t word;
    uint64_t since_ns; /* 0: nothing is behind */
};

static void catch_up(struct slot *slot, struct behind *behind)
{
    if (!behind->since_ns || !streams_marked_idle(slot))
        return;
    behind->since_ns = 0;
    send_drained(slot, behind->word);
}

/* The gate has closed and opened again before this thread woke up: the arbiter waits for the answer to that, too. */
static void make_up(struct slot *slot, uint32_t word, struct behind *behind)
{
    uint32_t seen = slot->work.seen_word, closed = seen & ~(uint32_t)ALIQUOT_WORD_VALID;
    uint32_t answered = atomic_load(&slot->token.answered);
    bool is_answered = answered != ~0u && (int32_t)(answered - closed) >= 0; /* or one that came later; words wrap */
    if (!seen || seen == word || seen == atomic_load(&slot->token.given_back) || is_answered ||
        !atomic_compare_exchange_strong(&slot->token.answered, &answered, closed))
        return;
    streams_mark(slot);
    *behind = (struct behind){closed, now_ns()};
}

static void drain(struct slot *slot, uint32_t word, struct behind *behind)
{
    bool inside;
    uint64_t start = now_ns();
    see_all_threads();
    uint64_t launches = slot_launches(slot, &inside);
    while (inside && !granted_again(slot, word)) {
        nanosleep(&(struct timespec){0, (long)nap_since(start)}, NULL);
        launches = slot_launches(slot, &inside);
    }
    if (inside || (launches != slot->work.finished_launches && !wait_for_work(slot, word, launches))) {
        if (atomic_exchange(&slot->token.answered, word) != word)
            *behind = (struct behind){word, now_ns()};
        return;
    }
    slot->work.finished_launches = launches;
    behind->since_ns = 0;
    answer_drained(slot, word);
    checkpoints_look(slot, true);
}

/* Once for each loss of a helper; see helper_hint(). */
static void note_missing(struct slot *slot, int fault)
{
    int known = 0;
    if (atomic_compare_exchange_strong(&slot->token.helper_missing, &known, 1)) {
        atomic_fetch_add(&gate_shared.awaited, 1);
        say_refused(REFUSED_THREAD, fault);
    }
}

/* There was none, and a thread of the program may be in its place still. */
static void take_over(struct slot *slot)
{
    for (int missing = 1; atomic_load(&slot->token.helper_missing); missing = 1) {
        if (atomic_compare_exchange_strong(&slot->token.helper_missing, &missing, 0))
            atomic_fetch_sub(&gate_shared.awaited, 1);
        else
            nanosleep(&(struct timespec){0, 10000}, NULL);
    }
}

static void look_once(struct slot *slot)
{
    bool inside;
    const aliquot_page *page = atomic_load(&slot->link.page);
    if (!page || !link_alive()) {
        link_revive();
        return;
    }
    if (page->parked)
        return;
    aliquot_above.helper_looks(slot, page);
    link_report();
    longest_tell(slot);
    uint32_t word = page_word(page);
    uint64_t now = now_ns(), launches = slot_launches(slot, &inside);
    if (page->features & ALIQUOT_FEATURE_UNGATED)
        return;
    if ((word & 3) != ALIQUOT_WORD_VALID) {
        if (has_drained(slot, word))
            answer_drained(slot, word);
    } else if (word != atomic_load(&slot->token.given_back) && !inside && streams_idle(slot, launches)) {
        slot->token.burst.last_active_ns = now;
        checkpoints_look(slot, true);
        park(slot, word, launches, now);
        give_back(slot, word, now);
    }
}

/* By a thread of the program that has waited for work, where there is no helper. */
static void stand_in(struct slot *slot)
{
    int missing = 1;
    UNCANCELLED();
    if (!atomic_compare_exchange_strong(&slot->token.helper_missing, &missing, 2))
        return;
    look_once(slot);
    atomic_store(&slot->token.helper_missing, 1);
}

/* A completion point: the helper of each GPU whose end of work is awaited looks, once for each time it has asked. Where there
 * is no helper it is this thread that looks. */
void helper_hint(void)
{
    uint64_t now = now_ns();
    for (unsigned i = 0; slot_at(i); i++) {
        struct slot *slot = slot_at(i);
        if (atomic_load(&slot->token.helper_missing))
            stand_in(slot);
        if (!atomic_load(&slot->token.stay.awaited) || !atomic_exchange(&slot->token.stay.awaited, 0))
            continue;
        atomic_fetch_sub(&gate_shared.awaited, 1);
        atomic_store(&slot->token.stay.hint_ns, now);
        page_poke(atomic_load(&slot->link.page));
    }
}

/* Does the page say that the tenant is parked? Its threads see that before this one says that none is in the driver. */
static bool parked_now(struct slot *slot, const aliquot_page *page)
{
    bool inside;
    if (!page->parked && !atomic_load(&aliquot_parked))
        return false;
    park_update();
    see_all_threads();
    slot_launches(slot, &inside);
    return park_is_on(slot, page, !inside);
}

static void *help(void *argument)
{
    struct slot *slot = argument;
    take_over(slot);
    uint64_t looked_ns = 0, threads_looked_ns = now_ns();
    struct behind behind = {0, 0};
    prctl(PR_SET_TIMERSLACK, 1000ul, 0, 0, 0);
    take_short_slices(); /* the next tenant waits for the answer */
    while (!program_has_ended(&threads_looked_ns)) {
        const aliquot_page *page = atomic_load(&slot->link.page);
        if (!page || !link_looks_alive(&looked_ns)) {
            link_revive();
            if (page && now_ns() + ALONE_NAP_NS > page_deadline(page))
                gate_look_anew(); /* the last grant ends without a word */
            nanosleep(&(struct timespec){0, ALONE_NAP_NS}, NULL);
            continue;
        }
        uint32_t word = page_word(page);
        bool ends = (word & 3) != ALIQUOT_WORD_VALID && word != atomic_load(&slot->token.answered);
        if (!ends && parked_now(slot, page)) /* a turn that was ended for a park is answered first */
            continue;
        aliquot_above.helper_looks(slot, page);
        link_report();
        longest_tell(slot);
        if ((page->features & ALIQUOT_FEATURE_UNGATED) && (word & 3) == ALIQUOT_WORD_VALID) {
            futex_wait_ms(&page->word, word, 100); /* the GPU is ours for good: nothing to give back */
        } else if ((word & 3) == ALIQUOT_WORD_VALID && word != atomic_load(&slot->token.given_back)) {
            make_up(slot, word, &behind);
            catch_up(slot, &behind);
            look_for_pause(slot, page, word);
            uint64_t next = next_look_ns(slot, page), behind_ns = behind.since_ns ? nap_since(behind.since_ns) : next;
            if (atomic_load(&slot->token.stay.hint_ns) <= slot->work.looked_ns)
                helper_wait_ns(page, word, behind_ns < next ? behind_ns : next);
        } else if ((word & 3) != ALIQUOT_WORD_VALID && word != atomic_load(&slot->token.answered)) {
            drain(slot, word, &behind);
        } else {
            helper_wait_turn(page, word);
        }
    }
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL); /* what came for the program meanwhile ends the process, as it should */
    atomic_store(&slot->work.helper_running, 0);
    return NULL;
}

void helper_start(struct slot *slot)
{
    int stopped = 0;
    if (atomic_load_explicit(&slot->work.helper_running, memory_order_relaxed) ||
        !atomic_compare_exchange_strong(&slot->work.helper_running, &stopped, 1))
        return;
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int fault = EINVAL; /* too small: what the program's libraries have of thread-local data comes out of it */
    for (size_t bytes = STACK_BYTES; fault == EINVAL && bytes <= STACK_MOST_BYTES; bytes *= 2) {
        pthread_attr_setstacksize(&attributes, bytes);
        fault = pthread_create(&thread, &attributes, help, slot);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (fault) {
        atomic_store(&slot->work.helper_running, 0);
        note_missing(slot, fault);
    }
}
