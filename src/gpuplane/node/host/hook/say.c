/* Errors: one line on standard error, which a runtime shows to whoever asked for the container. */
#include "hook.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *place;

/* Names in an image are the image's choice: they may not move a terminal's cursor, turn a line's direction or forge a
 * second one. Beyond ASCII there are characters for all of that. */
static void clean(char *text)
{
    for (; *text; text++)
        if (*text < ' ' || *text > '~')
            *text = '?';
}

void fail(const char *format, ...)
{
    char said[8192], line[sizeof said + 64];
    va_list values;
    va_start(values, format);
    vsnprintf(said, sizeof said, format, values);
    va_end(values);
    clean(said);
    int size = snprintf(line, sizeof line, NAME ": %s%s%s\n", place ? "in " : "", place ? place : "", said);
    ssize_t written = write(STDERR_FILENO, line, (size_t)size);
    _exit(written < 0 ? 2 : 1);
}

void fail_at(const char *doing, const char *path)
{
    int why = errno;
    const char *advice = "";
    if (why == EROFS)
        advice = "; what a container needs is made in its own root, which must be writable: --cdi-hook=none needs none";
    if (why == EISDIR)
        advice = "; a folder of the image is there, and is not replaced";
    if (why == EBUSY)
        advice = "; something is mounted there: take that mount out of the pod";
    fail("cannot %s %s: %s%s", doing, path, strerror(why), advice);
}
