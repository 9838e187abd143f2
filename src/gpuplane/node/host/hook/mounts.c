/* What is mounted in this process's root, as the kernel lists it: /proc/PID/mountinfo, proc(5).
 *
 * A line is: number, parent, device, root, point, options, ..., "-", kind of file system, source, ... A path has no
 * space: that is \040.
 */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 16 << 20, FIELDS = 6 };

char *read_mounts(int process)
{
    size_t size;
    int list = openat(process, "mountinfo", O_RDONLY | O_CLOEXEC);
    if (list < 0)
        fail("cannot read what is mounted: %s", strerror(errno));
    char *text = read_stream(list, "/proc/self/mountinfo", MOST, &size);
    close(list);
    return text;
}

static bool octal(char digit)
{
    return digit >= '0' && digit <= '7';
}

static void unescape(char *text)
{
    char *end = text;
    for (; *text; text++)
        if (*text == '\\' && octal(text[1]) && octal(text[2]) && octal(text[3])) {
            *end++ = (char)((text[1] - '0') * 64 + (text[2] - '0') * 8 + text[3] - '0');
            text += 3;
        } else
            *end++ = *text;
    *end = 0;
}

bool next_mount(char **rest, struct mounted *found)
{
    for (char *line; (line = strsep(rest, "\n"));) {
        char *kind = strstr(line, " - "), *fields[FIELDS];
        size_t count = 0;
        found->proc = kind && strncmp(kind, " - proc ", 8) == 0;
        while (count < FIELDS && (fields[count] = strsep(&line, " ")))
            count++;
        if (count < FIELDS)
            continue;
        unescape(fields[3]);
        unescape(fields[4]);
        found->number = atol(fields[0]);
        found->parent = atol(fields[1]);
        found->device = fields[2];
        found->root = fields[3];
        found->point = fields[4];
        found->read_only = strncmp(fields[5], "ro", 2) == 0;
        return true;
    }
    return false;
}

static bool find(char *list, long number, struct mounted *found)
{
    for (char *rest = list; next_mount(&rest, found);)
        if (found->number == number)
            return true;
    return false;
}

/* The number of the mount that a descriptor is in; 0: it is not told. */
static long number_of(int process, int fd)
{
    char name[32];
    size_t size;
    snprintf(name, sizeof name, "fdinfo/%d", fd);
    char *text = read_file(process, name, 4096, &size), *line = text ? strstr(text, "mnt_id:") : NULL;
    long number = line ? atol(line + sizeof "mnt_id:" - 1) : 0;
    free(text);
    return number;
}

bool is_covered_read_only(int process, int fd)
{
    struct mounted top, below;
    char same[2 * PATH_MAX], *list = read_mounts(process), *again = read_mounts(process);
    bool covered = find(list, number_of(process, fd), &top) && find(again, top.parent, &below) && top.read_only &&
                   !below.read_only && strcmp(top.device, below.device) == 0;
    if (covered) {
        size_t above = strcmp(below.point, "/") == 0 ? 0 : strlen(below.point);
        const char *rest = strlen(top.point) >= above ? top.point + above : "";
        snprintf(same, sizeof same, "%s%s", strcmp(below.root, "/") == 0 && *rest ? "" : below.root, rest);
        covered = strncmp(top.point, below.point, above) == 0 && strcmp(top.root, same) == 0;
    }
    free(list);
    free(again);
    return covered;
}
