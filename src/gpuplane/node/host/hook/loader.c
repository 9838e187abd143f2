/* Where loaders look. glibc's has a cache, made from /etc/ld.so.conf; musl's reads a list of folders.
 *
 * A folder that the image searches already keeps its place in the order: to move /usr/lib before an image's
 * /usr/local/lib would change what its programs load. One that it does not search comes first, so that no stub or old
 * driver in the image is taken instead. The host's ldconfig knows the default folders of its own distribution only;
 * those of the image are named last. All this is written into ld.so.conf.d, and so stays when somebody runs ldconfig
 * in the container.
 */
#include "hook.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined __x86_64__
#define ARCHITECTURE "x86_64"
static const char GLIBC[] = "/lib64/ld-linux-x86-64.so.2";
#elif defined __aarch64__
#define ARCHITECTURE "aarch64"
static const char GLIBC[] = "/lib/ld-linux-aarch64.so.1";
#else
#error "drivers for containers exist for x86_64 and aarch64"
#endif

static const char MUSL[] = "/lib/ld-musl-" ARCHITECTURE ".so.1", MUSL_PATHS[] = "/etc/ld-musl-" ARCHITECTURE ".path";
static const char MUSL_DEFAULT[] = "/lib:/usr/local/lib:/usr/lib";
static const char CONF[] = "/etc/ld.so.conf", CONF_D[] = "/etc/ld.so.conf.d";
static const char COMPAT[] = "/etc/ld.so.conf.d/00-gpuplane-compat.conf";
static const char CACHE[] = "/etc/ld.so.cache", TEMPORARY[] = "/etc/ld.so.cache~"; /* the second is ldconfig's */
static const char FIRST[] = "/etc/ld.so.conf.d/00-gpuplane.conf", LAST[] = "/etc/ld.so.conf.d/zz-gpuplane.conf";

/* As the distributions build their loaders. */
static const char *const DEBIAN[] = {"/lib/" ARCHITECTURE "-linux-gnu", "/usr/lib/" ARCHITECTURE "-linux-gnu", "/lib",
                                     "/usr/lib", NULL};
static const char *const OTHERS[] = {"/lib64", "/usr/lib64", NULL};

enum { MOST_FOLDERS = 512, MOST_FILES = 256, MOST_BYTES = 1 << 20, DEEPEST = 8 };

struct search {
    char *folders[MOST_FOLDERS];
    size_t count, files;
};

static void read_configuration(struct search *search, const char *path, int depth);

static bool lists(const struct search *search, const char *folder)
{
    for (size_t each = 0; each < search->count; each++)
        if (strcmp(search->folders[each], folder) == 0)
            return true;
    return false;
}

/* Files by a pattern, whose last part alone may have wildcards. What is ours does not count: it is written anew. */
static void include(struct search *search, const char *from, const char *pattern, int depth)
{
    char whole[PATH_MAX], path[PATH_MAX];
    int above = *pattern == '/' ? 0 : (int)(strrchr(from, '/') - from + 1);
    if ((size_t)snprintf(whole, sizeof whole, "%.*s%s", above, from, pattern) >= sizeof whole)
        return;
    char *name = strrchr(whole, '/');
    if (!name)
        return;
    *name++ = 0;
    DIR *listing = opendir(*whole ? whole : "/");
    if (!listing)
        return;
    for (struct dirent *each; (each = readdir(listing));) {
        if (fnmatch(name, each->d_name, FNM_PERIOD) != 0)
            continue;
        if ((size_t)snprintf(path, sizeof path, "%s/%s", whole, each->d_name) >= sizeof path)
            continue;
        if (strcmp(path, COMPAT) != 0 && strcmp(path, FIRST) != 0 && strcmp(path, LAST) != 0)
            read_configuration(search, path, depth + 1);
    }
    closedir(listing);
}

