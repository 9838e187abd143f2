/* Two questions about an ELF file. It may be an image's: every number in it is checked before it is used. */
#include "hook.h"

#include <elf.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { MOST_HEADERS = 4096, MOST_NOTE = 64 << 10, MOST_NAMES = 1 << 24 };

static bool bytes(int fd, uint64_t at, void *into, size_t size)
{
    if (at > INT64_MAX - size)
        return false;
    for (size_t used = 0; used < size;) {
        ssize_t got = pread(fd, (char *)into + used, size - used, (off_t)(at + used));
        if (got <= 0 && !(got < 0 && errno == EINTR))
            return false;
        used += got > 0 ? (size_t)got : 0;
    }
    return true;
}

/* Of this machine's byte order and 64 bits. */
static bool header_of(int fd, Elf64_Ehdr *header)
{
    return bytes(fd, 0, header, sizeof *header) && memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 &&
           header->e_ident[EI_CLASS] == ELFCLASS64 && header->e_ident[EI_DATA] == ELFDATA2LSB;
}

/* Whether the kernel would start another program for it. False: it is no ELF file that can be understood. */
bool elf_interpreted(int fd, bool *interpreted)
{
    Elf64_Ehdr header;
    if (!header_of(fd, &header) || header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phnum > MOST_HEADERS)
        return false;
    *interpreted = false;
    for (size_t each = 0; each < header.e_phnum; each++) {
        Elf64_Phdr segment;
        if (header.e_phoff > INT64_MAX / 2)
            return false;
        if (!bytes(fd, header.e_phoff + each * sizeof segment, &segment, sizeof segment))
            return false;
        *interpreted |= segment.p_type == PT_INTERP;
    }
    return true;
}

static bool section_at(int fd, const Elf64_Ehdr *header, size_t index, Elf64_Shdr *section)
{
    if (header->e_shoff > INT64_MAX / 2)
        return false;
    return bytes(fd, header->e_shoff + index * sizeof *section, section, sizeof *section);
}

static bool named(int fd, const Elf64_Shdr *names, const Elf64_Shdr *section, const char *name)
{
    char found[64];
    size_t size = strlen(name) + 1;
    if (size > sizeof found || names->sh_size > MOST_NAMES || names->sh_offset > INT64_MAX / 2)
        return false;
    if (section->sh_name > names->sh_size || names->sh_size - section->sh_name < size)
        return false;
    return bytes(fd, names->sh_offset + section->sh_name, found, size) && memcmp(found, name, size) == 0;
}

/* The text of the first note in a section: a header of three words, its owner, its text. How far the text is from the
 * owner is a matter of alignment, about which tools disagree: what is between are NULs. */
static size_t text_of(const unsigned char *note, size_t size, const char *owner, char *text, size_t room)
{
    Elf64_Nhdr header;
    size_t length = strlen(owner) + 1;
    if (size < sizeof header)
        return 0;
    memcpy(&header, note, sizeof header);
    if (header.n_namesz != length || size - sizeof header < length || memcmp(note + sizeof header, owner, length) != 0)
        return 0;
    size_t at = sizeof header + length;
    while (at < size && !note[at])
        at++;
    size_t most = size - at < header.n_descsz ? size - at : header.n_descsz;
    while (most && !note[at + most - 1])
        most--;
    if (most >= room)
        return 0;
    memcpy(text, note + at, most);
    text[most] = 0;
    return most;
}

size_t elf_note(int fd, const char *section, const char *owner, char *text, size_t room)
{
    static unsigned char note[MOST_NOTE];
    Elf64_Ehdr header;
    Elf64_Shdr names, found;
    if (!header_of(fd, &header) || header.e_shentsize != sizeof found || header.e_shnum > MOST_HEADERS ||
        header.e_shstrndx >= header.e_shnum || !section_at(fd, &header, header.e_shstrndx, &names))
        return 0;
    for (size_t each = 0; each < header.e_shnum; each++) {
        if (!section_at(fd, &header, each, &found))
            return 0;
        if (found.sh_type != SHT_NOTE || !named(fd, &names, &found, section))
            continue;
        if (found.sh_size > sizeof note || !bytes(fd, found.sh_offset, note, found.sh_size))
            return 0;
        return text_of(note, found.sh_size, owner, text, room);
    }
    return 0;
}
