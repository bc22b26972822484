/* emu.h: what the twin's files share. One process-wide lock (`emu_lock`) guards everything below but the shared file,
 * which has its own locks (shm.h). Times are CLOCK_MONOTONIC nanoseconds, sizes are bytes. */
#ifndef EMU_H
#define EMU_H
#include <pthread.h>
#include <stdbool.h>
#include "abi.h"
#include "call.h"
#include "config.h"
#include "object.h"

enum op_kind {
    OP_KERNEL,
    OP_COPY,
    OP_FILL,
    OP_HOST,
    OP_CALLBACK,
    OP_EVENT,
    OP_WAIT,
    OP_FREE,
    OP_VALUE,
    OP_STORE,
    OP_NOP
};
#define EMU_POLL_NS 100000ull /* how often a word that any thread may write is looked at */
typedef struct emu_op {
    struct emu_op *next;
    enum op_kind kind;
    bool started, precise, until; /* precise: its end is noticed at once; until: a kernel that spins for `u.word` */
    int dev;
    uint64_t seq, ready_ns, begun_ns;
    int64_t left_ns;
    void *stage;
    union {
        CUmemcpy3d copy;
        CUmemsetNode fill;
        struct { void *fn, *data; } host;
        struct {
            CUevent event;
            struct emu_record *record;
        } ev; /* record: NULL where there was none to wait for */
        CUdeviceptr ptr;
        struct {
            CUdeviceptr at;
            uint64_t value;
            unsigned how;
            bool wide;
        } word;
    } u;
} emu_op;

struct emu_stream {
    emu_head object;
    CUcontext ctx;
    struct emu_stream *next;
    emu_op *head, *tail;
    unsigned depth, flags;
    unsigned waiters; /* threads that wait for it, so that it stays until they have seen its end */
    int priority;
    bool legacy, per_thread, dead, left; /* left: its context ended before it */
    uint64_t id, end_ns, submitted, completed;
    struct emu_capture *capture;
    struct emu_stream *next_captured; /* in the same capture */
    CUgraphNode *deps;
    size_t dep_count;
};
/* One record of an event. Who waits holds the one that was the last when the wait began, whatever is recorded later. */
typedef struct emu_record {
    unsigned refs;
    _Atomic bool done;
    uint64_t time_ns, seq; /* seq: among the marks of an event that processes share */
    emu_op *op;            /* while it is in a stream */
} emu_record;
struct emu_event {
    emu_head object;
    CUcontext ctx;                     /* NULL: made by another process */
    struct emu_event *next, **at_prev; /* in its context */
    unsigned flags, pending;           /* pending: work in streams that names it, and threads that wait for it */
    emu_record *last;                  /* NULL: never recorded in this process */
    struct emu_marks *shared;          /* of an event that processes share: in memory that they all map (marks.c) */
    int fd;                            /* of that */
    struct emu_capture *capture;
    uint64_t capture_id; /* of `capture`, whose place may since be another's */
    CUgraphNode *deps;
    size_t dep_count;
    bool dead;
};
struct emu_ctx {
    emu_head object;
    struct emu_ctx *next;
    int dev, refs;
    unsigned flags;
    bool primary;
    _Atomic bool alive;
    uint64_t id, life, op_seq, overhead; /* life: another one after each reset */
    struct emu_stream *streams, *legacy;
    struct emu_event *events;
    struct emu_module *modules;
    size_t limits[16];
    void *green; /* the green context that this is seen through */
    unsigned peers;
};
struct emu_func {
    emu_head object;
    CUmodule module;
    struct emu_func *next;
    char *name;
    bool takes_parameters; /* by its image; false as well where that cannot be read */
    int attrs[32];
    uint64_t loaded_in;        /* life of the context that its code was last loaded in */
    struct emu_legacy *legacy; /* block shape and parameters, of the launch interface before CUDA 4 */
};
struct emu_module {
    emu_head object;
    CUcontext ctx; /* NULL: a library, which belongs to no context */
    struct emu_module *next, **at_prev;
    struct emu_func *funcs;
    struct emu_global {
        struct emu_global *next;
        char *name;
        CUdeviceptr ptr;
        size_t size;
    } *globals;
    int dev;
    bool library, known; /* known: the image said which kernels it has */
};
struct emu_pool {
    emu_head object;
    int dev;
    uint64_t reserved, used, reserved_high, used_high, threshold, attrs[16];
    bool is_default, imported;
    int fd;       /* of its memory, where it can be shown to other processes; -1 */
    uint64_t end; /* of what was ever used of that */
    CUpoolProps props;
};
#define EMU_DEFERRED 0x80u /* an array whose memory is mapped later: only of such a one are the requirements known */
/* part: a level of a mipmapped array, which alone may destroy it. */
struct emu_array {
    emu_head object;
    CUcontext ctx;
    uint64_t life; /* of the context it was made in */
    CUdeviceptr ptr;
    size_t pitch, element, bytes;
    CUarray3d desc;
    int dev;
    bool part;
};

