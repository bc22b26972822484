/* scarce.c: a program for which memory, threads and descriptors run out, at one place after another.
 *
 *   scarce every    each step of the program below is done in fresh processes in which its first, second, ... request to
 *                   the system fails. Prints how many of them failed, or the step and the request that a process did not
 *                   survive: it crashed, hung, or could not do what it did again once there was enough.
 *   scarce this STEP REQUEST    one such process, to be looked at with a debugger.
 *   scarce once     all steps, one after another. Prints the first that failed and its answer, if one did.
 *
 * The requests are the allocator's functions, mmap, mprotect, ftruncate, open, socket and pthread_create of the thread
 * that runs the steps, inside the driver's calls only.
 */
#include "driver.h"
#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static __thread int left = -1; /* requests until one fails; -1: none does */
static bool fell;

static bool fails(int error)
{
    if (left < 0 || left-- > 0)
        return false;
    fell = true; /* a debugger stops here */
    errno = error;
    return true;
}

void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
void *malloc(size_t n) { return fails(ENOMEM) ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return fails(ENOMEM) ? NULL : __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return fails(ENOMEM) ? NULL : __libc_realloc(p, n); }

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t from)
{
    return fails(ENOMEM) ? MAP_FAILED : (void *)syscall(SYS_mmap, at, n, prot, flags, fd, from);
}

int mprotect(void *at, size_t n, int prot) { return fails(ENOMEM) ? -1 : (int)syscall(SYS_mprotect, at, n, prot); }
int ftruncate(int fd, off_t n) { return fails(ENOSPC) ? -1 : (int)syscall(SYS_ftruncate, fd, n); }
int socket(int a, int b, int c) { return fails(EMFILE) ? -1 : (int)syscall(SYS_socket, a, b, c); }

int open(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    int mode = va_arg(rest, int);
    va_end(rest);
    return fails(EMFILE) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *), void *with)
{
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (fails(EAGAIN))
        return EAGAIN;
    if (!real)
        real = dlsym(RTLD_NEXT, "pthread_create");
    return real(t, a, run, with);
}

static void *stream, *other, *event, *inner, *module, *pool, *array, *graph, *exec, *shown;
static u64 memory, pooled, address, physical;
enum { MIB = 1 << 20, BIG = 8 * MIB };
#define TRY(call) do { int r_ = call; if (r_) return r_; } while (0)

static void nothing(void *data) { (void)data; }
static int init(void) { return F(cuInit)(0); }
static int retain(void) { TRY(F(cuDevicePrimaryCtxRetain)(&context, 0)); return F(cuCtxSetCurrent)(context); }
static int streams(void) { TRY(F(cuStreamCreate)(&stream, 1)); return F(cuStreamCreate)(&other, 1); }
static int events(void) { TRY(F(cuEventCreate)(&event, 6)); return F(cuEventCreate)(&inner, 2); }
static int modules(void) { TRY(F(cuModuleLoadData)(&module, PTX)); return F(cuModuleGetFunction)(&function, module, "spin_ns"); }
static int allocates(void) { TRY(F(cuMemAlloc_v2)(&memory, (size_t)512)); return F(cuMemAlloc_v2)(&memory, (size_t)BIG); }
static int launches(void) { TRY(launch(100000, stream)); TRY(launch(1000, NULL)); return F(cuCtxSynchronize)(); }

static int second_context(void)
{
    void *made, *popped;
    TRY(F(cuCtxCreate_v2)(&made, 0, 0));
    TRY(F(cuCtxPopCurrent_v2)(&popped));
    return F(cuCtxDestroy_v2)(made);
}

static int names(void)
{
    u64 at;
    size_t size;
    void *k;
    TRY(F(cuModuleGetGlobal_v2)(&at, &size, module, "table"));
    TRY(F(cuModuleGetFunction)(&k, module, "second"));
    return launch(1000, stream);
}

static int host(void)
{
    void *p;
    TRY(F(cuMemAllocHost_v2)(&p, (size_t)MIB));
    return F(cuMemFreeHost)(p);
}

