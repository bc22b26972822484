/* export.c: cuGetExportTable, by which the CUDA runtime library, cuBLAS, cuDNN and their like reach what no header names.
 *
 * The tables are filled at the first question; see export.h for their shape.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include "export.h"

CUresult cuModuleLoadData(CUmodule *m, const void *image);
CUresult cuModuleGetFunction(CUfunction *out, CUmodule m, const char *name);
CUresult cuCtxGetId(CUcontext c, unsigned long long *id);
CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice dev);

typedef uint64_t W;

/* One function for every place of a table, for the log to say which was called. */
static CUresult undescribed(int slot, W a, W b, W c, W d)
{
    char text[128];
    snprintf(text, sizeof text, "export table entry %d(%#lx, %#lx, %#lx, %#lx)", slot, (long)a, (long)b, (long)c,
             (long)d);
    return emu_unsupported(text);
}

/* clang-format off */
#define ONE(n) static CUresult entry_##n(W a, W b, W c, W d) { return undescribed(1##n - 100, a, b, c, d); }
#define TEN(do, n) do(n##0) do(n##1) do(n##2) do(n##3) do(n##4) do(n##5) do(n##6) do(n##7) do(n##8) do(n##9)
#define ALL(do) TEN(do, 0) TEN(do, 1) TEN(do, 2) TEN(do, 3) TEN(do, 4) TEN(do, 5) TEN(do, 6) TEN(do, 7) TEN(do, 8) \
    do(90) do(91) do(92) do(93) do(94) do(95)
/* clang-format on */
#define NAME(n) entry_##n,
ALL(ONE)
static const void *const undescribed_entries[EXPORT_ENTRIES] = {ALL(NAME)};

/* ---- the runtime's own interface ---- */

static CUresult load_image(CUmodule *m, const void *image) { return cuModuleLoadData(m, image); }
static CUresult load_header(const void *header, CUmodule *m) { return cuModuleLoadData(m, header); }
static CUresult ready(void) { return CU_OK; }

/* The handle alone: nothing is made on the device, and no reference is taken. */
static CUresult primary_handle(CUcontext *out, CUdevice dev)
{
    NEED_INIT();
    if (!out)
        return CU_INVALID;
    if (dev < 0 || dev >= emu_conf()->count)
        return CU_INVALID_DEVICE;
    *out = emu_primary_handle(dev);
    return *out ? CU_OK : CU_OOM;
}

static const emu_entry runtime_entries[] = {
    {1, load_image}, {2, primary_handle}, {6, load_image}, {7, ready}, {8, load_header}, {12, ready}, {0}};

/* ---- what tools would hang themselves into: every switch is off ---- */

static CUresult call_switches(void **at, size_t *count)
{
    static uint32_t switches[1024];
    *at = switches;
    *count = sizeof switches / sizeof *switches;
    return CU_OK;
}

static CUresult domain_switches(void **at, size_t *size)
{
    static uint8_t switches[14];
    *at = switches;
    *size = sizeof switches;
    return CU_OK;
}

static const emu_entry hook_entries[] = {{2, call_switches}, {6, domain_switches}, {0}};

/* ---- contexts ---- */

static CUresult current_context(CUcontext *out)
{
    if (!out)
        return CU_INVALID;
    *out = emu_context();
    return CU_OK;
}

static CUresult context_check(CUcontext c, uint32_t *flags, const void **detail)
{
    if (flags)
        *flags = 0;
    return CU_OK;
}

static const emu_entry thread_entries[] = {{2, current_context}, {0}};
static const emu_entry check_entries[] = {{2, context_check}, {3, ready}, {0}};
static const emu_entry bypass_entries[] = {{1, cuCtxCreate_v2}, {0}};

/* cuBLAS 12 asks for a stream's object and a word of it before it launches kernels of half precision; it takes zero. */
static CUresult stream_object(CUcontext c, CUstream s, CUstream *out)
{
    if (!out)
        return CU_INVALID;
    *out = emu_stream(s);
    return *out ? CU_OK : CU_INVALID_HANDLE;
}

static CUresult stream_word(CUcontext c, CUstream object, uint64_t *out)
{
    if (!object || !out)
        return CU_INVALID;
    *out = 0;
    return CU_OK;
}

static const emu_entry tools_entries[] = {{4, cuCtxGetId}, {39, stream_word}, {51, stream_object}, {0}};

