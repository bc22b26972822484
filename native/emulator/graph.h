/* graph.h: graphs, their executable form and captures in progress. Guarded by graph_lock (graph.c). */
#ifndef EMU_GRAPH_H
#define EMU_GRAPH_H
#include "emu.h"

enum node_type { N_KERNEL, N_COPY, N_FILL, N_HOST, N_CHILD, N_EMPTY, N_WAIT, N_RECORD, N_ALLOC = 10, N_FREE };
typedef struct {
    CUkernelNode kernel; /* params and extra are forgotten: the duration was read from them */
    int64_t ns;
    emu_until until; /* at: 0 unless the kernel spins */
    CUmemcpy3d copy;
    CUmemsetNode fill;
    CUhostNode host;
    CUevent event;
    CUgraph child;
    CUallocNode alloc;
    CUdeviceptr ptr;
} node_params;
struct emu_node {
    emu_head object;
    enum node_type type;
    CUgraph graph;
    CUgraphNode next, *deps, origin; /* origin: the node this one was cloned from */
    size_t dep_count;
    node_params p;
    bool mark;
    unsigned id;
};
/* owned: by a node or a capture, so that the program may not destroy it. moved: it is its parent's, and of its own no more
 * than a part of that. */
struct emu_graph {
    emu_head object;
    CUgraphNode first, last;
    size_t count;
    unsigned id;
    bool owned, moved;
};
typedef struct {
    CUgraphNode origin;
    enum node_type type;
    node_params p;
    bool enabled;
} exec_node;
struct emu_gexec {
    emu_head object;
    CUcontext ctx;
    uint64_t life;
    exec_node *nodes;
    size_t count;
    uint64_t flags;
    int dev;
    unsigned id;
};
struct emu_capture {
    emu_head object;
    struct emu_capture *next;
    CUstream members;
    CUgraph graph;
    CUstream origin;
    pthread_t thread;
    int mode;
    uint64_t id;
    bool invalid, given; /* given: the graph is one that the program made */
};
#define NEED_GRAPH(g)                                                                                                  \
    do {                                                                                                               \
        if (!emu_object_alive(g, KIND_GRAPH))                                                                          \
            return CU_INVALID;                                                                                         \
    } while (0)
#define NEED_NODE(n)                                                                                                   \
    do {                                                                                                               \
        if (!emu_object_alive(n, KIND_NODE))                                                                           \
            return CU_INVALID;                                                                                         \
    } while (0)

/* gmemory.c */
CUresult graph_memory_new(CUallocNode *node);
void graph_memory_hold(CUdeviceptr at, int change); /* one node or executable more, or fewer */
CUresult graph_memory_upload(CUgraphExec e);
CUresult graph_memory_launch(CUgraphExec e);
void graph_memory_unlaunch(CUgraphExec e); /* nothing of it got into a stream */

extern pthread_mutex_t graph_lock;
CUgraph graph_new(void); /* NULL: no memory */
void graph_end(CUgraph g);
bool graph_has(CUgraph g, const CUgraphNode *nodes, size_t count);
CUresult graph_add(CUgraphNode *out, CUgraph g, const CUgraphNode *deps, size_t count, int type, const void *params);
void graph_mark_ancestors(CUgraphNode n);
CUresult graph_order(CUgraph g, CUgraphNode **list);    /* malloc'ed */
CUresult graph_fill(CUgraphNode n, const void *params); /* with what a node of its type is made of */
CUresult cuGraphClone(CUgraph *out, CUgraph g);
#endif
