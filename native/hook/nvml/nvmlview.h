/* nvmlview.h: what the two halves of the tenant's NVML share. */
#ifndef ALIQUOT_NVMLVIEW_H
#define ALIQUOT_NVMLVIEW_H

#include "memory/charge.h"

/* The attached slot of an NVML device handle; NULL: not a tenant's GPU, its true facts are shown. */
struct slot *nvml_slot(void *device);

#endif
