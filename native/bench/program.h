/* program.h: what the benchmark programs share: the driver by its name, errors, clocks.
 *
 * Each program is a plain CUDA program: it opens libcuda.so.1 as any other does, so it measures whatever stands there.
 * An error ends the program with one line on stderr.
 */
#ifndef ALIQUOT_BENCH_PROGRAM_H
#define ALIQUOT_BENCH_PROGRAM_H

#include <stdint.h>

typedef int (*launch_fn)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                         void **);

extern const char *program_name; /* every program defines it */

__attribute__((noreturn)) void fail(const char *what, int code);

/* The address of a function that must be there. */
void *need(void *library, const char *name);

#define CALL(library, type, name, ...)                                                                                 \
    do {                                                                                                               \
        int code_ = ((int(*) type)need(library, #name))(__VA_ARGS__);                                                  \
        if (code_)                                                                                                     \
            fail(#name, code_);                                                                                        \
    } while (0)

/* libcuda.so.1 with the first device's primary context current, and the module in the file `ptx_path` loaded. */
void *open_cuda(const char *ptx_path, void **module);

/* CLOCK_MONOTONIC in nanoseconds: the same in every process of the machine. */
uint64_t monotonic_ns(void);

#endif
