/* last.c: is any thread left that is not ours?
 *
 * A process ends with its last thread, and the helpers are not the program's: when its main thread has ended by
 * pthread_exit, and the others too, the process has to end as it would without us. Nothing else would end it but SIGKILL,
 * for the helpers block all signals.
 *
 * The kernel counts the threads in the links of /proc/self/task, a main thread that has ended among them as long as others
 * live. Threads of the driver count as the program's: a process that they keep alive stays alive.
 */
#include "slot.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define LOOK_NS 500000000u

static bool main_has_ended(void)
{
    char line[512];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, line, sizeof line - 1);
    if (fd >= 0)
        close(fd);
    line[got > 0 ? got : 0] = 0;
    const char *state = strrchr(line, ')'); /* the name before it may have any character */
    return state && strncmp(state, ") Z", 3) == 0;
}

static unsigned helpers(void)
{
    unsigned count = 0;
    for (unsigned i = 0; slot_at(i); i++)
        count += atomic_load(&slot_at(i)->work.helper_running) != 0;
    return count;
}

/* Asked by a helper, of the kernel now and then only. */
bool program_has_ended(uint64_t *looked_ns)
{
    struct stat task;
    uint64_t now = now_ns();
    if (now - *looked_ns < LOOK_NS)
        return false;
    *looked_ns = now;
    return stat("/proc/self/task", &task) == 0 && task.st_nlink == 2 + helpers() + 1 && main_has_ended();
}
