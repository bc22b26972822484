/* procaddr.c: cuGetProcAddress, the real entrance since CUDA 11.3, and the map from real pointers to hooks.
 *
 * The driver is asked first, with the caller's own arguments: names, versions, flags and status are its business. Only
 * then the pointer it chose is looked up: if it is the address of an intercepted symbol, the hook of that very symbol
 * is handed out. So an ABI mismatch cannot happen.
 *
 * An address that dlsym does not know (a profiler's, a driver that keeps its own) is met with the published table of
 * names and versions, where the driver confirms the row: asked for the row's version it answers the same address.
 * What is left is a function newer than the table: it is handed out as it is, and `disagreed` counts it.
 */
#include "entry/entry.h"

#include <string.h>

struct pair {
    uintptr_t pointer;
    int symbol;
};
static struct pair map[ALIQUOT_SYMBOL_COUNT];
static unsigned map_size;
static _Atomic int map_ready;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void insert(uintptr_t pointer, int symbol)
{
    unsigned at = map_size++;
    for (; at > 0 && map[at - 1].pointer > pointer; at--)
        map[at] = map[at - 1];
    map[at] = (struct pair){pointer, symbol};
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
        atomic_store_explicit(&map_ready, 1, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
}

static bool same_base(const char *symbol, const char *name)
{
    size_t length = strlen(name);
    return strncmp(symbol, name, length) == 0 && (symbol[length] == 0 || symbol[length] == '_');
}

static unsigned first_at(uintptr_t pointer)
{
    unsigned low = 0, high = map_size;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (map[middle].pointer < pointer)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void *hook_of(void *pointer, const char *name)
{
    build();
    for (unsigned i = first_at((uintptr_t)pointer); i < map_size && map[i].pointer == (uintptr_t)pointer; i++)
        if (same_base(aliquot_symbols[map[i].symbol].name, name))
            return aliquot_symbols[map[i].symbol].hook;
    return NULL;
}

/* The hook of a pointer that is one intercepted symbol's alone, whatever its name: a driver may rename. */
static void *hook_of_only(void *pointer)
{
    unsigned i = first_at((uintptr_t)pointer);
    bool here = i < map_size && map[i].pointer == (uintptr_t)pointer;
    bool shared = i + 1 < map_size && map[i + 1].pointer == (uintptr_t)pointer;
    return here && !shared ? aliquot_symbols[map[i].symbol].hook : NULL;
}

/* The published table's row for a question; `known`: the name is in the table, at whatever version. */
static const struct version_row *row_of(const char *name, int version, bool own, bool *known)
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
    return best;
}

/* Does the driver answer the same address for the row's own version? Then it means the row's function. */
static bool confirmed(const struct version_row *row, void *pointer, unsigned long long flags)
{
    void *fn = NULL;
    CUresult result = REAL(cuGetProcAddress_v2, const char *, void **, int, unsigned long long,
                           int *)(row->name, &fn, row->version, flags, &(int){0});
    if (result != CUDA_SUCCESS)
        result = REAL(cuGetProcAddress, const char *, void **, int, unsigned long long)(row->name, &fn, row->version,
                                                                                        flags);
    return result == CUDA_SUCCESS && fn == pointer;
}

static void *hook_by_table(const char *name, void *pointer, int version, unsigned long long flags)
{
    bool known = false;
    const struct version_row *row = row_of(name, version, flags & 2, &known);
    if (!known) {
        COUNT(unknown);
        return NULL;
    }
    void *hook = hook_of_only(pointer);
    if (!hook && row && confirmed(row, pointer, flags))
        hook = aliquot_symbols[row->symbol].hook;
    if (!hook && !(row && row->only_waits))
        COUNT(disagreed);
    return hook;
}

static void route(const char *name, void **fn, int version, unsigned long long flags)
{
    if (!name || !name[0] || !fn || !*fn || conf_load() != MODE_HELD)
        return;
    void *hook = hook_of(*fn, name);
    if (!hook)
        hook = hook_by_table(name, *fn, version, flags);
    if (hook)
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
    CUresult result = REAL_AT(symbol, const char *, void **, int, unsigned long long, int *)(name, fn, version, flags,
                                                                                             status);
    if (result == CUDA_SUCCESS)
        route(name, fn, version, flags);
    return result;
}
