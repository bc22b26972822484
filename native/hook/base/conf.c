/* conf.c: who this tenant is.
 *
 * The only source is the file named by the slot in conf_path.c, which the injector patches into each tenant's copy of
 * this library. Nothing is taken from the environment: a tenant owns that.
 */
#include "base/base.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

_Atomic int aliquot_mode;
struct conf aliquot_conf;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static ssize_t read_file(char *text, size_t size)
{
    char path[PATH_BYTES];
    conf_path(path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    size_t have = 0;
    ssize_t got;
    while (have < size - 1 && (got = read(fd, text + have, size - 1 - have)) > 0)
        have += (size_t)got;
    close(fd);
    text[have] = 0;
    return (ssize_t)have;
}

static void take(const char *line, size_t length, const char *key, char *value, size_t size)
{
    size_t skip = strlen(key);
    if (length <= skip || strncmp(line, key, skip) != 0 || line[skip] != '=')
        return;
    length -= skip + 1;
    if (length >= size)
        length = size - 1;
    memcpy(value, line + skip + 1, length);
    value[length] = 0;
}

/* A program's parent may have begun before the tenant was taken to another GPU, and named the one from before. */
static void show_moved(const char *visible, const char *moved)
{
    const char *before = getenv("CUDA_VISIBLE_DEVICES");
    size_t length = before ? strlen(before) : 0;
    for (const char *word = moved; length && *word; word += strcspn(word, " ") + 1)
        if (strncmp(word, before, length) == 0 && word[length] == ' ') {
            setenv("CUDA_VISIBLE_DEVICES", visible, 1);
            return;
        }
}

static bool parse(const char *text)
{
    char number[24] = "0", visible[64] = "", moved[1024] = "";
    for (const char *line = text; *line;) {
        size_t length = strcspn(line, "\n");
        take(line, length, "tenant", aliquot_conf.tenant, sizeof aliquot_conf.tenant);
        take(line, length, "socket", aliquot_conf.socket, sizeof aliquot_conf.socket);
        take(line, length, "libcuda", aliquot_conf.libcuda, sizeof aliquot_conf.libcuda);
        take(line, length, "libnvml", aliquot_conf.libnvml, sizeof aliquot_conf.libnvml);
        take(line, length, "cpus", aliquot_conf.cpus, sizeof aliquot_conf.cpus);
        take(line, length, "memory-patience-ms", number, sizeof number);
        take(line, length, "visible", visible, sizeof visible);
        take(line, length, "moved", moved, sizeof moved);
        line += length + (line[length] == '\n');
    }
    show_moved(visible, moved);
    aliquot_conf.patience_ms = strtoull(number, NULL, 10);
    return aliquot_conf.socket[0] == '/' && aliquot_conf.libcuda[0] == '/';
}

/* Does this file stand in the place of the driver's own? */
static bool substitutes(void)
{
    Dl_info info;
    if (!dladdr((const void *)substitutes, &info) || !info.dli_fname)
        return false;
    const char *base = strrchr(info.dli_fname, '/');
    base = base ? base + 1 : info.dli_fname;
    return strncmp(base, "libcuda", 7) == 0 || strncmp(base, "libnvidia-ml", 12) == 0;
}

int conf_load(void)
{
    int mode = atomic_load_explicit(&aliquot_mode, memory_order_acquire);
    if (mode != MODE_UNKNOWN)
        return mode;
    pthread_mutex_lock(&lock);
    mode = atomic_load(&aliquot_mode);
    if (mode == MODE_UNKNOWN) {
        char text[8192];
        if (read_file(text, sizeof text) > 0 && parse(text))
            mode = MODE_HELD;
        else
            mode = substitutes() ? MODE_BROKEN : MODE_PASS;
        atomic_store_explicit(&aliquot_mode, mode, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return mode;
}
