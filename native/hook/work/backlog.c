/* backlog.c: how much GPU time a thread has queued in a stream, and the wait that keeps it bounded.
 *
 * What is queued when the token goes still runs before the next tenant does, so it is bounded in time, to what the
 * page says: 2 ms while other tenants are attached to the GPU, and one launch at least, however long. Launches are
 * counted down against what they are thought to cost; a checkpoint, one event behind several launches, shows what they
 * did cost. Between the first and the last moment at which a checkpoint can have been reached lies its cost; the
 * estimate moves only when it falls outside. An estimate that proves far too low counts for everything behind it.
 */
#include "work/gate.h"
#include "work/own.h"

#define UNKNOWN_NS 50000000u  /* a first launch may be long: the second waits for it, unless the bound is wide */
#define SEGMENT_LAUNCHES 112u /* a driver queues about a thousand launches of a stream before it blocks */
#define PATIENCE_NS 500000000u
#define WIDE_NS 50000000u /* a bound like this is there for no neighbour */
#define WIDE_PATIENCE_NS 100000000u
#define STRIKES 3
#define LIFTED_NS 60000000000u
#define SPIN_NS 10000u
#define LONGEST_NAP_NS 500000u
#define SUSPECTS 256u
#define SUSPECT_NS 100000000u
#define SUSPECT_MOST_NS 5000000000u
#define SLACK_NS 1000u /* events tell half a microsecond */
#define DRIFT 8192u    /* a clock is not off by more than this part of what it measures */

uint64_t backlog_bound(const struct gate_entry *entry)
{
    const aliquot_page *page = atomic_load(&entry->record->slot->link.page);
    uint32_t now_us = page ? page_in_flight_us(page) : 0;
    return 1000ull * (now_us || !page ? now_us : page->max_in_flight_us);
}

static uint64_t *costs(const struct gate_entry *entry)
{
    uint64_t *cost = entry->record->cost_ns;
    for (unsigned i = 0; i < 2; i++)
        cost[i] = cost[i] ? cost[i] : UNKNOWN_NS;
    return cost;
}

/* Until the next checkpoint: an eighth of the bound, and not more launches than a driver queues without blocking. */
void backlog_credit(struct gate_entry *entry)
{
    uint64_t segment = backlog_bound(entry) / CHECKPOINTS, least = segment / SEGMENT_LAUNCHES + 1;
    for (unsigned i = 0; i < 2; i++) {
        uint64_t cost = costs(entry)[i];
        entry->cost_ns[i] = cost > least ? cost : least;
    }
    entry->credit_ns = segment ? (int64_t)segment : INT64_MAX;
    if (entry->backlog.sampling && entry->backlog.sampling--)
        entry->credit_ns = 0;
}

static uint64_t over(uint64_t later, uint64_t earlier) { return later > earlier ? later - earlier : 0; }

/* Up at once, down by steps: a GPU that seems fast for a moment is late in saying so. */
static void correct(uint64_t *cost, uint64_t better)
{
    *cost = better > *cost || *cost == UNKNOWN_NS ? better + 1 : *cost - (*cost - better) / 4;
}

/* The launches before this checkpoint took between `low` and `high`. */
static void learn(struct gate_entry *entry, const struct checkpoint *point, uint64_t low, uint64_t high)
{
    uint64_t *cost = costs(entry), kernels = point->count[LAUNCH_KERNEL], graphs = point->count[LAUNCH_GRAPH];
    uint64_t thought = kernels * cost[LAUNCH_KERNEL] + graphs * cost[LAUNCH_GRAPH];
    uint64_t took = thought < low ? low : thought > high ? high : thought;
    if (took == thought)
        return;
    if (kernels && (!graphs || kernels * cost[LAUNCH_KERNEL] > took))
        correct(&cost[LAUNCH_KERNEL], took / (kernels + graphs));
    if (graphs)
        correct(&cost[LAUNCH_GRAPH], over(took, kernels * cost[LAUNCH_KERNEL]) / graphs);
}