/* cuFFT takes the kernels of its modules like this, one in each. Where the image is compressed and its names are not known
 * here, that one is a function without a name. Answers with their number. */
static uint64_t each_function(CUcontext c, CUmodule m, void (*visit)(void *data, CUfunction f, CUmodule owner),
                              void *data)
{
    CUfunction f;
    uint64_t count = 0;
    if (!emu_object_alive(m, KIND_MODULE) || !visit || (!m->funcs && cuModuleGetFunction(&f, m, "") != CU_OK))
        return 0;
    for (f = m->funcs; f; f = f->next, count++)
        visit(data, f, m);
    return count;
}

static const emu_entry function_entries[] = {{7, each_function}, {0}};

/* CUPTI cannot trace here. CUPTI 12 says so where the table is absent; CUPTI 13.2 then asks for it until its stack is full.
 * With this entry it takes its place for taken by another tool, and its client goes on without it. */
static const emu_entry cupti_entries[] = {{67, ready}, {0}};
static const emu_entry no_entries[] = {{0}};

static emu_table tables[] = {
    {EXPORT_RUNTIME, 13, runtime_entries, {0}},
    {"42d85a81-23f6-cb47-8298-f6e78a3aecdc", 4, thread_entries, {0}},
    {"a094798c-2e74-2e74-93f2-0800200c0a66", 7, hook_entries, {0}},
    {"c693336e-1121-df11-a8c3-68f355d89593", 0, emu_values_entries, {0}},
    {"263e8860-7cd2-6143-92f6-bbd5006dfa7e", 15, check_entries, {0}},
    {"0ca50b8c-1004-929a-89a7-d0df10e77286", 2, bypass_entries, {0}},
    {"21318c60-9714-3248-8ca6-41ff7324c8f2", 93, tools_entries, {0}},
    {"f8cff951-2146-8b4e-b9e2-fb469e7c0dd9", 3, emu_library_entries, {0}},
    {"7cb63f9b-9ca4-8e42-a484-beb66e6aed7f", 80, cupti_entries, {0}},
    {"6e163fbe-b958-444d-835c-e182aff1991e", 80, function_entries, {0}},
    {"b10541e1-f7c7-c74a-9f64-f223be99f1e2", 26, no_entries, {0}},
    {"195bcbf4-d67d-024a-acc5-1d29cea631ae", 3, no_entries, {0}},
    /* cuBLAS 13 calls entry 4 of it without looking whether it was found. */
    {"1734dc26-800d-4745-8726-c0f1e7dd8bca", 20, no_entries, {0}},
#ifdef ALIQUOT_CUDA_RUNTIME
    {EXPORT_INTEGRITY, 3, emu_integrity_entries, {0}},
#endif
};

static void fill(void)
{
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        emu_table *t = &tables[i];
        for (int slot = 1; t->count && slot < EXPORT_ENTRIES; slot++)
            t->words[slot] = undescribed_entries[slot];
        t->words[0] = (const void *)(uintptr_t)((size_t)t->count * sizeof(void *));
        for (const emu_entry *e = t->known; e->fn; e++)
            t->words[e->slot] = e->fn;
    }
}

const void *const *emu_export(const char *id)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill);
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (!strcmp(tables[i].id, id))
            return tables[i].words;
    return NULL;
}

/* A build without the integrity table: the runtime reports an error of its own, which does not say why. */
static void say_left_out(void)
{
#ifndef ALIQUOT_CUDA_RUNTIME
    static int said;
    if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
        fputs(
            "aliquot: this build of the emulated driver leaves out what the CUDA runtime library asks at its start, so "
            "programs on it (PyTorch, CuPy, nvcc's) do not run; `make setup` or `make wheel` in Aliquot's sources builds "
            "one that has it\n",
            stderr);
#endif
}

API CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    if (!table || !id)
        return CU_INVALID;
    char text[48] = "";
    for (int i = 0, at = 0; i < 16; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
                       id->bytes[i]);
    *table = emu_export(text);
    if (*table)
        return CU_OK;
    if (!strcmp(text, EXPORT_INTEGRITY))
        say_left_out();
    char asked[80];
    snprintf(asked, sizeof asked, "cuGetExportTable %s", text);
    emu_unsupported(asked);
    return CU_NOT_FOUND;
}
