/* config.c: reads emulator.conf beside the library once per process.
 *
 * Unknown keys are ignored, so that a newer file works with an older library. Faults come from `fault=` lines and, after
 * them, from the environment variable ALIQUOT_EMULATOR_FAULTS (the same words, separated by commas). `strict` is 1 unless
 * ALIQUOT_EMULATOR_STRICT or, after it, the file says otherwise.
 */
#define _GNU_SOURCE
#include "config.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((weak)) void emu_show(emu_config *conf); /* NVML knows nothing of CUDA_VISIBLE_DEVICES */

static emu_config conf;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void copy_text(char *to, size_t size, const char *from)
{
    size_t n = strnlen(from, size - 1);
    memcpy(to, from, n);
    to[n] = 0;
}

static void parse_uuid(unsigned char *out, const char *text)
{
    int n = 0;
    if (strncmp(text, "GPU-", 4) == 0)
        text += 4;
    for (; *text && n < 32; text++) {
        int d = *text >= '0' && *text <= '9' ? *text - '0' : *text >= 'a' && *text <= 'f' ? *text - 'a' + 10 : -1;
        if (d < 0)
            continue;
        out[n / 2] = (unsigned char)(n % 2 ? out[n / 2] | d : d << 4);
        n++;
    }
}

static void parse_fault(const char *text)
{
    char word[64] = "", arg[96] = "";
    sscanf(text, " %63[a-z0-9_-] %*[:= ]%95s", word, arg);
    if (!arg[0])
        sscanf(text, " %63[a-z0-9_-]%*[:= ]%95s", word, arg);
    long n = arg[0] ? strtol(arg, NULL, 10) : 0;
    if (!strcmp(word, "oom"))
        conf.fault.oom_after = n;
    else if (!strcmp(word, "sticky"))
        conf.fault.sticky_after = n;
    else if (!strcmp(word, "hang"))
        conf.fault.hang_after = n;
    else if (!strcmp(word, "slow"))
        conf.fault.slow = strtod(arg, NULL);
    else if (!strcmp(word, "old-driver"))
        conf.cuda_version = (int)n;
    else if (!strcmp(word, "missing") && conf.fault.missing_count < 8)
        copy_text(conf.fault.missing[conf.fault.missing_count++], 64, arg);
    else if (!strcmp(word, "nvml-wrong-pids"))
        conf.fault.nvml_pid_shift = n ? (int)n : 100000;
    else if (!strcmp(word, "nvml-no-processes"))
        conf.fault.nvml_processes_unsupported = true;
    else if (!strcmp(word, "nvml-no-utilization"))
        conf.fault.nvml_utilization_unsupported = true;
    else if (!strcmp(word, "nvml-no-minor"))
        conf.fault.nvml_minor_unsupported = true;
    else if (!strcmp(word, "nvml-no-recovery-action"))
        conf.fault.nvml_recovery_unsupported = true;
}

