// Opens libcuda.so.1 from Go and prints the device's memory in MiB as CUDA tells it.
package main

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stddef.h>
static size_t total_mib(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
    int device = 0;
    size_t left = 0, total = 0;
    if (!library)
        return 0;
    ((int (*)(unsigned))dlsym(library, "cuInit"))(0);
    ((int (*)(int *, int))dlsym(library, "cuDeviceGet"))(&device, 0);
    ((int (*)(void **, int))dlsym(library, "cuDevicePrimaryCtxRetain"))(&context, device);
    ((int (*)(void *))dlsym(library, "cuCtxSetCurrent"))(context);
    ((int (*)(size_t *, size_t *))dlsym(library, "cuMemGetInfo_v2"))(&left, &total);
    return total >> 20;
}
*/
import "C"

import (
	"fmt"
	"runtime"
)

func main() {
	runtime.LockOSThread()
	if total := C.total_mib(); total != 0 {
		fmt.Println(total)
	} else {
		fmt.Println("no-driver")
	}
}
