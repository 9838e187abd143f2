/* Files of an image may be FIFOs, devices, endless or changing: opening them never blocks and reading them ends. */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char TEMPORARY[] = ".gpuplane-hook.new";

/* All that comes, as a string; more than `most` is an error. */
char *read_stream(int fd, const char *path, size_t most, size_t *size)
{
    size_t room = 4096, used = 0;
    char *text = malloc(room);
    while (text) {
        ssize_t got = read(fd, text + used, room - used - 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            fail("cannot read %s: %s", path, strerror(errno));
        used += (size_t)got;
        if (used > most)
            fail("%s is larger than %zu bytes, which nothing of its kind is", path, most);
        if (got == 0)
            break;
        if (room - used < 2) {
            char *larger = realloc(text, room *= 2);
            if (!larger)
                free(text);
            text = larger;
        }
    }
    if (!text)
        fail("no memory to read %s", path);
    text[used] = 0;
    *size = used;
    return text;
}

char *read_file(int folder, const char *path, size_t most, size_t *size)
{
    int fd = openat(folder, path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    struct stat found;
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP))
        return NULL;
    if (fd < 0 || fstat(fd, &found) < 0)
        fail("cannot read %s: %s", path, strerror(errno));
    if (!S_ISREG(found.st_mode))
        fail("%s is no regular file; a file is wanted there, or nothing", path);
    char *text = read_stream(fd, path, most, size);
    close(fd);
    return text;
}

/* Whole or not at all, and what is the same is left alone. A link at that place is replaced, never followed. */
void write_file(const char *path, const char *text)
{
    char folder[PATH_MAX];
    size_t size;
    struct stat found;
    if (lstat(path, &found) == 0 && S_ISREG(found.st_mode)) {
        char *before = read_file(AT_FDCWD, path, 1 << 20, &size);
        bool same = before && size == strlen(text) && memcmp(before, text, size) == 0;
        free(before);
        if (same)
            return;
    }
    const char *name = strrchr(path, '/') + 1;
    snprintf(folder, sizeof folder, "%.*s", (int)(name - path), path);
    int in = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (in < 0)
        fail_at("write", path);
    unlinkat(in, TEMPORARY, 0); /* of one that was killed */
    int fd = openat(in, TEMPORARY, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        fail_at("write", path);
    ssize_t written = write(fd, text, strlen(text));
    if (written < 0 || (size_t)written != strlen(text) || close(fd) < 0 || renameat(in, TEMPORARY, in, name) < 0) {
        int why = written >= 0 && (size_t)written != strlen(text) ? ENOSPC : errno;
        unlinkat(in, TEMPORARY, 0);
        errno = why;
        fail_at("write", path);
    }
    close(in);
}

/* With its parents. A link that leads nowhere, or round and round, is no folder. */
int make_folder(const char *path)
{
    char upto[PATH_MAX];
    struct stat found;
    if (stat(path, &found) == 0 && S_ISDIR(found.st_mode))
        return 0;
    snprintf(upto, sizeof upto, "%s", path);
    for (char *slash = upto; slash;) {
        slash = strchr(slash + 1, '/');
        if (slash)
            *slash = 0;
        if ((mkdir(upto, 0755) < 0 && errno != EEXIST) || stat(upto, &found) < 0)
            return -1;
        if (!S_ISDIR(found.st_mode)) {
            errno = ENOTDIR;
            return -1;
        }
        if (slash)
            *slash = '/';
    }
    return 0;
}

/* In one step: whoever looks sees what was there before, or the link. */
int link_in(int folder, const char *name, const char *target)
{
    if (symlinkat(target, folder, name) == 0)
        return 0;
    if (errno != EEXIST)
        return -1;
    unlinkat(folder, TEMPORARY, 0); /* of one that was killed */
    if (symlinkat(target, folder, TEMPORARY) < 0)
        return -1;
    if (renameat(folder, TEMPORARY, folder, name) == 0)
        return 0;
    int why = errno;
    unlinkat(folder, TEMPORARY, 0);
    errno = why;
    return -1;
}

bool is_file(const char *path)
{
    struct stat found;
    return stat(path, &found) == 0 && S_ISREG(found.st_mode);
}
