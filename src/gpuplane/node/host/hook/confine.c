/* Into the container's root, for good: from here on there is no path to anything of the host.
 *
 * In a mount namespace of its own the container's root becomes the root, and the host's is let go of. Two things lead
 * out of a root all the same: links of a proc such as /proc/1/root, and what a pod has mounted of the host. So every
 * proc is covered, that of a volume too; every mount but the root and the container's own /dev is made read-only; and
 * of root's capabilities one is kept: to write into folders whatever their owner and mode. Without the others the
 * kernel lets this process follow the links of root's processes only where these have no more: the capabilities alone
 * would not do. No file of the image can be executed.
 */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif

enum { MOUNT_RDONLY = 1, MOUNT_NOSUID = 2, MOUNT_NODEV = 4, MOUNT_NOEXEC = 8, RECURSIVE = 0x8000 };
enum { LOCKED = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, PROC_MAGIC = 0x9fa0, TMPFS_MAGIC = 0x01021994 };
enum { CAPABILITY_DAC_OVERRIDE = 1, CAPABILITY_VERSION_3 = 0x20080522 };

struct attributes {
    uint64_t set, clear, propagation, user_namespace;
};

static void enter(int root, const char *path)
{
    struct stat meant, found;
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        fail("cannot make mounts private: %s", strerror(errno));
    /* The root has to be a mount of this namespace. Where it is one already, a second on top does no harm. */
    if (chdir(path) < 0 || mount(".", ".", NULL, MS_BIND | MS_REC, NULL) < 0 || chdir(path) < 0)
        fail("cannot mount the container's root %s: %s", path, strerror(errno));
    if (fstat(root, &meant) < 0 || stat(".", &found) < 0 || meant.st_dev != found.st_dev ||
        meant.st_ino != found.st_ino)
        fail("the container's root %s was replaced while its container was made", path);
    close(root); /* a way out */
    if (syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
        fail("cannot make %s the root: %s", path, strerror(errno));
}

/* crun before 1.26 makes a root read-only before hooks run: a mount over the root, which itself can be written. */
static bool is_read_only_too_early(int process, const char *path)
{
    int here = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    bool early = here >= 0 && is_covered_read_only(process, here);
    if (here >= 0)
        close(here);
    return early;
}

static bool is_kind(const char *path, unsigned long magic)
{
    struct statfs found;
    return statfs(path, &found) == 0 && (unsigned long)found.f_type == magic;
}

/* A mount that another one hides is not there by its path any more, and needs no cover. */
static void cover_processes(int process)
{
    struct mounted found;
    char *list = read_mounts(process);
    for (char *rest = list; next_mount(&rest, &found);)
        if (found.proc && is_kind(found.point, PROC_MAGIC) &&
            mount("none", found.point, "tmpfs", LOCKED, "size=4k,mode=555") < 0 && errno != ENOTDIR) /* of one file */
            fail("cannot cover %s in the container: %s", found.point, strerror(errno));
    free(list);
}

static bool writable(const char *path)
{
    struct statvfs found;
    return statvfs(path, &found) == 0 && !(found.f_flag & ST_RDONLY);
}

/* What runtimes make: a tmpfs, and not the host's. */
static bool is_own_dev(dev_t host_dev)
{
    struct stat dev;
    return lstat("/dev", &dev) == 0 && S_ISDIR(dev.st_mode) && dev.st_dev != host_dev && is_kind("/dev", TMPFS_MAGIC) &&
           writable("/dev");
}

static long change(const char *path, unsigned flags, struct attributes change)
{
    return syscall(SYS_mount_setattr, AT_FDCWD, path, flags | AT_SYMLINK_NOFOLLOW, &change, sizeof change);
}

/* Before Linux 5.12: one after the other. What is no mount any more is hidden by another. */
static void lock_each(int process, bool root, bool own_dev)
{
    struct mounted found;
    char *list = read_mounts(process);
    for (char *rest = list; next_mount(&rest, &found);) {
        bool kept = (root && strcmp(found.point, "/") == 0) || (own_dev && strcmp(found.point, "/dev") == 0);
        unsigned long flags = MS_REMOUNT | MS_BIND | (kept ? LOCKED & ~MS_RDONLY : LOCKED);
        if (mount(NULL, found.point, NULL, flags, NULL) < 0 && errno != EINVAL && errno != ENOENT && errno != ENOTDIR)
            fail("cannot make %s in the container read-only: %s", found.point, strerror(errno));
    }
    free(list);
}

/* A /dev that is the host's stays read-only, too. */
static void lock_mounts(int process, dev_t host_dev, bool early)
{
    static const struct attributes LOCK = {.set = MOUNT_RDONLY | MOUNT_NOSUID | MOUNT_NODEV | MOUNT_NOEXEC};
    static const struct attributes WRITABLE = {.clear = MOUNT_RDONLY};
    bool root = early || writable("/"), own_dev = is_own_dev(host_dev);
    if (change("/", RECURSIVE, LOCK) < 0) {
        if (errno != ENOSYS)
            fail("cannot make the container's mounts read-only: %s", strerror(errno));
        lock_each(process, root, own_dev);
        return;
    }
    if (root && change("/", 0, WRITABLE) < 0)
        fail("cannot make the container's root writable: %s", strerror(errno));
    if (own_dev && change("/dev", 0, WRITABLE) < 0 && errno != EINVAL) /* EINVAL: it is no mount */
        fail("cannot make /dev in the container writable: %s", strerror(errno));
}

static void drop_capabilities(void)
{
    struct { uint32_t version; int pid; } header = {CAPABILITY_VERSION_3, 0};
    struct { uint32_t effective, permitted, inheritable; } kept[2] = {0};
    for (unsigned long each = 0; each < 64; each++)
        if (each != CAPABILITY_DAC_OVERRIDE && prctl(PR_CAPBSET_DROP, each, 0, 0, 0) < 0 && errno != EINVAL)
            fail("cannot drop capability %lu: %s", each, strerror(errno));
    kept[0].effective = kept[0].permitted = 1U << CAPABILITY_DAC_OVERRIDE;
    if (syscall(SYS_capset, &header, kept) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        fail("cannot drop capabilities: %s", strerror(errno));
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
}

void confine(int root, const char *path)
{
    struct stat dev;
    dev_t host_dev = stat("/dev", &dev) == 0 ? dev.st_dev : 0;
    int process = open("/proc/self", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (process < 0)
        fail("cannot read /proc/self: %s", strerror(errno));
    bool early = is_read_only_too_early(process, path);
    enter(root, path);
    cover_processes(process);
    lock_mounts(process, host_dev, early);
    close(process); /* a way out */
    drop_capabilities();
}