static int works(void) /* behind a kernel, so that everything waits in the stream */
{
    static char bytes[4096];
    TRY(launch(3000000, stream));
    TRY(F(cuMemcpyHtoDAsync_v2)(memory, bytes, sizeof bytes, stream));
    TRY(F(cuMemsetD8Async)(memory, 1, (size_t)4096, stream));
    TRY(F(cuEventRecord)(event, stream));
    TRY(F(cuStreamWaitEvent)(other, event, 0));
    TRY(F(cuLaunchHostFunc)(other, nothing, NULL));
    TRY(F(cuStreamWriteValue32_v2)(other, memory, 1, 0));
    TRY(F(cuMemcpyDtoH_v2)(bytes, memory, sizeof bytes));
    return F(cuCtxSynchronize)();
}

static int pools(void)
{
    struct pool_props props = {1, 0, {1, 0}, 0, 0, {0}};
    void *temporary;
    TRY(F(cuMemPoolCreate)(&pool, &props));
    TRY(F(cuMemAllocAsync)(&pooled, (size_t)MIB, stream));
    TRY(F(cuMemFreeAsync)(pooled, stream));
    TRY(F(cuMemAllocFromPoolAsync)(&pooled, (size_t)BIG, pool, stream));
    TRY(F(cuMemFreeAsync)(pooled, stream));
    TRY(F(cuStreamSynchronize)(stream));
    props.handles = 1;
    TRY(F(cuMemPoolCreate)(&temporary, &props));
    TRY(F(cuMemAllocFromPoolAsync)(&pooled, (size_t)BIG, temporary, stream));
    TRY(F(cuMemFreeAsync)(pooled, stream));
    TRY(F(cuStreamSynchronize)(stream));
    return F(cuMemPoolDestroy)(temporary);
}

static int mappings(void)
{
    struct prop prop = {1, 1, {1, 0}, 0, {0}};
    u64 again;
    int fd;
    TRY(F(cuMemAddressReserve)(&address, (size_t)2 * MIB, (size_t)0, (u64)0, (u64)0));
    TRY(F(cuMemCreate)(&physical, (size_t)2 * MIB, &prop, (u64)0));
    TRY(F(cuMemMap)(address, (size_t)2 * MIB, (size_t)0, physical, (u64)0));
    TRY(F(cuMemExportToShareableHandle)(&fd, physical, 1, (u64)0));
    int r = F(cuMemImportFromShareableHandle)(&again, (void *)(intptr_t)fd, 1);
    close(fd);
    TRY(r);
    TRY(F(cuMemRelease)(again));
    TRY(F(cuMemRelease)(physical));
    TRY(F(cuMemRetainAllocationHandle)(&physical, address));
    TRY(F(cuMemUnmap)(address, (size_t)2 * MIB));
    return F(cuMemRelease)(physical);
}

static int arrays(void)
{
    struct array3 shape = {64, 64, 0, 0x20, 1, 0};
    void *levels;
    TRY(F(cuArray3DCreate_v2)(&array, &shape));
    TRY(F(cuMipmappedArrayCreate)(&levels, &shape, 3));
    TRY(F(cuMipmappedArrayDestroy)(levels));
    return F(cuArrayDestroy)(array);
}

static int captured(void)
{
    TRY(launch(1000, stream));
    TRY(F(cuEventRecord)(inner, stream));
    TRY(F(cuStreamWaitEvent)(other, inner, 0));
    TRY(launch(1000, other));
    TRY(F(cuEventRecord)(inner, other));
    TRY(F(cuStreamWaitEvent)(stream, inner, 0));
    return F(cuMemsetD8Async)(memory, 2, (size_t)64, stream);
}

static int captures(void)
{
    void *lost;
    TRY(F(cuStreamBeginCapture_v2)(stream, 2));
    int r = captured(), ended = F(cuStreamEndCapture)(stream, r ? &lost : &graph);
    return r ? r : ended;
}

static int graphs(void)
{
    void *copy, *node, *freed;
    struct alloc_node params = {.pool = {1, 0, {1, 0}, 0, 0, {0}}, .bytes = MIB};
    TRY(F(cuGraphClone)(&copy, graph));
    TRY(F(cuGraphAddMemAllocNode)(&node, copy, NULL, (size_t)0, &params));
    TRY(F(cuGraphAddMemFreeNode)(&freed, copy, &node, (size_t)1, params.ptr));
    TRY(F(cuGraphAddEventRecordNode)(&node, copy, &freed, (size_t)1, event));
    TRY(F(cuGraphAddChildGraphNode)(&node, copy, NULL, (size_t)0, graph));
    TRY(F(cuGraphInstantiateWithFlags)(&exec, copy, (u64)0));
    TRY(F(cuGraphLaunch)(exec, stream));
    TRY(F(cuGraphLaunch)(exec, stream));
    TRY(F(cuStreamSynchronize)(stream));
    TRY(F(cuEventSynchronize)(event));
    TRY(F(cuGraphExecDestroy)(exec));
    return F(cuGraphDestroy)(copy);
}

