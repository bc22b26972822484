/* module.c: modules, libraries and the kernels in them. A kernel and a function are the same object here. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "emu.h"
#include "shm.h"

static CUfunction add_function(CUmodule m, const char *name)
{
    const emu_config *c = emu_conf();
    CUfunction f = emu_object_new(KIND_FUNCTION, sizeof *f);
    f->module = m;
    f->name = strdup(name);
    f->attrs[0] = 1024;
    f->attrs[4] = 32;
    f->attrs[5] = f->attrs[6] = c->major * 10 + c->minor;
    f->attrs[8] = 48 << 10;
    f->attrs[9] = -1;
    f->next = m->funcs;
    m->funcs = f;
    return f;
}

static void belong(CUmodule m, CUcontext c)
{
    pthread_mutex_lock(&emu_lock);
    m->ctx = c;
    m->next = c->modules;
    m->at_prev = &c->modules;
    if (m->next)
        m->next->at_prev = &m->next;
    c->modules = m;
    pthread_mutex_unlock(&emu_lock);
}

static void leave(CUmodule m)
{
    pthread_mutex_lock(&emu_lock);
    if (m->at_prev)
        *m->at_prev = m->next;
    if (m->next)
        m->next->at_prev = m->at_prev;
    pthread_mutex_unlock(&emu_lock);
}

/* A launch keeps only the kernel's time, so that nothing here outlives the module. */
static void finish(CUmodule m, enum emu_end how)
{
    for (CUfunction f = m->funcs, next; f; f = next) {
        next = f->next;
        free(f->name);
        free(f->legacy);
        emu_object_end(f, how);
        emu_object_free(f);
    }
    for (struct emu_global *g = m->globals, *next; g; g = next) {
        next = g->next;
        if (how == END_DESTROYED)
            emu_mem_drop(g->ptr);
        free(g->name);
        free(g);
    }
    emu_code_end(m, (CUcontext)-1);
    emu_object_end(m, how);
    emu_object_free(m);
}

void emu_modules_end(CUcontext c)
{
    while (c->modules) {
        CUmodule m = c->modules;
        leave(m);
        finish(m, END_WITH_CONTEXT);
    }
    emu_code_end((CUmodule)-1, c);
}

static CUresult load(CUmodule *out, const void *image, size_t size, bool library)
{
    if (!out || !image)
        return CU_INVALID;
    size_t count;
    char **names = emu_entry_names(image, size, &count);
    CUmodule m = emu_object_new(KIND_MODULE, sizeof *m);
    m->dev = emu_context() ? emu_context()->dev : 0;
    m->library = library;
    bool now = !emu_conf()->lazy && (emu_context() || !emu_conf()->strict);
    if (now && emu_code_load(m, emu_context()) != CU_OK) {
        for (size_t i = 0; i < count; i++)
            free(names[i]);
        free(names);
        finish(m, END_DESTROYED);
        return CU_OOM;
    }
    if (!library)
        belong(m, emu_context());
    for (size_t i = 0; i < count; i++) {
        add_function(m, names[i]);
        free(names[i]);
    }
    free(names);
    m->known = count > 0;
    *out = m;
    return CU_OK;
}

static CUresult load_file(CUmodule *out, const char *path, bool library)
{
    struct stat st;
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0 || fstat(fd, &st) != 0 || st.st_size < 4) {
        if (fd >= 0)
            close(fd);
        return CU_FILE_NOT_FOUND;
    }
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (p == MAP_FAILED)
        return CU_FILE_NOT_FOUND;
    CUresult r = load(out, p, (size_t)st.st_size, library);
    munmap(p, (size_t)st.st_size);
    return r;
}

#define LOADABLE() do { NEED_CTX(); CUresult c_ = emu_forbid_in_capture(); if (c_) return c_; } while (0)
API CUresult cuModuleLoad(CUmodule *m, const char *path) { LOADABLE(); return load_file(m, path, false); }
API CUresult cuModuleLoadData(CUmodule *m, const void *image) { LOADABLE(); return load(m, image, 0, false); }
API CUresult cuModuleLoadFatBinary(CUmodule *m, const void *image) { LOADABLE(); return load(m, image, 0, false); }

API CUresult cuModuleLoadDataEx(CUmodule *m, const void *image, unsigned n, int *options, void **values)
{
    LOADABLE();
    return load(m, image, 0, false);
}

API CUresult cuLibraryLoadData(CUmodule *m, const void *code, int *jit, void **jit_values, unsigned jit_count,
                               int *options, void **values, unsigned count)
{
    NEED_INIT();
    return load(m, code, 0, true);
}

API CUresult cuLibraryLoadFromFile(CUmodule *m, const char *path, int *jit, void **jit_values, unsigned jit_count,
                                   int *options, void **values, unsigned count)
{
    NEED_INIT();
    return load_file(m, path, true);
}

static CUresult unload(CUmodule m, const char *call)
{
    CUresult r = emu_use_last(m, KIND_MODULE, call);
    if (r)
        return r;
    r = emu_forbid_in_capture();
    if (r)
        return r;
    leave(m);
    finish(m, END_DESTROYED);
    return CU_OK;
}

