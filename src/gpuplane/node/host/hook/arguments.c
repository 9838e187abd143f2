/* The command line of `create-container`: all of it is checked before anything is done. */
#include "hook.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { SECONDS = 20 }; /* less than the hook entry's timeout, so that it is we who say what took so long */

/* An absolute path that names something, and fits on a line of a configuration file. */
static const char *absolute(const char *option, const char *path)
{
    const char *last = strrchr(path, '/');
    if (*path != '/' || strlen(path) >= PATH_MAX - 64)
        fail("%s wants an absolute path, not %s", option, path);
    if (!last[1] || strcmp(last, "/.") == 0 || strcmp(last, "/..") == 0)
        fail("%s wants a path that ends in a name, not %s", option, path);
    for (const char *each = path; *each; each++)
        if ((unsigned char)*each <= ' ' || *each == ':' || *each == 127)
            fail("%s wants a path without spaces and colons, not %s", option, path);
    return path;
}

static struct link link_of(const char *option, char *value, bool conditional)
{
    char *apart = strstr(value, "::");
    if (!apart || apart == value || apart - value >= PATH_MAX)
        fail("%s wants TARGET::LINK, not %s", option, value);
    *apart = 0;
    return (struct link){value, apart + 2, conditional};
}

/* Paths of links may have colons, as PCI addresses do. */
static struct link checked(const char *option, struct link link)
{
    const char *last = strrchr(link.path, '/');
    if (*link.path != '/' || strlen(link.path) >= PATH_MAX - 64)
        fail("%s wants an absolute path for the link, not %s", option, link.path);
    if (!last[1] || strcmp(last, "/.") == 0 || strcmp(last, "/..") == 0)
        fail("%s wants a link that ends in a name, not %s", option, link.path);
    return link;
}

/* Digits with dots between them; nothing of a size that would not fit. */
static const char *version(const char *option, const char *value)
{
    size_t size = strlen(value);
    if (!size || size > 32 || strspn(value, "0123456789.") != size || *value == '.')
        fail("%s wants a version such as 580.95.05, not %s", option, value);
    return value;
}

struct task understand(int count, char **arguments)
{
    struct task task = {.deadline = SECONDS};
    task.links = calloc((size_t)count, sizeof *task.links);
    task.folders = calloc((size_t)count, sizeof *task.folders);
    if (!task.links || !task.folders)
        fail("no memory for %d arguments", count);
    for (int each = 0; each < count; each++) {
        char *option = arguments[each], *value = strchr(option, '=');
        if (strcmp(option, "--params") == 0) {
            task.params = true;
            continue;
        }
        if (!value)
            fail("%s is no option with a value; see " NAME " --help", option);
        *value++ = 0;
        if (strcmp(option, "--link") == 0 || strcmp(option, "--link-if") == 0)
            task.links[task.link_count++] = checked(option, link_of(option, value, option[6] != 0));
        else if (strcmp(option, "--folder") == 0)
            task.folders[task.folder_count++] = absolute(option, value);
        else if (strcmp(option, "--compat") == 0)
            task.compat = absolute(option, value);
        else if (strcmp(option, "--driver") == 0)
            task.driver = version(option, value);
        else if (strcmp(option, "--cuda") == 0)
            task.cuda = version(option, value);
        else if (strcmp(option, "--deadline") == 0 && strlen(value) < 4 && atoi(value) > 0)
            task.deadline = (unsigned)atoi(value);
        else
            fail("%s=%s is not understood; see " NAME " --help", option, value);
    }
    if (task.compat && !task.driver)
        fail("--compat wants --driver: without the host's version nothing can be compared");
    return task;
}
