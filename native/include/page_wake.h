/* page_wake.h: whom a grant wakes. Threads that want to launch sleep on the grant word for anything that is stored there.
 * A helper that has answered for the last grant does not sleep for this bit: the hand-over wakes it a moment after
 * them, for it would take the processor that a launch is waiting for.
 */
#ifndef ALIQUOT_PAGE_WAKE_H
#define ALIQUOT_PAGE_WAKE_H

#define PAGE_WAKE_LAUNCH 0x80000000u

#endif
