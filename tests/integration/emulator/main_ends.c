/* main_ends.c: the main thread ends by pthread_exit, after it has used the GPU as far as the first argument says.
 *
 *   main_ends context|launch [handler]
 *
 * `handler`: SIGTERM has one, which ends the process with status 7. Prints `ready` before the thread ends.
 */
#include "driver.h"

static void end(int number) { _exit(7); }

int main(int count, char **word)
{
    if (count > 2)
        signal(SIGTERM, end);
    open_driver();
    use_device(0);
    if (!strcmp(word[1], "launch")) {
        function = kernel_here();
        OK(launch(1000000, NULL));
        OK(F(cuCtxSynchronize)());
    }
    puts("ready");
    fflush(stdout);
    pthread_exit(NULL);
}
