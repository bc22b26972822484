/* future.c: the score of a placement: what it costs in expected future fill, in slots for pods of several GPUs and in
 * scarce models. Everything that depends on one node only is kept until that node changes.
 */
#include "future.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void drop_row(struct row *row)
{
    free(row->gain_at);
    free(row->score_at);
    free(row->shared);
    free(row->alone);
    free(row->score);
    memset(row, 0, sizeof *row);
    row->owner = -1;
}

aliquot_future *aliquot_future_new(int64_t nodes, int64_t gpus, int64_t memo_bytes)
{
    if (nodes < 0 || gpus < 0 || gpus > ALIQUOT_MAX_GPUS)
        return NULL;
    aliquot_future *future = calloc(1, sizeof *future);
    if (!future)
        return NULL;
    future->nodes = nodes;
    future->gpus = gpus;
    future->words = 1 + (gpus + 3) / 4;
    future->row_count = memo_bytes / (32 * (nodes + 1));
    if (future->row_count < 16)
        future->row_count = 16;
    if (future->row_count > 1024)
        future->row_count = 1024;
    future->rows = calloc((size_t)future->row_count, sizeof *future->rows);
    future->before = calloc((size_t)nodes + 1, sizeof *future->before);
    future->worth = calloc((size_t)nodes + 1, sizeof *future->worth);
    future->before_at = calloc((size_t)nodes + 1, sizeof *future->before_at);
    future->worth_at = calloc((size_t)nodes + 1, sizeof *future->worth_at);
    if (!future->rows || !future->before || !future->worth || !future->before_at || !future->worth_at ||
        value_reset(future)) {
        aliquot_future_free(future);
        return NULL;
    }
    for (int64_t i = 0; i < future->row_count; i++)
        future->rows[i].owner = -1;
    return future;
}

void aliquot_future_free(aliquot_future *future)
{
    if (!future)
        return;
    for (int64_t i = 0; future->rows && i < future->row_count; i++)
        drop_row(&future->rows[i]);
    free(future->rows);
    free(future->before);
    free(future->before_at);
    free(future->worth);
    free(future->worth_at);
    value_drop_needs(future);
    free(future->visits);
    free(future->weight);
    free(future->key);
    free(future->value);
    free(future->slots);
    free(future);
}

int64_t aliquot_future_work(const aliquot_future *future) { return future->work; }

static void *copy(const void *from, size_t bytes)
{
    void *to = malloc(bytes ? bytes : 1);
    if (to && bytes)
        memcpy(to, from, bytes);
    return to;
}

int aliquot_future_learn(aliquot_future *future, const aliquot_visit *visits, int64_t sequences, int64_t visit_count,
                         const double *weight)
{
    aliquot_visit *all = copy(visits, (size_t)(sequences * visit_count) * sizeof *visits);
    double *weights = copy(weight, (size_t)visit_count * sizeof *weight);
    if (!all || !weights) {
        free(all);
        free(weights);
        return ALIQUOT_NO_MEMORY;
    }
    free(future->visits);
    free(future->weight);
    future->visits = all;
    future->weight = weights;
    future->sequences = sequences;
    future->visit_count = visit_count;
    future->padded = (visit_count + 63) / 64 * 64;
    value_drop_needs(future);
    future->least_need = future->least_cpu = INT32_MAX;
    for (int64_t i = 0; i < sequences * visit_count; i++) {
        int32_t need = all[i].whole ? ALIQUOT_IDLE : all[i].need_milli;
        if (need < future->least_need)
            future->least_need = need;
        if (all[i].cpu_milli < future->least_cpu)
            future->least_cpu = all[i].cpu_milli;
    }
    memset(future->before_at, 0, (size_t)future->nodes * sizeof *future->before_at);
    for (int64_t i = 0; i < future->row_count; i++)
        future->rows[i].owner = -1;
    return value_reset(future);
}

int aliquot_future_price(aliquot_future *future, const aliquot_slot *slots, int64_t slot_count,
                         const double *model_price, double chi)
{
    aliquot_slot *all = copy(slots, (size_t)slot_count * sizeof *slots);
    if (!all)
        return ALIQUOT_NO_MEMORY;
    free(future->slots);
    future->slots = all;
    future->slot_count = slot_count;
    memcpy(future->model_price, model_price, sizeof future->model_price);
    future->chi = chi;
    future->prices++;
    memset(future->worth_at, 0, (size_t)future->nodes * sizeof *future->worth_at);
    return 0;
}

