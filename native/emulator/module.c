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
    char *copy = strdup(name);
    CUfunction f = copy ? emu_object_new(KIND_FUNCTION, sizeof *f) : NULL;
    if (!f) {
        free(copy);
        return NULL;
    }
    f->module = m;
    f->name = copy;
    f->attrs[0] = 1024;
    f->attrs[4] = 32;
    f->attrs[5] = f->attrs[6] = c->major * 10 + c->minor;
    f->attrs[8] = 48 << 10;
    f->attrs[9] = -1;
    f->next = m->funcs;
    m->funcs = f;
    return f;
}

/* With emu_lock, as the next one. */
static void belong(CUmodule m, CUcontext c)
{
    m->ctx = c;
    m->next = c->modules;
    m->at_prev = &c->modules;
    if (m->next)
        m->next->at_prev = &m->next;
    c->modules = m;
}

static void release_function(void *function)
{
    free(((CUfunction)function)->name);
    free(((CUfunction)function)->legacy);
}

static void release(void *module)
{
    for (struct emu_global *g = ((CUmodule)module)->globals, *next; g; g = next) {
        next = g->next;
        free(g->name);
        free(g);
    }
}

/* A launch keeps only the kernel's time, so that no work in a stream outlives the module. */
static void end(CUmodule m, enum emu_end how)
{
    if (m->at_prev)
        *m->at_prev = m->next;
    if (m->next)
        m->next->at_prev = m->at_prev;
    emu_object_end(m, how);
    for (CUfunction f = m->funcs, next; f; f = next) {
        next = f->next;
        emu_object_end(f, how);
        emu_object_free(f, release_function);
    }
    for (struct emu_global *g = m->globals; how == END_DESTROYED && g; g = g->next)
        emu_mem_drop(g->ptr);
    emu_code_end(m, (CUcontext)-1);
    emu_object_free(m, release);
}

void emu_modules_end(CUcontext c)
{
    while (c->modules)
        end(c->modules, END_WITH_CONTEXT);
    emu_code_end((CUmodule)-1, c);
}

/* With emu_lock: the module is on the device, if it goes there at once, and in its context. */
static CUresult place(CUmodule m)
{
    CUcontext c = emu_context();
    if (!c && !m->library)
        return CU_CONTEXT_DESTROYED;
    bool now = !emu_conf()->lazy && (c || !emu_conf()->strict);
    CUresult r = now ? emu_code_load(m, c) : CU_OK;
    m->dev = c ? c->dev : 0;
    if (!r && !m->library)
        belong(m, c);
    return r;
}

static CUresult add_functions(CUmodule m, const emu_symbol *entries, size_t count)
{
    m->known = count > 0;
    for (size_t i = 0; i < count; i++) {
        CUfunction f = add_function(m, entries[i].name);
        if (!f)
            return CU_OOM;
        f->takes_parameters = entries[i].takes_parameters;
    }
    return CU_OK;
}

static CUresult load(CUmodule *out, const void *image, size_t size, bool library)
{
    if (!out || !image)
        return CU_INVALID;
    size_t count;
    emu_symbol *entries;
    CUresult r = emu_symbols(image, size, &entries, &count);
    if (r)
        return r;
    CUmodule m = emu_object_new(KIND_MODULE, sizeof *m);
    r = m ? add_functions(m, entries, count) : CU_OOM;
    emu_symbols_free(entries, count);
    if (!m)
        return r;
    m->library = library;
    pthread_mutex_lock(&emu_lock);
    r = r ? r : place(m);
    if (r)
        end(m, END_DESTROYED);
    else
        *out = m;
    emu_unlock();
    return r;
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
        return CU_OOM;
    CUresult r = load(out, p, (size_t)st.st_size, library);
    munmap(p, (size_t)st.st_size);
    return r;
}

