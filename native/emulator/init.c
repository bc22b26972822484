/* init.c: the driver's start, its version and its error texts. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "emu.h"
#include "shm.h"

__thread int emu_per_thread;
CUresult emu_sticky;
bool emu_torn_down;
static pid_t init_pid;
static _Atomic long unsupported_calls;

static void in_child(void)
{
    init_pid = -1; /* as with the real driver, a forked child cannot use it again */
    emu_parking_forget();
    shm_forget();
}

/* As the real driver does it: what a program calls in destructors that run after this finds no driver any more. */
static void tear_down(void)
{
    pthread_mutex_lock(&emu_lock);
    emu_torn_down = true;
    init_pid = -1;
    emu_sched_done();
    emu_unlock();
}

bool emu_ready(void) { return init_pid > 0; }

uint64_t emu_now(void) { return shm_now(); }

void emu_spend(int64_t ns)
{
    for (uint64_t end = ns > 0 ? emu_now() + (uint64_t)ns : 0; end && emu_now() < end;)
        ;
}

CUresult emu_unsupported(const char *symbol)
{
    atomic_fetch_add(&unsupported_calls, 1);
    const char *log = getenv("ALIQUOT_EMULATOR_LOG");
    FILE *f = log ? fopen(log, "ae") : NULL;
    if (f) {
        fprintf(f, "unsupported %s\n", symbol);
        fclose(f);
    }
    return CU_NOT_SUPPORTED;
}

/* Calls that answered "not supported" in this process, for tests. */
API long emuUnsupportedCalls(void) { return atomic_load(&unsupported_calls); }

API CUresult cuInit(unsigned flags)
{
    EMU_CALL();
    if (flags)
        return CU_INVALID;
    if (init_pid < 0)
        return emu_torn_down ? CU_DEINITIALIZED : CU_NOT_INITIALIZED;
    pthread_mutex_lock(&emu_lock);
    CUresult r = CU_OK;
    if (!init_pid) {
        if (emu_conf()->unread || (emu_conf()->count && shm_my_slot() < 0))
            r = 999;
        else if (emu_conf()->count == 0)
            r = CU_NO_DEVICE;
        else {
            pthread_atfork(NULL, NULL, in_child);
            if (emu_conf()->strict)
                atexit(tear_down);
            init_pid = getpid();
            emu_parking_begin();
        }
    }
    emu_unlock();
    return r;
}

API CUresult cuDriverGetVersion(int *version)
{
    if (!version)
        return CU_INVALID;
    *version = emu_conf()->cuda_version;
    return CU_OK;
}

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
#define E(code, name, text) {code, #name, text},
#include "errors.def"
};

API CUresult cuGetErrorName(CUresult error, const char **name)
{
    NEED_OUT(name);
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == error) {
            *name = errors[i].name;
            return CU_OK;
        }
    *name = NULL;
    return CU_INVALID;
}

API CUresult cuGetErrorString(CUresult error, const char **text)
{
    NEED_OUT(text);
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == error) {
            *text = errors[i].text;
            return CU_OK;
        }
    *text = NULL;
    return CU_INVALID;
}

API CUresult cuProfilerStart(void) { return CU_OK; }
API CUresult cuProfilerStop(void) { return CU_OK; }
