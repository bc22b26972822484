/* slot.h: one GPU as this process sees it, with the part of each layer.
 *
 * The launch path reads none of it: gate.h. A layer reads and writes its own part and the parts below it, never one above.
 */
#ifndef ALIQUOT_SLOT_H
#define ALIQUOT_SLOT_H

#include "link/link.h"
#include "memory/memory.h"
#include "token/token.h"
#include "work/work.h"

struct slot {
    struct link link;
    struct token token;
    struct work work;
    struct memory memory;
};

#endif
