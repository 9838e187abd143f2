/* /proc/driver/nvidia/params tells the driver's libraries whether they may make device nodes: in a container, no.
 *
 * A copy that says so is mounted over the container's. This alone is done in the container's mount namespace, where a
 * mount stays. The path is the kernel's from /proc on, and every step of it is taken without following a link.
 * Nothing is written into the image: the copy is in a tmpfs, which is there for as long as it takes to mount the
 * copy.
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
static const char *const STEPS[] = {"proc", "driver", "nvidia", "params"};
enum { PROC = 1, FOLDER = 3, FILE_ITSELF = 4, PROC_MAGIC = 0x9fa0, MOST = 1 << 20 };
enum { KEPT = MS_NOSUID | MS_NODEV | MS_NOEXEC };

struct spot {
    int fd;
    char path[64]; /* of the descriptor, for calls that want a path */
};

static struct spot spot_of(int fd)
{
    struct spot spot = {.fd = fd};
    snprintf(spot.path, sizeof spot.path, "/proc/self/fd/%d", fd);
    return spot;
}

/* So many steps into the container's /proc, with what is mounted there by now; fd -1: it has no /proc, or no driver. */
static struct spot walk(int root, size_t steps)
{
    struct statfs kind;
    int at = dup(root);
    for (size_t each = 0; each < steps && at >= 0; each++) {
        int next = openat(at, STEPS[each], O_PATH | O_NOFOLLOW | O_CLOEXEC);
        close(at);
        at = next;
        if (each == 0 && at >= 0 && (fstatfs(at, &kind) < 0 || kind.f_type != PROC_MAGIC)) {
            close(at);
            at = -1;
        }
    }
    return spot_of(at);
}

static void cover(int root, const struct spot *shown, const char *text, size_t size)
{
    struct spot proc = walk(root, PROC), folder = walk(root, FOLDER);
    if (mount(NULL, proc.path, NULL, MS_REC | MS_PRIVATE, NULL) < 0) /* it may be the host's, and shared with it */
        fail_at("keep to the container what is mounted over its", SHOWN);
    if (folder.fd < 0 || mount("none", folder.path, "tmpfs", KEPT, "size=1m,mode=755") < 0)
        fail_at("make a copy of the container's", SHOWN);
    struct spot temporary = walk(root, FOLDER);
    int copy = openat(temporary.fd, STEPS[FOLDER], O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
    if (copy < 0 || write(copy, text, size) != (ssize_t)size)
        fail_at("make a copy of the container's", SHOWN);
    close(copy);
    struct spot source = walk(root, FILE_ITSELF);
    if (source.fd < 0 || mount(source.path, shown->path, NULL, MS_BIND, NULL) < 0 ||
        umount2(temporary.path, MNT_DETACH) < 0)
        fail_at("mount a copy over the container's", SHOWN);
    struct spot mounted = walk(root, FILE_ITSELF);
    if (mounted.fd < 0 || mount(NULL, mounted.path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | KEPT, NULL) < 0)
        fail_at("make read-only the container's", SHOWN);
    const int used[] = {proc.fd, folder.fd, temporary.fd, source.fd, mounted.fd}; /* each a way out of the root */
    for (size_t each = 0; each < sizeof used / sizeof *used; each++)
        close(used[each]);
}

void protect_params(int root)
{
    size_t size;
    struct spot shown = walk(root, FILE_ITSELF);
    if (shown.fd < 0)
        return;
    char *text = read_file(AT_FDCWD, shown.path, MOST, &size), *line = text ? strstr(text, ALLOWED) : NULL;
    if (line) {
        line[sizeof ALLOWED - 2] = '0';
        cover(root, &shown, text, size);
    }
    free(text);
    close(shown.fd);
}
