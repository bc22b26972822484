/* opens.c: opens the driver twice, each time by another spelling, and says whose library answers the second time.
 *
 * opens LIBRARY FUNCTION INIT FOLDER PLUGINS: LIBRARY is libcuda or libnvidia-ml, FOLDER has its files, PLUGINS the shared
 * objects plugin-LIBRARY.so and plugin-LIBRARY.so.1, which need the library by that name. Every ordered pair is tried in a
 * child of its own; for each a line "FIRST SECOND FILE", where FILE is the library that FUNCTION comes from.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *library, *function, *init, *folder, *plugins;
static const char *const spellings[] = {"bare",       "soname",     "bare-path",     "soname-path", "needs-bare",
                                        "needs-soname", "deepbind", "other-namespace", "closed",      "reopened"};
enum { BARE, SONAME, BARE_PATH, SONAME_PATH, NEEDS_BARE, NEEDS_SONAME, DEEPBIND, OTHER_NAMESPACE, CLOSED, REOPENED, ALL };

static void *need(void *found)
{
    if (!found) {
        printf("! %s\n", dlerror());
        exit(1);
    }
    return found;
}

/* Opens by one spelling; returns the address of `function`, or of `init` where the caller wants to start the driver. */
static void *open_by(int spelling, const char *name)
{
    char file[4096];
    const char *suffix = spelling == BARE || spelling == BARE_PATH || spelling == NEEDS_BARE ? ".so" : ".so.1";
    void *handle;
    snprintf(file, sizeof file, "%s%s", library, suffix);
    switch (spelling) {
    case BARE_PATH:
    case SONAME_PATH: snprintf(file, sizeof file, "%s/%s%s", folder, library, suffix); break;
    case NEEDS_BARE:
    case NEEDS_SONAME: snprintf(file, sizeof file, "%s/plugin-%s%s", plugins, library, suffix); break;
    }
    if (spelling == OTHER_NAMESPACE)
        handle = need(dlmopen(LM_ID_NEWLM, file, RTLD_NOW));
    else
        handle = need(dlopen(file, RTLD_NOW | (spelling == DEEPBIND ? RTLD_DEEPBIND : 0)));
    if (spelling == NEEDS_BARE || spelling == NEEDS_SONAME) {
        void *(*address)(int) = (void *(*)(int))need(dlsym(handle, "address"));
        return address(name == init);
    }
    void *found = need(dlsym(handle, name));
    if (spelling == CLOSED || spelling == REOPENED) {
        ((int (*)(unsigned))need(dlsym(handle, init)))(0);
        dlclose(handle);
    }
    if (spelling == REOPENED)
        found = need(dlsym(need(dlopen(file, RTLD_NOW)), name));
    return found;
}

static void try_pair(int first, int second)
{
    int (*start)(unsigned) = (int (*)(unsigned))open_by(first, init);
    if (first != CLOSED)
        start(0);
    Dl_info info = {0};
    dladdr(open_by(second, function), &info);
    printf("%s %s %s\n", spellings[first], spellings[second], info.dli_fname ? info.dli_fname : "?");
    exit(0);
}

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    library = argv[1], function = argv[2], init = argv[3], folder = argv[4], plugins = argv[5];
    for (int first = 0; first < ALL; first++)
        for (int second = 0; second < ALL; second++) {
            fflush(stdout);
            pid_t child = fork();
            if (child == 0)
                try_pair(first, second);
            int status = 0;
            waitpid(child, &status, 0);
            if (status)
                printf("%s %s status %d\n", spellings[first], spellings[second], status);
        }
    return 0;
}
