/* fgd.c: fragmentation of a node for a target workload, and the score of the policy that descends along it.
 *
 * Source: Weng et al., "Beware of Fragmentation", USENIX ATC'23, sections 3 and 4; the order of the additions and the
 * truncation to an integer are those of the published artifact, whose figures depend on them.
 */
#include <math.h>

#include "device.h"

struct node {
    int64_t cpu_milli;
    uint32_t model;
    int gpus;
    int32_t left[ALIQUOT_MAX_GPUS]; /* in the order of the devices; 0 where there is none */
};

enum { Q1, Q2, Q4, XL, XR, NO_ACCESS, CLASSES };

static void load(const aliquot_view *view, int64_t at, struct node *node)
{
    node->cpu_milli = view->cpu_free[at];
    node->gpus = (int)view->gpus;
    node->model = 0;
    for (int g = 0; g < node->gpus; g++) {
        int64_t device = at * view->gpus + g;
        node->left[g] = view->free_milli[device] > 0 ? view->free_milli[device] : 0;
        node->model |= model_bit(view->model[device]);
    }
}

static double fragmentation(const struct node *node, const aliquot_target *targets, int64_t count)
{
    double of[CLASSES] = {0};
    int64_t idle = 0;
    for (int g = 0; g < node->gpus; g++)
        idle += node->left[g];
    for (int64_t t = 0; t < count; t++) {
        const aliquot_target *target = &targets[t];
        int cpu = node->cpu_milli >= target->cpu_milli;
        if (target->num == 0) {
            of[cpu ? XL : XR] += target->share * (double)idle;
        } else if (!(node->model & target->models)) {
            of[NO_ACCESS] += target->share * (double)idle;
        } else {
            int fitting = 0;
            int64_t unusable = 0;
            for (int g = 0; g < node->gpus; g++) {
                if (node->left[g] >= target->milli)
                    fitting++;
                else
                    unusable += node->left[g];
            }
            if (fitting >= target->num && cpu)
                of[Q2] += target->share * (double)unusable;
            else
                of[fitting >= target->num ? Q4 : cpu ? Q2 : Q1] += target->share * (double)idle;
        }
    }
    return ((((of[Q1] + of[Q2]) + of[Q4]) + of[XL]) + of[XR]) + of[NO_ACCESS];
}

void aliquot_fragmentation(const aliquot_view *view, const aliquot_target *targets, int64_t count, const int64_t *nodes,
                           int64_t node_count, double *amount)
{
    struct node node;
    for (int64_t i = 0; i < node_count; i++) {
        load(view, nodes[i], &node);
        amount[i] = fragmentation(&node, targets, count);
    }
}

static int64_t gradient(double before, double after)
{
    return (int64_t)(100.0 * (1.0 / (1.0 + exp(-((before - after) / 1000.0)))));
}

static int64_t fractional(const aliquot_view *view, const aliquot_target *targets, int64_t count,
                          const aliquot_shape *shape, double before, int64_t at, struct node *node, int16_t *gpu)
{
    int64_t best = -1;
    for (int g = 0; g < node->gpus; g++) {
        if (node->left[g] < shape->rest_milli || !rest_fits(view, shape, at * view->gpus + g))
            continue; /* or taken */
        int seen = 0;
        for (int h = 0; h < g; h++)
            seen |= node->left[h] == node->left[g] && rest_fits(view, shape, at * view->gpus + h);
        if (seen)
            continue; /* an equal device before this one has the same score */
        node->left[g] -= shape->rest_milli;
        int64_t score = gradient(before, fragmentation(node, targets, count));
        node->left[g] += shape->rest_milli;
        if (score > best) {
            best = score;
            *gpu = (int16_t)g;
        }
    }
    return best;
}

void aliquot_fgd_scores(const aliquot_view *view, const aliquot_target *targets, int64_t count,
                        const aliquot_shape *shape, const double *before, const int64_t *nodes, int64_t node_count,
                        int64_t *score, int16_t *gpu)
{
    struct node node;
    for (int64_t i = 0; i < node_count; i++) {
        int64_t at = nodes[i];
        load(view, at, &node);
        node.cpu_milli -= shape->cpu_milli;
        gpu[i] = -1;
        int32_t whole = shape->whole;
        for (int g = 0; g < node.gpus && whole > 0; g++)
            if (is_idle(view, at * view->gpus + g) && (shape->models & model_bit(view->model[at * view->gpus + g]))) {
                node.left[g] = 0;
                whole--;
            }
        if (shape->rest_milli > 0)
            score[i] = fractional(view, targets, count, shape, before[at], at, &node, &gpu[i]);
        else
            score[i] = gradient(before[at], fragmentation(&node, targets, count));
    }
}