API CUresult cuModuleUnload(CUmodule m) { NEED_INIT(); return unload(m, __func__); }
API CUresult cuLibraryUnload(CUmodule m) { NEED_INIT(); return unload(m, __func__); }

API CUresult cuModuleGetFunction(CUfunction *out, CUmodule m, const char *name)
{
    NEED_INIT();
    NEED_LIVE(m, KIND_MODULE);
    if (!out || !name)
        return CU_INVALID;
    pthread_mutex_lock(&emu_lock);
    CUfunction f = m->funcs;
    while (f && strcmp(f->name, name))
        f = f->next;
    if (!f && !m->known)
        f = add_function(m, name);
    pthread_mutex_unlock(&emu_lock);
    *out = f;
    return !f ? CU_NOT_FOUND : m->ctx ? emu_code_use(f, m->ctx) : CU_OK;
}

API CUresult cuLibraryGetKernel(CUfunction *out, CUmodule m, const char *name)
{
    return cuModuleGetFunction(out, m, name);
}

static CUresult use(CUmodule m) { return emu_conf()->strict ? emu_code_load(m, emu_context()) : CU_OK; }

API CUresult cuLibraryGetModule(CUmodule *out, CUmodule m) { NEED_CTX(); NEED_LIVE(m, KIND_MODULE); *out = m; return use(m); }
API CUresult cuKernelGetFunction(CUfunction *out, CUfunction k) { NEED_CTX(); NEED_LIVE(k, KIND_FUNCTION); *out = k; return emu_code_use(k, emu_context()); }
API CUresult cuKernelGetLibrary(CUmodule *out, CUfunction k) { NEED_INIT(); NEED_LIVE(k, KIND_FUNCTION); *out = k->module; return CU_OK; }
API CUresult cuFuncGetModule(CUmodule *out, CUfunction f) { NEED_INIT(); NEED_LIVE(f, KIND_FUNCTION); *out = f->module; return CU_OK; }
API CUresult cuFuncGetName(const char **name, CUfunction f) { NEED_INIT(); NEED_LIVE(f, KIND_FUNCTION); *name = f->name; return CU_OK; }
API CUresult cuKernelGetName(const char **name, CUfunction f) { NEED_INIT(); NEED_LIVE(f, KIND_FUNCTION); *name = f->name; return CU_OK; }
API CUresult cuFuncIsLoaded(int *state, CUfunction f) { NEED_INIT(); NEED_LIVE(f, KIND_FUNCTION); *state = !emu_conf()->strict || emu_code_loaded(f->module, emu_context()); return CU_OK; }
API CUresult cuFuncLoad(CUfunction f) { NEED_CTX(); NEED_LIVE(f, KIND_FUNCTION); return emu_code_use(f, emu_context()); }
API CUresult cuModuleGetLoadingMode(int *mode) { NEED_INIT(); *mode = emu_conf()->lazy ? 2 : 1; return CU_OK; }

API CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule m)
{
    NEED_INIT();
    NEED_LIVE(m, KIND_MODULE);
    *count = 0;
    for (CUfunction f = m->funcs; f; f = f->next)
        ++*count;
    return CU_OK;
}

API CUresult cuModuleEnumerateFunctions(CUfunction *out, unsigned count, CUmodule m)
{
    NEED_INIT();
    NEED_LIVE(m, KIND_MODULE);
    for (CUfunction f = m->funcs; f && count; f = f->next, count--)
        *out++ = f;
    return CU_OK;
}

API CUresult cuLibraryGetKernelCount(unsigned *count, CUmodule m) { return cuModuleGetFunctionCount(count, m); }

API CUresult cuLibraryEnumerateKernels(CUfunction *out, unsigned count, CUmodule m)
{
    return cuModuleEnumerateFunctions(out, count, m);
}

/* A global exists once it is asked for: 4 KiB of zeros under its name. */
API CUresult cuModuleGetGlobal_v2(CUdeviceptr *ptr, size_t *size, CUmodule m, const char *name)
{
    NEED_CTX();
    NEED_LIVE(m, KIND_MODULE);
    if (!name)
        return CU_INVALID;
    CUresult r = use(m);
    if (r)
        return r;
    struct emu_global *g = m->globals;
    while (g && strcmp(g->name, name))
        g = g->next;
    if (!g) {
        g = calloc(1, sizeof *g);
        g->size = 4096;
        r = emu_mem_new(g->size, MEM_MODULE, m->dev, false, &g->ptr); /* a library's goes with the first context */
        if (r) {
            free(g);
            return r;
        }
        g->name = strdup(name);
        g->next = m->globals;
        m->globals = g;
    }
    if (ptr)
        *ptr = g->ptr;
    if (size)
        *size = g->size;
    return CU_OK;
}

API CUresult cuLibraryGetGlobal(CUdeviceptr *ptr, size_t *size, CUmodule m, const char *name)
{
    return cuModuleGetGlobal_v2(ptr, size, m, name);
}
