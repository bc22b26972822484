/* cuda_api.h: the facts about CUDA's and NVML's binary interface that the hook needs, in our own words.
 *
 * Handles are void *, enumerations int. Only the fields that are read are named; what follows them is never touched.
 */
#ifndef ALIQUOT_CUDA_API_H
#define ALIQUOT_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef unsigned long long CUdeviceptr;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_SYSTEM_NOT_READY = 802,
    CUDA_ERROR_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_CAPTURE_UNJOINED = 904,
};

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_LIBRARY_NOT_FOUND = 12,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
};

#define STREAM_LEGACY ((void *)1)
#define STREAM_PER_THREAD ((void *)2)
#define LOCATION_DEVICE 1
#define MANAGED_GLOBAL 1
#define MANAGED_HOST 2
#define CAPTURE_MODE_RELAXED 2
#define CAPTURE_INVALIDATED 2 /* of cuStreamIsCapturing */
#define POOL_RELEASE_THRESHOLD 4
#define POOL_RESERVED_CURRENT 5
#define POOL_USED_CURRENT 7
#define GRAPH_RESERVED_CURRENT 2
#define SHARE_FD 1
#define SHARE_FABRIC 8
#define ARRAY_SPARSE 0x40
#define ARRAY_DEFERRED 0x80
#define NODE_GRAPH 4
#define NODE_MEM_ALLOC 10
#define GRAPH_MOVED 1
#define ALLOCATION_PINNED 1
#define GREEN_DEFAULT_STREAM 1

struct launch_config {
    unsigned grid[3], block[3], shared;
    void *hStream;
};

struct copy2d {
    size_t src_x, src_y;
    int src_type;
    const void *src_host;
    CUdeviceptr src_device;
    void *src_array;
    size_t src_pitch, dst_x, dst_y;
    int dst_type;
    void *dst_host;
    CUdeviceptr dst_device;
    void *dst_array;
    size_t dst_pitch, width, height;
};

struct copy3d {
    size_t src_x, src_y, src_z, src_level;
    int src_type;
    const void *src_host;
    CUdeviceptr src_device;
    void *src_array, *src_context; /* the contexts: of cuMemcpy3DPeer alone */
    size_t src_pitch, src_height, dst_x, dst_y, dst_z, dst_level;
    int dst_type;
    void *dst_host;
    CUdeviceptr dst_device;
    void *dst_array, *dst_context;
    size_t dst_pitch, dst_height, width, height, depth;
};

enum { BOX_POINTER = 1, BOX_ARRAY = 2 };
struct copy_box {
    struct {
        int type;
        union {
            CUdeviceptr at;
            size_t words[4];
        };
    } src, dst;
    size_t width, height, depth;
    unsigned order, flags;
};

struct launch_params {
    void *function;
    unsigned grid[3], block[3], shared;
    void *stream;
    void **params;
};

struct mem_location { int type, id; };

struct allocation_prop {
    int type, handle_types;
    struct mem_location location;
    const void *security;
    uint64_t flags;
};

struct multicast_prop {
    unsigned devices;
    size_t bytes;
    uint64_t handle_types, flags;
};

struct pool_props {
    int type, handle_types;
    struct mem_location location;
    void *security;
    size_t max_size;
    unsigned char reserved[56];
};

struct ipc_handle { char bytes[64]; }; /* by value */
struct alloc_node {
    struct pool_props pool;
    const void *access;
    size_t access_count;
    size_t bytes;
    CUdeviceptr ptr;
};

/* CUgraphNodeParams: the type, three words of padding, then a union that begins with the node's own parameters. */
struct node_params {
    int type;
    int reserved[3];
    union {
        struct alloc_node alloc;
        struct {
            void *graph;
            int ownership;
        } child;
    };
};

struct array_v1 {
    unsigned width, height;
    int format;
    unsigned channels;
};

struct array_v2 {
    size_t width, height;
    int format;
    unsigned channels;
};

struct array3d_v1 {
    unsigned width, height, depth;
    int format;
    unsigned channels, flags;
};

struct array3d_v2 {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};

struct array_requirements {
    size_t bytes, alignment;
    unsigned reserved[4];
};

struct nvml_memory { unsigned long long total, free, used; };

struct nvml_memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct nvml_process_v1 {
    unsigned pid;
    unsigned long long bytes;
};

struct nvml_process_v2 {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

struct nvml_process_detail {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
    unsigned long long protected_bytes;
};

struct nvml_process_details {
    unsigned version, mode, count;
    struct nvml_process_detail *rows;
};

struct nvml_process_sample {
    unsigned pid;
    unsigned long long at_us;
    unsigned sm, memory, encoder, decoder;
};

struct nvml_process_usage {
    unsigned long long at_us;
    unsigned pid, sm, memory, encoder, decoder, jpeg, optical_flow;
};

struct nvml_processes_usage {
    unsigned version, count;
    unsigned long long last_seen_us;
    struct nvml_process_usage *rows;
};

struct nvml_utilization { unsigned gpu, memory; };

struct nvml_sample {
    unsigned long long at_us;
    union {
        double real;
        unsigned number;
        unsigned long long large;
    } value;
};

#endif
