/* back_to_back.c: launches kernels of one length back to back, after a line on stdin. Prints the share of the GPU's time
 * that they got.   back_to_back NANOSECONDS SECONDS */
#include "driver.h"

int main(int argc, char **argv)
{
    u64 ns = argc > 2 ? strtoull(argv[1], NULL, 10) : 0, length = argc > 2 ? (u64)(atof(argv[2]) * 1e9) : 0;
    open_driver();
    use_device(0);
    function = kernel_here();
    void *stream = stream_new(1);
    puts("ready");
    wait_line();
    u64 begin = now(), count = 0;
    for (; now() - begin < length; count += 100)
        for (int i = 0; i < 100; i++)
            OK(launch(ns, stream));
    OK(F(cuStreamSynchronize)(stream));
    printf("%.4f\n", (double)(count * ns) / (double)(now() - begin));
    return 0;
}
