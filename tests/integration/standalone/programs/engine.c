/* Sizes its context as llama.cpp does, by what cudaMemGetInfo, which is cuMemGetInfo, says at its start, less a margin
 * (--fit). Takes it beside its weights, and writes the bytes into the file of the first argument. */
#include "driver.h"

#define MIB ((size_t)1 << 20)

int main(int argc, char **argv)
{
    u64 weights, cache;
    size_t left = 0, total = 0, rest = 0;
    open_driver();
    use_device(0);
    OK(F(cuMemGetInfo_v2)(&left, &total));
    OK(F(cuMemAlloc_v2)(&weights, 2048 * MIB));
    OK(F(cuMemAlloc_v2)(&cache, left - 3072 * MIB));
    OK(F(cuMemGetInfo_v2)(&rest, &total));
    FILE *out = argc > 1 ? fopen(argv[1], "w") : NULL;
    if (!out)
        return 1;
    fprintf(out, "[%zu, [%zu, %zu], [%zu, %zu]]", left - 3072 * MIB, left, total, rest, total);
    fclose(out);
    sleep(600);
    return 0;
}
