/* code.c: the memory that code takes, once for each context that a module or library is loaded in.
 *
 * With lazy loading, which is the default in strict mode as on hardware (CUDA_MODULE_LOADING), that is when a kernel of
 * it is first used there: cuModuleGetFunction, cuKernelGetFunction, a launch. Otherwise it is when it is loaded; a
 * library that is loaded without a context waits for the first one.
 */
#include <stdlib.h>
#include "emu.h"
#include "shm.h"

typedef struct code {
    struct code *next;
    CUmodule module;
    CUcontext ctx;
    int dev;
    uint64_t bytes;
} code;
static code *all;

static bool has(const CUmodule m, const CUcontext c)
{
    for (code *at = all; at; at = at->next)
        if (at->module == m && at->ctx == c)
            return true;
    return false;
}

bool emu_code_loaded(CUmodule m, CUcontext c) { return has(m, c ? emu_root(c) : NULL); }

CUresult emu_code_load(CUmodule m, CUcontext c)
{
    CUcontext root = c ? emu_root(c) : NULL;
    if ((c && !c->alive) || !emu_object_alive(m, KIND_MODULE))
        return CU_CONTEXT_DESTROYED; /* by another thread, just now */
    if (has(m, root))
        return CU_OK;
    code fresh = {.next = all, .module = m, .ctx = root, .dev = c ? c->dev : 0, .bytes = emu_conf()->module};
    code *at = malloc(sizeof *at);
    if (!at || shm_charge(fresh.dev, fresh.bytes) != 0) {
        free(at);
        return CU_OOM;
    }
    *at = fresh;
    all = at;
    return CU_OK;
}

/* Asked on every launch of a library's kernel: the last life of a context that it ran in is remembered. */
CUresult emu_code_use(CUfunction f, CUcontext c)
{
    if (!emu_conf()->strict || !c || f->loaded_in == c->life)
        return CU_OK;
    CUresult r = emu_code_load(f->module, c);
    if (!r)
        f->loaded_in = c->life;
    return r;
}

void emu_code_end(CUmodule m, CUcontext c)
{
    for (code **at = &all; *at;) {
        code *one = *at;
        if (one->module != m && one->ctx != c) {
            at = &one->next;
            continue;
        }
        *at = one->next;
        shm_release(one->dev, one->bytes);
        free(one);
    }
}
