/* Preloaded: fsync never comes back for what lies below $HANG_BELOW, while the file $HANG_WHILE is there. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int fsync(int fd)
{
    const char *below = getenv("HANG_BELOW"), *meanwhile = getenv("HANG_WHILE");
    char link[64], path[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) > 0 && below && !strncmp(path, below, strlen(below)))
        while (meanwhile && !access(meanwhile, F_OK))
            usleep(10000);
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    return real(fd);
}