/* Slots of one kind on a node: whole ones, and with chi the cube of the part that is there of the next one. */
static double slots_of(const aliquot_slot *slot, double idle, double cpu_milli, double memory_mib, double chi)
{
    double x = idle / slot->gpus;
    if (x < 1.0 && chi == 0.0)
        return 0.0;
    if (slot->cpu_milli > 0.0 && cpu_milli / slot->cpu_milli < x)
        x = cpu_milli / slot->cpu_milli;
    if (slot->memory_mib > 0.0 && memory_mib / slot->memory_mib < x)
        x = memory_mib / slot->memory_mib;
    double whole = floor(x);
    if (chi == 0.0)
        return whole;
    double part = x - whole;
    return whole + chi * (part * part * part);
}

static double worth_of(const aliquot_future *future, const struct state *state, int32_t idle, int64_t cpu_milli,
                       int64_t memory_mib)
{
    double worth = 0.0;
    if (idle <= 0)
        return worth;
    uint32_t bit = model_bit(state->model);
    for (int64_t i = 0; i < future->slot_count; i++) {
        const aliquot_slot *slot = &future->slots[i];
        if (!(slot->models & bit) || (double)state->gpus < slot->gpus)
            continue;
        worth += slot->price * slots_of(slot, idle, (double)cpu_milli, (double)memory_mib, future->chi);
    }
    return worth;
}

static void sort(int16_t *left, int count)
{
    for (int i = 1; i < count; i++) {
        int16_t value = left[i];
        int at = i;
        for (; at > 0 && left[at - 1] > value; at--)
            left[at] = left[at - 1];
        left[at] = value;
    }
}

static void load(const aliquot_view *view, int64_t node, struct state *state)
{
    state->cpu_milli = view->cpu_free[node];
    state->memory_mib = view->memory_free[node];
    state->model = -1;
    state->gpus = state->idle = 0;
    for (int64_t at = node * view->gpus, end = at + view->gpus; at < end; at++) {
        if (view->free_milli[at] < 0)
            continue;
        if (state->model < 0)
            state->model = view->model[at];
        state->idle += is_idle(view, at);
        state->left[state->gpus++] = (int16_t)room_at(view, at);
    }
    sort(state->left, state->gpus);
}

void aliquot_future_capacity(const aliquot_view *view, const aliquot_slot *slots, int64_t slot_count, double chi,
                             const uint8_t *held, double *capacity)
{
    struct state state;
    for (int64_t i = 0; i < slot_count; i++)
        capacity[i] = 0.0;
    for (int64_t node = 0; node < view->nodes; node++) {
        if (held && held[node])
            continue;
        load(view, node, &state);
        if (state.idle == 0)
            continue;
        for (int64_t i = 0; i < slot_count; i++)
            if ((slots[i].models & model_bit(state.model)) && (double)state.gpus >= slots[i].gpus)
                capacity[i] += slots_of(&slots[i], state.idle, (double)state.cpu_milli, (double)state.memory_mib, chi);
    }
}

/* The sorted state with `from` replaced by `to` (equal values are the same device to the sequences). */
static void replace(struct state *state, int16_t from, int16_t to)
{
    int at = 0;
    while (at < state->gpus && state->left[at] != from)
        at++;
    if (at == state->gpus)
        return;
    for (; at > 0 && state->left[at - 1] > to; at--)
        state->left[at] = state->left[at - 1];
    for (; at + 1 < state->gpus && state->left[at + 1] < to; at++)
        state->left[at] = state->left[at + 1];
    state->left[at] = to;
}

/* The state after the shape's whole devices and CPU are taken: idle devices of an allowed model, those that could not
 * hold the rest first, so that a node of unequal devices keeps one for it; then the lowest. Their places are marked in
 * `taken`. */