/* MEM_LOW: device memory below 4 GiB, for the interface of 32-bit pointers. */
enum mem_kind { MEM_LOW, MEM_DEVICE, MEM_MANAGED, MEM_HOST, MEM_REGISTERED, MEM_POOL, MEM_VMM, MEM_MODULE };
/* What an allocation takes: bytes of its own, or granules of a page that others share (charge.c). */
typedef struct {
    int dev;
    uint64_t bytes;
    void *page;
    unsigned at, count;
    CUdeviceptr address;
} emu_charge;
typedef struct emu_mem {
    CUdeviceptr base;
    size_t size;
    emu_charge charged;
    enum mem_kind kind;
    int dev;
    unsigned flags;
    CUcontext ctx;
    CUmemoryPool pool;
    uint64_t id, offset; /* offset: in the pool's file */
} emu_mem;

/* A kernel named `spin_until` ends when the 32-bit word at its first parameter has the value of its second. */
typedef struct {
    CUdeviceptr at;
    uint32_t value;
} emu_until;

extern pthread_mutex_t emu_lock;
extern CUcontext emu_all_contexts;
extern bool emu_torn_down;
extern uint64_t emu_lists;          /* counts changes to the lists of contexts and streams */
extern __thread int emu_per_thread; /* set while a _ptsz or _ptds twin runs */
extern CUresult emu_sticky;

/* init.c */
bool emu_ready(void);
/* What nearly every call begins with, each a declaration that holds to the end of the block (call.h). */
#define NEED_INIT()                                                                                                    \
    EMU_CALL();                                                                                                        \
    if (!emu_ready())                                                                                                  \
    return emu_torn_down ? CU_DEINITIALIZED : CU_NOT_INITIALIZED
#define NEED_CTX()                                                                                                     \
    EMU_CALL();                                                                                                        \
    do {                                                                                                               \
        CUresult ctx_ = emu_need_context();                                                                            \
        if (ctx_)                                                                                                      \
            return ctx_;                                                                                               \
    } while (0)
/* Where an answer goes: a real driver refuses NULL there. After the two above, whose answers come first. */
#define NEED_OUT(p)                                                                                                    \
    do {                                                                                                               \
        if (!(p))                                                                                                      \
            return CU_INVALID;                                                                                         \
    } while (0)
#define NEED_LIVE(handle, kind)                                                                                        \
    do {                                                                                                               \
        CUresult live_ = emu_use(handle, kind, __func__);                                                              \
        if (live_)                                                                                                     \
            return live_;                                                                                              \
    } while (0)
#define NEED_LIVE_LAST(handle, kind)                                                                                   \
    do {                                                                                                               \
        CUresult live_ = emu_use_last(handle, kind, __func__);                                                         \
        if (live_)                                                                                                     \
            return live_;                                                                                              \
    } while (0)
