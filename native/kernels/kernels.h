/* kernels.h: the inner loops of placement, as plain functions over the columns of a cluster.
 *
 * Every function here has a plain Python oracle of the same answers (tests/plain_kernels.py); doubles are computed in
 * the same order, so results are equal to the last bit. Nothing here keeps a pointer of the caller beyond the call,
 * knows a clock, locks, or writes to a stream. A handle belongs to one thread at a time.
 *
 * Failure policy: a function that can run out of memory returns ALIQUOT_NO_MEMORY and leaves its handle usable.
 */
#pragma once
#include <stdint.h>

#define ALIQUOT_KERNELS_ABI 1
#define ALIQUOT_API __attribute__((visibility("default")))
#define ALIQUOT_NO_MEMORY (-12)
#define ALIQUOT_MODELS 32 /* bits of a set of models; model 31 and all later ones share the last bit */
#define ALIQUOT_MAX_GPUS 64
#define ALIQUOT_IDLE 1000

/* The columns of a cluster (placement.cluster.Cluster), row-major, never written here. */
typedef struct {
    int64_t nodes;              /* N */
    int64_t gpus;               /* G, the columns of the device arrays, at most ALIQUOT_MAX_GPUS */
    const int32_t *free_milli;  /* [N][G], -1 where there is no device */
    const int64_t *free_mib;    /* [N][G] */
    const int64_t *size_mib;    /* [N][G] */
    const int16_t *model;       /* [N][G], -1 none */
    const int64_t *cpu_free;    /* [N] milli */
    const int64_t *memory_free; /* [N] MiB */
    const int64_t *version;     /* [N], another number after every change of the node */
} aliquot_view;

/* What is asked; `models` has one bit for each allowed GPU model (all ones: any). */
typedef struct {
    int64_t id; /* small number that stands for the shape in memos, from 0 */
    int64_t cpu_milli;
    int64_t memory_mib;
    int64_t gpu_mib;     /* of the shared device (or of a single whole one); 0: by gpu_mem_ppm */
    int64_t gpu_mem_ppm; /* parts per million of the shared device's memory; 0: same part as compute */
    int32_t whole;
    int32_t rest_milli;
    uint32_t models;
    uint32_t unused;
} aliquot_shape;

/* ---- scan.c: which nodes can hold it, and how much is idle ------------------------------------------------------- */

/* Idle milli-GPU per model bit: idle[ALIQUOT_MODELS]; returns the total. A device counts what both its compute and its
 * memory leave (the smaller part). */
ALIQUOT_API int64_t aliquot_idle(const aliquot_view *view, int64_t *idle);

/* ---- fgd.c: fragmentation gradient descent (Weng et al., USENIX ATC'23, sections 3 and 4) ------------------------ */

/* One shape of the target workload with its share of the tasks. num is 0 for a CPU-only shape; milli is per GPU. */
typedef struct {
    int64_t cpu_milli;
    int32_t milli;
    int32_t num;
    uint32_t models;
    uint32_t unused;
    double share;
} aliquot_target;

/* amount[i] = expected idle milli-GPU of nodes[i] that the next pod of the target workload cannot use: the classes
 * are each summed over the targets in order and added as ((((q1+q2)+q4)+xl)+xr)+no_access, which is what the published
 * figures need. For the policy `fgd` and for the fragmentation metric of the simulator. */
ALIQUOT_API void aliquot_fragmentation(const aliquot_view *view, const aliquot_target *targets, int64_t count,
                                       const int64_t *nodes, int64_t node_count, double *amount);

/* score[i] = int(100 * sigmoid((F_before - F_after) / 1000)) of nodes[i], all of which fit the shape; gpu[i] = the
 * device a fractional shape takes (first of the largest integer score), -1 otherwise. `before` is the answer of
 * aliquot_fragmentation for all N nodes of the view, indexed by node. */
