/* renaming_driver.c: a driver whose cuGetProcAddress answers with addresses that its exports need not have.
 *
 * OWN: every answer is a function of its own beside the export. From version 14000 on cuMemAlloc is a function that no
 * header of today knows, and cuMemFree one that is exported under another name.
 */
#include <stddef.h>
#include <string.h>

#define EXPORTS(X) X(cuInit) X(cuMemAlloc_v2) X(cuMemFree_v2) X(cuMemFreeAsync) X(cuGraphInstantiate_v2) \
    X(cuGraphInstantiateWithFlags) X(cuDeviceGetName)
#define DEFINE(name) \
    int name() { return 0; } \
    static int own_##name() { return 0; }
EXPORTS(DEFINE)
static int newer() { return 0; }

static const struct {
    const char *name;
    int version;
    int (*export_)(), (*own)();
} rows[] = {
#define ROW(name, version, symbol) {name, version, symbol, own_##symbol},
    ROW("cuMemAlloc", 3020, cuMemAlloc_v2) ROW("cuMemFree", 3020, cuMemFree_v2) ROW("cuMemFree", 14000, cuMemFreeAsync)
    ROW("cuGraphInstantiate", 11000, cuGraphInstantiate_v2) ROW("cuGraphInstantiate", 12000, cuGraphInstantiateWithFlags)
    ROW("cuDeviceGetName", 2000, cuDeviceGetName) {"cuMemAlloc", 14000, newer, newer},
};

int cuGetProcAddress_v2(const char *name, void **fn, int version, unsigned long long flags, int *status)
{
    *fn = NULL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].name, name) == 0 && rows[i].version <= version)
#ifdef OWN
            *fn = (void *)rows[i].own;
#else
            *fn = (void *)rows[i].export_;
#endif
    if (status)
        *status = *fn ? 0 : 1;
    return 0;
}
