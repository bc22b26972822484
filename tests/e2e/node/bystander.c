/* bystander.c: a program that never touches CUDA, with a thread of its own; says which C library it runs on. */
#include <pthread.h>
#include <stdio.h>

static void *work(void *told)
{
    *(int *)told = 42;
    return NULL;
}

int main(void)
{
    pthread_t thread;
    int told = 0;
    if (pthread_create(&thread, NULL, work, &told) || pthread_join(thread, NULL))
        return 1;
    printf("{\"bystander\": %d}\n", told);
    return 0;
}
