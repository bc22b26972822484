/* values.c: context-local storage, a table of cuGetExportTable: libraries keep a value per context and key, and a
 * function that is called when the context ends. */
#include <stdlib.h>
#include "export.h"

typedef void (*end_fn)(CUcontext, void *key, void *value);
struct value {
    struct value *next;
    CUcontext ctx;
    void *key, *value;
    end_fn end;
};
static struct value *values;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define THE_CONTEXT(c)                                                                                                 \
    do {                                                                                                               \
        if (!(c) && !((c) = emu_context()))                                                                            \
            return CU_INVALID_CONTEXT;                                                                                 \
    } while (0)

static struct value **find(CUcontext c, const void *key)
{
    struct value **p = &values;
    while (*p && ((*p)->ctx != c || (*p)->key != key))
        p = &(*p)->next;
    return p;
}

static CUresult put(CUcontext c, void *key, void *value, end_fn end)
{
    THE_CONTEXT(c);
    struct value *fresh = calloc(1, sizeof *fresh);
    if (!fresh)
        return CU_OOM;
    pthread_mutex_lock(&lock);
    struct value **p = find(c, key), *old = *p;
    *fresh = (struct value){.next = old ? old->next : NULL, .ctx = c, .key = key, .value = value, .end = end};
    *p = fresh;
    pthread_mutex_unlock(&lock);
    free(old);
    return CU_OK;
}

static CUresult drop(CUcontext c, void *key)
{
    THE_CONTEXT(c);
    pthread_mutex_lock(&lock);
    struct value **p = find(c, key), *gone = *p;
    if (gone)
        *p = gone->next;
    pthread_mutex_unlock(&lock);
    free(gone);
    return CU_OK;
}

static CUresult get(void **value, CUcontext c, void *key)
{
    THE_CONTEXT(c);
    pthread_mutex_lock(&lock);
    struct value *found = *find(c, key);
    if (found)
        *value = found->value;
    pthread_mutex_unlock(&lock);
    return found ? CU_OK : CU_INVALID_HANDLE;
}

const emu_entry emu_values_entries[] = {{0, put}, {1, drop}, {2, get}, {0}};

/* One by one and without the lock: an end function may put and drop values itself. */
void emu_values_end(CUcontext c)
{
    for (;;) {
        pthread_mutex_lock(&lock);
        struct value **p = &values;
        while (*p && (*p)->ctx != c)
            p = &(*p)->next;
        struct value *gone = *p;
        if (gone)
            *p = gone->next;
        pthread_mutex_unlock(&lock);
        if (!gone)
            return;
        if (gone->end)
            gone->end(c, gone->key, gone->value);
        free(gone);
    }
}
