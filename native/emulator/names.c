/* names.c: which kernels are in a module image? Looks at PTX text, cubins (ELF sections `.text.NAME`) and fat binaries.
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

typedef struct { char **at; size_t count; } names;

static void add(names *n, const char *text, size_t len)
{
    for (size_t i = 0; i < n->count; i++)
        if (strlen(n->at[i]) == len && !strncmp(n->at[i], text, len))
            return;
    char **grown = realloc(n->at, (n->count + 1) * sizeof *grown);
    if (!grown)
        return;
    n->at = grown;
    n->at[n->count++] = strndup(text, len);
}

static void from_ptx(names *n, const char *text, size_t size)
{
    const char *end = text + strnlen(text, size), *p = text;
    while ((p = memmem(p, (size_t)(end - p), ".entry", 6))) {
        p += 6;
        while (p < end && isspace((unsigned char)*p))
            p++;
        const char *from = p;
        while (p < end && (isalnum((unsigned char)*p) || *p == '_' || *p == '$' || *p == '%'))
            p++;
        add(n, from, (size_t)(p - from));
    }
}

static void from_elf(names *n, const char *image)
{
    const Elf64_Ehdr *h = (const void *)image;
    if (h->e_ident[EI_CLASS] != ELFCLASS64 || !h->e_shnum || h->e_shstrndx >= h->e_shnum)
        return;
    const Elf64_Shdr *s = (const void *)(image + h->e_shoff);
    const char *strings = image + s[h->e_shstrndx].sh_offset;
    for (int i = 0; i < h->e_shnum; i++) {
        const char *name = strings + s[i].sh_name;
        if (!strncmp(name, ".text.", 6))
            add(n, name + 6, strlen(name + 6));
    }
}

typedef struct { uint32_t magic; uint16_t version, header; uint64_t size; } fat_header;
typedef struct { uint16_t kind, version; uint32_t header; uint64_t size; uint32_t packed; } fat_part;

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
            from_elf(n, body);
        p = body + part->size;
    }
}

char **emu_entry_names(const void *image, size_t size, size_t *count)
{
    names n = {0};
    uint32_t magic;
    memcpy(&magic, image, 4);
    if (magic == 0x466243b1u) {
        image = *(void *const *)((const char *)image + 8);
        memcpy(&magic, image, 4);
    }
    if (magic == 0xba55ed50u)
        from_fatbin(&n, image);
    else if (!memcmp(image, ELFMAG, SELFMAG))
        from_elf(&n, image);
    else
        from_ptx(&n, image, size ? size : (size_t)1 << 30);
    *count = n.count;
    return n.at;
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
