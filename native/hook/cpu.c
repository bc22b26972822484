/* cpu.c: the tenant's threads stay on the cores near its GPU, when its record asks for that ("0-3,8"). */
#include "hook.h"

#include <dirent.h>
#include <sched.h>
#include <stdlib.h>

/* Threads made later inherit it from whoever makes them. */
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
    bind_threads(&set);
}