#define LOADABLE()                                                                                                     \
    NEED_CTX();                                                                                                        \
    do {                                                                                                               \
        CUresult c_ = emu_forbid_in_capture();                                                                         \
        if (c_)                                                                                                        \
            return c_;                                                                                                 \
    } while (0)
API CUresult cuModuleLoad(CUmodule *m, const char *path)
{
    LOADABLE();
    return load_file(m, path, false);
}
API CUresult cuModuleLoadData(CUmodule *m, const void *image)
{
    LOADABLE();
    return load(m, image, 0, false);
}
API CUresult cuModuleLoadFatBinary(CUmodule *m, const void *image)
{
    LOADABLE();
    return load(m, image, 0, false);
}

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
    pthread_mutex_lock(&emu_lock);
    r = emu_use_last(m, KIND_MODULE, call);
    if (!r)
        end(m, END_DESTROYED);
    emu_unlock();
    return r;
}

API CUresult cuModuleUnload(CUmodule m)
{
    NEED_INIT();
    return unload(m, __func__);
}
API CUresult cuLibraryUnload(CUmodule m)
{
    NEED_INIT();
    return unload(m, __func__);
}

API CUresult cuModuleGetFunction(CUfunction *out, CUmodule m, const char *name)
{
    NEED_INIT();
    NEED_LIVE(m, KIND_MODULE);
    if (!out || !name)
        return CU_INVALID;
    pthread_mutex_lock(&emu_lock);
    bool alive = emu_object_alive(m, KIND_MODULE); /* another thread may destroy it just now */
    CUfunction f = alive ? m->funcs : NULL;
    while (f && strcmp(f->name, name))
        f = f->next;
    CUresult missing = m->known ? CU_NOT_FOUND : CU_OOM;
    if (alive && !f && !m->known)
        f = add_function(m, name);
    CUresult r = !alive ? CU_CONTEXT_DESTROYED : !f ? missing : m->ctx ? emu_code_use(f, m->ctx) : CU_OK;
    emu_unlock();
    *out = f;
    return r;
}

API CUresult cuLibraryGetKernel(CUfunction *out, CUmodule m, const char *name)
{
    return cuModuleGetFunction(out, m, name);
}

static CUresult use(CUmodule m)
{
    pthread_mutex_lock(&emu_lock);
    CUresult r = emu_conf()->strict ? emu_code_load(m, emu_current()) : CU_OK;
    emu_unlock();
    return r;
}

static CUresult use_function(CUfunction f)
{
    pthread_mutex_lock(&emu_lock);
    CUresult r = emu_code_use(f, emu_current());
    emu_unlock();
    return r;
}

static bool is_loaded(CUmodule m)
{
    pthread_mutex_lock(&emu_lock);
    bool loaded = !emu_conf()->strict || emu_code_loaded(m, emu_context());
    emu_unlock();
    return loaded;
}

API CUresult cuLibraryGetModule(CUmodule *out, CUmodule m)
{
    NEED_CTX();
    NEED_LIVE(m, KIND_MODULE);
    NEED_OUT(out);
    *out = m;
    return use(m);
}
API CUresult cuKernelGetFunction(CUfunction *out, CUfunction k)
{
    NEED_CTX();
    NEED_LIVE(k, KIND_FUNCTION);
    NEED_OUT(out);
    *out = k;
    return use_function(k);
}
API CUresult cuKernelGetLibrary(CUmodule *out, CUfunction k)
{
    NEED_INIT();
    NEED_LIVE(k, KIND_FUNCTION);
    NEED_OUT(out);
    *out = k->module;
    return CU_OK;
}
API CUresult cuFuncGetModule(CUmodule *out, CUfunction f)
{
    NEED_INIT();
    NEED_LIVE(f, KIND_FUNCTION);
    NEED_OUT(out);
    *out = f->module;
    return CU_OK;
}
API CUresult cuFuncGetName(const char **name, CUfunction f)
{
    NEED_INIT();
    NEED_LIVE(f, KIND_FUNCTION);
    NEED_OUT(name);
    *name = f->name;
    return CU_OK;
}
API CUresult cuKernelGetName(const char **name, CUfunction f)
{
    NEED_INIT();
    NEED_LIVE(f, KIND_FUNCTION);
    NEED_OUT(name);
    *name = f->name;
    return CU_OK;
}
API CUresult cuFuncIsLoaded(int *state, CUfunction f)
{
    NEED_INIT();
    NEED_LIVE(f, KIND_FUNCTION);
    NEED_OUT(state);
    *state = is_loaded(f->module);
    return CU_OK;
}
API CUresult cuFuncLoad(CUfunction f)
{
    NEED_CTX();
    NEED_LIVE(f, KIND_FUNCTION);
    return use_function(f);
}
API CUresult cuModuleGetLoadingMode(int *mode)
{
    NEED_INIT();
    NEED_OUT(mode);
    *mode = emu_conf()->lazy ? 2 : 1;
    return CU_OK;
}

API CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule m)
{
    NEED_INIT();
    NEED_LIVE(m, KIND_MODULE);
    NEED_OUT(count);
    *count = 0;
    for (CUfunction f = m->funcs; f; f = f->next)
        ++*count;
    return CU_OK;
}

API CUresult cuModuleEnumerateFunctions(CUfunction *out, unsigned count, CUmodule m)
{
    NEED_INIT();
    NEED_LIVE(m, KIND_MODULE);
    NEED_OUT(out);
    for (CUfunction f = m->funcs; f && count; f = f->next, count--)
        *out++ = f;
    return CU_OK;
}

API CUresult cuLibraryGetKernelCount(unsigned *count, CUmodule m) { return cuModuleGetFunctionCount(count, m); }

API CUresult cuLibraryEnumerateKernels(CUfunction *out, unsigned count, CUmodule m)
{
    return cuModuleEnumerateFunctions(out, count, m);
}

static CUresult add_global(struct emu_global **out, CUmodule m, const char *name)
{
    struct emu_global *g = calloc(1, sizeof *g);
    char *copy = g ? strdup(name) : NULL;
    CUdeviceptr ptr = 0;
    CUresult r = copy ? emu_mem_new(4096, MEM_MODULE, m->dev, false, &ptr)
                      : CU_OOM; /* a library's goes with the first context */
    if (r) {
        free(copy);
        free(g);
        return r;
    }
    *g = (struct emu_global){.next = m->globals, .name = copy, .ptr = ptr, .size = 4096};
    *out = m->globals = g;
    return CU_OK;
}

/* With emu_lock. A global exists once it is asked for: 4 KiB of zeros under its name. */
static CUresult global(struct emu_global **out, CUmodule m, const char *name)
{
    CUresult r = emu_object_alive(m, KIND_MODULE) ? CU_OK : CU_CONTEXT_DESTROYED;
    if (!r && emu_conf()->strict)
        r = emu_code_load(m, emu_current());
    struct emu_global *g = r ? NULL : m->globals;
    while (g && strcmp(g->name, name))
        g = g->next;
    if (!g && !r)
        r = add_global(&g, m, name);
    *out = g;
    return r;
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr *ptr, size_t *size, CUmodule m, const char *name)
{
    NEED_CTX();
    NEED_LIVE(m, KIND_MODULE);
    if (!name)
        return CU_INVALID;
    struct emu_global *g;
    pthread_mutex_lock(&emu_lock);
    CUresult r = global(&g, m, name);
    emu_unlock();
    if (!r && ptr)
        *ptr = g->ptr;
    if (!r && size)
        *size = g->size;
    return r;
}

API CUresult cuLibraryGetGlobal(CUdeviceptr *ptr, size_t *size, CUmodule m, const char *name)
{
    return cuModuleGetGlobal_v2(ptr, size, m, name);
}
