/* gpuplane-hook: what a GPU container needs inside its root filesystem, made before its first process starts.
 *
 * Two processes. The first is in the container's mount namespace and sees the host: it reads what the runtime says,
 * protects the parameter file, and then only waits. The second locks itself into the container's root (confine.c) and
 * does all that touches a path of the image: there a link cannot lead outside, because for this process there is no
 * outside. Nothing of the image is ever executed.
 */
#ifndef HOOK_H
#define HOOK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define NAME "gpuplane-hook"

struct link {
    const char *target; /* as it will stand in the link */
    const char *path;   /* of the link, absolute in the container */
    bool conditional;   /* only where the target exists */
};

/* The command line. Strings are argv's; paths are absolute in the container. */
struct task {
    struct link *links;
    size_t link_count;
    const char **folders; /* of libraries */
    size_t folder_count;
    const char *compat; /* the folder where an image has CUDA's compatibility libraries; NULL: leave it alone */
    const char *driver; /* the host driver's version, "580.95.05" */
    const char *cuda;   /* CUDA's version that this driver brings, "13.0" */
    bool params;
    unsigned deadline; /* seconds */
};

/* say.c: the one line that says what went wrong. Every failure ends the process. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void fail_at(const char *doing, const char *path); /* errno says why */
extern const char *place;                                    /* what every path is in from now on: "the container: " */

/* arguments.c */
struct task understand(int count, char **arguments);

/* files.c: reading and writing that nothing in an image can hold up. */
char *read_stream(int fd, const char *path, size_t most, size_t *size);
char *read_file(int folder, const char *path, size_t most, size_t *size); /* NULL: there is none */
void write_file(const char *path, const char *text);
int make_folder(const char *path); /* -1: errno says why */
int link_in(int folder, const char *name, const char *target);
bool is_file(const char *path);

/* state.c: what the runtime says on standard input. A descriptor of the container's root, and its path on the host. */
int container_root(char *path, size_t room);

/* params.c, links.c, compat.c, loader.c: what is done. All but params in the container's root. */
void protect_params(int root);
void make_links(const struct task *task);
bool wants_compat(const struct task *task);
bool prepare_loader(const struct task *task, char **folders); /* whether there is a cache to make; with these first */

/* ldconfig.c: the host's, as a sealed copy. */
int sealed_ldconfig(void); /* a descriptor; -1: the host has none */
_Noreturn void run_ldconfig(int program, char **folders);

/* confine.c: into the container's root, where everything else that is mounted becomes read-only. */
void confine(int root, const char *path);

/* mounts.c: what is mounted in the root, by a descriptor of /proc/self; and one after the other, by `rest` of that. */
struct mounted {
    long number, parent;
    const char *device, *root, *point; /* the file system, what of it is mounted, and where */
    bool read_only, proc;
};
char *read_mounts(int process);
bool next_mount(char **rest, struct mounted *found);
/* Whether a descriptor is in a read-only mount of the very place where it is mounted, which can be written below it. */
bool is_covered_read_only(int process, int fd);

/* elf.c: of a file that may be anything at all. */
bool elf_interpreted(int fd, bool *interpreted);
size_t elf_note(int fd, const char *section, const char *owner, char *text, size_t room); /* 0: it has none */

/* install.c */
void install(const char *folder);

#endif
