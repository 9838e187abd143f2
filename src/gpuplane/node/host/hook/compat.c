/* CUDA forward compatibility: an image may bring a libcuda that is newer than the host's driver.
 *
 * It is used when it is newer and its makers allow it for this driver. Newer libraries say so themselves, in an ELF
 * note: {"CUDA version": "13.1", "driver": [535, 550, ...], ...}, the majors of the drivers that they run on; where
 * they name none, CUDA's version decides. The case of a key does not count: NVIDIA's own reader spells the keys
 * otherwise than its libraries (cmd/nvidia-cdi-hook/cudacompat/cuda-elf-header.go, read by Go's encoding/json).
 * Older libraries have no note: theirs is the next major or a later one. An older library than the host's is never
 * used, whatever the note says.
 */
#include "hook.h"
#include "json.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char SECTION[] = ".note.cuda.fwd_compatibility", OWNER[] = "NVIDIA Corporation", PREFIX[] = "libcuda.so.";
enum { FIRST_DRIVER = 100 }; /* what is less is no driver's version: Tegra's library is libcuda.so.1.1 */

/* Digits with dots between, at least one dot. */
static bool is_version(const char *text)
{
    size_t size = strlen(text);
    if (!size || size > 32 || strspn(text, "0123456789.") != size)
        return false;
    return strchr(text, '.') && *text != '.' && text[size - 1] != '.';
}

/* By numbers: less than, equal to or greater than 0. What is missing counts as 0. */
static int compare(const char *one, const char *other)
{
    while (*one || *other) {
        char *one_end = (char *)one, *other_end = (char *)other;
        long first = *one ? strtol(one, &one_end, 10) : 0, second = *other ? strtol(other, &other_end, 10) : 0;
        if (first != second)
            return first < second ? -1 : 1;
        one = *one_end == '.' ? one_end + 1 : "";
        other = *other_end == '.' ? other_end + 1 : "";
    }
    return 0;
}

/* The one library of the folder, by its version; false: there is none, or there are several and who knows which. */
static bool only_library(const char *folder, char *version, size_t room)
{
    size_t count = 0;
    DIR *listing = opendir(folder);
    if (!listing)
        return false;
    for (struct dirent *each; (each = readdir(listing));) {
        const char *rest = each->d_name + sizeof PREFIX - 1;
        struct stat found;
        if (strncmp(each->d_name, PREFIX, sizeof PREFIX - 1) != 0 || !is_version(rest) ||
            fstatat(dirfd(listing), each->d_name, &found, 0) < 0 || !S_ISREG(found.st_mode))
            continue;
        snprintf(version, room, "%s", rest);
        count++;
    }
    closedir(listing);
    return count == 1;
}

static bool newer_cuda(const char *theirs, const char *ours)
{
    return ours && is_version(theirs) && compare(theirs, ours) > 0;
}

static bool allowed(const struct task *task, const char *version, struct json note)
{
    struct json found, each;
    char cuda[33] = "";
    long major;
    if (json_member_any_case(note, "CUDA version", &found) && !json_string(found, cuda, sizeof cuda))
        *cuda = 0;
    bool of_driver = atoi(version) >= FIRST_DRIVER;
    if (of_driver ? compare(version, task->driver) <= 0 : !newer_cuda(cuda, task->cuda))
        return false;
    if (!json_member_any_case(note, "driver", &found) || !json_first(found, &each))
        return newer_cuda(cuda, task->cuda);
    do
        if (json_whole(each, &major) && major == atol(task->driver))
            return true;
    while (json_next(found, &each));
    return false;
}

bool wants_compat(const struct task *task)
{
    static char text[64 << 10];
    char version[33], path[PATH_MAX];
    struct json note;
    if (!task->compat || !only_library(task->compat, version, sizeof version))
        return false;
    snprintf(path, sizeof path, "%s/%s%s", task->compat, PREFIX, version);
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return false;
    size_t size = elf_note(fd, SECTION, OWNER, text, sizeof text);
    close(fd);
    if (!size)
        return atol(version) > atol(task->driver);
    return json_read(text, size, &note) && allowed(task, version, note);
}
