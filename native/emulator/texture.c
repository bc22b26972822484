/* texture.c: texture and surface objects: handles that remember what they were made of. No kernel reads through them. */
#include <stdlib.h>
#include <string.h>
#include "emu.h"

enum { ARRAY, MIPMAP, LINEAR, PITCH2D };
typedef struct { char bytes[144]; } resource;
typedef struct { char bytes[104]; } sampling;
typedef struct { char bytes[112]; } view;
typedef struct { bool texture, has_view; resource made_of; sampling how; view seen; } object;

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
    return type >= LINEAR && !emu_mem_find((CUdeviceptr)of) ? CU_INVALID : CU_OK;
}

static CUresult create(object **out, const resource *r, const sampling *s, const view *v, bool texture)
{
    NEED_CTX();
    CUresult result = out && (!texture || s) ? valid(r, texture) : CU_INVALID;
    if (result)
        return result;
    object *o = calloc(1, sizeof *o);
    *o = (object){.texture = texture, .has_view = v, .made_of = *r};
    if (s)
        o->how = *s;
    if (v)
        o->seen = *v;
    *out = o;
    return CU_OK;
}

static CUresult destroy(object *o, bool texture)
{
    NEED_CTX();
    if (!o || o->texture != texture)
        return CU_INVALID;
    free(o);
    return CU_OK;
}

API CUresult cuTexObjectCreate(object **out, const resource *r, const sampling *s, const view *v)
{
    return create(out, r, s, v, true);
}

API CUresult cuSurfObjectCreate(object **out, const resource *r) { return create(out, r, NULL, NULL, false); }
API CUresult cuTexObjectDestroy(object *o) { return destroy(o, true); }
API CUresult cuSurfObjectDestroy(object *o) { return destroy(o, false); }

#define GET(name, type, field, condition) \
    API CUresult name(type *out, const object *o) \
    { \
        NEED_CTX(); \
        if (!out || !o || !(condition)) \
            return CU_INVALID; \
        *out = o->field; \
        return CU_OK; \
    }
GET(cuTexObjectGetResourceDesc, resource, made_of, o->texture)
GET(cuTexObjectGetTextureDesc, sampling, how, o->texture)
GET(cuTexObjectGetResourceViewDesc, view, seen, o->texture && o->has_view)
GET(cuSurfObjectGetResourceDesc, resource, made_of, !o->texture)