static void parse_unsafe(const char *value)
{
    static const char *const names[] = {"cuStreamQuery", "cuStreamSynchronize", "cuEventCreate", "cuMemGetInfo"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (strstr(value, names[i]))
            conf.capture_unsafe |= 1u << i;
}

struct number {
    const char *key;
    int *to;
};

static bool parse_number(const char *key, const char *value)
{
    const struct number table[] = {
        {"count", &conf.count},
        {"cuda_version", &conf.cuda_version},
        {"cc_major", &conf.major},
        {"cc_minor", &conf.minor},
        {"sms", &conf.sms},
        {"clock_khz", &conf.clock_khz},
        {"memory_clock_khz", &conf.mem_clock_khz},
        {"bus_bits", &conf.bus_bits},
        {"l2_bytes", &conf.l2_bytes},
        {"shared_per_sm", &conf.shared_sm},
        {"threads_per_sm", &conf.threads_sm},
        {"power_w", &conf.power_w},
        {"strict", &conf.strict},
        {"capture_status_needs_context", &conf.capture_status_needs_context},
        {"nvlinks", &conf.nvlinks},
        {"pcie_gen", &conf.pcie_gen},
        {"pcie_width", &conf.pcie_width},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(key, table[i].key)) {
            *table[i].to = (int)strtol(value, NULL, 10);
            return true;
        }
    return false;
}

static void parse_per_gpu(const char *key, const char *value)
{
    int a = -1, b = -1, at = 0;
    char text[128];
    if (!strcmp(key, "link")) {
        if (sscanf(value, "%d %d %127s", &a, &b, text) == 3 && a >= 0 && b >= 0 && a < EMU_GPUS && b < EMU_GPUS) {
            copy_text(conf.link[a][b], 8, text);
            copy_text(conf.link[b][a], 8, text);
        }
        return;
    }
    if (!strcmp(key, "kernel")) {
        long long ns;
        if (conf.kernels < EMU_KERNELS && sscanf(value, "%95s %lld", text, &ns) == 2) {
            copy_text(conf.kernel[conf.kernels].name, sizeof conf.kernel[0].name, text);
            conf.kernel[conf.kernels++].ns = ns;
        }
        return;
    }
    if (sscanf(value, "%d %n", &a, &at) != 1 || a < 0 || a >= EMU_GPUS)
        return;
    if (!strcmp(key, "uuid"))
        parse_uuid(conf.gpu[a].uuid, value + at);
    else if (!strcmp(key, "pci"))
        copy_text(conf.gpu[a].pci, sizeof conf.gpu[a].pci, value + at);
    else if (!strcmp(key, "cpus"))
        copy_text(conf.gpu[a].cpus, sizeof conf.gpu[a].cpus, value + at);
    else if (!strcmp(key, "numa"))
        conf.gpu[a].numa = (int)strtol(value + at, NULL, 10);
    else if (!strcmp(key, "minor"))
        conf.gpu[a].minor = (int)strtol(value + at, NULL, 10);
    else if (!strcmp(key, "mig"))
        conf.gpu[a].mig = strtol(value + at, NULL, 10) != 0;
    else if (!strcmp(key, "name"))
        copy_text(conf.gpu[a].model, sizeof conf.gpu[a].model, value + at);
}

static void parse_line(char *line)
{
    line[strcspn(line, "\r\n")] = 0;
    char *value = strchr(line, '=');
    if (line[0] == '#' || !value)
        return;
    *value++ = 0;
    if (parse_number(line, value))
        return;
    if (!strcmp(line, "model"))
        copy_text(conf.model, sizeof conf.model, value);
    else if (!strcmp(line, "board"))
        copy_text(conf.board, sizeof conf.board, value);
    else if (!strcmp(line, "driver"))
        copy_text(conf.driver_name, sizeof conf.driver_name, value);
    else if (!strcmp(line, "memory_mib"))
        conf.memory = strtoull(value, NULL, 10) << 20;
    else if (!strcmp(line, "context_mib"))
        conf.context = strtoull(value, NULL, 10) << 20;
    else if (!strcmp(line, "module_kib"))
        conf.module = strtoull(value, NULL, 10) << 10;
    else if (!strcmp(line, "default_kernel_ns"))
        conf.default_kernel_ns = strtoll(value, NULL, 10);
    else if (!strcmp(line, "launch_ns"))
        conf.launch_ns = strtoll(value, NULL, 10);
    else if (!strcmp(line, "event_ns"))
        conf.event_ns = strtoll(value, NULL, 10);
    else if (!strcmp(line, "query_ns"))
        conf.query_ns = strtoll(value, NULL, 10);
    else if (!strcmp(line, "event_gpu_ns"))
        conf.event_gpu_ns = strtoll(value, NULL, 10);
    else if (!strcmp(line, "slice_us"))
        conf.slice_ns = strtoll(value, NULL, 10) * 1000;
    else if (!strcmp(line, "capture_unsafe"))
        parse_unsafe(value);
    else if (!strcmp(line, "fault"))
        parse_fault(value);
    else
        parse_per_gpu(line, value);
}

static void set_defaults(void)
{
    conf = (emu_config){.model = "Tesla V100-SXM2-16GB",
                        .driver_name = "580.95.05",
                        .count = 1,
                        .cuda_version = 13000,
                        .major = 7,
                        .sms = 80,
                        .clock_khz = 1530000,
                        .mem_clock_khz = 877000,
                        .bus_bits = 4096,
                        .l2_bytes = 6 << 20,
                        .shared_sm = 96 << 10,
                        .power_w = 300,
                        .threads_sm = 2048,
                        .pcie_gen = 3,
                        .pcie_width = 16,
                        .memory = 16384ull << 20,
                        .context = 300ull << 20,
                        .module = 64 << 10,
                        .default_kernel_ns = 10000,
                        .slice_ns = 1500000,
                        .event_gpu_ns = 500,
                        .strict = 1};
    conf.fault.oom_after = conf.fault.sticky_after = conf.fault.hang_after = -1;
    conf.fault.slow = 1.0;
    for (int i = 0; i < EMU_GPUS; i++) {
        memcpy(conf.gpu[i].uuid, "aliquot-emulat", 14);
        conf.gpu[i].uuid[15] = (unsigned char)i;
        conf.gpu[i].minor = i;
        snprintf(conf.gpu[i].pci, sizeof conf.gpu[i].pci, "0000:%02x:00.0", 0x10 + i);
    }
}

static void load(void)
{
    Dl_info me;
    char path[512];
    set_defaults();
    if (dladdr((void *)load, &me) && me.dli_fname)
        copy_text(conf.directory, sizeof conf.directory, me.dli_fname);
    char *slash = strrchr(conf.directory, '/');
    copy_text(slash ? slash : conf.directory, 2, slash ? "" : ".");
    snprintf(path, sizeof path, "%s/emulator.conf", conf.directory);
    FILE *f = fopen(path, "re");
    char line[512];
    conf.unread = !f && errno != ENOENT;
    while (f && fgets(line, sizeof line, f))
        parse_line(line);
    if (f) {
        conf.unread = ferror(f);
        fclose(f);
    }
    const char *strict = getenv("ALIQUOT_EMULATOR_STRICT");
    if (strict && *strict)
        conf.strict = strict[0] == '1';
    const char *loading = getenv("CUDA_MODULE_LOADING");
    conf.lazy = conf.strict && !(loading && !strcmp(loading, "EAGER"));
    const char *env = getenv("ALIQUOT_EMULATOR_FAULTS");
    char *words = env ? strdup(env) : NULL, *state = NULL;
    for (char *w = words ? strtok_r(words, ",", &state) : NULL; w; w = strtok_r(NULL, ",", &state))
        parse_fault(w);
    free(words);
    if (conf.count < 0 || conf.count > EMU_GPUS)
        conf.count = EMU_GPUS;
    for (int i = 0; i < EMU_GPUS; i++)
        conf.place[i] = i;
    memcpy(conf.all, conf.gpu, sizeof conf.all);
    conf.machine = conf.count;
    if (emu_show)
        emu_show(&conf);
}

const emu_config *emu_conf(void)
{
    pthread_once(&once, load);
    return &conf;
}
