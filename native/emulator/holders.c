/* holders.c: memory that several processes hold. It is charged once, to one of its holders, and passes to another when
 * that one lets go or dies; it is free when no process holds it.
 */
#include <string.h>
#include "shm.h"

static emu_shared *find(emu_shm *s, uint64_t inode)
{
    for (int i = 0; i < EMU_SHARED; i++)
        if (s->shared[i].inode == inode)
            return &s->shared[i];
    return NULL;
}

static void set(emu_shared *m, int slot, bool holds)
{
    m->holders[slot / 32] = (m->holders[slot / 32] & ~(1u << slot % 32)) | (uint32_t)holds << slot % 32;
}

static int any_holder(const emu_shared *m)
{
    for (int i = 0; i < EMU_SLOTS / 32; i++)
        if (m->holders[i])
            return i * 32 + __builtin_ctz(m->holders[i]);
    return -1;
}

static void charge(emu_shm *s, const emu_shared *m, int slot, bool pays)
{
    shm_lock(m->gpu);
    s->gpu[m->gpu].used += pays ? m->bytes : -m->bytes;
    s->slot[slot].gpu[m->gpu].used += pays ? m->bytes : -m->bytes;
    shm_unlock(m->gpu);
}

bool shm_share(uint64_t inode, int device, uint64_t bytes)
{
    emu_shm *s = shm_open_engine();
    int me = shm_my_slot();
    shm_lock_robust(&s->shared_lock);
    emu_shared *m = find(s, inode);
    if (!m && (m = find(s, 0)))
        *m = (emu_shared){.inode = inode, .bytes = bytes, .gpu = shm_place(device), .payer = me};
    if (m)
        set(m, me, true);
    pthread_mutex_unlock(&s->shared_lock);
    return m;
}

int shm_hold(uint64_t inode)
{
    emu_shm *s = shm_open_engine();
    int device = -1;
    shm_sweep();
    shm_lock_robust(&s->shared_lock);
    emu_shared *m = find(s, inode);
    for (int i = 0; m && i < emu_conf()->count; i++)
        if (shm_place(i) == m->gpu)
            device = i;
    if (device >= 0)
        set(m, shm_my_slot(), true);
    pthread_mutex_unlock(&s->shared_lock);
    return device;
}

static void leave(emu_shm *s, emu_shared *m, int slot, bool cleared)
{
    set(m, slot, false);
    if (m->payer == slot) {
        if (!cleared)
            charge(s, m, slot, false);
        m->payer = any_holder(m);
        if (m->payer >= 0)
            charge(s, m, m->payer, true);
    }
    if (m->payer < 0)
        memset(m, 0, sizeof *m);
}

void shm_let_go(uint64_t inode)
{
    emu_shm *s = shm_open_engine();
    shm_lock_robust(&s->shared_lock);
    emu_shared *m = find(s, inode);
    if (m)
        leave(s, m, shm_my_slot(), false);
    pthread_mutex_unlock(&s->shared_lock);
}

void shm_heirs(int slot)
{
    emu_shm *s = shm_open_engine();
    shm_lock_robust(&s->shared_lock);
    for (int i = 0; i < EMU_SHARED; i++)
        if (s->shared[i].inode && s->shared[i].holders[slot / 32] >> slot % 32 & 1)
            leave(s, &s->shared[i], slot, true);
    pthread_mutex_unlock(&s->shared_lock);
}
