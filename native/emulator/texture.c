/* texture.c: texture and surface objects: handles that remember what they were made of. No kernel reads through them. */
#include <string.h>
#include "emu.h"

enum { ARRAY, MIPMAP, LINEAR, PITCH2D };
typedef struct { char bytes[144]; } resource;
typedef struct { char bytes[104]; } sampling;
typedef struct { char bytes[112]; } view;
typedef struct {
    emu_head object;
    CUcontext ctx;
    uint64_t life;
    bool texture, has_view;
    resource made_of;
    sampling how;
    view seen;
} object;

/* The type is the first word, the array, mipmap or pointer the second eight bytes, the flags are the last word. */
static CUresult valid(const resource *r, bool texture)
{
    int type;
    unsigned flags;
    void *of;
    if (!r)
        return CU_INVALID;
    memcpy(&type, r->bytes, sizeof type);
    memcpy(&of, r->bytes + 8, sizeof of);
    memcpy(&flags, r->bytes + 136, sizeof flags);
    if (type < ARRAY || type > (texture ? PITCH2D : ARRAY) || !of || flags)
        return CU_INVALID;
    if (type == ARRAY)
        return emu_array_use(of) ? CU_INVALID : CU_OK;
    return (type == MIPMAP ? emu_mipmap_alive(of) : emu_mem_find((CUdeviceptr)of) != NULL) ? CU_OK : CU_INVALID;
}

static CUresult create(object **out, const resource *r, const sampling *s, const view *v, bool texture)
{
    NEED_CTX();
    CUresult result = out && (!texture || s) ? valid(r, texture) : CU_INVALID;
    if (result)
        return result;
    object *o = emu_object_new(KIND_SAMPLED, sizeof *o);
    if (!o)
        return CU_OOM;
    o->ctx = emu_current();
    o->life = o->ctx->life;
    o->texture = texture;
    o->has_view = v;
    o->made_of = *r;
    if (s)
        o->how = *s;
    if (v)
        o->seen = *v;
    *out = o;
    return CU_OK;
}

static bool alive(const object *o, bool texture)
{
    return emu_object_alive(o, KIND_SAMPLED) && o->texture == texture && emu_object_alive(o->ctx, KIND_CONTEXT) &&
           o->ctx->life == o->life;
}

static CUresult destroy(object *o, bool texture)
{
    NEED_CTX();
    if (!alive(o, texture) || !emu_object_end_once(o, KIND_SAMPLED))
        return CU_INVALID;
    emu_object_free(o, NULL);
    return CU_OK;
}

API CUresult cuTexObjectCreate(object **out, const resource *r, const sampling *s, const view *v)
{
    return create(out, r, s, v, true);
}

API CUresult cuSurfObjectCreate(object **out, const resource *r) { return create(out, r, NULL, NULL, false); }
API CUresult cuTexObjectDestroy(object *o) { return destroy(o, true); }
API CUresult cuSurfObjectDestroy(object *o) { return destroy(o, false); }

#define GET(name, type, field, kind, condition)                                                                        \
    API CUresult name(type *out, const object *o)                                                                      \
    {                                                                                                                  \
        NEED_CTX();                                                                                                    \
        if (!out || !alive(o, kind) || !(condition))                                                                   \
            return CU_INVALID;                                                                                         \
        *out = o->field;                                                                                               \
        return CU_OK;                                                                                                  \
    }
GET(cuTexObjectGetResourceDesc, resource, made_of, true, true)
GET(cuTexObjectGetTextureDesc, sampling, how, true, true)
GET(cuTexObjectGetResourceViewDesc, view, seen, true, o->has_view)
GET(cuSurfObjectGetResourceDesc, resource, made_of, false, true)
