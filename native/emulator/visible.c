/* visible.c: CUDA_VISIBLE_DEVICES, as the driver reads it.
 *
 * A list of numbers or UUIDs (their beginnings will do), with commas between them; the devices are numbered anew in its
 * order. The list ends at the first entry that names no device, and names none at all when it names one twice.
 * Numbers are those of CUDA_DEVICE_ORDER=PCI_BUS_ID, also without it: no emulated GPU is put first for being fast.
 * Source: CUDA C++ programming guide, "CUDA environment variables".
 */
#include "config.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_uuid(const unsigned char *uuid, const char *word, size_t length)
{
    char text[48] = "GPU-";
    int at = 4;
    for (int i = 0; i < 16; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
                       uuid[i]);
    return length > 4 && length <= (size_t)at && strncmp(text, word, length) == 0;
}

static int named(const emu_config *conf, const char *word, size_t length)
{
    char *end;
    long number = strtol(word, &end, 10);
    if (length && end == word + length)
        return number >= 0 && number < conf->count ? (int)number : -1;
    for (int i = 0; i < conf->count; i++)
        if (is_uuid(conf->gpu[i].uuid, word, length))
            return i;
    return -1;
}

void emu_show(emu_config *conf)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (!list)
        return;
    emu_config all = *conf;
    bool twice = false;
    int count = 0;
    for (const char *word = list; count < EMU_GPUS;) {
        size_t length = strcspn(word, ",");
        int device = named(&all, word, length);
        if (device < 0)
            break;
        for (int i = 0; i < count; i++)
            twice |= conf->place[i] == device;
        if (twice)
            break;
        conf->gpu[count] = all.gpu[device];
        conf->place[count++] = device;
        if (!word[length])
            break;
        word += length + 1;
    }
    conf->count = twice ? 0 : count;
    for (int a = 0; a < conf->count; a++)
        for (int b = 0; b < conf->count; b++)
            memcpy(conf->link[a][b], all.link[conf->place[a]][conf->place[b]], sizeof conf->link[a][b]);
}
