/* future.h: what value.c and future.c share: the sequences, the memo of values, the prices. */
#pragma once
#include "device.h"

/* What a visit needs at least, in 16 bits so that many are compared at once: milli of one device, and CPU in steps of
 * CPU_STEP, rounded down. Made for each model that is met; a visit that does not allow the model needs NOTHING_FITS. */
#define CPU_STEP 8
#define NOTHING_FITS INT16_MAX
struct needs {
    int16_t *milli; /* [sequences][padded]; NULL: not made yet */
    int16_t *cpu;
};

struct row { /* scores of one shape, by node; a stamp is the low half of the node's version + 1, 0 never */
    int64_t owner;
    int64_t prices;     /* the prices that the scores were made with */
    uint32_t *gain_at;  /* stamp of shared[] and alone[] */
    uint32_t *score_at; /* stamp of score[] */
    double *shared;     /* change of value on the best device that is in use already; -INFINITY none */
    double *alone;      /* the same on an idle one; also the only change for shapes without a rest */
    int64_t *score;
};

struct aliquot_future {
    int64_t nodes, gpus;
    /* sequences */
    aliquot_visit *visits;
    double *weight;
    int64_t sequences, visit_count, padded; /* padded: visit_count up to a multiple of 64 */
    struct needs needs[ALIQUOT_MODELS];
    int32_t least_need, least_cpu;
    /* memo of values: open addressing, `words` of key each */
    uint64_t *key;
    double *value;
    int64_t slots_used, words;
    int64_t work;
    /* per node */
    double *before;
    uint32_t *before_at;
    double *worth; /* of the node's multi-GPU slots */
    uint32_t *worth_at;
    /* scores */
    struct row *rows;
    int64_t row_count;
    /* prices */
    aliquot_slot *slots;
    int64_t slot_count, prices;
    double model_price[ALIQUOT_MODELS];
    double chi;
};

/* The devices of a node as the sequences see them: left ascending, with its model. */
struct state {
    int64_t cpu_milli, memory_mib;
    int32_t model;
    int32_t gpus; /* devices that are there */
    int32_t idle; /* of them untouched */
    int16_t left[ALIQUOT_MAX_GPUS];
};

double value_of(aliquot_future *future, const struct state *state);
int value_reset(aliquot_future *future);
void value_drop_needs(aliquot_future *future);
