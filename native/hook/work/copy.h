/* copy.h: does a copy stay within a GPU? Asked before such a copy is gated. */
#ifndef ALIQUOT_COPY_H
#define ALIQUOT_COPY_H

#include "slot.h"

bool copy_stays(CUdeviceptr to, CUdeviceptr from, size_t bytes);
bool copies_stay(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *bytes, size_t count);
bool copy2d_stays(const struct copy2d *copy);
bool copy3d_stays(const struct copy3d *copy);
bool peers_stay(const void *to, const void *from, size_t bytes);
bool peers3d_stay(const struct copy3d *copy);
bool boxes_stay(const struct copy_box *boxes, size_t count);

#endif
