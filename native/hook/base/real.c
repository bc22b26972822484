/* real.c: the driver's own libraries, and the true dlsym of libc.
 *
 * The true dlsym is found by reading libc's symbol table through dl_iterate_phdr: asking dlsym or dlvsym for it would
 * reach our own exports, and glibc's private look-ups are gone since 2.34.
 */
#include "base/base.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>

void *(*aliquot_true_dlsym)(void *, const char *);
void *(*aliquot_true_dlvsym)(void *, const char *, const char *);
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *libraries[2];

struct object {
    const ElfW(Sym) *symbols;
    const char *strings, *soname;
    const uint32_t *gnu_hash, *sysv_hash;
};

static const void *at(ElfW(Addr) base, ElfW(Addr) value) { return (const void *)(value < base ? base + value : value); }

static bool open_object(const struct dl_phdr_info *info, struct object *out)
{
    const ElfW(Dyn) *dynamic = NULL;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    if (!dynamic)
        return false;
    ElfW(Addr) soname = 0;
    memset(out, 0, sizeof *out);
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        const void *where = at(info->dlpi_addr, dynamic->d_un.d_ptr);
        switch (dynamic->d_tag) {
        case DT_SYMTAB: out->symbols = where; break;
        case DT_STRTAB: out->strings = where; break;
        case DT_GNU_HASH: out->gnu_hash = where; break;
        case DT_HASH: out->sysv_hash = where; break;
        case DT_SONAME: soname = dynamic->d_un.d_val; break;
        }
    }
    if (out->strings && soname)
        out->soname = out->strings + soname;
    return out->symbols && out->strings && out->soname;
}

static uint32_t symbol_count(const struct object *object)
{
    if (object->sysv_hash)
        return object->sysv_hash[1];
    if (!object->gnu_hash)
        return 0;
    const uint32_t buckets = object->gnu_hash[0], first = object->gnu_hash[1], words = object->gnu_hash[2];
    const uint32_t *bucket = object->gnu_hash + 4 + words * (sizeof(ElfW(Addr)) / 4), *chain = bucket + buckets;
    uint32_t last = 0;
    for (uint32_t i = 0; i < buckets; i++)
        if (bucket[i] > last)
            last = bucket[i];
    if (last < first)
        return first;
    while (!(chain[last - first] & 1))
        last++;
    return last + 1;
}

static int look(struct dl_phdr_info *info, size_t size, void *unused)
{
    struct object object;
    if (!open_object(info, &object) ||
        (strncmp(object.soname, "libc.so", 7) != 0 && strncmp(object.soname, "libdl.so", 8) != 0))
        return 0;
    uint32_t count = symbol_count(&object);
    for (uint32_t i = 0; i < count; i++) {
        const ElfW(Sym) *symbol = object.symbols + i;
        if (symbol->st_shndx == SHN_UNDEF || (symbol->st_info & 15) != STT_FUNC)
            continue;
        const char *name = object.strings + symbol->st_name;
        if (!aliquot_true_dlsym && strcmp(name, "dlsym") == 0)
            aliquot_true_dlsym = (void *(*)(void *, const char *))(info->dlpi_addr + symbol->st_value);
        if (!aliquot_true_dlvsym && strcmp(name, "dlvsym") == 0)
            aliquot_true_dlvsym = (void *(*)(void *, const char *, const char *))(info->dlpi_addr + symbol->st_value);
    }
    return aliquot_true_dlsym && aliquot_true_dlvsym;
}

/* In a static program that opened us, the list of objects belongs to the program's own copy of libc and is empty here.
 * The library that gave us dlclose also has dlsym; its header is found by walking back from there, over pages that are
 * all mapped because they are of one file. */
static void look_behind_dlclose(void)
{
    const uintptr_t page = 4096;
    uintptr_t base = (uintptr_t)dlclose & ~(page - 1);
    for (int pages = 0; pages < 4096 && memcmp((const void *)base, ELFMAG, SELFMAG) != 0; pages++)
        base -= page;
    const ElfW(Ehdr) *header = (const void *)base;
    if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0)
        return;
    struct dl_phdr_info info = {
        .dlpi_addr = base,
        .dlpi_phdr = (const void *)(base + header->e_phoff),
        .dlpi_phnum = header->e_phnum,
    };
    look(&info, sizeof info, NULL);
}

void true_dl_find(void)
{
    if (!aliquot_true_dlsym || !aliquot_true_dlvsym)
        dl_iterate_phdr(look, NULL);
    if (!aliquot_true_dlsym)
        look_behind_dlclose();
}

static CUresult absent_cuda(void) { return CUDA_ERROR_NOT_SUPPORTED; }
static CUresult broken_cuda(void) { return CUDA_ERROR_SYSTEM_NOT_READY; }
static CUresult absent_nvml(void) { return NVML_ERROR_FUNCTION_NOT_FOUND; }
static CUresult broken_nvml(void) { return NVML_ERROR_LIBRARY_NOT_FOUND; }

bool real_is_nvml(const char *name) { return name[0] == 'n'; }

void *real_library(bool nvml)
{
    void *library = __atomic_load_n(&libraries[nvml], __ATOMIC_ACQUIRE);
    if (library)
        return library;
    int mode = conf_load();
    if (mode == MODE_BROKEN)
        return NULL;
    const char *path = nvml ? "libnvidia-ml.so.1" : "libcuda.so.1";
    if (mode == MODE_HELD)
        path = nvml ? aliquot_conf.libnvml : aliquot_conf.libcuda;
    pthread_mutex_lock(&lock);
    true_dl_find();
    if (!libraries[nvml] && path[0])
        __atomic_store_n(&libraries[nvml], dlopen(path, RTLD_NOW | RTLD_LOCAL), __ATOMIC_RELEASE);
    library = libraries[nvml];
    pthread_mutex_unlock(&lock);
    return library;
}

void *real_symbol(int symbol)
{
    const char *name = aliquot_symbols[symbol].name;
    void *library = real_library(real_is_nvml(name));
    return library && aliquot_true_dlsym ? aliquot_true_dlsym(library, name) : NULL;
}

_Atomic(void (*)(void)) aliquot_parked;

/* The function behind an entry that is not known yet, or of a tenant that is parked. */
void *aliquot_resolve(long symbol)
{
    UNCANCELLED();
    void (*wait)(void) = atomic_load(&aliquot_parked);
    if (wait && aliquot_symbols[symbol].hook && !real_is_nvml(aliquot_symbols[symbol].name))
        wait();
    bool nvml = real_is_nvml(aliquot_symbols[symbol].name);
    void *found = real_symbol((int)symbol);
    if (!found && !real_library(nvml))
        found = nvml ? (void *)broken_nvml : (void *)broken_cuda;
    else if (!found)
        found = nvml ? (void *)absent_nvml : (void *)absent_cuda;
    __atomic_store_n(&aliquot_real[symbol], found, __ATOMIC_RELEASE);
    return found;
}
