/* value.c: how many milli-GPU random future arrivals would still put on a node, memoised by the node's state.
 *
 * The sequences are walked one after the other from the same state; a visit that does not fit passes. A fraction takes
 * the device with the least left, whole ones need untouched devices. The sum runs over all visits in order and is
 * divided once, which is the order of the oracle.
 */
#include <stdlib.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "future.h"

#define MEMO_BITS 16
#define MEMO_SIZE (1 << MEMO_BITS)
#define MEMO_FULL (MEMO_SIZE / 4 * 3)

/* Puts `left` where the ascending order wants it, among the devices before `at`. */
static void settle(int16_t *devices, int at, int16_t left)
{
    while (at > 0 && devices[at - 1] > left) {
        devices[at] = devices[at - 1];
        at--;
    }
    devices[at] = left;
}

/* Takes the visit from the ascending devices; 0 when there is no room. */
static int take(int16_t *devices, int gpus, const aliquot_visit *visit)
{
    int free_of_whole = gpus - visit->whole, at = free_of_whole;
    if (visit->whole && (free_of_whole < 0 || devices[free_of_whole] < ALIQUOT_IDLE))
        return 0;
    if (visit->need_milli) {
        for (at = 0; at < free_of_whole && devices[at] < visit->need_milli;)
            at++;
        if (at == free_of_whole)
            return 0;
        settle(devices, at, (int16_t)(devices[at] - visit->need_milli));
    }
    if (visit->whole) {
        memmove(devices + visit->whole, devices, (size_t)free_of_whole * sizeof *devices);
        memset(devices, 0, (size_t)visit->whole * sizeof *devices);
    }
    return 1;
}

static int32_t model_at(int32_t model) { return model < ALIQUOT_MODELS - 1 ? model : ALIQUOT_MODELS - 1; }

void value_drop_needs(aliquot_future *future)
{
    for (int i = 0; i < ALIQUOT_MODELS; i++) {
        free(future->needs[i].milli);
        future->needs[i].milli = future->needs[i].cpu = NULL;
    }
}

/* The needs of all visits on one model; NULL without memory. */
static const struct needs *needs_on(aliquot_future *future, int32_t model)
{
    struct needs *needs = &future->needs[model_at(model)];
    if (needs->milli)
        return needs;
    int64_t all = future->sequences * future->padded;
    int16_t *block = malloc((size_t)(2 * all + 1) * sizeof *block);
    if (!block)
        return NULL;
    for (int64_t i = 0; i < 2 * all; i++)
        block[i] = NOTHING_FITS;
    for (int64_t k = 0; k < future->sequences; k++)
        for (int64_t j = 0; j < future->visit_count; j++) {
            const aliquot_visit *visit = &future->visits[k * future->visit_count + j];
            int64_t at = k * future->padded + j, cpu = visit->cpu_milli / CPU_STEP;
            if (!(visit->models & model_bit(model)))
                continue;
            block[at] = visit->whole ? ALIQUOT_IDLE : visit->need_milli;
            block[all + at] = (int16_t)(cpu < NOTHING_FITS ? cpu : NOTHING_FITS);
        }
    needs->milli = block;
    needs->cpu = block + all;
    return needs;
}

/* Which of 64 visits, from `first` on, may fit a node with so much on its best device and so much CPU: bit j for visit
 * j. What comes before `first` may be named or not. */
static inline uint64_t may_fit(const int16_t *milli, const int16_t *cpu, int first, int16_t top, int16_t cpu_left)
{
    uint64_t bits = 0;
#ifdef __SSE2__
    const __m128i tops = _mm_set1_epi16(top), cpus = _mm_set1_epi16(cpu_left);
    for (int j = first & ~15; j < 64; j += 16) {
        const __m128i *m = (const __m128i *)(milli + j), *c = (const __m128i *)(cpu + j);
        __m128i low = _mm_or_si128(_mm_cmpgt_epi16(_mm_loadu_si128(m), tops),
                                   _mm_cmpgt_epi16(_mm_loadu_si128(c), cpus));
        __m128i high = _mm_or_si128(_mm_cmpgt_epi16(_mm_loadu_si128(m + 1), tops),
                                    _mm_cmpgt_epi16(_mm_loadu_si128(c + 1), cpus));
        bits |= (uint64_t)(uint16_t)~_mm_movemask_epi8(_mm_packs_epi16(low, high)) << j;
    }
#else
    for (int j = first; j < 64; j++)
        bits |= (uint64_t)(milli[j] <= top && cpu[j] <= cpu_left) << j;
#endif
    return bits;
}