static uint64_t later_of(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* What the launches before a checkpoint took, and when they ended: between `low` and `high`. */
struct span { uint64_t low, high, end_low, end_high; };

/* The GPU's clock says how long after its predecessor the checkpoint was reached. So every look at one bounds the others
 * too, and where the stream had work all the time, nothing is left to bound. */
static struct span measure(const struct gate_entry *entry, const struct checkpoint *point)
{
    const struct checkpoint *last =
        &entry->backlog.ring[(entry->backlog.first + CHECKPOINT_PLACES - 1) % CHECKPOINT_PLACES];
    uint64_t apart = entry->backlog.ended_high_ns ? checkpoint_between(last, point) : 0,
             slack = SLACK_NS + apart / DRIFT;
    uint64_t end_low = later_of(point->unfinished_ns, apart ? entry->backlog.ended_low_ns + over(apart, slack) : 0);
    uint64_t end_high = entry->backlog.ended_high_ns + apart + slack;
    if (!apart || end_high > point->reached_ns)
        end_high = point->reached_ns;
    if (end_low > end_high) { /* the clocks do not agree */
        end_low = point->unfinished_ns;
        end_high = point->reached_ns;
    }
    uint64_t from = later_of(point->began_ns, entry->backlog.ended_low_ns);
    uint64_t until = later_of(point->recorded_ns, entry->backlog.ended_high_ns);
    struct span span = {over(end_low, until), over(end_high, from), end_low, end_high};
    if (apart && span.high > apart + slack)
        span.high = apart + slack;
    if (apart && entry->backlog.ended_low_ns >= point->recorded_ns)
        span.low = later_of(span.low, over(apart, slack));
    return span;
}

/* Of what they took at least, what was not another tenant's. */
static uint64_t unshared(const struct gate_entry *entry, const struct checkpoint *point, uint64_t low)
{
    uint64_t before = later_of(point->recorded_shared, entry->backlog.ended_shared);
    if (point->reached_shared == before)
        return low;
    uint64_t until = later_of(point->recorded_ns, entry->backlog.ended_high_ns);
    return checkpoint_unshared(until, point->unfinished_ns, before, point->unfinished_shared);
}

/* One of several launches seems to be long: the next ones are looked at one by one, less and less often. */
static void suspect(struct gate_entry *entry, uint64_t now)
{
    if (now < entry->backlog.suspect_ns)
        return;
    entry->backlog.sampling = SUSPECTS;
    entry->backlog.suspect_wait_ns = entry->backlog.suspect_wait_ns ? 2 * entry->backlog.suspect_wait_ns : SUSPECT_NS;
    if (entry->backlog.suspect_wait_ns > SUSPECT_MOST_NS)
        entry->backlog.suspect_wait_ns = SUSPECT_MOST_NS;
    entry->backlog.suspect_ns = now + entry->backlog.suspect_wait_ns;
}

/* Takes out the checkpoints that were reached; within an own call. */
static void reap(struct gate_entry *entry)
{
    struct slot *slot = entry->record->slot;
    for (; entry->backlog.used;
         entry->backlog.used--, entry->backlog.first = (entry->backlog.first + 1) % CHECKPOINT_PLACES) {
        struct checkpoint *point = &entry->backlog.ring[entry->backlog.first];
        if (!checkpoint_reached(slot, point))
            return;
        struct span span = measure(entry, point);
        learn(entry, point, span.low, span.high);
        if (longest_note(slot, point, unshared(entry, point, span.low)))
            suspect(entry, point->reached_ns);
        entry->backlog.ended_low_ns = span.end_low;
        entry->backlog.ended_high_ns = span.end_high;
        entry->backlog.ended_shared = point->reached_shared;
    }
}

/* What is in the ring is of another stream from now on. The helper may be looking at it. */
void backlog_forget(struct gate_entry *entry)
{
    bool watched = entry->watched;
    if (watched)
        pthread_mutex_lock(&entry->context->slot->work.driver_lock);
    entry->backlog.first = entry->backlog.used = 0;
    entry->backlog.ended_low_ns = entry->backlog.ended_high_ns = entry->backlog.ended_shared = 0;
    if (watched)
        pthread_mutex_unlock(&entry->context->slot->work.driver_lock);
}

/* Takes out what was reached; an own_answer. */
int backlog_look(struct gate_entry *entry)
{
    struct own_call call;
    enum own_answer answer = entry->backlog.used ? own_begin(&call, entry->context, entry->life, OWN_LOOK) : OWN_BUSY;
    if (answer == OWN_YES) {
        reap(entry);
        own_end(&call);
    }
    return answer;
}

/* How long the GPU is thought to need for what is queued. What takes longer than thought goes on counting as nothing
 * itself, but makes what is behind it as much longer. */
static uint64_t left(const struct gate_entry *entry, uint64_t now)
{
    if (!entry->backlog.used)
        return 0;
    const struct checkpoint *oldest = &entry->backlog.ring[entry->backlog.first];
    uint64_t began = oldest->recorded_ns > entry->backlog.ended_high_ns ? oldest->recorded_ns
                                                                        : entry->backlog.ended_high_ns;
    uint64_t gone = over(now, began), behind = 0;
    for (unsigned i = 1; i < entry->backlog.used; i++)
        behind += entry->backlog.ring[(entry->backlog.first + i) % CHECKPOINT_PLACES].cost_ns;
    if (gone <= oldest->cost_ns)
        return oldest->cost_ns - gone + behind;
    return behind * (1 + (gone - oldest->cost_ns) / oldest->cost_ns);
}

/* May as much be launched as comes before the next checkpoint? The launch after a long one is let in half a bound
 * before that ends, so that the GPU does not wait for it. */
static bool fits(const struct gate_entry *entry, uint64_t now)
{
    uint64_t bound = backlog_bound(entry), segment = bound / CHECKPOINTS, lead = bound / 2;
    uint64_t more = entry->backlog.mean_ns > segment ? entry->backlog.mean_ns : segment, room = over(bound, more);
    return !bound || (entry->backlog.used < CHECKPOINTS && left(entry, now) <= (room > lead ? room : lead));
}

/* The ring holds no more than it has places, and what was last reached beside it. */
static bool backlog_is_valid(const struct backlog *backlog)
{
    return backlog->used <= CHECKPOINTS && backlog->first < CHECKPOINT_PLACES;
}

/* A checkpoint behind what was launched; within an own call. False: the next launch has to wait. When all places are
 * taken, because the bound is lifted, the latest moves. */
bool backlog_add(struct gate_entry *entry, uint64_t now)
{
    reap(entry);
    bool full = entry->backlog.used == CHECKPOINTS;
    struct checkpoint *point =
        &entry->backlog.ring[(entry->backlog.first + entry->backlog.used - full) % CHECKPOINT_PLACES];
    if (!point->event && !(point->event = event_take(entry->context)))
        return true;
    if (REAL(cuEventRecord, void *, void *)(point->event, entry->stream) != CUDA_SUCCESS)
        return true;
    COUNT(events);
    if (!full)
        *point = (struct checkpoint){.event = point->event, .began_ns = entry->backlog.began_ns};
    for (unsigned i = 0; i < 2; i++) {
        point->count[i] += entry->count[i];
        entry->count[i] = 0;
    }
    point->cost_ns = 1 + point->count[0] * costs(entry)[0] + point->count[1] * costs(entry)[1];
    entry->backlog.mean_ns = point->cost_ns /
                             (point->count[0] + point->count[1] ? point->count[0] + point->count[1] : 1);
    point->recorded_ns = point->unfinished_ns = now;
    point->recorded_shared = point->unfinished_shared = checkpoint_shared(entry->record->slot, now);
    point->reached_ns = 0;
    checkpoint_watch(entry);
    entry->backlog.began_ns = now;
    entry->backlog.used += !full;
    CHECK(1, backlog_is_valid(&entry->backlog));
    return fits(entry, now) || now < entry->record->lifted_until_ns;
}

/* It may be this very thread that the stream waits for, so patience ends; it lengthens at first, for kernels that are
 * long, and after some vain waits the bound is lifted for a while. */
static uint64_t patience(const struct gate_entry *entry)
{
    uint64_t base = backlog_bound(entry) < WIDE_NS ? PATIENCE_NS : WIDE_PATIENCE_NS;
    uint64_t cost = entry->backlog.ring[entry->backlog.first].cost_ns;
    return (base > 4 * cost ? base : 4 * cost) << entry->record->strikes;
}

static void out_of_patience(struct gate_entry *entry, uint64_t now)
{
    struct record *record = entry->record;
    entry->credit_ns = 0; /* for one launch */
    if (++record->strikes >= STRIKES) {
        record->strikes = 0;
        record->lifted_until_ns = now + LIFTED_NS;
    }
}

static void pause_for(struct gate_entry *entry, uint64_t waited, uint64_t now)
{
    if (waited < SPIN_NS) {
        __builtin_ia32_pause();
        return;
    }
    uint64_t more = over(left(entry, now), backlog_bound(entry) / CHECKPOINTS) / 2;
    more = more < SPIN_NS ? SPIN_NS : more > LONGEST_NAP_NS ? LONGEST_NAP_NS : more;
    nanosleep(&(struct timespec){0, (long)more}, NULL);
}

/* Waits until little enough is queued for one launch more. */
void backlog_wait(struct gate_entry *entry)
{
    uint64_t start = now_ns(), now = start;
    if (fits(entry, now) || now < entry->record->lifted_until_ns)
        return;
    for (COUNT(bounded);; now = now_ns()) {
        int answer = backlog_look(entry);
        if (answer == OWN_GONE || atomic_load(&own_leaving) || fits(entry, now)) {
            entry->record->strikes = 0;
            return;
        }
        if (now - start > patience(entry)) {
            out_of_patience(entry, now);
            return;
        }
        pause_for(entry, now - start, now);
    }
}
