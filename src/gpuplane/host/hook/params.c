/* /proc/driver/nvidia/params tells the driver's libraries whether they may make device nodes. In a container they may not.
 *
 * A copy that says so is mounted over the container's. This alone is done in the container's mount namespace, where a mount
 * stays. The path is the kernel's from /proc on, and every step of it is taken without following a link.
 */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static const char SHOWN[] = "/proc/driver/nvidia/params", ALLOWED[] = "ModifyDeviceFiles: 1";
enum { PROC_MAGIC = 0x9fa0, MOST = 1 << 20 };

/* The file in the container's /proc; -1: it has no /proc, or the driver is absent. */
static int params_of(int root)
{
    static const char *const STEPS[] = {"proc", "driver", "nvidia", "params"};
    struct statfs kind;
    int at = dup(root);
    for (size_t each = 0; each < 4 && at >= 0; each++) {
        int next = openat(at, STEPS[each], O_PATH | O_NOFOLLOW | O_CLOEXEC);
        close(at);
        at = next;
        if (each == 0 && at >= 0 && (fstatfs(at, &kind) < 0 || kind.f_type != PROC_MAGIC)) {
            close(at);
            return -1;
        }
    }
    return at;
}

/* A file without a name. It goes with the container's mounts. */
static int nameless(int root)
{
    static const char *const FOLDERS[] = {"dev", "."}; /* a tmpfs where a runtime made it */
    for (size_t each = 0; each < 2; each++) {
        int folder = openat(root, FOLDERS[each], O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int file = folder < 0 ? -1 : openat(folder, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0444);
        if (folder >= 0)
            close(folder);
        if (file >= 0)
            return file;
    }
    fail("cannot make a file in the container to mount over its %s: %s", SHOWN, strerror(errno));
}

static void descriptor_path(int fd, char *path, size_t room)
{
    snprintf(path, room, "/proc/self/fd/%d", fd);
}

void protect_params(int root)
{
    char from[64], onto[64];
    size_t size;
    int shown = params_of(root);
    if (shown < 0)
        return;
    descriptor_path(shown, onto, sizeof onto);
    char *text = read_file(AT_FDCWD, onto, MOST, &size);
    char *line = text ? strstr(text, ALLOWED) : NULL;
    if (line) {
        line[sizeof ALLOWED - 2] = '0';
        int copy = nameless(root);
        descriptor_path(copy, from, sizeof from);
        if (write(copy, text, size) != (ssize_t)size || mount(from, onto, NULL, MS_BIND, NULL) < 0)
            fail_at("mount a copy over the container's", SHOWN);
        close(copy);
        int mounted = params_of(root);
        descriptor_path(mounted, onto, sizeof onto);
        if (mounted < 0 || mount(NULL, onto, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
            fail_at("make read-only the container's", SHOWN);
        close(mounted);
    }
    free(text);
    close(shown);
}