static int16_t cpu_steps(int64_t cpu_milli)
{
    int64_t steps = (cpu_milli + CPU_STEP - 1) / CPU_STEP;
    return (int16_t)(steps < NOTHING_FITS ? steps : NOTHING_FITS);
}

/* One sequence from the state on; `total` grows visit by visit, so that the order of the sum is that of the visits. */
static double walk_any(const aliquot_future *future, const struct state *state, const struct needs *needs, int64_t k,
                       double total)
{
    int16_t devices[ALIQUOT_MAX_GPUS];
    const int gpus = state->gpus;
    memcpy(devices, state->left, (size_t)gpus * sizeof *devices);
    int64_t cpu = state->cpu_milli;
    for (int64_t base = 0; base < future->visit_count; base += 64) {
        const int16_t *milli = needs->milli + k * future->padded + base, *cpus = needs->cpu + k * future->padded + base;
        uint64_t bits = may_fit(milli, cpus, 0, devices[gpus - 1], cpu_steps(cpu));
        while (bits) {
            int64_t j = base + __builtin_ctzll(bits);
            bits &= bits - 1;
            const aliquot_visit *visit = &future->visits[k * future->visit_count + j];
            if (visit->cpu_milli > cpu || !take(devices, gpus, visit))
                continue;
            cpu -= visit->cpu_milli;
            total += future->weight[j] * (double)visit->worth_milli;
            if (bits)
                bits &= may_fit(milli, cpus, (int)(j - base), devices[gpus - 1], cpu_steps(cpu));
        }
    }
    return total;
}

#ifdef __SSE2__
#define LANES 8
#define MISSES 2 /* visits in a row that did not fit, after which all that are left are looked at again */

/* Of ascending devices the first that has `need` gives it, and the order is made good: with v what it has left, every
 * device up to it becomes max(the one before, min(itself, v)). A need of 0 changes nothing. */
static inline __m128i give(__m128i devices, int16_t need)
{
    const __m128i needs = _mm_set1_epi16(need), ones = _mm_cmpeq_epi16(needs, needs);
    const __m128i below = _mm_cmpgt_epi16(needs, devices); /* those before the one that gives */
    const __m128i above = _mm_andnot_si128(_mm_slli_si128(below, 2), _mm_slli_si128(ones, 2)); /* those after it */
    __m128i left = _mm_andnot_si128(_mm_or_si128(below, above), _mm_sub_epi16(devices, needs));
    left = _mm_or_si128(left, _mm_shuffle_epi32(left, 0x4E)); /* v everywhere, in three steps */
    left = _mm_or_si128(left, _mm_shuffle_epi32(left, 0xB1));
    left = _mm_or_si128(left, _mm_shufflehi_epi16(_mm_shufflelo_epi16(left, 0xB1), 0xB1));
    const __m128i moved = _mm_max_epi16(_mm_slli_si128(devices, 2), _mm_min_epi16(devices, left));
    return _mm_or_si128(_mm_and_si128(above, devices), _mm_andnot_si128(above, moved));
}

/* The same for nodes of at most eight devices, which stay in one register; those that are missing have nothing left. */
static double walk_few(const aliquot_future *future, const struct state *state, const struct needs *needs, int64_t k,
                       double total)
{
    int16_t lanes[LANES] = {0};
    memcpy(lanes + LANES - state->gpus, state->left, (size_t)state->gpus * sizeof *lanes);
    __m128i devices = _mm_loadu_si128((const __m128i *)lanes);
    int64_t cpu = state->cpu_milli;
    for (int64_t base = 0; base < future->visit_count; base += 64) {
        const int16_t *milli = needs->milli + k * future->padded + base, *cpus = needs->cpu + k * future->padded + base;
        const aliquot_visit *visits = future->visits + k * future->visit_count + base;
        int16_t top = (int16_t)_mm_extract_epi16(devices, LANES - 1);
        uint64_t bits = may_fit(milli, cpus, 0, top, cpu_steps(cpu));
        for (int missed = 0; bits;) {
            const int j = __builtin_ctzll(bits);
            const aliquot_visit *visit = &visits[j];
            bits &= bits - 1;
            int fits = milli[j] <= top && visit->cpu_milli <= cpu;
            if (fits && (visit->whole > 1 || (visit->whole && visit->need_milli))) {
                _mm_storeu_si128((__m128i *)lanes, devices);
                fits = take(lanes, LANES, visit);
                devices = _mm_loadu_si128((const __m128i *)lanes);
            } else if (fits) {
                devices = give(devices, milli[j]);
            }
            if (!fits) {
                if (++missed == MISSES && bits)
                    bits &= may_fit(milli, cpus, j, top, cpu_steps(cpu));
                continue;
            }
            missed = 0;
            cpu -= visit->cpu_milli;
            total += future->weight[base + j] * (double)visit->worth_milli;
            top = (int16_t)_mm_extract_epi16(devices, LANES - 1);
        }
    }
    return total;
}
#endif

