/* Puts this program where hook entries name it: for an init container whose image has no shell. */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

static const char NEW[] = "." NAME ".new";

/* -1: errno says why. */
static int copy(int from, int to)
{
    struct stat found;
    if (fstat(from, &found) < 0)
        return -1;
    for (off_t rest = found.st_size; rest > 0;) {
        ssize_t sent = sendfile(to, from, NULL, (size_t)rest);
        if (sent <= 0) {
            errno = sent < 0 ? errno : EIO;
            return -1;
        }
        rest -= sent;
    }
    return 0;
}

/* Runtimes start it as root for every container: a folder that others can write is no place for it. */
static int folder_for(const char *path)
{
    struct stat found;
    if (*path != '/')
        fail("install wants an absolute path, not %s", path);
    if (mkdir(path, 0755) < 0 && errno != EEXIST)
        fail("cannot make the folder %s: %s", path, strerror(errno));
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0 || fstat(folder, &found) < 0)
        fail("cannot open the folder %s: %s", path, strerror(errno));
    if (found.st_mode & (S_IWGRP | S_IWOTH))
        fail("%s can be written by others than its owner (mode %04o), and root runs what lies there: chmod go-w %s",
             path, found.st_mode & 07777, path);
    if (found.st_uid != geteuid())
        fail("%s belongs to user %u, and root runs what lies there: chown it to %u", path, found.st_uid, geteuid());
    return folder;
}

void install(const char *path)
{
    int folder = folder_for(path), from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (from < 0)
        fail("cannot read /proc/self/exe: %s", strerror(errno));
    unlinkat(folder, NEW, 0); /* of one that was killed */
    int to = openat(folder, NEW, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (to < 0)
        fail("cannot write %s/%s: %s", path, NEW, strerror(errno));
    if (copy(from, to) < 0 || fchmod(to, 0755) < 0 || fsync(to) < 0 || renameat(folder, NEW, folder, NAME) < 0) {
        int why = errno;
        unlinkat(folder, NEW, 0);
        fail("cannot install %s/%s: %s", path, NAME, strerror(why));
    }
    if (fsync(folder) < 0)
        fail("cannot install %s/%s for good: %s", path, NAME, strerror(errno));
    close(to);
}
