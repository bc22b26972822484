/* config.h: what emulator.conf and the environment say about this machine. */
#ifndef EMU_CONFIG_H
#define EMU_CONFIG_H
#include <stdbool.h>
#include <stdint.h>
#define EMU_GPUS 16
#define EMU_KERNELS 64

typedef struct {
    unsigned char uuid[16];
    char pci[24];
    char cpus[64];
    int numa, minor;
    bool mig;
    char model[96];
} emu_board;
typedef struct {
    char directory[400], model[96], driver_name[32], board[32];
    bool unread;             /* emulator.conf is there and could not be read: nothing of this is so */
    int strict;              /* refuse, or end the program, where a real driver may */
    int lazy;                /* code is loaded when it is first used, and takes its memory then */
    unsigned capture_unsafe; /* what else is unsafe in a capture, see emu_unsafe_call */
    int capture_status_needs_context;
    int count, cuda_version, major, minor, sms, clock_khz, mem_clock_khz, bus_bits, l2_bytes, shared_sm, power_w;
    int threads_sm, nvlinks, pcie_width, pcie_gen;
    uint64_t memory, context, module;
    int64_t default_kernel_ns, slice_ns;
    int64_t launch_ns, event_ns, query_ns, event_gpu_ns; /* what calls cost the host, and an event the stream */
    emu_board gpu[EMU_GPUS];
    emu_board all[EMU_GPUS]; /* of the machine, as engine.shm counts */
    int machine;
    int place[EMU_GPUS]; /* which GPU of engine.shm device i is: the same one, but for CUDA_VISIBLE_DEVICES */
    char link[EMU_GPUS][EMU_GPUS][8]; /* PIX, PXB, PHB, NODE, SYS or NV<n> as nvidia-smi prints them */
    struct {
        char name[96];
        int64_t ns;
    } kernel[EMU_KERNELS];
    int kernels;
    struct {
        long oom_after, sticky_after, hang_after; /* nth call of its kind, -1: never */
        double slow;
        int nvml_pid_shift;
        bool nvml_processes_unsupported, nvml_utilization_unsupported, nvml_minor_unsupported,
            nvml_recovery_unsupported;
        char missing[8][64];
        int missing_count;
    } fault;
} emu_config;

const emu_config *emu_conf(void);
void emu_show(emu_config *conf); /* in libcuda only: leaves the devices that CUDA_VISIBLE_DEVICES names, in its order */
#endif
