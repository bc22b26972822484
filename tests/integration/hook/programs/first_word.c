/* first_word.c: a thread that has a message for the arbiter while another makes a new connection to it.
 *
 * The thread is held where it takes the connection's lock, having seen the old connection alive, until the new one is
 * there and nothing was sent on it. One line of JSON when it is held, one when it has gone on.
 */
#include "driver.h"
#include <semaphore.h>
#include <sys/socket.h>

static u64 memory;
static int (*true_lock)(pthread_mutex_t *), (*true_unlock)(pthread_mutex_t *);
static int (*true_connect)(int, const struct sockaddr *, socklen_t);
static pthread_mutex_t *_Atomic connections_lock; /* the first one that is taken after a connection is made */
static _Atomic int held;
static sem_t connected;
static __thread int connecting, speaks;

__attribute__((constructor)) static void find(void)
{
    true_lock = dlsym(RTLD_NEXT, "pthread_mutex_lock");
    true_unlock = dlsym(RTLD_NEXT, "pthread_mutex_unlock");
    true_connect = dlsym(RTLD_NEXT, "connect");
    sem_init(&connected, 0, 0);
}

int connect(int fd, const struct sockaddr *address, socklen_t length)
{
    int result = true_connect(fd, address, length);
    connecting = !result;
    return result;
}

int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    if (connecting == 1) {
        connecting = 2;
        connections_lock = mutex;
    }
    if (speaks && mutex == connections_lock && !atomic_exchange(&held, 1)) {
        puts("{\"held\": true}");
        fflush(stdout);
        sem_wait(&connected);
    }
    return true_lock(mutex);
}

int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    int result = true_unlock(mutex);
    if (connecting == 2 && mutex == connections_lock) {
        connecting = 0;
        if (held) {
            sem_post(&connected);
            usleep(200000);
        }
    }
    return result;
}

/* So much that what is not used any more goes back to the arbiter at once. */
static void *gives_back(void *unused)
{
    OK(F(cuCtxSetCurrent, void *)(context));
    speaks = 1;
    OK(F(cuMemFree_v2, u64)(memory));
    return NULL;
}

int main(void)
{
    pthread_t thread;
    open_driver();
    use_device(0);
    OK(F(cuMemAlloc_v2, u64 *, size_t)(&memory, 300u << 20));
    pthread_create(&thread, NULL, gives_back, NULL);
    pthread_join(thread, NULL);
    puts("{\"held\": false}");
    fflush(stdout);
    return getchar() == EOF;
}
