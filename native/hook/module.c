/* module.c: code and its globals are device memory too.
 *
 * How much a module takes is known only to the driver. An estimate is reserved before it is asked; afterwards the charge
 * is corrected upward by what the device lost meanwhile, within a bound, because a neighbour may have allocated in the
 * same moment. What lazy loading adds later is measured by the arbiter.
 */
#include "charge.h"

#include <elf.h>
#include <string.h>
#include <sys/stat.h>

#define LEAST_BYTES (64u << 10)
#define GROWTH_BYTES (2u << 20) /* the driver takes code memory in pieces of about this size */
#define FATBIN_WRAPPER 0x466243b1u
#define FATBIN 0xba55ed50u

struct load {
    struct slot *slot; /* NULL: nobody pays */
    uint64_t estimate, most, free_before;
};

static uint64_t device_free(void)
{
    size_t free_bytes = 0, total = 0;
    return REAL(cuMemGetInfo_v2, size_t *, size_t *)(&free_bytes, &total) == CUDA_SUCCESS ? free_bytes : 0;
}

/* The bytes of an image that will be on the device at most; of a fat binary only a part is loaded, and that lazily. */
static uint64_t image_bytes(const void *image, bool *fat)
{
    uint32_t magic = 0;
    if (!image)
        return 0;
    memcpy(&magic, image, sizeof magic);
    *fat = magic == FATBIN_WRAPPER || magic == FATBIN;
    if (*fat) {
        const char *binary = image;
        if (magic == FATBIN_WRAPPER)
            memcpy(&binary, (const char *)image + 8, sizeof binary);
        uint64_t size;
        memcpy(&size, binary + 8, sizeof size);
        return size;
    }
    if (memcmp(image, ELFMAG, SELFMAG) == 0) {
        const Elf64_Ehdr *header = image;
        return header->e_shoff + (uint64_t)header->e_shnum * header->e_shentsize;
    }
    return strnlen(image, 64u << 20);
}

static uint64_t file_bytes(const char *path)
{
    struct stat facts;
    return path && stat(path, &facts) == 0 ? (uint64_t)facts.st_size : 0;
}

/* A library may be loaded where no context is current: the first GPU with one pays. */
static struct slot *paying_slot(void)
{
    struct slot *slot = charged_slot();
    for (unsigned i = 0; !slot && conf_load() == MODE_HELD && slot_at(i); i++)
        if (slot_at(i)->contexts)
            slot = slot_at(i);
    return slot;
}

/* Then only what is launched of a fat binary is loaded, later; nothing can be learnt from the load itself. */
static bool loads_lazily(void)
{
    enum { EAGER = 1, LAZY = 2 };
    int mode = EAGER;
    return REAL(cuModuleGetLoadingMode, int *)(&mode) == CUDA_SUCCESS && mode == LAZY;
}

static bool begin(struct load *load, uint64_t bytes, bool fat)
{
    load->slot = paying_slot();
    if (!load->slot)
        return true;
    load->estimate = bytes && !fat ? (bytes + LEAST_BYTES - 1) / LEAST_BYTES * LEAST_BYTES : LEAST_BYTES;
    load->most = fat && loads_lazily() ? 0 : GROWTH_BYTES + 4 * bytes; /* what lies beyond is a neighbour's */
    load->free_before = device_free();
    return memory_reserve(load->slot, load->estimate);
}

static CUresult finish(struct load *load, CUresult result, void **module, enum aliquot_symbol unload)
{
    if (!load->slot)
        return result;
    uint64_t charge = load->estimate, free_after = device_free();
    uint64_t taken = load->free_before > free_after ? load->free_before - free_after : 0;
    if (result == CUDA_SUCCESS && free_after && taken > charge && taken <= load->most) {
        if (!memory_reserve(load->slot, taken - charge)) {
            REAL_AT(unload, void *)(*module);
            memory_release(load->slot, charge);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        charge = taken;
    }
    return charge_done(result, load->slot, LEDGER_MODULE, result == CUDA_SUCCESS ? (uintptr_t)*module : 0, charge);
}

static CUresult load_image(enum aliquot_symbol symbol, void **module, const void *image)
{
    struct load load;
    bool fat = false;
    uint64_t bytes = image_bytes(image, &fat);
    if (!begin(&load, bytes, fat))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL_AT(symbol, void **, const void *)(module, image);
    return finish(&load, result, module, SYM_cuModuleUnload);
}

CUresult on_module_load_data(enum aliquot_symbol symbol, void **module, const void *image)
{
    return load_image(symbol, module, image);
}

CUresult on_module_load(enum aliquot_symbol symbol, void **module, const char *path)
{
    struct load load;
    if (!begin(&load, file_bytes(path), false))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL_AT(symbol, void **, const char *)(module, path);
    return finish(&load, result, module, SYM_cuModuleUnload);
}

CUresult on_module_load_ex(enum aliquot_symbol symbol, void **module, const void *image, unsigned count, int *options,
                           void **values)
{
    struct load load;
    bool fat = false;
    uint64_t bytes = image_bytes(image, &fat);
    if (!begin(&load, bytes, fat))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result =
        REAL_AT(symbol, void **, const void *, unsigned, int *, void **)(module, image, count, options, values);
    return finish(&load, result, module, SYM_cuModuleUnload);
}

CUresult on_library_load(enum aliquot_symbol symbol, void **library, const void *source, int *jit, void **jit_values,
                         unsigned jit_count, int *options, void **values, unsigned count)
{
    struct load load;
    bool fat = false, file = symbol == SYM_cuLibraryLoadFromFile;
    uint64_t bytes = file ? file_bytes(source) : image_bytes(source, &fat);
    if (!begin(&load, bytes, fat || file))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL_AT(symbol, void **, const void *, int *, void **, unsigned, int *, void **, unsigned)(
        library, source, jit, jit_values, jit_count, options, values, count);
    result = finish(&load, result, library, SYM_cuLibraryUnload);
    struct ledger_entry entry;
    if (result == CUDA_SUCCESS && load.slot && ledger_get(LEDGER_MODULE, (uintptr_t)*library, &entry)) {
        entry.other = 0; /* a library outlives contexts */
        ledger_put(entry);
    }
    return result;
}

CUresult on_module_unload(enum aliquot_symbol symbol, void *module)
{
    CUresult result = REAL_AT(symbol, void *)(module);
    if (result == CUDA_SUCCESS)
        charge_drop(LEDGER_MODULE, (uintptr_t)module);
    return result;
}
