/* names.c: which kernels are in a module image, and which of them have parameters? Looks at PTX text, cubins (ELF sections
 * `.text.NAME` and `.nv.info.NAME`) and fat binaries.
 *
 * Fat binaries with compressed parts cannot be read here; their list stays empty and the module then answers to any
 * kernel name.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>
#include "emu.h"

typedef struct {
    emu_symbol *at;
    size_t count;
    bool full;
} names; /* full: there was no memory for one */

static emu_symbol *add(names *n, const char *text, size_t len)
{
    for (size_t i = 0; i < n->count; i++)
        if (strlen(n->at[i].name) == len && !strncmp(n->at[i].name, text, len))
            return &n->at[i];
    char *copy = strndup(text, len);
    emu_symbol *grown = copy ? realloc(n->at, (n->count + 1) * sizeof *grown) : NULL;
    if (!grown) {
        free(copy);
        n->full = true;
        return NULL;
    }
    n->at = grown;
    n->at[n->count] = (emu_symbol){copy, false};
    return &n->at[n->count++];
}

static const char *past_space(const char *p, const char *end)
{
    while (p < end && isspace((unsigned char)*p))
        p++;
    return p;
}

static void from_ptx(names *n, const char *text, size_t size)
{
    const char *end = text + strnlen(text, size), *p = text;
    while ((p = memmem(p, (size_t)(end - p), ".entry", 6))) {
        const char *from = p = past_space(p + 6, end);
        while (p < end && (isalnum((unsigned char)*p) || *p == '_' || *p == '$' || *p == '%'))
            p++;
        emu_symbol *e = add(n, from, (size_t)(p - from));
        const char *list = past_space(p, end);
        if (e && list < end && *list == '(' && past_space(list + 1, end) < end)
            e->takes_parameters = *past_space(list + 1, end) != ')';
    }
}

/* Text to its end, with a directive that no other text has: a real driver hands anything else back. */
static bool is_ptx(const char *text, size_t size)
{
    size_t length = strnlen(text, size);
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] < ' ' && !isspace((unsigned char)text[i]))
            return false;
    return memmem(text, length, ".entry", 6) || memmem(text, length, ".version", 8);
}

/* .nv.info.NAME is a list of attributes: a byte for the form, one for the kind, and two of value or, in the fourth form,
 * of length. One of kind 0x17 is there for every parameter (CuAssembler: CuNVInfo). */
static bool has_parameters(const unsigned char *p, size_t size)
{
    enum { SIZED = 4, PARAMETER = 0x17 };
    for (size_t at = 0; at + 4 <= size; at += 4u + (p[at] == SIZED ? p[at + 2] + 256u * p[at + 3] : 0))
        if (p[at] == SIZED && p[at + 1] == PARAMETER)
            return true;
    return false;
}

typedef struct {
    const Elf64_Shdr *section;
    int count;
    const char *strings;
} sections;

/* None where this is no ELF file, or one that says it is larger than it is. */
static sections sections_of(const char *image, size_t size)
{
    const Elf64_Ehdr *h = (const void *)image;
    bool fits = size >= sizeof *h && h->e_ident[EI_CLASS] == ELFCLASS64 && h->e_shstrndx < h->e_shnum &&
                h->e_shoff < size && h->e_shnum * sizeof(Elf64_Shdr) <= size - h->e_shoff;
    const Elf64_Shdr *s = (const void *)(image + (fits ? h->e_shoff : 0));
    for (int i = 0; fits && i < h->e_shnum; i++)
        fits = s[i].sh_type == SHT_NOBITS || (s[i].sh_offset <= size && s[i].sh_size <= size - s[i].sh_offset);
    return (sections){s, fits ? h->e_shnum : 0, fits ? image + s[h->e_shstrndx].sh_offset : NULL};
}

static bool from_elf(names *n, const char *image, size_t size)
{
    sections all = sections_of(image, size);
    for (int i = 0; i < all.count; i++) {
        const char *name = all.strings + all.section[i].sh_name;
        const unsigned char *info = (const void *)(image + all.section[i].sh_offset);
        if (!strncmp(name, ".text.", 6))
            add(n, name + 6, strlen(name + 6));
        emu_symbol *e = strncmp(name, ".nv.info.", 9) ? NULL : add(n, name + 9, strlen(name + 9));
        if (e)
            e->takes_parameters = has_parameters(info, all.section[i].sh_size);
    }
    return all.count;
}

