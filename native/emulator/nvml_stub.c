/* nvml_stub.c: every NVML name exists; what is not implemented says NOT_SUPPORTED (3). */
#define NVML(name)                                                                                                     \
    __attribute__((weak, visibility("default"))) int name(void) { return 3; }
#include "../symbols/nvml.def"
