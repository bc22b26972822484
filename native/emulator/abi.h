/* abi.h: the driver interface's types as this twin needs them; own declarations of facts, 64-bit only.
 *
 * Handles are pointers to the twin's own structures (see emu.h); device pointers are host addresses.
 */
#ifndef EMU_ABI_H
#define EMU_ABI_H
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct emu_ctx *CUcontext;
typedef struct emu_stream *CUstream;
typedef struct emu_event *CUevent;
typedef struct emu_module *CUmodule;
typedef struct emu_func *CUfunction;
typedef struct emu_graph *CUgraph;
typedef struct emu_node *CUgraphNode;
typedef struct emu_gexec *CUgraphExec;
typedef struct emu_pool *CUmemoryPool;
typedef struct emu_array *CUarray;
typedef void (*CUhostFn)(void *);
typedef void (*CUstreamCallback)(CUstream, CUresult, void *);

enum {
    CU_OK = 0,
    CU_INVALID = 1,
    CU_OOM = 2,
    CU_NOT_INITIALIZED = 3,
    CU_DEINITIALIZED = 4,
    CU_NO_DEVICE = 100,
    CU_INVALID_DEVICE = 101,
    CU_INVALID_IMAGE = 200,
    CU_INVALID_CONTEXT = 201,
    CU_PEER_ON = 704,
    CU_PEER_OFF = 705,
    CU_FILE_NOT_FOUND = 301,
    CU_INVALID_HANDLE = 400,
    CU_NOT_FOUND = 500,
    CU_NOT_READY = 600,
    CU_ILLEGAL_ADDRESS = 700,
    CU_LAUNCH_RESOURCES = 701,
    CU_PRIMARY_ACTIVE = 708,
    CU_CONTEXT_DESTROYED = 709,
    CU_NOT_PERMITTED = 800,
    CU_NOT_SUPPORTED = 801,
    CU_CAPTURE_UNSUPPORTED = 900,
    CU_CAPTURE_INVALIDATED = 901,
    CU_CAPTURE_MERGE = 902,
    CU_CAPTURE_UNMATCHED = 903,
    CU_CAPTURE_UNJOINED = 904,
    CU_CAPTURE_ISOLATION = 905,
    CU_CAPTURE_IMPLICIT = 906,
    CU_CAPTURED_EVENT = 907,
    CU_CAPTURE_WRONG_THREAD = 908,
    CU_GRAPH_UPDATE_FAILURE = 910,
};

typedef struct { unsigned char bytes[16]; } CUuuid;
typedef struct {
    int type;
    int id;
} CUmemLocation;
typedef struct {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;
typedef struct {
    unsigned gx, gy, gz, bx, by, bz, shared;
    CUstream stream;
    void *attrs;
    unsigned attr_count;
} CUlaunchConfig;
typedef struct {
    size_t src_x, src_y;
    int src_type;
    const void *src_host;
    CUdeviceptr src_dev;
    CUarray src_array;
    size_t src_pitch;
    size_t dst_x, dst_y;
    int dst_type;
    void *dst_host;
    CUdeviceptr dst_dev;
    CUarray dst_array;
    size_t dst_pitch;
    size_t width, height;
} CUmemcpy2d;
typedef struct {
    size_t src_x, src_y, src_z, src_lod;
    int src_type;
    const void *src_host;
    CUdeviceptr src_dev;
    CUarray src_array;
    void *src_ctx;
    size_t src_pitch, src_height;
    size_t dst_x, dst_y, dst_z, dst_lod;
    int dst_type;
    void *dst_host;
    CUdeviceptr dst_dev;
    CUarray dst_array;
    void *dst_ctx;
    size_t dst_pitch, dst_height;
    size_t width, height, depth;
} CUmemcpy3d;
typedef struct {
    size_t width, height;
    int format;
    unsigned channels;
} CUarray2d;
typedef struct {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
} CUarray3d;
typedef struct {
    int alloc_type, handle_types;
    CUmemLocation location;
    void *security;
    size_t max_size;
    unsigned short usage;
    unsigned char reserved[54];
} CUpoolProps;
typedef struct {
    int type, handle_types;
    CUmemLocation location;
    void *metadata;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
} CUallocProp;
typedef struct {
    CUfunction func;
    unsigned gx, gy, gz, bx, by, bz, shared;
    void **params;
    void **extra;
    CUfunction kern; /* from here on only in the second version */
    CUcontext ctx;
} CUkernelNode;
typedef struct {
    CUdeviceptr dst;
    size_t pitch;
    unsigned value, element;
    size_t width, height;
} CUmemsetNode;
typedef struct {
    CUhostFn fn;
    void *data;
} CUhostNode;
typedef struct {
    CUpoolProps props;
    const CUmemAccessDesc *access;
    size_t access_count, bytes;
    CUdeviceptr dptr;
} CUallocNode;
typedef struct {
    CUgraph graph;
    int moved;
} CUchildNode; /* moved: the program's graph itself, not a copy */
typedef struct { unsigned char from, to, type, reserved[5]; } CUedge;
typedef struct {
    int type, reserved[3];
    union {
        CUkernelNode kernel;
        struct {
            int flags, reserved;
            CUcontext ctx;
            CUmemcpy3d copy;
        } memcpy_;
        CUmemsetNode memset_;
        CUhostNode host;
        CUchildNode child;
        CUevent event;
        CUallocNode alloc;
        CUdeviceptr free;
        char bytes[232];
    } u;
    int64_t reserved2;
} CUnodeParams;
#endif