static void take_whole(const aliquot_view *view, const aliquot_shape *shape, int64_t node, struct state *after,
                       uint8_t *taken)
{
    after->cpu_milli -= shape->cpu_milli;
    after->memory_mib -= shape->memory_mib;
    memset(taken, 0, (size_t)view->gpus);
    int32_t whole = shape->whole;
    for (int pass = shape->rest_milli ? 0 : 1; pass < 2; pass++)
        for (int64_t g = 0; g < view->gpus && whole > 0; g++) {
            int64_t at = node * view->gpus + g;
            if (taken[g] || !is_idle(view, at) || !(shape->models & model_bit(view->model[at])))
                continue;
            if (pass == 0 && rest_fits(view, shape, at))
                continue;
            taken[g] = 1;
            whole--;
            replace(after, ALIQUOT_IDLE, 0);
            after->idle--;
        }
}

/* Value after the shared part went to device `at`. */
static double value_on(aliquot_future *future, const aliquot_view *view, const aliquot_shape *shape, int64_t at,
                       const struct state *after)
{
    struct state then = *after;
    int16_t from = (int16_t)room_at(view, at);
    int16_t to = (int16_t)room(view->free_milli[at] - shape->rest_milli,
                               view->free_mib[at] - need_mib(shape, view->size_mib[at]), view->size_mib[at]);
    replace(&then, from, to);
    return value_of(future, &then);
}

static void gains(aliquot_future *future, const aliquot_view *view, const aliquot_shape *shape, int64_t node,
                  const struct state *state, double before, double *shared, double *alone)
{
    struct state after = *state;
    uint8_t taken[ALIQUOT_MAX_GPUS];
    take_whole(view, shape, node, &after, taken);
    *shared = *alone = -INFINITY;
    if (shape->rest_milli == 0) {
        *alone = value_of(future, &after) - before;
        return;
    }
    int32_t seen[ALIQUOT_MAX_GPUS];
    int64_t seen_mib[ALIQUOT_MAX_GPUS];
    int distinct = 0, idle_done = 0;
    for (int64_t g = 0; g < view->gpus; g++) {
        int64_t at = node * view->gpus + g;
        if (taken[g] || !rest_fits(view, shape, at))
            continue;
        if (is_idle(view, at)) {
            if (!idle_done)
                *alone = value_on(future, view, shape, at, &after) - before;
            idle_done = 1;
            continue;
        }
        int known = 0;
        for (int i = 0; i < distinct && !known; i++)
            known = seen[i] == view->free_milli[at] && seen_mib[i] == view->free_mib[at];
        if (known)
            continue;
        seen[distinct] = view->free_milli[at];
        seen_mib[distinct++] = view->free_mib[at];
        double gain = value_on(future, view, shape, at, &after) - before;
        if (gain > *shared)
            *shared = gain;
    }
}

static int make_row(aliquot_future *future, struct row *row, int64_t owner)
{
    size_t n = (size_t)future->nodes + 1;
    if (!row->gain_at) {
        row->gain_at = malloc(n * sizeof *row->gain_at);
        row->score_at = malloc(n * sizeof *row->score_at);
        row->shared = malloc(n * sizeof *row->shared);
        row->alone = malloc(n * sizeof *row->alone);
        row->score = malloc(n * sizeof *row->score);
        if (!row->gain_at || !row->score_at || !row->shared || !row->alone || !row->score) {
            drop_row(row);
            return ALIQUOT_NO_MEMORY;
        }
    }
    memset(row->gain_at, 0, n * sizeof *row->gain_at);
    memset(row->score_at, 0, n * sizeof *row->score_at);
    row->owner = owner;
    row->prices = future->prices;
    return 0;
}

static double node_before(aliquot_future *future, const struct state *state, int64_t node, uint32_t stamp)
{
    if (future->before_at[node] != stamp) {
        future->before[node] = value_of(future, state);
        future->before_at[node] = stamp;
    }
    return future->before[node];
}

static double node_worth(aliquot_future *future, const struct state *state, int64_t node, uint32_t stamp)
{
    if (future->worth_at[node] != stamp) {
        future->worth[node] = worth_of(future, state, state->idle, state->cpu_milli, state->memory_mib);
        future->worth_at[node] = stamp;
    }
    return future->worth[node];
}

static double model_cost(const aliquot_future *future, const struct state *state, const aliquot_shape *shape)
{
    int32_t model = state->model < 0 ? 0 : state->model < ALIQUOT_MODELS - 1 ? state->model : ALIQUOT_MODELS - 1;
    return future->model_price[model] * (double)(shape->whole * 1000 + shape->rest_milli);
}

