/* The loader's cache is made by the host's ldconfig: the image's may be anything.
 *
 * It runs as a sealed copy in memory, so that nothing it meets could change the host's file. It has to be a static
 * program: for a script or a dynamic one the kernel would start an interpreter by its path, and that path is the
 * image's.
 */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MFD_EXEC
#define MFD_EXEC 0x10U
#endif

/* Ubuntu's ldconfig is a script beside the program; Talos has glibc in a folder of its own. */
static const char *const PATHS[] = {"/sbin/ldconfig.real", "/sbin/ldconfig", "/usr/local/glibc/sbin/ldconfig"};
enum { SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE, MOST = 64 << 20 };

static int copy_of(int from, const char *path)
{
    struct stat found;
    if (fstat(from, &found) < 0 || !S_ISREG(found.st_mode) || found.st_size > MOST)
        fail("the host's %s is no program", path);
    int copy = memfd_create("ldconfig", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_EXEC);
    if (copy < 0 && errno == EINVAL) /* before Linux 6.3 */
        copy = memfd_create("ldconfig", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (copy < 0)
        fail("cannot copy the host's %s: %s%s", path, strerror(errno), errno == EACCES ? ", by vm.memfd_noexec" : "");
    for (off_t rest = found.st_size; rest > 0;) {
        ssize_t sent = sendfile(copy, from, NULL, (size_t)rest);
        if (sent <= 0)
            fail("cannot copy the host's %s: %s", path, sent < 0 ? strerror(errno) : "it became shorter");
        rest -= sent;
    }
    if (fcntl(copy, F_ADD_SEALS, SEALS) < 0)
        fail("cannot seal the copy of %s: %s", path, strerror(errno));
    return copy;
}

int sealed_ldconfig(void)
{
    for (size_t each = 0; each < sizeof PATHS / sizeof *PATHS; each++) {
        bool interpreted = true;
        int from = open(PATHS[each], O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        if (from < 0)
            continue;
        int copy = copy_of(from, PATHS[each]);
        close(from);
        if (elf_interpreted(copy, &interpreted) && !interpreted)
            return copy;
        close(copy);
    }
    return -1;
}

void run_ldconfig(int program, char **folders)
{
    char *arguments[16 + 1024] = {"ldconfig", "-f", "/etc/ld.so.conf", "-C", "/etc/ld.so.cache"};
    size_t count = 5;
    while (*folders && count < sizeof arguments / sizeof *arguments - 1)
        arguments[count++] = *folders++;
    if (program < 0)
        fail("the host has no static ldconfig at %s or %s: --cdi-hook=none needs none", PATHS[0], PATHS[1]);
    static char *const ENVIRONMENT[] = {NULL};
    syscall(SYS_execveat, program, "", arguments, ENVIRONMENT, AT_EMPTY_PATH);
    fail("cannot run the host's ldconfig: %s", strerror(errno));
}