static int shares(void)
{
    char handle[64];
    TRY(F(cuEventCreate)(&shown, 6));
    TRY(F(cuIpcGetEventHandle)(handle, shown));
    TRY(F(cuEventRecord)(shown, stream));
    TRY(F(cuEventSynchronize)(shown));
    return F(cuIpcGetMemHandle)(handle, memory);
}

static int links(void)
{
    void *state, *image;
    size_t size;
    TRY(F(cuLinkCreate_v2)(0, NULL, NULL, &state));
    TRY(F(cuLinkAddData_v2)(state, 1, (void *)PTX, sizeof PTX, "x", 0, NULL, NULL));
    TRY(F(cuLinkComplete)(state, &image, &size));
    return F(cuLinkDestroy)(state);
}

static int ends(void)
{
    TRY(F(cuMemFree_v2)(memory));
    TRY(F(cuModuleUnload)(module));
    TRY(F(cuStreamDestroy_v2)(stream));
    TRY(F(cuStreamDestroy_v2)(other));
    TRY(F(cuEventDestroy_v2)(event));
    return F(cuDevicePrimaryCtxReset_v2)(0);
}

#define STEPS(X) \
    X(init) X(retain) X(second_context) X(streams) X(events) X(modules) X(allocates) X(launches) X(names) X(host) \
    X(works) X(pools) X(mappings) X(arrays) X(captures) X(graphs) X(shares) X(links) X(ends)
#define STEP(name) {#name, name},
static const struct { const char *name; int (*run)(void); } steps[] = {STEPS(STEP)};
/* GLIBC: what glibc ends a process with that has no memory for the thread-local data of a library, at its first use. */
enum { COUNT = sizeof steps / sizeof *steps, SURVIVED = 0, ENOUGH = 10, WRONG = 11, GLIBC = 127 };

/* The process for one step and one of its requests. */
static int scarce(int which, int request)
{
    alarm(20);
    lib = dlopen("libcuda.so.1", RTLD_NOW);
    if (!lib)
        return WRONG;
    for (int i = 0; i < COUNT; i++) {
        bool here = i == which;
        left = here ? request : -1;
        int r = steps[i].run();
        left = -1;
        if (here && !fell)
            return r ? WRONG : ENOUGH;
        if (here && r && !i)
            return SURVIVED; /* a driver that could not start has none of the rest */
        bool last = i == COUNT - 1; /* which cannot be done twice */
        if (r && (!here || (!last && steps[i].run() != 0))) {
            fprintf(stderr, "%s: answer %d\n", steps[i].name, r);
            return WRONG;
        }
    }
    return SURVIVED;
}

static int every(void)
{
    int failed = 0;
    for (int which = 0; which < COUNT; which++)
        for (int request = 0;; request++) {
            int status;
            pid_t child = fork();
            if (!child)
                exit(scarce(which, request));
            waitpid(child, &status, 0);
            if (WIFEXITED(status) && WEXITSTATUS(status) == ENOUGH)
                break;
            if (!which && WIFEXITED(status) && WEXITSTATUS(status) == GLIBC)
                continue;
            if (!WIFEXITED(status) || WEXITSTATUS(status) != SURVIVED) {
                printf("%s, request %d: %s %d\n", steps[which].name, request, WIFSIGNALED(status) ? "signal" : "status",
                       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
                return 1;
            }
            failed++;
        }
    printf("%d\n", failed);
    return 0;
}

static int once(void)
{
    alarm(20);
    lib = dlopen("libcuda.so.1", RTLD_NOW);
    for (int i = 0; i < COUNT && lib; i++) {
        int r = steps[i].run();
        if (r) {
            printf("%s %d\n", steps[i].name, r);
            return 0;
        }
    }
    puts(lib ? "all 0" : "no library");
    return 0;
}

int main(int count, char **word)
{
    if (count > 3) /* the number of the step and of its request, to be looked at with a debugger */
        return scarce(atoi(word[2]), atoi(word[3]));
    return count > 1 && !strcmp(word[1], "once") ? once() : every();
}
