/* leaves.c: a program that ends while its threads are in the driver, which a handler and a destructor ask once more. */
#include "driver.h"

static int (*query)(void *);
static void *stream;

static void *ask(void *unused)
{
    for (;;)
        query(stream);
    return unused;
}

static void *waits(void *unused)
{
    F(cuStreamSynchronize)(stream);
    return unused;
}

__attribute__((destructor)) static void late(void)
{
    printf("destructor %d\n", query(stream));
    fflush(stdout);
    usleep(20000);
}

static void handler(void) { printf("handler %d\n", query(stream)); }

int main(void)
{
    pthread_t thread;
    open_driver();
    use_device(0);
    query = F(cuStreamQuery, void *);
    function = kernel_here();
    stream = stream_new(1);
    for (int i = 0; i < 200; i++)
        OK(launch(1000000, stream));
    atexit(handler);
    pthread_create(&thread, NULL, ask, NULL);
    pthread_create(&thread, NULL, waits, NULL);
    usleep(3000);
    return 0;
}