uint64_t emu_now(void);
void emu_spend(int64_t ns); /* on the caller's CPU */
CUresult emu_unsupported(const char *symbol);
/* parking.c */
void emu_parking_begin(void);
void emu_parking_forget(void);       /* in a forked child */
void emu_parking_busy(int change);   /* streams with work */
void emu_parking_shared(int change); /* unified memory, and memory that processes share */
/* announce.c */
void emu_announce(void);
/* context.c */
CUcontext emu_context(void); /* the current one, or NULL where there is none or it has ended */
CUcontext emu_current(void); /* after NEED_CTX: the current one to the end of the call, ended or not */
CUresult emu_need_context(void);
CUcontext emu_primary(int dev);
CUcontext emu_primary_handle(int dev); /* made, but not on the device, where there was none; NULL: no memory */
CUcontext emu_root(CUcontext c);       /* the primary context of a green one; any other is its own */
CUresult emu_context_of_named(CUcontext *c, const char *call); /* NULL: the current one */
#define emu_context_of(c) emu_context_of_named(c, __func__)
CUresult emu_context_new(CUcontext *out, int dev, unsigned flags, uint64_t overhead);
void emu_context_end(CUcontext c);
/* stream.c */
CUstream emu_stream_named(CUstream handle, const char *call);
#define emu_stream(handle) emu_stream_named(handle, __func__)
CUresult emu_stream_new(CUstream *out, CUcontext ctx, unsigned flags, int priority);
CUstream emu_stream_first(CUcontext ctx); /* the legacy stream of a context that is being made; NULL: no memory */
void emu_stream_ended(CUstream s);        /* with emu_lock: nothing is left in a destroyed stream */
void emu_streams_end(CUcontext c);
void emu_stream_sync(CUstream s);
void emu_ctx_sync(CUcontext c);
void emu_ctx_drain(CUcontext c); /* with emu_lock: until nothing is left in its streams */
/* event.c: with emu_lock, as most of these */
void emu_event_unref(CUevent e);
bool emu_event_name(emu_op *op); /* it holds the record of its event that it is about; false: no memory for that */
void emu_event_unname(emu_op *op);
void emu_event_complete(emu_op *op, uint64_t at_ns);
bool emu_event_reached(const emu_op *op); /* what an OP_WAIT waits for has happened */
bool emu_event_recorded(CUevent e);
bool emu_event_done(CUevent e); /* its last record */
/* marks.c: records of an event that processes share */
CUresult emu_marks_new(CUevent e);
CUresult emu_marks_map(CUevent e, int fd);
void emu_marks_release(CUevent e);
uint64_t emu_marks_record(struct emu_marks *m);
uint64_t emu_marks_last(const struct emu_marks *m); /* 0: none */
void emu_marks_complete(struct emu_marks *m, uint64_t seq, uint64_t at_ns);
uint64_t emu_marks_time(const struct emu_marks *m, uint64_t seq); /* when it was complete; 0: not yet */
void emu_events_end(CUcontext c);
/* capture.c */
CUresult emu_forbid_in_capture(void);
CUresult emu_forbid_in_capture_of(CUcontext c);
void emu_capture_forget(CUstream s);
/* wake.c: with emu_lock, as all of these */
void emu_unlock(void);
void emu_sched_wake(int dev); /* when the lock is let go */
void emu_sched_nap(int dev, uint32_t seen,
                   uint64_t until); /* the GPU's thread: unless its word is another than `seen` */
void emu_sched_wait(void);          /* for something to be done */
void emu_sched_done(void);          /* all threads that wait look again */
/* sched.c */
emu_op *
emu_op_new(const emu_op *like); /* with emu_lock: a copy, which has `like`'s stage from now on; NULL: no memory */
void emu_op_drop(emu_op *op);   /* with emu_lock: of what is in no stream */
void emu_op_spin(emu_op *op, const emu_until *until);
CUresult emu_submit(CUstream s, emu_op *op); /* with emu_lock; NULL: CU_OOM */
bool emu_sched_start(int dev); /* with emu_lock, as all of these; false: the process may have no more threads */
void emu_sched_forget(CUstream s);
void emu_sched_notice_stream(CUstream s); /* a thread is about to wait for all that is in it */
void emu_sched_notice(emu_op *op);        /* or for this; NULL: for nothing */
void emu_sched_look(int dev);             /* charges what is past by now */
void emu_sched_host(bool begins);
/* launch.c */
void emu_count_launch(void);
/* memop.c */
bool emu_value_met(const emu_op *op);
void emu_value_store(const emu_op *op);
/* run.c */
void emu_run_op(CUstream s, emu_op *op, uint64_t at_ns);
/* memory.c */
CUresult emu_mem_free(CUdeviceptr p);
CUresult emu_mem_new(size_t size, enum mem_kind kind, int dev, bool charge,
                     CUdeviceptr *out); /* after NEED_CTX, but for pools */
