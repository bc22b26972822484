/* stubs.c: every symbol of the table exists.
 *
 * Each is a weak function that says CUDA_ERROR_NOT_SUPPORTED and counts itself; a file that implements the symbol wins
 * at link time. Per-thread twins (_ptsz, _ptds) set a thread-local flag and call their base: all arguments of the
 * driver interface are of the integer class, so twelve words pass every signature on.
 */
#include "emu.h"

typedef uint64_t W;
typedef CUresult (*any_fn)(W, W, W, W, W, W, W, W, W, W, W, W);

#define ROW(name, version, symbol)                                                                                     \
    __attribute__((weak)) API CUresult symbol(W a, W b, W c, W d, W e, W f, W g, W h, W i, W j, W k, W l)              \
    {                                                                                                                  \
        return emu_unsupported(#symbol);                                                                               \
    }
#define TWIN(name, version, flavour, symbol, base)                                                                     \
    __attribute__((weak)) API CUresult symbol(W a, W b, W c, W d, W e, W f, W g, W h, W i, W j, W k, W l)              \
    {                                                                                                                  \
        emu_per_thread++;                                                                                              \
        CUresult r = ((any_fn)base)(a, b, c, d, e, f, g, h, i, j, k, l);                                               \
        emu_per_thread--;                                                                                              \
        return r;                                                                                                      \
    }
#define RENAMED(name, version, symbol)
#include "../symbols/cuda.def"
