/* What is mounted in this process's root, as the kernel lists it: /proc/PID/mountinfo, proc(5).
 *
 * A line is: number, parent, device, root, point, options, ..., "-", kind of file system, source, ... A path has no
 * space: that is \040.
 */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 16 << 20, POINT = 4 };

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
        char *kind = strstr(line, " - ");
        for (int each = 0; each < POINT && line; each++)
            if ((line = strchr(line, ' ')))
                line++;
        if (!line || !kind || kind <= line)
            continue;
        found->proc = strncmp(kind, " - proc ", 8) == 0;
        line[strcspn(line, " ")] = 0;
        unescape(line);
        found->point = line;
        return true;
    }
    return false;
}
