/* object.h: the life of what a handle names.
 *
 * A handle is an address, and a program may hand in any: NULL, a number of its own, a handle of another type, one whose
 * object is gone. So the objects of each kind lie in a range of addresses of their own that is never unmapped, and a
 * handle is valid where an object of its kind begins there and its first word says that it lives. Nothing else is read.
 *
 * An object that ends gets the poison word of its kind at once; its contents stay for the calls that are under way
 * (call.c), and its place is taken again only after EMU_QUARANTINE others of its kind have ended: memory stays bounded,
 * and a handle used too late is noticed.
 */
#ifndef EMU_OBJECT_H
#define EMU_OBJECT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#define EMU_QUARANTINE 256

enum emu_kind {
    KIND_CONTEXT,
    KIND_STREAM,
    KIND_EVENT,
    KIND_MODULE,
    KIND_FUNCTION,
    KIND_POOL,
    KIND_MEMORY,
    KIND_ARRAY,
    KIND_MIPMAP,
    KIND_SAMPLED,
    KIND_LINK,
    KIND_GREEN,
    KIND_PARTITION,
    KIND_GRAPH,
    KIND_NODE,
    KIND_EXEC,
    KIND_USER,
    KIND_CAPTURE,
    KINDS
};
/* How it ended: by its own call, or with its context. */
enum emu_end { END_DESTROYED, END_WITH_CONTEXT };
/* What every object begins with. release: frees what the object points at, once no call reads it any more. */
typedef struct emu_head {
    _Atomic uint32_t word;
    struct emu_head *next;
    void (*release)(void *object);
} emu_head;

void *emu_object_new(enum emu_kind kind, size_t size); /* zeroed but for the first word; NULL: no memory */
void emu_object_end(void *object, enum emu_end how);   /* from now on the handle is invalid; the contents stay */
bool emu_object_end_once(void *object,
                         enum emu_kind kind); /* the same as destroyed; false where it is invalid already */
void emu_object_free(void *object, void (*release)(void *)); /* the contents go as well, after the calls under way */
bool emu_object_alive(const void *object, enum emu_kind kind);

/* CU_OK, or what the use of this handle answers. In strict mode the use of one whose object has ended does not return:
 * a real driver would read memory that it has freed. But where the thread's context ended meanwhile, that is the answer. */
int emu_use(const void *object, enum emu_kind kind, const char *call);
/* The same for the call that destroys it: a real driver answers 709 for what went with its context. */
int emu_use_last(const void *object, enum emu_kind kind, const char *call);
#endif
