/* procaddr.c: cuGetProcAddress and its second version.
 *
 * The highest version of a name that is at most the version asked for and at most the driver's own; with the per-thread
 * flag the twin where one exists. The empty name is accepted and answers with no function, as runtime libraries probe it.
 */
#include <string.h>
#include "emu.h"

#define ROW(name, version, symbol) extern CUresult symbol();
#define TWIN(name, version, flavour, symbol, base) extern CUresult symbol();
#define RENAMED ROW
#include "../symbols/cuda.def"
#undef ROW
#undef TWIN

struct row {
    const char *name;
    int version;
    int twin;
    CUresult (*fn)();
    const char *symbol;
};
static const struct row rows[] = {
#define ROW(name, version, symbol) {#name, version, 0, symbol, #symbol},
#define TWIN(name, version, flavour, symbol, base) {#name, version, 1, symbol, #symbol},
#include "../symbols/cuda.def"
};
enum { FLAG_PER_THREAD = 2, STATUS_OK = 0, STATUS_NO_SYMBOL = 1, STATUS_OLD_VERSION = 2 };

static bool is_missing(const char *name, const char *symbol)
{
    const emu_config *c = emu_conf();
    for (int i = 0; i < c->fault.missing_count; i++)
        if (!strcmp(name, c->fault.missing[i]) || !strcmp(symbol, c->fault.missing[i]))
            return true;
    return false;
}

static const struct row *best_row(const char *name, int version, int twin, bool *known)
{
    const struct row *best = NULL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *r = &rows[i];
        if (r->twin != twin || strcmp(r->name, name) || is_missing(name, r->symbol))
            continue;
        if (r->version > emu_conf()->cuda_version)
            continue;
        *known = true;
        if (r->version <= version && (!best || r->version > best->version))
            best = r;
    }
    return best;
}

API CUresult cuGetProcAddress_v2(const char *name, void **fn, int version, uint64_t flags, int *status)
{
    if (!name || !fn)
        return CU_INVALID;
    bool known = false;
    *fn = NULL;
    const struct row *r = NULL;
    if (!*name) {
        if (status)
            *status = STATUS_OK;
        return CU_OK;
    }
    if (flags & FLAG_PER_THREAD)
        r = best_row(name, version, 1, &known);
    if (!r)
        r = best_row(name, version, 0, &known);
    if (status)
        *status = r ? STATUS_OK : known ? STATUS_OLD_VERSION : STATUS_NO_SYMBOL;
    if (r)
        *fn = (void *)r->fn;
    return r || status ? CU_OK : CU_NOT_FOUND;
}

API CUresult cuGetProcAddress(const char *name, void **fn, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, fn, version, flags, NULL);
}