static double walk(const aliquot_future *future, const struct state *state, const struct needs *needs, int64_t k,
                   double total)
{
    /* Half the time, with the same answer to the last bit. */
#ifdef __SSE2__
    if (state->gpus <= LANES)
        return walk_few(future, state, needs, k, total);
#endif
    return walk_any(future, state, needs, k, total);
}

static double fill(aliquot_future *future, const struct state *state)
{
    const struct needs *needs = needs_on(future, state->model);
    if (!needs || !future->sequences)
        return 0.0;
    double total = 0.0;
    for (int64_t k = 0; k < future->sequences; k++)
        total = walk(future, state, needs, k, total);
    return total / (double)future->sequences;
}

static void make_key(const struct state *state, uint64_t *key, int64_t words)
{
    memset(key, 0, (size_t)words * sizeof *key);
    key[0] = (uint64_t)state->cpu_milli << 8 | (uint64_t)((state->model & 31) << 1) | 1u;
    for (int g = 0; g < state->gpus; g++)
        key[1 + g / 4] |= (uint64_t)(uint16_t)(state->left[g] + 1) << (g % 4 * 16);
}

static uint64_t mix(const uint64_t *key, int64_t words)
{
    uint64_t h = 0x9E3779B97F4A7C15u;
    for (int64_t i = 0; i < words; i++) {
        h = (h ^ key[i]) * 0xBF58476D1CE4E5B9u;
        h ^= h >> 29;
    }
    return h ^ h >> 32;
}

double value_of(aliquot_future *future, const struct state *state)
{
    if (state->gpus == 0 || state->left[state->gpus - 1] < future->least_need || state->cpu_milli < future->least_cpu)
        return 0.0;
    uint64_t key[1 + ALIQUOT_MAX_GPUS / 4];
    const int64_t words = future->words;
    make_key(state, key, words);
    uint64_t at = mix(key, words) & (MEMO_SIZE - 1);
    for (;; at = (at + 1) & (MEMO_SIZE - 1)) {
        uint64_t *there = future->key + at * (uint64_t)words;
        if (memcmp(there, key, (size_t)words * sizeof *key) == 0)
            return future->value[at];
        if (there[0] == 0)
            break;
    }
    future->work++;
    double value = fill(future, state);
    if (future->slots_used >= MEMO_FULL) {
        memset(future->key, 0, (size_t)MEMO_SIZE * (size_t)words * sizeof *future->key);
        future->slots_used = 0;
        at = mix(key, words) & (MEMO_SIZE - 1);
    }
    memcpy(future->key + at * (uint64_t)words, key, (size_t)words * sizeof *key);
    future->value[at] = value;
    future->slots_used++;
    return value;
}

int value_reset(aliquot_future *future)
{
    size_t bytes = (size_t)MEMO_SIZE * (size_t)future->words * sizeof *future->key;
    if (!future->key) {
        future->key = malloc(bytes);
        future->value = malloc(MEMO_SIZE * sizeof *future->value);
        if (!future->key || !future->value)
            return ALIQUOT_NO_MEMORY;
    }
    memset(future->key, 0, bytes);
    future->slots_used = 0;
    return 0;
}

static int ascending(const void *a, const void *b) { return *(const int16_t *)a - *(const int16_t *)b; }

double aliquot_future_value(aliquot_future *future, int32_t model, int64_t cpu_milli, const int32_t *left, int64_t gpus)
{
    struct state state = {.cpu_milli = cpu_milli, .model = model, .gpus = (int32_t)gpus};
    for (int64_t g = 0; g < gpus; g++)
        state.left[g] = (int16_t)left[g];
    qsort(state.left, (size_t)gpus, sizeof *state.left, ascending);
    return value_of(future, &state);
}
