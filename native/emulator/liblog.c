/* liblog.c: what NVIDIA's libraries write to the driver's log, and the driver's log of its own errors (CUDA 12.9).
 *
 * The table holds several in one, each with its size before it. A library's messages go to ALIQUOT_EMULATOR_LOG: cuDNN
 * and others say there what they dislike.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include "export.h"

static void write_log(const char *domain, int severity, const char *format, va_list *args)
{
    const char *log = getenv("ALIQUOT_EMULATOR_LOG");
    FILE *f = log && format ? fopen(log, "ae") : NULL;
    if (!f)
        return;
    fprintf(f, "library %s %d ", domain ? domain : "", severity);
    vfprintf(f, format, *args);
    fputc('\n', f);
    fclose(f);
}

static CUresult is_wanted(void) { return CU_NOT_SUPPORTED; }
static CUresult requirements_met(void) { return CU_OK; }

#define SUBTABLE(entries) (const void *)((entries) * sizeof(void *))
const emu_entry emu_library_entries[] = {{1, write_log},     {2, is_wanted},         {4, SUBTABLE(2)},
                                         {6, SUBTABLE(4)},   {10, SUBTABLE(2)},      {14, SUBTABLE(7)},
                                         {22, SUBTABLE(15)}, {25, requirements_met}, {0}};

/* The emulated driver logs no errors of its own. */
API CUresult cuLogsRegisterCallback(void *fn, void *data, uint64_t *handle)
{
    if (!fn || !handle)
        return CU_INVALID;
    *handle = 1;
    return CU_OK;
}

API CUresult cuLogsUnregisterCallback(uint64_t handle) { return CU_OK; }

API CUresult cuLogsCurrent(unsigned *iterator, unsigned flags)
{
    if (!iterator || flags)
        return CU_INVALID;
    *iterator = 0;
    return CU_OK;
}
