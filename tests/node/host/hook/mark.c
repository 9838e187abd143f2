/* Whatever runs this leaves a mark: as a program, as a loader, as a library that is preloaded. */
#ifndef MARK
#define MARK "/mark"
#endif
#include <fcntl.h>
#include <unistd.h>

__attribute__((constructor)) static void leave(void)
{
    close(open(MARK, O_CREAT | O_WRONLY, 0644));
}

#ifndef LIBRARY
int main(void)
{
    return 0;
}
#endif
