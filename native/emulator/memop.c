/* memop.c: a stream waits for a word of memory or writes one.
 *
 * Any thread may write the word: a kernel's neighbour, the host, another process. So a stream that waits is looked at again
 * every EMU_POLL_NS (sched.c).
 */
#include <string.h>
#include "emu.h"

enum { GEQ, EQ, AND, NOR };
enum { WAIT_32 = 1, WRITE_32 = 2, FLUSH = 3, WAIT_64 = 4, WRITE_64 = 5, BARRIER = 6 };
typedef struct {
    int operation;
    CUdeviceptr address;
    uint64_t value;
    unsigned flags;
    CUdeviceptr alias;
    uint64_t rest;
} memop;

static bool met(uint64_t now, uint64_t value, unsigned how, bool wide)
{
    uint64_t bits = wide ? ~0ull : 0xffffffffull;
    switch (how) {
    case GEQ: return wide ? (int64_t)(now - value) >= 0 : (int32_t)((uint32_t)now - (uint32_t)value) >= 0;
    case EQ: return ((now ^ value) & bits) == 0;
    case AND: return (now & value & bits) != 0;
    default: return (~(now | value) & bits) != 0;
    }
}

bool emu_value_met(const emu_op *op)
{
    const void *at = (const void *)op->u.word.at;
    uint64_t now = op->u.word.wide ? __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE)
                                   : __atomic_load_n((const uint32_t *)at, __ATOMIC_ACQUIRE);
    return met(now, op->u.word.value, op->u.word.how, op->u.word.wide);
}

void emu_value_store(const emu_op *op)
{
    if (op->u.word.wide)
        __atomic_store_n((uint64_t *)op->u.word.at, op->u.word.value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint32_t *)op->u.word.at, (uint32_t)op->u.word.value, __ATOMIC_RELEASE);
}

static CUresult check(CUdeviceptr at, bool wide)
{
    return at % (wide ? 8 : 4) == 0 && emu_mem_find(at) ? CU_OK : CU_INVALID;
}

static CUresult word_op(CUstream s, enum op_kind kind, CUdeviceptr at, uint64_t value, unsigned how, bool wide)
{
    NEED_CTX();
    CUstream st = emu_stream(s);
    if (!st)
        return CU_INVALID_HANDLE;
    if (st->capture)
        return CU_CAPTURE_UNSUPPORTED;
    CUresult r = check(at, wide);
    if (!r)
        r = emu_legacy_use(st);
    if (r)
        return r;
    pthread_mutex_lock(&emu_lock);
    r = emu_submit(st, emu_op_new(&(emu_op){.kind = kind, .u.word = {at, value, how & 3, wide}}));
    emu_unlock();
    return r;
}

#define WORD(bits, type)                                                                                               \
    API CUresult cuStreamWaitValue##bits##_v2(CUstream s, CUdeviceptr p, type value, unsigned flags)                   \
    {                                                                                                                  \
        return word_op(s, OP_VALUE, p, value, flags, bits == 64);                                                      \
    }                                                                                                                  \
    API CUresult cuStreamWaitValue##bits(CUstream s, CUdeviceptr p, type value, unsigned flags)                        \
    {                                                                                                                  \
        return word_op(s, OP_VALUE, p, value, flags, bits == 64);                                                      \
    }                                                                                                                  \
    API CUresult cuStreamWriteValue##bits##_v2(CUstream s, CUdeviceptr p, type value, unsigned flags)                  \
    {                                                                                                                  \
        return word_op(s, OP_STORE, p, value, 0, bits == 64);                                                          \
    }                                                                                                                  \
    API CUresult cuStreamWriteValue##bits(CUstream s, CUdeviceptr p, type value, unsigned flags)                       \
    {                                                                                                                  \
        return word_op(s, OP_STORE, p, value, 0, bits == 64);                                                          \
    }
WORD(32, uint32_t)
WORD(64, uint64_t)

static bool known(int operation) { return operation >= WAIT_32 && operation <= BARRIER; }

/* All or nothing: every entry is checked before the first one is put into the stream. */
API CUresult cuStreamBatchMemOp_v2(CUstream s, unsigned count, const memop *list, unsigned flags)
{
    NEED_CTX();
    if (!list || !count || count > 256 || flags)
        return CU_INVALID;
    for (unsigned i = 0; i < count; i++) {
        bool word = list[i].operation != FLUSH && list[i].operation != BARRIER;
        if (!known(list[i].operation) || (word && check(list[i].address, list[i].operation >= WAIT_64)))
            return CU_INVALID;
    }
    CUresult r = CU_OK;
    for (unsigned i = 0; i < count && !r; i++) {
        const memop *m = &list[i];
        bool wide = m->operation >= WAIT_64, wait = m->operation == WAIT_32 || m->operation == WAIT_64;
        if (m->operation != FLUSH && m->operation != BARRIER)
            r = word_op(s, wait ? OP_VALUE : OP_STORE, m->address, m->value, wait ? m->flags : 0, wide);
    }
    return r;
}

API CUresult cuStreamBatchMemOp(CUstream s, unsigned count, const memop *list, unsigned flags)
{
    return cuStreamBatchMemOp_v2(s, count, list, flags);
}