bool emu_mem_remove(CUdeviceptr base);  /* from the table only */
bool emu_oom_fault(void);               /* one more allocation: is it one of those that fail? */
CUresult emu_mem_drop(CUdeviceptr base);
void emu_mem_drop_context(CUcontext c);
/* table.c */
CUresult emu_mem_insert(emu_mem m);
emu_mem *emu_mem_find(CUdeviceptr p);
bool emu_mem_holds(CUdeviceptr p, size_t size);    /* from there on, in one allocation */
bool emu_mem_take(CUdeviceptr base, emu_mem *out); /* and out of the table */
bool emu_mem_next(CUdeviceptr from, emu_mem *out); /* the first that begins at `from` or later */
void emu_mem_set_pool(CUdeviceptr base, CUmemoryPool pool);
/* charge.c */
CUresult emu_charge_memory(int dev, CUcontext owner, enum mem_kind kind, size_t size, emu_charge *out);
void emu_uncharge(const emu_charge *b);
void emu_charge_block(emu_mem *m); /* widens it to the page that it shares with others */
/* array.c */
CUresult emu_array_use(CUarray a); /* CU_OK, or what the use of this handle answers */
CUresult emu_array_end(CUarray a);
/* mipmap.c */
bool emu_mipmap_alive(const void *m);
/* copy.c */
bool emu_copy_named(const CUmemcpy3d *c); /* the arrays that it names are there */
bool emu_copy_fits(const CUmemcpy3d *c);  /* and the memory, where it is the device's */
void emu_copy(const CUmemcpy3d *c);
void emu_fill(const CUmemsetNode *f);
bool emu_fill_fits(const CUmemsetNode *f); /* the memory is there */
CUresult emu_enqueue_copy(const CUmemcpy3d *c, CUstream s, bool wait);
/* pool.c */
CUmemoryPool emu_pool_default(int dev); /* NULL: no memory */
void emu_pool_free(emu_mem *m);
uint64_t emu_pool_steps(uint64_t bytes); /* what a pool reserves for that much */
/* code.c: with emu_lock, as all of these */
/* A free of a graph's memory was asked for; it was freed. Of what is none nothing is done. */
void emu_graph_free_asked(CUdeviceptr at);
void emu_graph_freed(CUdeviceptr at);
CUresult emu_code_load(CUmodule m, CUcontext c);
bool emu_code_loaded(CUmodule m, CUcontext c);
CUresult emu_code_use(CUfunction f, CUcontext c);
void emu_code_end(CUmodule m, CUcontext c); /* of one or the other */
/* module.c */
void emu_modules_end(CUcontext c);
typedef struct {
    char *name;
    bool takes_parameters;
} emu_symbol;
CUresult emu_symbols(const void *image, size_t size, emu_symbol **out, size_t *count);
void emu_symbols_free(emu_symbol *at, size_t count);
bool emu_kernel_until(const char *name, void **params, emu_until *out);
int64_t emu_kernel_ns(const char *name, void **params, void **extra, int64_t table);
/* capture.c */
CUresult emu_capture_add(CUstream s, int type, const void *params, size_t size, CUgraphNode *out);
CUresult emu_capture_event(CUstream s, CUevent e);
CUresult emu_capture_wait(CUstream s, CUevent e);
bool emu_capturing_in(CUcontext c); /* and spoils the captures that it finds */
void emu_capture_invalidate(CUstream s);
CUresult emu_legacy_use(CUstream s); /* 906 where `s` is a legacy stream that a capture depends on */
/* Strict mode: unsafe calls, those that only emulator.conf counts among them (`capture_unsafe`) by their bit. */
enum {
    UNSAFE_EVENT = 0,
    UNSAFE_STREAM_QUERY = 1,
    UNSAFE_STREAM_SYNCHRONIZE = 2,
    UNSAFE_EVENT_CREATE = 4,
    UNSAFE_MEM_INFO = 8
};
CUresult emu_unsafe_call(unsigned which);
void emu_capture_spoiled_by(CUevent e);
CUdeviceptr emu_node_ptr(CUgraphNode n);
#endif
