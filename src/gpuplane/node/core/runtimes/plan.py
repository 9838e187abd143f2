"""The changes that a runtime's configuration files need so that it supports CDI devices, and how they are reverted.

A change is as small as possible: it sets a key, and every other byte stays. An edit is recorded by its key, so that it
can be reverted even if somebody else has edited the file since. If nobody has, the original bytes are restored.
"""

import difflib
import hashlib
import re
from collections.abc import Iterable
from types import ModuleType

from gpuplane.base.strict import InvalidInput
from gpuplane.base.value import Value
from gpuplane.node.core.runtimes import jsontext, tomltext

DEFAULT_SPEC_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
"""Where every runtime looks for CDI specifications by default."""

Version = tuple[int, ...]
"""Major, minor and, if known, patch number."""

SettingValue = bool | tuple[str, ...]


class RuntimeConfigFileContent(Value):
    """A file that the runtime reads. `data`: None if it does not exist."""

    path: str
    data: bytes | None


class SettingEdit(Value):
    """A key to set in a file, and its new value."""

    key_path: tuple[str, ...]
    value: SettingValue


class FileChange(Value):
    """A file with its bytes before (None: it does not exist) and after the edits."""

    path: str
    before: bytes | None
    after: bytes
    edits: tuple[SettingEdit, ...]

    def diff(self) -> str:
        """The change as a unified diff."""
        return unified_diff(self.path, self.before, self.after)


class ConfigChangePlan(Value):
    """The changes to make. `reason`: why they are needed, or why none is. `notes`: what else a person should know."""

    reason: str
    changes: tuple[FileChange, ...] = ()
    notes: tuple[str, ...] = ()


class ChangeRecord(Value):
    """What is stored about a changed file, so that the change can be reverted."""

    runtime: str
    path: str
    restart_command: str  # restarts the runtime
    original: bytes | None  # the content before our first change; None if the file did not exist
    result_digest: str  # of the content after our last change
    edits: tuple[SettingEdit, ...]


class RevertedFile(Value):
    """The content of a file after a revert (None: the file is removed), and what was done, for people."""

    data: bytes | None
    description: str


def parse_version(output: str) -> Version | None:
    """The version in a program's output ("Docker version 28.2.2, build e6534b4"); None if it has none."""
    found = re.search(r"(?<![\w.])v?(\d+)\.(\d+)(?:\.(\d+))?", output)
    return tuple(int(part) for part in found.groups() if part is not None) if found else None


def format_version(number: Version) -> str:
    """A version as text: "1.7.24"."""
    return ".".join(map(str, number))


def decode_text(source: RuntimeConfigFileContent) -> str:
    """The text of a file; "" if it does not exist. Raises InvalidInput if it is not UTF-8."""
    return _decode_utf8(source.data or b"", source.path)


def contains_directory(directories: Iterable[str], directory: str) -> bool:
    """Whether the directories contain this one; /var/run and /run are the same."""
    return _normalize_path(directory) in {_normalize_path(each) for each in directories}


def _normalize_path(path: str) -> str:
    plain = re.sub(r"/+", "/", path).rstrip("/")
    return plain.removeprefix("/var") if plain.startswith("/var/run/") else plain


def apply_edits(
    runtime: str, source: RuntimeConfigFileContent, edits: tuple[SettingEdit, ...], first_line_if_empty: str = ""
) -> FileChange:
    """The change that makes these edits. `first_line_if_empty`: what an empty file begins with. Raises InvalidInput."""
    syntax, result = _syntax_module(runtime), decode_text(source)
    if first_line_if_empty and not syntax.parse(result, source.path):
        result += first_line_if_empty if result.endswith("\n") or not result else f"\n{first_line_if_empty}"
    for edit in edits:
        result = syntax.set_value(result, edit.key_path, edit.value, source.path)
    return FileChange(source.path, source.data, result.encode(), edits)


def record_change(
    runtime: str, path: str, restart: str, change: FileChange, earlier: ChangeRecord | None
) -> ChangeRecord:
    """The record of a change. `earlier`: the record of an earlier change of the same file. Raises InvalidInput."""
    original, edits = change.before, change.edits
    if earlier is not None and change.before != earlier.original:
        original = revert_change(earlier, change.before).data
        edits = (*(each for each in earlier.edits if each.key_path not in {edit.key_path for edit in edits}), *edits)
    return ChangeRecord(runtime, path, restart, original, content_digest(change.after), edits)


def content_digest(data: bytes) -> str:
    """SHA-256 of a file's content."""
    return hashlib.sha256(data).hexdigest()


def revert_change(record: ChangeRecord, current: bytes | None) -> RevertedFile:
    """The changed file without our change. `current`: its content now. Raises InvalidInput."""
    if current == record.original:
        return RevertedFile(current, "already has its original content: nothing to undo")
    if current is not None and content_digest(current) == record.result_digest:
        created = record.original is None
        return RevertedFile(
            record.original,
            "is removed: it did not exist before" if created else "has its original content again",
        )
    if current is None:
        return RevertedFile(None, "does not exist any more: nothing to undo")
    original = RuntimeConfigFileContent(record.path, record.original)
    result, descriptions = decode_text(RuntimeConfigFileContent(record.path, current)), []
    for edit in reversed(record.edits):
        result, description = _revert_edit_and_describe(_syntax_module(record.runtime), result, edit, original)
        descriptions.append(description)
    return RevertedFile(
        result.encode(),
        (
            "somebody edited this file after gpuplane changed it, so gpuplane undoes only its own "
            f"change: {'; '.join(descriptions)}"
        ),
    )


def _revert_edit_and_describe(
    syntax: ModuleType, current: str, edit: SettingEdit, original: RuntimeConfigFileContent
) -> tuple[str, str]:
    """The text without our edit, and what was done, for people."""
    name, before = edit.key_path[-1], syntax.get_value(decode_text(original), edit.key_path, original.path)
    value = syntax.get_value(current, edit.key_path, original.path)
    if isinstance(edit.value, tuple) and isinstance(value, list):
        ours = [each for each in edit.value if not (isinstance(before, list) and each in before)]
        rest = [each for each in value if each not in ours]
        if value == rest:
            return current, f"{name} no longer has the values that gpuplane added"
        if before is not None or value != list(edit.value):
            text = syntax.set_value(current, edit.key_path, tuple(rest), original.path)
            return text, f"{', '.join(ours)} is removed from {name}"
    elif value != edit.value:
        return current, f"somebody changed {name} after gpuplane did, so gpuplane does not change it"
    if before is not None:
        assert isinstance(before, bool), "a list is handled above"
        text = syntax.set_value(current, edit.key_path, before, original.path)
        return text, f"{name} is {str(before).lower()} again"
    return syntax.remove_value(current, edit.key_path, original.path, decode_text(original)), f"{name} is removed"


def unified_diff(path: str, before: bytes | None, after: bytes | None) -> str:
    """A unified diff of a file's contents; None: the file does not exist."""
    old, new = ([] if data is None else _decode_utf8(data, path).splitlines(keepends=True) for data in (before, after))
    names = ("/dev/null" if before is None else path, "/dev/null" if after is None else path)
    lines = difflib.unified_diff(old, new, *names)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _decode_utf8(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInput([f"{path}:{line}: is not UTF-8 (byte 0x{data[error.start]:02x})"]) from None


def _syntax_module(runtime: str) -> ModuleType:
    """The module that edits this runtime's files: JSON for Docker, TOML for the others."""
    return jsontext if runtime == "docker" else tomltext
