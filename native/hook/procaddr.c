/* procaddr.c: cuGetProcAddress, the real entrance since CUDA 11.3, and the map from real pointers to hooks.
 *
 * The driver is asked first, with the caller's own arguments: names, versions, flags and status are its business. Only
 * then the pointer it chose is looked up: if it is the address of an intercepted symbol, the hook of that very symbol
 * is handed out. So an ABI mismatch can not happen. A driver that answers with addresses that dlsym does not know is
 * met with the published table of names and versions.
 */
#include "hook.h"

#include <string.h>

struct pair {
    uintptr_t pointer;
    int symbol;
};
static struct pair map[ALIQUOT_SYMBOL_COUNT];
static unsigned map_size;
static _Atomic int map_ready;
static bool identity; /* the probe's answer */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void insert(uintptr_t pointer, int symbol)
{
    unsigned at = map_size++;
    for (; at > 0 && map[at - 1].pointer > pointer; at--)
        map[at] = map[at - 1];
    map[at] = (struct pair){pointer, symbol};
}

/* Does cuGetProcAddress answer with the addresses that dlsym knows? Seen to differ on some drivers. */
static bool probe(void)
{
    void *fn = NULL;
    CUresult result =
        REAL(cuGetProcAddress_v2, const char *, void **, int, uint64_t, int *)("cuMemAlloc", &fn, 3020, 0, &(int){0});
    if (result != CUDA_SUCCESS)
        result = REAL(cuGetProcAddress, const char *, void **, int, uint64_t)("cuMemAlloc", &fn, 3020, 0);
    return result != CUDA_SUCCESS || fn == real_symbol(SYM_cuMemAlloc_v2);
}

static void build(void)
{
    if (atomic_load_explicit(&map_ready, memory_order_acquire))
        return;
    pthread_mutex_lock(&lock);
    if (!atomic_load(&map_ready)) {
        for (int i = 0; i < ALIQUOT_SYMBOL_COUNT; i++) {
            const struct symbol_row *row = &aliquot_symbols[i];
            void *pointer = row->hook && !real_is_nvml(row->name) ? real_symbol(i) : NULL;
            if (pointer)
                insert((uintptr_t)pointer, i);
        }
        atomic_store(&aliquot_counters.mapped, map_size);
        identity = probe();
        atomic_store_explicit(&map_ready, 1, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
}

static bool same_base(const char *symbol, const char *name)
{
    size_t length = strlen(name);
    return strncmp(symbol, name, length) == 0 && (symbol[length] == 0 || symbol[length] == '_');
}

void *hook_of(void *pointer, const char *name)
{
    build();
    unsigned low = 0, high = map_size;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (map[middle].pointer < (uintptr_t)pointer)
            low = middle + 1;
        else
            high = middle;
    }
    for (unsigned i = low; i < map_size && map[i].pointer == (uintptr_t)pointer; i++)
        if (same_base(aliquot_symbols[map[i].symbol].name, name))
            return aliquot_symbols[map[i].symbol].hook;
    return NULL;
}

/* The hook that the published table names, for drivers whose answers are not the addresses of their exports. */
static void *hook_by_table(const char *name, int version, bool own, bool *known)
{
    const struct version_row *best = NULL;
    for (const struct version_row *row = aliquot_versions; row->name; row++) {
        if (strcmp(row->name, name) != 0)
            continue;
        *known = true;
        if (row->version > version || (row->own_stream && !own))
            continue;
        if (!best || row->version > best->version || (row->version == best->version && row->own_stream))
            best = row;
    }
    return best ? aliquot_symbols[best->symbol].hook : NULL;
}

static void route(const char *name, void **fn, int version, unsigned long long flags)
{
    if (!name || !name[0] || !fn || !*fn || conf_load() != MODE_HELD)
        return;
    void *hook = hook_of(*fn, name);
    if (!hook) {
        bool known = false;
        void *listed = hook_by_table(name, version, flags & 2, &known);
        if (!known) {
            COUNT(unknown);
            return;
        }
        COUNT(disagreed); /* a version newer than our table keeps the driver's own function */
        if (identity || !listed)
            return;
        hook = listed;
    }
    *fn = hook;
}

CUresult on_get_proc_address(enum aliquot_symbol symbol, const char *name, void **fn, int version,
                             unsigned long long flags)
{
    CUresult result = REAL_AT(symbol, const char *, void **, int, unsigned long long)(name, fn, version, flags);
    if (result == CUDA_SUCCESS)
        route(name, fn, version, flags);
    return result;
}

CUresult on_get_proc_address_v2(enum aliquot_symbol symbol, const char *name, void **fn, int version,
                                unsigned long long flags, int *status)
{
    CUresult result =
        REAL_AT(symbol, const char *, void **, int, unsigned long long, int *)(name, fn, version, flags, status);
    if (result == CUDA_SUCCESS)
        route(name, fn, version, flags);
    return result;
}