static void read_line(struct search *search, const char *from, char *line, int depth)
{
    static const char BLANK[] = " \t\r";
    line[strcspn(line, "#")] = 0;
    line += strspn(line, BLANK);
    if (strncmp(line, "include", 7) == 0 && line[7] && strchr(BLANK, line[7])) {
        for (char *rest = line + 7, *pattern; (pattern = strtok_r(rest, BLANK, &rest));)
            include(search, from, pattern, depth);
        return;
    }
    line[strcspn(line, BLANK)] = 0;
    for (size_t size = strlen(line); size > 1 && line[size - 1] == '/';)
        line[--size] = 0;
    if (*line == '/' && search->count < MOST_FOLDERS && !lists(search, line)) {
        char *folder = strdup(line);
        if (!folder)
            fail("no memory to read %s", from);
        search->folders[search->count++] = folder;
    }
}

static void read_configuration(struct search *search, const char *path, int depth)
{
    size_t size;
    struct stat found;
    if (depth > DEEPEST || search->files++ >= MOST_FILES || (stat(path, &found) == 0 && S_ISDIR(found.st_mode)))
        return; /* ldconfig passes over a folder */
    char *text = read_file(AT_FDCWD, path, MOST_BYTES, &size);
    if (!text)
        return;
    for (char *rest = text, *line; (line = strsep(&rest, "\n"));)
        read_line(search, path, line, depth);
    free(text);
}

/* A file of lines; none where there are none. */
static void write_lines(const char *path, char *const *lines)
{
    size_t size = 1;
    for (char *const *each = lines; *each; each++)
        size += strlen(*each) + 1;
    char *text = calloc(size, 1), *end = text;
    if (!text)
        fail("no memory to write %s", path);
    for (char *const *each = lines; *each; each++)
        end += sprintf(end, "%s\n", *each);
    if (*text)
        write_file(path, text);
    else if (unlink(path) < 0 && errno != ENOENT)
        fail_at("remove", path);
    free(text);
}

/* Folders that come before all others end up in `first`. */
static void prepare_glibc(const struct task *task, char **first)
{
    static struct search search;
    struct stat found;
    char *compat[2] = {NULL}, *last[5] = {NULL};
    size_t count = 0, late = 0;
    if (make_folder(CONF_D) < 0)
        fail_at("make the folder", CONF_D);
    if (lstat(CONF, &found) < 0)
        write_file(CONF, "include /etc/ld.so.conf.d/*.conf\n");
    read_configuration(&search, CONF, 0);
    const char *const *defaults = is_file("/etc/debian_version") ? DEBIAN : OTHERS;
    for (const char *const *each = defaults; *each; each++)
        if (!lists(&search, *each)) {
            last[late++] = (char *)*each;
            if (search.count < MOST_FOLDERS)
                search.folders[search.count++] = (char *)*each;
        }
    if (wants_compat(task))
        compat[0] = first[count++] = (char *)task->compat;
    size_t own = count;
    for (size_t each = 0; each < task->folder_count; each++)
        if (!lists(&search, task->folders[each]))
            first[count++] = (char *)task->folders[each];
    write_lines(COMPAT, compat);
    write_lines(FIRST, first + own);
    write_lines(LAST, last);
    unlink(TEMPORARY); /* ldconfig would wait for a FIFO */
}

static void prepare_musl(const struct task *task)
{
    struct search search = {.count = 0};
    size_t size, new = 0;
    char *before = read_file(AT_FDCWD, MUSL_PATHS, MOST_BYTES, &size), *all = before ? before : strdup(MUSL_DEFAULT);
    char *lines[MOST_FOLDERS + 1] = {NULL};
    if (!all)
        fail("no memory to read %s", MUSL_PATHS);
    for (char *rest = all, *folder; (folder = strsep(&rest, ":\n"));)
        if (*folder && search.count < MOST_FOLDERS / 2)
            search.folders[search.count++] = folder;
    for (size_t each = 0; each < task->folder_count && new < MOST_FOLDERS / 2; each++)
        if (!lists(&search, task->folders[each]))
            lines[new++] = (char *)task->folders[each];
    if (new) {
        if (make_folder("/etc") < 0)
            fail_at("make the folder", "/etc");
        memcpy(lines + new, search.folders, search.count * sizeof *lines);
        write_lines(MUSL_PATHS, lines);
    }
    free(all);
}

bool prepare_loader(const struct task *task, char **folders)
{
    if (!task->folder_count && !task->compat)
        return false;
    if (is_file(MUSL))
        prepare_musl(task);
    if (!is_file(GLIBC) && !is_file(CACHE))
        return false;
    prepare_glibc(task, folders);
    return true;
}
