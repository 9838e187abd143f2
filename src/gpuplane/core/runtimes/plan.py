"""What is to change in a runtime's configuration files so that it takes CDI devices, and how it is taken back.

The smallest change: a key of a file, every other byte as it was. An edit is named by its key, so that it can be taken
back from a file that somebody else has edited since; where nobody has, the bytes from before are put back.
"""

import difflib
import hashlib
import re
from collections.abc import Iterable
from types import ModuleType

from gpuplane.core.runtimes import jsontext, tomltext
from gpuplane.core.strict import InvalidInput
from gpuplane.model.value import Value

DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
"""Where every runtime looks for CDI specifications if nothing else is said."""

Version = tuple[int, ...]
"""Major and minor number, and the patch where it is told."""

Setting = bool | tuple[str, ...]


class Source(Value):
    """A file as the runtime would read it; None: there is none."""

    path: str
    data: bytes | None


class Edit(Value):
    """A key of a file that gets a value."""

    path: tuple[str, ...]
    value: Setting


class Change(Value):
    """A file, what it is now (None: there is none) and what it becomes."""

    path: str
    before: bytes | None
    after: bytes
    edits: tuple[Edit, ...]

    def diff(self) -> str:
        """The change as a unified diff."""
        return difference(self.path, self.before, self.after)


class Plan(Value):
    """No changes: nothing has to be done. `why` says either way; `notes` are what else a person should know."""

    why: str
    changes: tuple[Change, ...] = ()
    notes: tuple[str, ...] = ()


class Memory(Value):
    """What is remembered of a changed file, so that it can be taken back."""

    runtime: str
    path: str
    restart: str  # how the runtime is restarted
    original: bytes | None
    result: str  # the digest of what the file became
    edits: tuple[Edit, ...]


class Undone(Value):
    """What a file becomes (None: it goes away), and what is to be said about it."""

    data: bytes | None
    said: str


def version(text: str) -> Version | None:
    """The version in what a program says of itself ("Docker version 28.2.2, build e6534b4"); None where none is."""
    found = re.search(r"(?<![\w.])v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part) for part in found.groups() if part is not None) if found else None


def shown(number: Version) -> str:
    """A version as it is written."""
    return ".".join(map(str, number))


def text(source: Source) -> str:
    """What a file says; "" where there is none. Raises Invalid."""
    return _decoded(source.data or b"", source.path)


def has(directories: Iterable[str], directory: str) -> bool:
    """Whether a directory is among them; /var/run and /run are one."""
    return _plain(directory) in {_plain(each) for each in directories}


def _plain(path: str) -> str:
    plain = re.sub(r"/+", "/", path).rstrip("/")
    return plain.removeprefix("/var") if plain.startswith("/var/run/") else plain


def change(runtime: str, source: Source, edits: tuple[Edit, ...], new: str = "") -> Change:
    """What the edits make of a file. `new`: the first line of a file that says nothing yet. Raises Invalid."""
    syntax, result = _syntax(runtime), text(source)
    if new and not syntax.read(result, source.path):
        result += new if result.endswith("\n") or not result else f"\n{new}"
    for edit in edits:
        result = syntax.put(result, edit.path, edit.value, source.path)
    return Change(source.path, source.data, result.encode(), edits)


def remember(runtime: str, path: str, restart: str, change: Change, before: Memory | None) -> Memory:
    """What is to be remembered of a change. `before`: what is remembered already of an earlier one. Raises Invalid."""
    original, edits = change.before, change.edits
    if before is not None and change.before != before.original:
        original = undo(before, change.before).data
        edits = (*(each for each in before.edits if each.path not in {edit.path for edit in edits}), *edits)
    return Memory(runtime, path, restart, original, digest(change.after), edits)


def digest(data: bytes) -> str:
    """By what a file's contents are known again."""
    return hashlib.sha256(data).hexdigest()


def undo(memory: Memory, current: bytes | None) -> Undone:
    """What a changed file becomes when the change is taken back. Raises Invalid."""
    if current == memory.original:
        return Undone(current, "is as it was before: nothing to take back")
    if current is not None and digest(current) == memory.result:
        gone = "is removed again, as there was none before" if memory.original is None else "is as it was before"
        return Undone(memory.original, gone)
    if current is None:
        return Undone(None, "is gone: nothing to take back")
    was = Source(memory.path, memory.original)
    result, told = text(Source(memory.path, current)), []
    for edit in reversed(memory.edits):
        result, said = _taken_back(_syntax(memory.runtime), result, edit, was)
        told.append(said)
    return Undone(result.encode(), f"was edited since, so only our part is taken back: {'; '.join(told)}")


def _taken_back(syntax: ModuleType, now: str, edit: Edit, was: Source) -> tuple[str, str]:
    """A text without an edit, and what was done."""
    name, before = edit.path[-1], syntax.get(text(was), edit.path, was.path)
    value = syntax.get(now, edit.path, was.path)
    if isinstance(edit.value, tuple) and isinstance(value, list):
        ours = [each for each in edit.value if not (isinstance(before, list) and each in before)]
        rest = [each for each in value if each not in ours]
        if value == rest:
            return now, f"{name} has nothing of ours any more"
        if before is not None or value != list(edit.value):
            return syntax.put(now, edit.path, tuple(rest), was.path), f"{name} is without {', '.join(ours)}"
    elif value != edit.value:
        return now, f"{name} is not as we left it, and stays"
    if before is not None:
        assert isinstance(before, bool), "a list is treated above"
        return syntax.put(now, edit.path, before, was.path), f"{name} is {str(before).lower()} again"
    return syntax.take(now, edit.path, was.path, text(was)), f"{name} is gone"


def difference(path: str, before: bytes | None, after: bytes | None) -> str:
    """A unified diff of a file's contents; None: there is no file."""
    old, new = ([] if data is None else _decoded(data, path).splitlines(keepends=True) for data in (before, after))
    names = ("/dev/null" if before is None else path, "/dev/null" if after is None else path)
    lines = difflib.unified_diff(old, new, *names)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _decoded(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInput([f"{path}:{line}: is not UTF-8 (byte 0x{data[error.start]:02x})"]) from None


def _syntax(runtime: str) -> ModuleType:
    """How a runtime's files are written."""
    return jsontext if runtime == "docker" else tomltext
