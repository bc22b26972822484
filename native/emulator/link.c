/* link.c: the driver's linker. Inputs are put one after another; PTX text stays text, a cubin stays a cubin. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "emu.h"

typedef struct {
    emu_head object;
    char *image;
    size_t size;
} linker;
#define NEED_LINK(l)                                                                                                   \
    do {                                                                                                               \
        if (!emu_object_alive(l, KIND_LINK))                                                                           \
            return CU_INVALID_HANDLE;                                                                                  \
    } while (0)

API CUresult cuLinkCreate_v2(unsigned count, int *options, void **values, linker **out)
{
    NEED_CTX();
    if (!out)
        return CU_INVALID;
    linker *l = emu_object_new(KIND_LINK, sizeof *l);
    if (l)
        *out = l;
    return l ? CU_OK : CU_OOM;
}

API CUresult cuLinkAddData_v2(linker *l, int type, void *data, size_t size, const char *name, unsigned count,
                              int *options, void **values)
{
    NEED_CTX();
    NEED_LINK(l);
    if (!data || !size)
        return CU_INVALID;
    const char *text = data;
    bool is_binary = l->size && !memcmp(l->image, "\177ELF", 4);
    size_t used = text[0] == 127 ? size : strnlen(text, size);
    if (is_binary)
        return CU_OK; /* the first cubin names the kernels */
    char *grown = realloc(l->image, l->size + used + 1);
    if (!grown)
        return CU_OOM;
    memcpy(grown + l->size, data, used);
    l->image = grown;
    l->size += used;
    grown[l->size] = 0;
    return CU_OK;
}

API CUresult cuLinkAddFile_v2(linker *l, int type, const char *path, unsigned count, int *options, void **values)
{
    NEED_CTX();
    NEED_LINK(l);
    FILE *f = path ? fopen(path, "re") : NULL;
    if (!f)
        return CU_FILE_NOT_FOUND;
    char chunk[65536];
    size_t n;
    CUresult r = CU_OK;
    while (!r && (n = fread(chunk, 1, sizeof chunk, f)))
        r = cuLinkAddData_v2(l, type, chunk, n, path, 0, NULL, NULL);
    fclose(f);
    return r;
}

API CUresult cuLinkComplete(linker *l, void **image, size_t *size)
{
    NEED_CTX();
    NEED_LINK(l);
    if (!l->size || !image)
        return CU_INVALID;
    *image = l->image;
    if (size)
        *size = l->size + 1;
    return CU_OK;
}

static void release(void *link) { free(((linker *)link)->image); }

API CUresult cuLinkDestroy(linker *l)
{
    NEED_INIT();
    if (!emu_object_end_once(l, KIND_LINK))
        return CU_INVALID_HANDLE;
    emu_object_free(l, release);
    return CU_OK;
}
