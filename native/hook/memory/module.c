/* module.c: code and its globals are device memory too.
 *
 * How much a module takes is known only to the driver. An estimate is reserved before it is asked; afterwards the charge
 * is corrected by what the tenant has in use more than before (in_use.c), within a bound, because another thread may
 * have allocated in the same moment.
 *
 * Under lazy loading, and where there is no context, nothing is on the device until code is used. It is charged then,
 * once for each context: where a function, a global or a module of it is asked for. The kernel of a library may be
 * launched by its handle, and the launch path charges for nothing, so the first one of each library is loaded where its
 * handle is asked for. What the driver loads later still is measured by the arbiter.
 */
#include "memory/charge.h"
#include "memory/image.h"

#include <string.h>
#include <sys/stat.h>

#define LEAST_BYTES (64u << 10)
#define GROWTH_BYTES (2u << 20) /* the driver takes code memory in pieces of about this size */

struct load {
    struct slot *slot; /* NULL: it is not charged */
    uint64_t estimate, most, before;
    bool own; /* `before` is of the tenant's processes alone */
    uint64_t
        later;    /* nothing is on a device before it is used; what an image may take beyond GROWTH_BYTES then, or 1 */
    uint64_t key; /* of the code that is used for the first time */
};

/* The bytes of an image that will be on the device at most; of a fat binary only a part is loaded, and that lazily. */
static uint64_t image_bytes(const void *image, bool *fat)
{
    if (!image)
        return 0;
    bool wrapped = image_begins(image, FATBIN_WRAPPER);
    *fat = wrapped || image_begins(image, FATBIN);
    if (*fat) {
        const char *binary = image;
        if (wrapped)
            memcpy(&binary, (const char *)image + 8, sizeof binary);
        uint64_t size;
        memcpy(&size, binary + 8, sizeof size);
        return size;
    }
    if (image_begins(image, ELFMAG)) {
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
    struct slot *slot = slot_current();
    for (unsigned i = 0; !slot && conf_load() == MODE_HELD && slot_at(i); i++)
        if (slot_at(i)->memory.contexts)
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
    load->slot = slot;
    load->estimate = estimate;
    load->most = most;
    load->own = true;
    load->before = memory_in_use(slot, &load->own);
    return charge_begin(slot, estimate);
}

/* A module without a context is refused by the driver, unless another thread has just brought one back. */
static bool begin(struct load *load, uint64_t bytes, bool fat, bool library)
{
    load->slot = NULL;
    bool later = conf_load() == MODE_HELD && (loads_lazily() || (library && !slot_current()));
    load->later = later ? 1 + (fat ? 0 : 4 * bytes) : 0;
    struct slot *slot = later && fat ? NULL : paying_slot();
    if (!slot)
        return true;
    /* What lies beyond the last is not of this load. */
    return reserve(load, slot, bytes && !fat ? round_up(bytes, LEAST_BYTES) : LEAST_BYTES, GROWTH_BYTES + 4 * bytes);
}

/* The larger of `least` and what was taken; false: over the limit, and only the estimate is reserved. */
static bool measure(struct load *load, uint64_t least, uint64_t *charge)
{
    bool own = load->own;
    uint64_t after = memory_in_use(load->slot, &own),
             taken = own == load->own && after > load->before ? after - load->before : 0;
    *charge = taken > least && taken <= load->most ? taken : least;
    if (*charge > load->estimate && !memory_reserve(load->slot, *charge - load->estimate, MEMORY_ASK)) {
        *charge = load->estimate;
        return false;
    }
    if (*charge < load->estimate)
        memory_release(load->slot, load->estimate - *charge);
    return true;
}

static CUresult finish(struct load *load, CUresult result, void **module, enum aliquot_symbol unload)
{
    static _Atomic uint64_t numbers = 1;
    uint64_t charge = load->estimate;
    if (load->later && result == CUDA_SUCCESS)
        ledger_put((struct ledger_entry){.kind = LEDGER_LAZY,
                                         .key = (uintptr_t)*module,
                                         .bytes = load->later - 1,
                                         .other = atomic_fetch_add(&numbers, 1),
                                         .refs = 1},
                   NULL);
    if (!load->slot)
        return result;
    if (result == CUDA_SUCCESS && !measure(load, load->later ? 0 : load->estimate, &charge)) {
        REAL_AT(unload, void *)(*module);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS && !charge) {
        pthread_rwlock_unlock(&load->slot->memory.charge_lock);
        return result;
    }
    return charge_end(result, load->slot, LEDGER_MODULE, result == CUDA_SUCCESS ? (uintptr_t)*module : 0, charge);
}

/* The entry of the code of load number `number` in a context. */
static uint64_t code_key(uint64_t number, uint64_t owner) { return number * 0x9e3779b97f4a7c15ull ^ owner; }

/* Before something is used; false: its code does not fit. */
static bool using(struct load *load, void *module)
{
    struct ledger_entry lazy, code;
    struct slot *slot;
    load->slot = NULL;
    if (!ledger_get(LEDGER_LAZY, (uintptr_t)module, &lazy) || !(slot = slot_current()))
        return true;
    uint64_t owner = owner_now(slot);
    load->key = code_key(lazy.other, owner);
    if (!ledger_join(
            (struct ledger_entry){.kind = LEDGER_CODE, .key = load->key, .slot = slot, .other = owner, .refs = 1}))
        return true;
    if (reserve(load, slot, GROWTH_BYTES, GROWTH_BYTES + lazy.bytes))
        return true;
    ledger_take(LEDGER_CODE, load->key, &code);
    return false;
}

static CUresult used(struct load *load, CUresult result)
{
    uint64_t charge;
    struct ledger_entry code;
    if (!load->slot)
        return result;
    measure(load, 0, &charge);
    if (result != CUDA_SUCCESS && !charge) /* it is still to come */
        ledger_take(LEDGER_CODE, load->key, &code);
    else if (ledger_change(LEDGER_CODE, load->key, 0, charge, &code) == LEDGER_NONE)
        memory_release(load->slot, charge);
    pthread_rwlock_unlock(&load->slot->memory.charge_lock);
    return result;
}

/* On the device now, not at its launch. During a capture that may not be done. */
static void load_kernel(const struct load *load, void *kernel)
{
    void *function = NULL;
    if (!load->slot || !kernel || capture_running())
        return;
    if (REAL(cuKernelGetFunction, void **, void *)(&function, kernel) != CUDA_SUCCESS)
        function = kernel; /* of a module */
    REAL(cuFuncLoad, void *)(function);
}

#define USE(module, wrong, call)                                                                                       \
    struct load load = {0};                                                                                            \
    if (!(wrong) && !using(&load, module))                                                                             \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                                               \
    CUresult result = call

CUresult on_get_kernel(enum aliquot_symbol symbol, void **kernel, void *module, const char *name)
{
    USE(module, !kernel || !name, (REAL_AT(symbol, void **, void *, const char *)(kernel, module, name)));
    if (result == CUDA_SUCCESS)
        load_kernel(&load, *kernel);
    return used(&load, result);
}

CUresult on_enumerate(enum aliquot_symbol symbol, void **kernels, unsigned count, void *module)
{
    USE(module, !kernels, (REAL_AT(symbol, void **, unsigned, void *)(kernels, count, module)));
    if (result == CUDA_SUCCESS && count)
        load_kernel(&load, *kernels);
    return used(&load, result);
}

CUresult on_library_get_module(enum aliquot_symbol symbol, void **module, void *library)
{
    USE(library, !module, (REAL_AT(symbol, void **, void *)(module, library)));
    return used(&load, result);
}

/* The widths of the pointer and of the size differ between the versions. */
CUresult on_get_global(enum aliquot_symbol symbol, void *ptr, void *bytes, void *module, const char *name)
{
    USE(module, !name, (REAL_AT(symbol, void *, void *, void *, const char *)(ptr, bytes, module, name)));
    return used(&load, result);
}

CUresult on_kernel_get_function(enum aliquot_symbol symbol, void **function, void *kernel)
{
    void *library = NULL;
    REAL(cuKernelGetLibrary, void **, void *)(&library, kernel);
    USE(library, !function, (REAL_AT(symbol, void **, void *)(function, kernel)));
    return used(&load, result);
}

CUresult on_function_load(enum aliquot_symbol symbol, void *function)
{
    void *module = NULL;
    REAL(cuFuncGetModule, void **, void *)(&module, function);
    USE(module, false, (REAL_AT(symbol, void *)(function)));
    return used(&load, result);
}

static CUresult load_image(enum aliquot_symbol symbol, void **module, const void *image)
{
    struct load load = {0};
    bool fat = false;
    uint64_t bytes = image_bytes(image, &fat);
    if (module && image && !begin(&load, bytes, fat, false))
        REFUSE(wrong_image(image), (REAL_AT(symbol, void **, const void *)(module, image)),
               REAL(cuModuleUnload, void *)(*module));
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
    if (!begin(&load, bytes, false, false))
        REFUSE(wrong_file(path), (REAL_AT(symbol, void **, const char *)(module, path)),
               REAL(cuModuleUnload, void *)(*module));
    CUresult result = REAL_AT(symbol, void **, const char *)(module, path);
    return finish(&load, result, module, SYM_cuModuleUnload);
}

CUresult on_module_load_ex(enum aliquot_symbol symbol, void **module, const void *image, unsigned count, int *options,
                           void **values)
{
    struct load load = {0};
    bool fat = false;
    uint64_t bytes = image_bytes(image, &fat);
    if (module && image && !begin(&load, bytes, fat, false))
        REFUSE(
            wrong_image(image),
            (REAL_AT(symbol, void **, const void *, unsigned, int *, void **)(module, image, count, options, values)),
            REAL(cuModuleUnload, void *)(*module));
    CUresult result = REAL_AT(symbol, void **, const void *, unsigned, int *, void **)(module, image, count, options,
                                                                                       values);
    return finish(&load, result, module, SYM_cuModuleUnload);
}

CUresult on_library_load(enum aliquot_symbol symbol, void **library, const void *source, int *jit, void **jit_values,
                         unsigned jit_count, int *options, void **values, unsigned count)
{
    struct load load = {0};
    bool fat = false, file = symbol == SYM_cuLibraryLoadFromFile;
    uint64_t bytes = file ? file_bytes(source) : image_bytes(source, &fat);
    ANSWER_WRONG(!library || !source || (file && !bytes),
                 (REAL_AT(symbol, void **, const void *, int *, void **, unsigned, int *, void **,
                          unsigned)(library, source, jit, jit_values, jit_count, options, values, count)),
                 REAL(cuLibraryUnload, void *)(*library));
    if (!begin(&load, bytes, fat || file, true))
        REFUSE(file ? wrong_file(source) : wrong_image(source),
               (REAL_AT(symbol, void **, const void *, int *, void **, unsigned, int *, void **,
                        unsigned)(library, source, jit, jit_values, jit_count, options, values, count)),
               REAL(cuLibraryUnload, void *)(*library));
    CUresult result = REAL_AT(symbol, void **, const void *, int *, void **, unsigned, int *, void **,
                              unsigned)(library, source, jit, jit_values, jit_count, options, values, count);
    result = finish(&load, result, library, SYM_cuLibraryUnload);
    if (result == CUDA_SUCCESS && load.slot)
        ledger_disown(LEDGER_MODULE, (uintptr_t)*library); /* a library outlives contexts */
    return result;
}

struct unloaded {
    uint64_t number;
    struct ledger_entry code[MAX_SLOTS];
    unsigned count;
};

static void note_code(struct ledger_entry *entry, void *with)
{
    struct unloaded *unloaded = with;
    if (entry->key == code_key(unloaded->number, entry->other) && unloaded->count < MAX_SLOTS)
        unloaded->code[unloaded->count++] = *entry;
}

/* In every context. */
static void code_gone(uint64_t number)
{
    struct unloaded unloaded;
    do {
        unloaded = (struct unloaded){.number = number};
        ledger_each(LEDGER_CODE, note_code, &unloaded);
        for (unsigned i = 0; i < unloaded.count; i++)
            if (ledger_take(LEDGER_CODE, unloaded.code[i].key, &unloaded.code[i]))
                charge_gone(&unloaded.code[i]);
    } while (unloaded.count == MAX_SLOTS);
}

/* What is known of a module is out before the driver may give its handle to another. */
CUresult on_module_unload(enum aliquot_symbol symbol, void *module)
{
    struct ledger_entry entry, lazy;
    bool known = ledger_take(LEDGER_MODULE, (uintptr_t)module, &entry);
    bool later = ledger_take(LEDGER_LAZY, (uintptr_t)module, &lazy);
    CUresult result = REAL_AT(symbol, void *)(module);
    if (later && result != CUDA_SUCCESS)
        charge_enter(lazy);
    if (later && result == CUDA_SUCCESS)
        code_gone(lazy.other);
    return charge_freed(result, known, &entry);
}
