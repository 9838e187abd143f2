/* Links: of libraries by the names that programs load, and of DRM nodes by their PCI address. */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The folder of an absolute path; "/" has none and is no link. */
static void folder_of(const char *path, char *folder)
{
    const char *slash = strrchr(path, '/');
    snprintf(folder, PATH_MAX, "%.*s", (int)(slash == path ? 1 : slash - path), path);
}

/* Whether the target is there. By its words alone, "..", too: the folder of the link need not be there yet. */
static bool exists(const char *folder, const char *target)
{
    char words[2 * PATH_MAX], clear[2 * PATH_MAX + 1] = "";
    size_t end = 0;
    struct stat found;
    snprintf(words, sizeof words, "%s/%s", *target == '/' ? "" : folder, target);
    for (char *rest = words, *word; (word = strtok_r(rest, "/", &rest));) {
        if (strcmp(word, ".") == 0)
            continue;
        if (strcmp(word, "..") == 0) {
            while (end && clear[--end] != '/')
                ;
            clear[end] = 0;
            continue;
        }
        end += (size_t)snprintf(clear + end, sizeof clear - end, "/%s", word);
    }
    return stat(end ? clear : "/", &found) == 0;
}

static bool stands(int folder, const char *name, const char *target)
{
    char now[PATH_MAX];
    ssize_t size = readlinkat(folder, name, now, sizeof now);
    return size > 0 && (size_t)size == strlen(target) && memcmp(now, target, (size_t)size) == 0;
}

/* Into its folder. -1: errno says why. */
static int put(const struct link *link, const char *folder)
{
    struct stat found;
    const char *name = strrchr(link->path, '/') + 1;
    int in = make_folder(folder) < 0 ? -1 : open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (in < 0)
        return -1;
    int done = 0;
    if (!stands(in, name, link->target)) {
        bool taken = fstatat(in, name, &found, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(found.st_mode);
        errno = EISDIR;
        done = taken ? -1 : link_in(in, name, link->target);
    }
    int why = errno;
    close(in);
    errno = why;
    return done;
}

static void make(const struct link *link)
{
    char folder[PATH_MAX];
    folder_of(link->path, folder);
    if (link->conditional && !exists(folder, link->target))
        return;
    if (put(link, folder) == 0 || (link->conditional && errno == EROFS)) /* a /dev that is the host's has its own */
        return;
    fail_at("make the link", link->path);
}

void make_links(const struct task *task)
{
    for (size_t each = 0; each < task->link_count; each++)
        make(&task->links[each]);
}
