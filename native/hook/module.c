/* module.c: code and its globals are device memory too.
 *
 * How much a module takes is known only to the driver. An estimate is reserved before it is asked; afterwards the charge
 * is corrected upward by what the device lost meanwhile, within a bound, because a neighbour may have allocated in the
 * same moment. Under lazy loading a fat binary takes nothing until a kernel of it is asked for: then it is charged, once
 * for each GPU. What the driver loads later still is measured by the arbiter.
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
    struct slot *slot; /* NULL: it is not charged */
    uint64_t estimate, most, free_before;
    bool lazy;
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

/* A library may be loaded where no context is current: the first GPU with one pays, and without any the first GPU. */
static struct slot *paying_slot(void)
{
    struct slot *slot = charged_slot();
    for (unsigned i = 0; !slot && conf_load() == MODE_HELD && slot_at(i); i++)
        if (slot_at(i)->contexts)
            slot = slot_at(i);
    if (!slot && conf_load() == MODE_HELD)
        slot = slot_of_device(0);
    return slot && slot_attach(slot) ? slot : NULL;
}

/* Then nothing can be learnt from the load itself. */
static bool loads_lazily(void)
{
    enum { EAGER = 1, LAZY = 2 };
    int mode = EAGER;
    return REAL(cuModuleGetLoadingMode, int *)(&mode) == CUDA_SUCCESS && mode == LAZY;
}

static bool reserve(struct load *load, struct slot *slot, uint64_t estimate, uint64_t most)
{
    *load = (struct load){.slot = slot, .estimate = estimate, .most = most, .free_before = device_free()};
    return charge_begin(slot, estimate);
}

static bool begin(struct load *load, uint64_t bytes, bool fat)
{
    load->slot = NULL;
    load->lazy = fat && conf_load() == MODE_HELD && loads_lazily();
    struct slot *slot = load->lazy ? NULL : paying_slot();
    if (!slot)
        return true;
    /* What lies beyond the last is a neighbour's. */
    return reserve(load, slot, bytes && !fat ? round_up(bytes, LEAST_BYTES) : LEAST_BYTES, GROWTH_BYTES + 4 * bytes);
}

/* The larger of the estimate and what the device lost; false: over the limit, and only the estimate is reserved. */
static bool measure(struct load *load, uint64_t *charge)
{
    uint64_t free_after = device_free();
    uint64_t taken = load->free_before > free_after ? load->free_before - free_after : 0;
    *charge = load->estimate;
    if (!free_after || taken <= *charge || taken > load->most)
        return true;
    if (!memory_reserve(load->slot, taken - *charge, MEMORY_ASK))
        return false;
    *charge = taken;
    return true;
}