typedef struct {
    uint32_t magic;
    uint16_t version, header;
    uint64_t size;
} fat_header;
typedef struct {
    uint16_t kind, version;
    uint32_t header;
    uint64_t size;
    uint32_t packed;
} fat_part;

static void from_fatbin(names *n, const char *image)
{
    const fat_header *h = (const void *)image;
    const char *p = image + h->header, *end = p + h->size;
    while (p + sizeof(fat_part) < end) {
        const fat_part *part = (const void *)p;
        const char *body = p + part->header;
        if (!part->header || !part->size)
            break;
        if (part->kind == 1 && !part->packed)
            from_ptx(n, body, part->size);
        else if (!memcmp(body, ELFMAG, SELFMAG))
            from_elf(n, body, part->size);
        p = body + part->size;
    }
}

void emu_symbols_free(emu_symbol *at, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(at[i].name);
    free(at);
}

/* A text may be shorter than the number, with nothing mapped behind it. */
static bool begins(const void *image, size_t size, const char *number)
{
    return (!size || size >= SELFMAG) && !strncmp(image, number, SELFMAG);
}

CUresult emu_symbols(const void *image, size_t size, emu_symbol **out, size_t *count)
{
    enum { MAX_TEXT = 1 << 30 };
    names n = {0};
    bool valid = true;
    if (begins(image, size, "\xb1\x43\x62\x46")) {
        image = *(void *const *)((const char *)image + 8);
        size = 0;
    }
    if (begins(image, size, "\x50\xed\x55\xba"))
        from_fatbin(&n, image);
    else if (begins(image, size, ELFMAG))
        valid = from_elf(&n, image, size ? size : SIZE_MAX / 2);
    else if ((valid = is_ptx(image, size ? size : MAX_TEXT)))
        from_ptx(&n, image, size ? size : MAX_TEXT);
    if (valid && !n.full) {
        *out = n.at;
        *count = n.count;
        return CU_OK;
    }
    emu_symbols_free(n.at, n.count);
    return valid ? CU_OOM : CU_INVALID_IMAGE;
}

static int64_t number_after(const char *name, const char *mark)
{
    const char *p = strstr(name, mark);
    return p && isdigit((unsigned char)p[strlen(mark)]) ? strtoll(p + strlen(mark), NULL, 10) : -1;
}

bool emu_kernel_until(const char *name, void **params, emu_until *out)
{
    if (!strstr(name, "spin_until") || !params || !params[0] || !params[1])
        return false;
    memcpy(&out->at, params[0], sizeof out->at);
    memcpy(&out->value, params[1], sizeof out->value);
    return true;
}

/* Nanoseconds of one launch: the table first, then the launch parameter, then the name's suffix, then the default. */
int64_t emu_kernel_ns(const char *name, void **params, void **extra, int64_t table)
{
    const emu_config *c = emu_conf();
    int64_t ns = -1;
    for (int i = 0; i < c->kernels && ns < 0; i++)
        if (!strcmp(c->kernel[i].name, name))
            ns = c->kernel[i].ns;
    if (ns < 0 && strstr(name, "spin_ns")) {
        uint64_t asked = 0;
        if (params && params[0])
            memcpy(&asked, params[0], 8);
        for (int i = 0; !params && extra && i < 6 && extra[i]; i += 2)
            if (extra[i] == (void *)1)
                memcpy(&asked, extra[i + 1], 8);
        ns = asked > 1000000000000000ull ? 1000000000000000ll : (int64_t)asked;
    }
    int64_t us = ns < 0 ? number_after(name, "_us") : -1, ms = ns < 0 ? number_after(name, "_ms") : -1;
    ns = ns >= 0 ? ns : us >= 0 ? us * 1000 : ms >= 0 ? ms * 1000000 : c->default_kernel_ns;
    return (int64_t)((double)ns * c->fault.slow);
}
