/* The commands, the surroundings that are not trusted, and the two processes. */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

enum { OURS = 64 }; /* descriptors: the lowest are taken first, and we open few */

static const char USAGE[] =
    "usage: " NAME " create-container [--link=TARGET::LINK]... [--link-if=TARGET::LINK]... [--folder=DIR]...\n"
    "           [--compat=DIR --driver=VERSION --cuda=VERSION] [--params] [--deadline=SECONDS] < state\n"
    "       " NAME " install DIR\n"
    "       " NAME " --version\n";

/* --- what a caller may have left us ------------------------------------------------------------------------------- */

static void close_inherited(void)
{
    if (syscall(SYS_close_range, 3, ~0U, 0) == 0)
        return;
    for (int fd = 3; fd < 65536; fd++) /* before Linux 5.9 */
        close(fd);
}

/* Environment, working directory, descriptors, masks and handlers are the caller's, or an image's: none is used. */
static void begin_clean(void)
{
    static const int DEFAULT[] = {SIGCHLD, SIGALRM, SIGTERM, SIGHUP, SIGINT};
    sigset_t none;
    int null = open("/dev/null", O_RDWR);
    while (null >= 0 && null <= 2) /* standard descriptors that were closed */
        null = dup(null);
    clearenv();
    close_inherited();
    umask(022);
    if (chdir("/") < 0)
        fail("cannot go to /: %s", strerror(errno));
    for (size_t each = 0; each < sizeof DEFAULT / sizeof *DEFAULT; each++)
        signal(DEFAULT[each], SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
}

static void too_late(int signal)
{
    (void)signal;
    static const char TEXT[] =
        NAME ": given up at the deadline: the node is overloaded, or the image's ld.so.conf has no end\n";
    ssize_t written = write(STDERR_FILENO, TEXT, sizeof TEXT - 1);
    _exit(written < 0 ? 2 : 1);
}

/* --- the two processes -------------------------------------------------------------------------------------------- */

/* Ends with the other process: now, if that is gone already, or by a signal. */
static void end_with(int out)
{
    struct pollfd reader = {.fd = out};
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || poll(&reader, 1, 0) < 0 || reader.revents & POLLERR)
        _exit(1);
}

/* Whatever the work before has left open may be a way out: ".." of a directory in another mount namespace is one. */
static void close_all_but(int kept)
{
    for (int fd = STDERR_FILENO + 1; fd < OURS; fd++)
        if (fd != kept)
            close(fd);
}

/* Containers may have one root, and start at once: one after the other then, until this process or ldconfig ends. */
static void wait_for_turn(void)
{
    int folder = open("/", O_RDONLY | O_DIRECTORY);
    if (folder >= 0)
        flock(folder, LOCK_EX); /* a file system without locks does without */
}

_Noreturn static void inside(const struct task *task, int root, const char *path, int ldconfig, int out)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    end_with(out);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 || dup2(out, STDERR_FILENO) < 0)
        fail("cannot open /dev/null: %s", strerror(errno));
    confine(root, path);
    close_all_but(ldconfig);
    place = "the container: ";
    wait_for_turn();
    char **folders = calloc(task->folder_count + 2, sizeof *folders);
    if (!folders)
        fail("no memory for %zu folders", task->folder_count);
    make_links(task);
    if (!prepare_loader(task, folders))
        _exit(0);
    run_ldconfig(ldconfig, folders);
}

/* What the other process says, to its end. The last line is the error; ldconfig warns of this and that before. */
static const char *last_line(int from, char *said, size_t room)
{
    size_t used = 0;
    ssize_t got;
    while ((got = read(from, said + used, room - 1 - used)) > 0) {
        used += (size_t)got;
        if (used > room / 2) {
            memmove(said, said + used - room / 2, room / 2);
            used = room / 2;
        }
    }
    while (used && said[used - 1] == '\n')
        used--;
    said[used] = 0;
    char *line = strrchr(said, '\n');
    return line ? line + 1 : said;
}

static void wait_for(pid_t child, int from)
{
    char said[16384];
    int status = 0;
    const char *line = last_line(from, said, sizeof said);
    if (waitpid(child, &status, 0) < 0)
        fail("lost the process in the container's root: %s", strerror(errno));
    if (WIFSIGNALED(status))
        fail("the process in the container's root was ended by signal %d", WTERMSIG(status));
    if (WEXITSTATUS(status) == 0)
        return;
    size_t prefix = strncmp(line, NAME ": ", sizeof NAME + 1) == 0 ? sizeof NAME + 1 : 0;
    fail("%s", *line ? line + prefix : "ldconfig failed and did not say why");
}

static void create_container(const struct task *task)
{
    char path[PATH_MAX];
    int ends[2];
    signal(SIGALRM, too_late);
    alarm(task->deadline);
    int root = container_root(path, sizeof path);
    if (task->params)
        protect_params(root);
    if (!task->link_count && !task->folder_count && !task->compat)
        return;
    int ldconfig = task->folder_count || task->compat ? sealed_ldconfig() : -1;
    if (pipe2(ends, O_CLOEXEC) < 0)
        fail("cannot make a pipe: %s", strerror(errno));
    if (unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS) < 0)
        fail("cannot make namespaces: %s; this needs root, as runtimes call it", strerror(errno));
    pid_t child = fork();
    if (child < 0)
        fail("cannot start a process: %s", strerror(errno));
    close(ends[child ? 1 : 0]);
    if (child == 0)
        inside(task, root, path, ldconfig, ends[1]);
    wait_for(child, ends[0]);
}

int main(int count, char **arguments)
{
    begin_clean();
    const char *command = count > 1 ? arguments[1] : "";
    if (strcmp(command, "create-container") == 0) {
        struct task task = understand(count - 2, arguments + 2);
        create_container(&task);
    } else if (strcmp(command, "install") == 0 && count == 3)
        install(arguments[2]);
    else if (strcmp(command, "--version") == 0 && count == 2)
        puts(NAME " " VERSION);
    else if (strcmp(command, "--help") == 0 && count == 2)
        fputs(USAGE, stdout);
    else {
        fputs(USAGE, stderr);
        return 2;
    }
    return fflush(stdout) ? 1 : 0;
}
