/* call.h: a call of the program, from its begin to its end; see call.c. */
#ifndef EMU_CALL_H
#define EMU_CALL_H
#include <stdatomic.h>
#include <stdbool.h>

#define EMU_JOINED(a, b) a##b
#define EMU_NAMED(a, b) EMU_JOINED(a, b)
/* From here to the end of the block what the handles of this call name stays readable, destroyed or not. */
#define EMU_CALL() __attribute__((cleanup(emu_call_end))) const char EMU_NAMED(call_, __COUNTER__) = emu_call_begin()

char emu_call_begin(void);
void emu_call_end(const char *unused);
void emu_call_pause(void); /* while it waits: what it needs then has a count of its own */
void emu_call_resume(void);
void emu_call_count_in(_Atomic long *place); /* two counts from now on; NULL: of its own again */
/* parking.c: has another process locked this one, so that calls wait here but those that were under way? */
bool emu_parking_locked(void);
void emu_parking_wait(void);
bool emu_call_phase(void); /* has a phase passed? From one thread at a time */
#endif