static CUresult finish(struct load *load, CUresult result, void **module, enum aliquot_symbol unload)
{
    uint64_t charge = load->estimate;
    if (load->lazy && result == CUDA_SUCCESS)
        ledger_put((struct ledger_entry){.kind = LEDGER_LAZY, .key = (uintptr_t)*module, .refs = 1}, NULL);
    if (!load->slot)
        return result;
    if (result == CUDA_SUCCESS && !measure(load, &charge)) {
        REAL_AT(unload, void *)(*module);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return charge_end(result, load->slot, LEDGER_MODULE, result == CUDA_SUCCESS ? (uintptr_t)*module : 0, charge);
}

/* The entry of a lazily loaded library's code on one GPU; handles are multiples of at least 8, and slots few. */
static uint64_t code_key(void *module, const struct slot *slot)
{
    return ((uintptr_t)module << 5) ^ (uintptr_t)(slot - slot_at(0));
}

/* Before a kernel is asked for; false: its code does not fit. */
static bool using(struct load *load, void *module)
{
    struct ledger_entry entry;
    load->slot = NULL;
    if (!ledger_get(LEDGER_LAZY, (uintptr_t)module, &entry))
        return true;
    struct slot *slot = paying_slot();
    entry = (struct ledger_entry){.kind = LEDGER_CODE, .slot = slot, .refs = 1};
    if (!slot || (entry.key = code_key(module, slot), !ledger_join(entry)))
        return true;
    if (reserve(load, slot, LEAST_BYTES, GROWTH_BYTES))
        return true;
    ledger_take(LEDGER_CODE, entry.key, &entry);
    return false;
}

static CUresult used(struct load *load, void *module, CUresult result)
{
    uint64_t charge;
    struct ledger_entry entry;
    if (!load->slot)
        return result;
    measure(load, &charge);
    if (ledger_change(LEDGER_CODE, code_key(module, load->slot), 0, charge, &entry) == LEDGER_NONE)
        memory_release(load->slot, charge);
    pthread_rwlock_unlock(&load->slot->books);
    return result;
}

CUresult on_get_kernel(enum aliquot_symbol symbol, void **kernel, void *module, const char *name)
{
    struct load load;
    if (!using(&load, module))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return used(&load, module, REAL_AT(symbol, void **, void *, const char *)(kernel, module, name));
}

CUresult on_library_get_module(enum aliquot_symbol symbol, void **module, void *library)
{
    struct load load;
    if (!using(&load, library))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return used(&load, library, REAL_AT(symbol, void **, void *)(module, library));
}

CUresult on_enumerate(enum aliquot_symbol symbol, void **kernels, unsigned count, void *module)
{
    struct load load;
    if (!using(&load, module))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return used(&load, module, REAL_AT(symbol, void **, unsigned, void *)(kernels, count, module));
}

static CUresult load_image(enum aliquot_symbol symbol, void **module, const void *image)
{
    struct load load = {0};
    bool fat = false;
    uint64_t bytes = image_bytes(image, &fat);
    if (module && image && !begin(&load, bytes, fat))
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
    struct load load = {0};
    uint64_t bytes = file_bytes(path);
    ANSWER_WRONG(!module || !bytes, (REAL_AT(symbol, void **, const char *)(module, path)),
                 REAL(cuModuleUnload, void *)(*module));
    if (!begin(&load, bytes, false))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL_AT(symbol, void **, const char *)(module, path);
    return finish(&load, result, module, SYM_cuModuleUnload);
}

CUresult on_module_load_ex(enum aliquot_symbol symbol, void **module, const void *image, unsigned count, int *options,
                           void **values)
{
    struct load load = {0};
    bool fat = false;
    uint64_t bytes = image_bytes(image, &fat);
    if (module && image && !begin(&load, bytes, fat))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result =
        REAL_AT(symbol, void **, const void *, unsigned, int *, void **)(module, image, count, options, values);
    return finish(&load, result, module, SYM_cuModuleUnload);
}

CUresult on_library_load(enum aliquot_symbol symbol, void **library, const void *source, int *jit, void **jit_values,
                         unsigned jit_count, int *options, void **values, unsigned count)
{
    struct load load = {0};
    bool fat = false, file = symbol == SYM_cuLibraryLoadFromFile;
    uint64_t bytes = file ? file_bytes(source) : image_bytes(source, &fat);
    ANSWER_WRONG(!library || !source || (file && !bytes),
                 (REAL_AT(symbol, void **, const void *, int *, void **, unsigned, int *, void **, unsigned)(
                     library, source, jit, jit_values, jit_count, options, values, count)),
                 REAL(cuLibraryUnload, void *)(*library));
    if (!begin(&load, bytes, fat || file))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL_AT(symbol, void **, const void *, int *, void **, unsigned, int *, void **, unsigned)(
        library, source, jit, jit_values, jit_count, options, values, count);
    result = finish(&load, result, library, SYM_cuLibraryUnload);
    if (result == CUDA_SUCCESS && load.slot)
        ledger_disown(LEDGER_MODULE, (uintptr_t)*library); /* a library outlives contexts */
    return result;
}

/* Takes out that a module is lazy, and its code on each GPU. */
static unsigned take_code(void *module, struct ledger_entry *lazy, struct ledger_entry *code)
{
    unsigned count = 0;
    if (!ledger_take(LEDGER_LAZY, (uintptr_t)module, lazy))
        return 0;
    for (unsigned i = 0; slot_at(i); i++)
        count += ledger_take(LEDGER_CODE, code_key(module, slot_at(i)), &code[count]);
    return count;
}

/* What is known of a module is out before the driver may give its handle to another. */
CUresult on_module_unload(enum aliquot_symbol symbol, void *module)
{
    struct ledger_entry entry, lazy = {0}, code[MAX_SLOTS];
    bool known = ledger_take(LEDGER_MODULE, (uintptr_t)module, &entry);
    unsigned count = take_code(module, &lazy, code);
    CUresult result = REAL_AT(symbol, void *)(module);
    for (unsigned i = 0; i < count; i++)
        charge_freed(result, true, &code[i]);
    if (lazy.kind && result != CUDA_SUCCESS)
        charge_enter(lazy);
    return charge_freed(result, known, &entry);
}
