/* array.c: textures and surfaces.
 *
 * What an array takes is known only to the driver, which tells it of deferred arrays alone. So an upper bound is charged:
 * rows are padded, and rows and layers are grouped in blocks of a power of two, no higher than the array needs. Sparse
 * and deferred arrays bring their memory by cuMemCreate.
 */
#include "memory/charge.h"

#define ROW_BYTES 512
#define BLOCK_ROWS 8   /* the lowest block of rows */
#define BLOCKS_MOST 16 /* blocks on top of each other in one group */
#define LAYERS_MOST 32

enum {
    BC1 = 0x91,
    BC1_SRGB,
    BC4_UNORM = 0x97,
    BC4_SNORM,
    BC7_SRGB = 0x9e,
    PLANAR = 0x9f,
    PLANAR_END = 0xbf,
    PACKED8 = 0xc0,
    PACKED16 = 0xc3,
    PACKED8_SIGNED = 0xc6,
    PACKED16_SIGNED = 0xc9,
    PACKED_END = 0xcb
};

/* Bytes of one channel of one element. */
static uint64_t channel_bytes(int format)
{
    switch (format) {
    case 0x01:
    case 0x08: return 1;
    case 0x02:
    case 0x09:
    case 0x10: return 2;
    case 0x03:
    case 0x0a:
    case 0x20: return 4;
    }
    if (format >= PACKED8 && format <= PACKED_END)
        return format < PACKED16 || (format >= PACKED8_SIGNED && format < PACKED16_SIGNED) ? 1 : 2;
    return 8; /* more than any that cuda.h has */
}

static bool looks_wrong(uint64_t width, int format, unsigned channels)
{
    bool known = channel_bytes(format) != 8 || (format >= BC1 && format <= PLANAR_END);
    return !width || !known || (channels != 1 && channels != 2 && channels != 4);
}

static uint64_t times(uint64_t a, uint64_t b) { return b && a > UINT64_MAX / b ? UINT64_MAX : a * b; }

/* `count` in groups of a power of two, up to `most`, that is no more than twice too large. */
static uint64_t grouped(uint64_t count, uint64_t most)
{
    uint64_t group = 1;
    while (group < most && group < count)
        group *= 2;
    return round_up(count, group);
}

static uint64_t bytes_of(uint64_t width, uint64_t height, uint64_t depth, int format, unsigned channels)
{
    uint64_t element = times(channel_bytes(format), channels ? channels : 1);
    if (format >= BC1 && format <= BC7_SRGB) { /* blocks of 4 x 4 elements, whatever the channels */
        bool half = format == BC1 || format == BC1_SRGB || format == BC4_UNORM || format == BC4_SNORM;
        element = half ? 8 : 16;
        width = round_up(width, 4) / 4;
        height = round_up(height, 4) / 4;
    } else if (format >= PLANAR && format <= PLANAR_END) {
        element = 8; /* all planes of an element together, 16 bits each */
    }
    uint64_t rows = height > 1 ? times(grouped(round_up(height, BLOCK_ROWS) / BLOCK_ROWS, BLOCKS_MOST), BLOCK_ROWS) : 1;
    uint64_t layers = depth > 1 ? grouped(depth, LAYERS_MOST) : 1;
    return times(times(round_up(times(width, element), ROW_BYTES), rows), layers);
}

struct cost { uint64_t whole, shared; /* pages of its own, and bytes of a page that it shares */ };

