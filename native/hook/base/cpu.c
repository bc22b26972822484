/* cpu.c: the tenant's threads stay on the cores near its GPU, when its record asks for that ("0-3,8").
 *
 * Of these the program may have been given some only, as by kubelet's static CPU manager, which is not known where the
 * cores are chosen: each that is missing is replaced by another one that it has. */
#include "base/base.h"

#include <dirent.h>
#include <sched.h>
#include <stdlib.h>

/* Threads created later inherit it from their creator. */
static void bind_threads(const cpu_set_t *set)
{
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks && (task = readdir(tasks));)
        if (task->d_name[0] != '.')
            sched_setaffinity((pid_t)strtol(task->d_name, NULL, 10), sizeof *set, set);
    if (tasks)
        closedir(tasks);
    else
        sched_setaffinity(0, sizeof *set, set);
}

/* As many cores as `set` has, its own first, but none that this thread may not use. */
static void keep_to_own(cpu_set_t *set)
{
    cpu_set_t own;
    int wanted = CPU_COUNT(set);
    if (sched_getaffinity(0, sizeof own, &own))
        return;
    CPU_AND(set, set, &own);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(set) < wanted; cpu++)
        if (CPU_ISSET(cpu, &own))
            CPU_SET(cpu, set);
}

void cpu_bind(void)
{
    static _Atomic int done;
    if (!aliquot_conf.cpus[0] || atomic_exchange(&done, 1))
        return;
    cpu_set_t set;
    CPU_ZERO(&set);
    for (char *at = aliquot_conf.cpus; *at;) {
        char *end;
        long first = strtol(at, &end, 10), last = first;
        if (end == at)
            return; /* not a list: bind nothing */
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        for (long cpu = first; cpu >= 0 && cpu <= last && cpu < CPU_SETSIZE; cpu++)
            CPU_SET((int)cpu, &set);
        at = *end == ',' ? end + 1 : end;
        if (at == end && *end)
            return;
    }
    keep_to_own(&set);
    bind_threads(&set);
}
