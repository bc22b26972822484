/* captureinfo.c: what a program asks about the capture that a stream takes part in. */
#include "graph.h"

CUresult cuStreamIsCapturing(CUstream handle, int *status);

API CUresult cuStreamGetCaptureInfo_v3(CUstream handle, int *status, uint64_t *id, CUgraph *g, const CUgraphNode **deps,
                                       const CUedge **edges, size_t *count)
{
    CUresult r = cuStreamIsCapturing(handle, status);
    if (r)
        return r;
    CUstream s = emu_stream(handle);
    bool active = *status == 1;
    if (id)
        *id = active ? s->capture->id : 0;
    if (g)
        *g = active ? s->capture->graph : NULL;
    if (deps)
        *deps = active ? s->deps : NULL;
    if (edges)
        *edges = NULL;
    if (count)
        *count = active ? s->dep_count : 0;
    return CU_OK;
}

API CUresult cuStreamGetCaptureInfo_v2(CUstream s, int *status, uint64_t *id, CUgraph *g, const CUgraphNode **deps,
                                       size_t *count)
{
    return cuStreamGetCaptureInfo_v3(s, status, id, g, deps, NULL, count);
}

API CUresult cuStreamGetCaptureInfo(CUstream s, int *status, uint64_t *id)
{
    return cuStreamGetCaptureInfo_v3(s, status, id, NULL, NULL, NULL, NULL);
}