ALIQUOT_API void aliquot_fgd_scores(const aliquot_view *view, const aliquot_target *targets, int64_t count,
                                    const aliquot_shape *shape, const double *before, const int64_t *nodes,
                                    int64_t node_count, int64_t *score, int16_t *gpu);

/* ---- future.c, value.c: expected future fill (docs/policy-aliquot.md) -------------------------------------------- */

/* One future arrival of a sequence. */
typedef struct {
    int32_t cpu_milli;
    int32_t worth_milli; /* what it adds when it is placed, all its GPUs together */
    int16_t need_milli;  /* of the shared device: compute or memory, whichever is the larger part; 0 none */
    int16_t whole;
    uint32_t models;
} aliquot_visit;

/* A place for a pod of several GPUs, with the price of losing one. */
typedef struct {
    double gpus;
    double cpu_milli;  /* 0: asks none */
    double memory_mib; /* 0: asks none */
    double price;      /* milli-GPU per slot */
    uint32_t models;
    uint32_t unused;
} aliquot_slot;

typedef struct aliquot_future aliquot_future;

/* A handle for clusters of `nodes` x `gpus`; at most `memo_bytes` are spent on scores per shape and node. NULL: no
 * memory. */
ALIQUOT_API aliquot_future *aliquot_future_new(int64_t nodes, int64_t gpus, int64_t memo_bytes);
ALIQUOT_API void aliquot_future_free(aliquot_future *future);

/* New sequences: visits[sequences][visit_count], weight[visit_count]. Forgets every value and score. */
ALIQUOT_API int aliquot_future_learn(aliquot_future *future, const aliquot_visit *visits, int64_t sequences,
                                     int64_t visit_count, const double *weight);

/* New prices: slots, milli price per milli of each model bit, and chi (0: whole slots only, 1: parts count too).
 * Forgets scores, keeps values. */
ALIQUOT_API int aliquot_future_price(aliquot_future *future, const aliquot_slot *slots, int64_t slot_count,
                                     const double *model_price, double chi);

/* capacity[i] = slots of that kind in the cluster, nodes with held[n] != 0 left out (held may be NULL). */
ALIQUOT_API void aliquot_future_capacity(const aliquot_view *view, const aliquot_slot *slots, int64_t slot_count,
                                         double chi, const uint8_t *held, double *capacity);

/* Milli-GPU that future arrivals put on a node with these devices: left[gpus] in any order. */
ALIQUOT_API double aliquot_future_value(aliquot_future *future, int32_t model, int64_t cpu_milli, const int32_t *left,
                                        int64_t gpus);

/* scores[i] = floor(d / quantum) for nodes[i], all of which fit the shape; d = change of value + change of slot
 * worth - model price. Returns the number of nodes, or ALIQUOT_NO_MEMORY. */
ALIQUOT_API int64_t aliquot_future_scores(aliquot_future *future, const aliquot_view *view, const aliquot_shape *shape,
                                          const int64_t *nodes, int64_t node_count, double quantum, int64_t *scores);

/* Brings the remembered scores of one shape up to date on all nodes that fit it and are open (open[n] != 0), by at most
 * `budget` values computed anew. 1: all are; 0: the budget was spent before; or ALIQUOT_NO_MEMORY. */
ALIQUOT_API int aliquot_future_tend(aliquot_future *future, const aliquot_view *view, const aliquot_shape *shape,
                                    const uint8_t *open, double quantum, int64_t budget);

/* d for the shape's shared part on device `gpu` of `node` (after its whole devices were taken by lowest index). */
ALIQUOT_API double aliquot_future_option(aliquot_future *future, const aliquot_view *view, const aliquot_shape *shape,
                                         int64_t node, int64_t gpu);

/* Values computed anew since the handle was made; what an idle slice is measured by. */
ALIQUOT_API int64_t aliquot_future_work(const aliquot_future *future);

ALIQUOT_API int aliquot_kernels_abi(void);
