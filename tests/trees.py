"""A tree of files from a text: one entry a line, folders above it are made, links to folders lead within the tree.

    d PATH                          a folder
    f PATH [SIZE | TEXT | "JSON"]   a file: so many zero bytes, or this text (\\n and \\t are a newline and a tab), or
                                    what a JSON string says; left out, it is empty. In bin and sbin it is executable
    l PATH -> TARGET                a symbolic link
    c PATH MAJOR MINOR MODE [GID]   a character device; MODE in octal
    e PATH [SONAME]                 a shared object for this machine, with or without a SONAME
    s PATH                          a socket that nobody listens on
    # a comment

Where this process may not make device nodes (`may_make_nodes`), a plain file stands for each: `gpuplane`
takes the numbers of such a one from /proc/devices, as of a node that is not there yet, and tests that need the numbers
of the entry itself skip. An entry that stands twice replaces what was there, so that a text can be laid over another.
"""

import json
import os
import platform
import shutil
import stat
import struct
from contextlib import suppress
from pathlib import Path

from gpuplane.node.hardware.nvidia.driver.tree import Tree

MACHINES = {"x86_64": 0x3E, "aarch64": 0xB7}  # ELF's e_machine
PAGE = 0x1000


def grow(root: Path, text: str) -> Path:
    """Make the tree below `root`, and give that back. Raises ValueError for a line that is none of the above."""
    root.mkdir(parents=True, exist_ok=True)
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                _entry(root, line.strip())
            except ValueError as error:
                raise ValueError(f"line {number}: {line.strip()!r}: {error}") from None
    return root


def may_make_nodes(folder: Path) -> bool:
    """Whether this process may make device nodes in a folder."""
    trial = folder / ".trial-node"
    try:
        os.mknod(trial, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except OSError:
        return False
    trial.unlink()
    return True


def _entry(root: Path, line: str) -> None:
    kind, name, *rest = line.split(maxsplit=2)
    said = rest[0] if rest else ""
    if kind not in "dflces" or len(kind) != 1 or ".." in Path(name).parts:
        raise ValueError("an entry is one of d, f, l, c, e, s and a path within the tree")
    inside = Path(name.lstrip("/"))  # to pathlib two slashes are a root of their own
    path = _folder(root, inside.parts[:-1]) / inside.name
    if kind == "d" and path.is_dir() and not path.is_symlink():
        return
    _clear(path)
    if kind == "d":
        path.mkdir()
    elif kind == "f":
        path.write_bytes(_content(said))
        if path.parent.name in ("bin", "sbin"):
            path.chmod(0o755)
    elif kind == "l":
        arrow, _, target = said.partition(" ")
        if arrow != "->" or not target:
            raise ValueError("a link is written PATH -> TARGET")
        path.symlink_to(target.strip())
    elif kind == "c":
        numbers = said.split()
        if len(numbers) not in (3, 4):
            raise ValueError("a node is written PATH MAJOR MINOR MODE [GID]")
        _node(path, int(numbers[0]), int(numbers[1]), int(numbers[2], 8), int("".join(numbers[3:]) or 0))
    elif kind == "e":
        path.write_bytes(shared_object(said))
    else:
        os.mknod(path, stat.S_IFSOCK | 0o666)


def _folder(root: Path, parts: tuple[str, ...]) -> Path:
    """The folder that an entry belongs to. Links lead where they would with the tree as root: nothing leaves it."""
    folder = root
    for part in parts:
        step = folder / part
        if step.is_symlink():
            inside = Tree(str(root)).resolve(f"/{step.relative_to(root)}")
            if inside is None:
                raise ValueError(f"{part} is a link that leads nowhere")
            folder = root / inside[1:]
        else:
            step.mkdir(parents=True, exist_ok=True)
            folder = step
    return folder


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def _content(said: str) -> bytes:
    if said.isdecimal():
        return bytes(int(said))
    if said.startswith('"'):
        return str(json.loads(said)).encode()
    return said.replace("\\n", "\n").replace("\\t", "\t").encode()


def _node(path: Path, major: int, minor: int, mode: int, gid: int) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(major, minor))
    except PermissionError:
        path.touch()
        return  # its mode says nothing of a node's, and what others may write to is not trusted
    path.chmod(mode)
    if gid:
        with suppress(PermissionError):
            os.chown(path, -1, gid)


def shared_object(soname: str = "", needed: tuple[str, ...] = ()) -> bytes:
    """An ELF shared object for this machine, of one segment without code: what ldconfig and readers of ELF need."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (soname, *needed))
    header, program, tag = 64, 56, 16
    dynamic = header + 2 * program
    wanted = [(1, names.index(b"\0" + name.encode() + b"\0") + 1) for name in needed]  # DT_NEEDED
    if soname:
        wanted.append((14, 1))  # DT_SONAME
    strings = dynamic + tag * (len(wanted) + 5)
    symbols = -(-(strings + len(names)) // 8) * 8
    hashes = symbols + 24
    end = hashes + 16
    wanted += [(5, strings), (10, len(names)), (6, symbols), (4, hashes), (0, 0)]  # STRTAB, STRSZ, SYMTAB, HASH, NULL
    machine = MACHINES[platform.machine()]
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    parts = [
        ident + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, header, 0, 0, header, program, 2, 64, 0, 0),
        struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, end, end, PAGE),  # PT_LOAD, readable
        struct.pack(
            "<IIQQQQQQ", 2, 4, dynamic, dynamic, dynamic, tag * len(wanted), tag * len(wanted), 8
        ),  # PT_DYNAMIC
        b"".join(struct.pack("<qQ", *each) for each in wanted),
        names.ljust(symbols - strings, b"\0"),
        bytes(24),  # the null symbol
        struct.pack("<IIII", 1, 1, 0, 0),  # a hash table of one empty bucket
    ]
    return b"".join(parts)
