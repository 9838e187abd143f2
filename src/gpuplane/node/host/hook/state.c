/* What the runtime says: the state of the container, as OCI's runtime-spec has it (runtime.md, State), and config.json.
 *
 * crun puts the container's root into the state. Elsewhere it is root.path of the bundle's config.json; a relative path
 * is the bundle's.
 */
#include "hook.h"
#include "json.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST = 16 << 20 }; /* bytes; annotations and environments make them large */

static void of_config(const char *bundle, char *root, size_t room)
{
    char path[PATH_MAX], inside[PATH_MAX];
    struct json config, found;
    size_t size;
    if ((size_t)snprintf(path, sizeof path, "%s/config.json", bundle) >= sizeof path)
        fail("the path of the bundle is too long: %s", bundle);
    char *text = read_file(AT_FDCWD, path, MOST, &size);
    if (!text)
        fail("the runtime names %s as its bundle, and there is no config.json in it", bundle);
    if (!json_read(text, size, &config))
        fail("%s is not JSON", path);
    if (!json_member(config, "root", &found) || !json_member(found, "path", &found) ||
        !json_string(found, inside, sizeof inside) || !*inside)
        fail("%s has no root.path", path);
    int length = snprintf(root, room, *inside == '/' ? "%s%s" : "%s/%s", *inside == '/' ? "" : bundle, inside);
    if ((size_t)length >= room)
        fail("root.path of %s is too long", path);
    free(text);
}

int container_root(char *path, size_t room)
{
    char bundle[PATH_MAX];
    struct json state, found;
    struct stat root, host;
    size_t size;
    char *text = read_stream(STDIN_FILENO, "the state on standard input", MOST, &size);
    if (!json_read(text, size, &state) || *state.at != '{')
        fail("standard input is not the state of a container: a runtime calls this program, as a createContainer hook");
    if (!json_member(state, "root", &found) || !json_string(found, path, room) || *path != '/') {
        if (!json_member(state, "bundle", &found) || !json_string(found, bundle, sizeof bundle) || *bundle != '/')
            fail("the state on standard input has neither root nor bundle as an absolute path");
        of_config(bundle, path, room);
    }
    free(text);
    int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &root) < 0 || stat("/", &host) < 0)
        fail("cannot open the container's root %s: %s", path, strerror(errno));
    if (root.st_dev == host.st_dev && root.st_ino == host.st_ino)
        fail("the container's root is the host's, %s: nothing is changed there", path);
    return fd;
}