static uint64_t sum(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

static void add(struct cost *cost, uint64_t bytes)
{
    if (bytes < SMALL_BYTES)
        cost->shared += bytes;
    else
        cost->whole = sum(cost->whole, linear_cost(bytes));
}

/* Small levels of one array may be more than a page together. */
static bool begin(struct slot *slot, struct cost *cost)
{
    if (cost->shared > PAGE_BYTES) {
        cost->whole = sum(cost->whole, linear_cost(cost->shared));
        cost->shared = 0;
    }
    return charge_begin(slot, sum(cost->whole, cost->shared ? PAGE_BYTES : 0));
}

static CUresult end(CUresult result, struct slot *slot, void **array, const struct cost *cost)
{
    if (!slot || result != CUDA_SUCCESS)
        return charge_end(result, slot, LEDGER_ARRAY, 0, cost->whole + (cost->shared ? PAGE_BYTES : 0));
    charge_enter((struct ledger_entry){.kind = LEDGER_ARRAY,
                                       .key = (uintptr_t)*array,
                                       .slot = slot,
                                       .bytes = cost->whole,
                                       .other = charge_owner,
                                       .refs = 1,
                                       .page = cost->shared ? block_join(slot, cost->shared) : 0});
    pthread_rwlock_unlock(&slot->memory.charge_lock);
    return result;
}

#define CREATE(name, type, how, deep, kind)                                                                            \
    CUresult name(enum aliquot_symbol symbol, void **array, const struct type *desc)                                   \
    {                                                                                                                  \
        bool pays = desc && !(how);                                                                                    \
        struct slot *slot = pays ? slot_current() : NULL;                                                              \
        struct cost cost = {0};                                                                                        \
        ANSWER_WRONG(!array || !desc || looks_wrong(desc->width, desc->format, desc->channels),                        \
                     (REAL_AT(symbol, void **, const struct type *)(array, desc)),                                     \
                     REAL(cuArrayDestroy, void *)(*array));                                                            \
        if (pays)                                                                                                      \
            ANSWER_WITHOUT_CONTEXT(slot, (REAL_AT(symbol, void **, const struct type *)(array, desc)),                 \
                                   REAL(cuArrayDestroy, void *)(*array));                                              \
        if (slot)                                                                                                      \
            add(&cost, bytes_of(desc->width, desc->height, deep, desc->format, desc->channels));                       \
        if (!begin(slot, &cost))                                                                                       \
            REFUSE(wrong_shape(desc->width, desc->height, deep, kind),                                                 \
                   (REAL_AT(symbol, void **, const struct type *)(array, desc)),                                       \
                   REAL(cuArrayDestroy, void *)(*array));                                                              \
        return end(REAL_AT(symbol, void **, const struct type *)(array, desc), slot, array, &cost);                    \
    }
CREATE(on_array_create, array_v2, false, 0, 0)
CREATE(on_array_create_v1, array_v1, false, 0, 0)
CREATE(on_array3d_create, array3d_v2, desc->flags &(ARRAY_SPARSE | ARRAY_DEFERRED), desc->depth, desc->flags)
CREATE(on_array3d_create_v1, array3d_v1, false, desc->depth, desc->flags)

/* The levels one after another. */
static void add_levels(struct cost *cost, const struct array3d_v2 *desc, unsigned levels)
{
    for (unsigned level = 0; level < levels && level < 32; level++) {
        uint64_t width = desc->width >> level, height = desc->height >> level, depth = desc->depth >> level;
        add(cost,
            bytes_of(width ? width : 1, desc->height && !height ? 1 : height, depth, desc->format, desc->channels));
    }
}

CUresult on_mipmap_create(enum aliquot_symbol symbol, void **array, const struct array3d_v2 *desc, unsigned levels)
{
    bool pays = desc && !(desc->flags & (ARRAY_SPARSE | ARRAY_DEFERRED));
    struct slot *slot = pays ? slot_current() : NULL;
    struct cost cost = {0};
    ANSWER_WRONG(!array || !desc || !levels || looks_wrong(desc->width, desc->format, desc->channels),
                 (REAL_AT(symbol, void **, const struct array3d_v2 *, unsigned)(array, desc, levels)),
                 REAL(cuMipmappedArrayDestroy, void *)(*array));
    if (pays)
        ANSWER_WITHOUT_CONTEXT(slot,
                               (REAL_AT(symbol, void **, const struct array3d_v2 *, unsigned)(array, desc, levels)),
                               REAL(cuMipmappedArrayDestroy, void *)(*array));
    if (slot)
        add_levels(&cost, desc, levels);
    if (!begin(slot, &cost))
        REFUSE(wrong_shape(desc->width, desc->height, desc->depth, desc->flags),
               (REAL_AT(symbol, void **, const struct array3d_v2 *, unsigned)(array, desc, levels)),
               REAL(cuMipmappedArrayDestroy, void *)(*array));
    CUresult result = REAL_AT(symbol, void **, const struct array3d_v2 *, unsigned)(array, desc, levels);
    return end(result, slot, array, &cost);
}

CUresult on_handle_destroy(enum aliquot_symbol symbol, void *handle)
{
    struct ledger_entry entry;
    bool known = ledger_take(LEDGER_ARRAY, (uintptr_t)handle, &entry);
    return charge_freed(REAL_AT(symbol, void *)(handle), known, &entry);
}