/* d = change of value + change of slot worth - price of the model. */
static double change(aliquot_future *future, const struct state *state, const aliquot_shape *shape, double gain,
                     double worth, int32_t idle_taken)
{
    double after = worth_of(future, state, state->idle - idle_taken, state->cpu_milli - shape->cpu_milli,
                            state->memory_mib - shape->memory_mib);
    return (gain + (after - worth)) - model_cost(future, state, shape);
}

static int64_t score_of(aliquot_future *future, const aliquot_view *view, const aliquot_shape *shape, int64_t node,
                        double quantum, struct row *row, uint32_t stamp)
{
    struct state state;
    load(view, node, &state);
    if (row->gain_at[node] != stamp) {
        double before = node_before(future, &state, node, stamp);
        gains(future, view, shape, node, &state, before, &row->shared[node], &row->alone[node]);
        row->gain_at[node] = stamp;
    }
    double worth = node_worth(future, &state, node, stamp), best = -INFINITY;
    if (row->shared[node] > -INFINITY)
        best = change(future, &state, shape, row->shared[node], worth, shape->whole);
    if (row->alone[node] > -INFINITY) {
        double d = change(future, &state, shape, row->alone[node], worth, shape->whole + (shape->rest_milli > 0));
        if (d > best)
            best = d;
    }
    if (best == -INFINITY)
        return INT64_MIN;
    return (int64_t)floor(best / quantum);
}

/* The row of a shape, made for the prices of now; NULL without memory. */
static struct row *row_of(aliquot_future *future, const aliquot_shape *shape)
{
    struct row *row = &future->rows[shape->id % future->row_count];
    if (row->owner != shape->id && make_row(future, row, shape->id))
        return NULL;
    if (row->prices != future->prices) {
        memset(row->score_at, 0, (size_t)future->nodes * sizeof *row->score_at);
        row->prices = future->prices;
    }
    return row;
}

static uint32_t stamp_of(const aliquot_view *view, int64_t node)
{
    uint32_t stamp = (uint32_t)view->version[node] + 1u;
    return stamp ? stamp : 1;
}

int64_t aliquot_future_scores(aliquot_future *future, const aliquot_view *view, const aliquot_shape *shape,
                              const int64_t *nodes, int64_t node_count, double quantum, int64_t *scores)
{
    struct row *row = row_of(future, shape);
    if (!row)
        return ALIQUOT_NO_MEMORY;
    for (int64_t i = 0; i < node_count; i++) {
        int64_t node = nodes[i];
        uint32_t stamp = stamp_of(view, node);
        if (row->score_at[node] != stamp) {
            row->score[node] = score_of(future, view, shape, node, quantum, row, stamp);
            row->score_at[node] = stamp;
        }
        scores[i] = row->score[node];
    }
    return node_count;
}

int aliquot_future_tend(aliquot_future *future, const aliquot_view *view, const aliquot_shape *shape,
                        const uint8_t *open, double quantum, int64_t budget)
{
    struct row *row = row_of(future, shape);
    if (!row)
        return ALIQUOT_NO_MEMORY;
    const int64_t limit = future->work + budget;
    for (int64_t node = 0; node < view->nodes; node++) {
        uint32_t stamp = stamp_of(view, node);
        if (!open[node] || row->gain_at[node] == stamp || !node_holds(view, shape, node))
            continue;
        if (future->work >= limit)
            return 0;
        row->score[node] = score_of(future, view, shape, node, quantum, row, stamp);
        row->score_at[node] = stamp;
    }
    return 1;
}

double aliquot_future_option(aliquot_future *future, const aliquot_view *view, const aliquot_shape *shape, int64_t node,
                             int64_t gpu)
{
    struct state state, after;
    uint8_t taken[ALIQUOT_MAX_GPUS];
    load(view, node, &state);
    after = state;
    take_whole(view, shape, node, &after, taken);
    int64_t at = node * view->gpus + gpu;
    if (taken[gpu] || !rest_fits(view, shape, at))
        return -INFINITY;
    double gain = value_on(future, view, shape, at, &after) - value_of(future, &state);
    double worth = worth_of(future, &state, state.idle, state.cpu_milli, state.memory_mib);
    return change(future, &state, shape, gain, worth, shape->whole + is_idle(view, at));
}
