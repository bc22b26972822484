#include "emu.h"
CUresult emu_capture_add(CUstream s, int type, const void *params, size_t size, CUgraphNode *out){return CU_NOT_SUPPORTED;}
CUresult emu_capture_event(CUstream s, CUevent e){return CU_NOT_SUPPORTED;}
CUresult emu_capture_wait(CUstream s, CUevent e){return CU_NOT_SUPPORTED;}
bool emu_capturing_in(CUcontext c){return false;}
void emu_capture_invalidate(CUstream s){}
CUdeviceptr emu_node_ptr(CUgraphNode n){return 0;}
CUresult emu_forbid_in_capture(void){return 0;}
