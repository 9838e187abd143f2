"""Kubeconfigs of a sandbox's cluster: files of our own, and a context in a file that others use too.

What others have in such a file stays as it is: it is read as YAML's nodes, not as values, so that unknown fields,
times and numbers are written as they were. (Comments and blank lines are lost, as kubectl loses them.) A file that is
no kubeconfig is not touched. Format: k8s.io/client-go/tools/clientcmd/api/v1. Which file and which lock: as kind and
kubectl (client-go/tools/clientcmd, ModifyConfig).
"""

import base64
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from gpuplane.base import files
from gpuplane.base.text import clip
from gpuplane.sandbox.kubeconfig import kubeconfig_document

if TYPE_CHECKING:
    from gpuplane.sandbox.controlplane.certificates import KeyPair  # it needs cryptography, and `sandbox down` does not

CONTEXT_NAME = "gpuplane-sandbox"
"""Of the cluster, the user and the context, where nobody says otherwise."""
LISTS = ("clusters", "users", "contexts")
MAX_BYTES = 1 << 20
MAX_DEPTH = 40
SECONDS_FOR_LOCK = 5.0


class InvalidKubeconfig(Exception):
    """A file is no kubeconfig. The message says why."""


def make_kubeconfig(server: str, authority: bytes, pair: "KeyPair", name: str = CONTEXT_NAME) -> bytes:
    """For whoever has a client certificate. All is in it, so that it can be copied."""
    cluster = {"server": server, "certificate-authority-data": _base64(authority)}
    user = {"client-certificate-data": _base64(pair.certificate), "client-key-data": _base64(pair.key)}
    return yaml.safe_dump(kubeconfig_document(name, cluster, user), sort_keys=False).encode()


def merge(data: bytes, ours: bytes) -> bytes:
    """A kubeconfig with what stands in ours, and our context as its current one. Raises InvalidKubeconfig."""
    added = _parse(ours)
    found = _parse(data) if data.strip() else yaml.MappingNode("tag:yaml.org,2002:map", [])
    for key, value in added.value:
        if key.value in LISTS:
            names = {_name(entry) for entry in value.value}
            kept = [entry for entry in _entries(found, key.value) if _name(entry) not in names]
            value = yaml.SequenceNode(value.tag, [*kept, *value.value], flow_style=False)
        elif key.value != "current-context" and _get(found, key.value) is not None:
            continue
        _set(found, key, value)
    return _dump(found)


def remove(data: bytes, name: str = CONTEXT_NAME) -> bytes:
    """A kubeconfig without what has this name. Raises InvalidKubeconfig."""
    found = _parse(data)
    for each in LISTS:
        if (there := _get(found, each)) is not None:
            there.value = [entry for entry in _entries(found, each) if _name(entry) != name]
    current = _get(found, "current-context")
    if isinstance(current, yaml.ScalarNode) and current.value == name:
        current.value, current.style = "", '"'
    return _dump(found)


def shared_file(environment: Mapping[str, str]) -> Path:
    """The file that kubectl and kind would change: the first of KUBECONFIG that is there, else its last one, else
    ~/.kube/config."""
    paths = [Path(each).expanduser() for each in environment.get("KUBECONFIG", "").split(os.pathsep) if each]
    there = (path for path in paths if path.exists())
    return next(there, paths[-1] if paths else Path.home() / ".kube/config")


def change_file(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Give a file what a function makes of its content: b"" where it is not there. Raises InvalidKubeconfig and
    OSError."""
    path = path.resolve()  # a link stays one
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(path):
        try:
            before, mode = files.read(path, MAX_BYTES), stat.S_IMODE(path.stat().st_mode)
        except FileNotFoundError:
            before, mode = b"", 0o600
        try:
            after = change(before)
        except InvalidKubeconfig as error:
            raise InvalidKubeconfig(f"{path}: {error}") from None
        if after != before:
            files.replace(path, after, mode=mode)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """kubectl's lock. Raises OSError where somebody else keeps it."""
    lock, until = path.with_name(f"{path.name}.lock"), time.monotonic() + SECONDS_FOR_LOCK
    while True:
        try:
            os.close(os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            break
        except FileExistsError as error:
            if time.monotonic() > until:
                reason = f"another program changes {path.name}; if none does, remove this file"
                raise OSError(error.errno, reason, os.fspath(lock)) from None
            time.sleep(0.05)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def _parse(data: bytes) -> yaml.MappingNode:
    """The nodes of a kubeconfig whose lists can be changed. Raises InvalidKubeconfig."""
    try:
        _check_depth(data.decode())
        found = yaml.compose(data.decode(), Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f" (line {error.problem_mark.line + 1})" if error.problem_mark else ""
        raise InvalidKubeconfig(f"it is not YAML: {clip(error.problem or '')}{line}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise InvalidKubeconfig("it is not YAML") from None
    if not isinstance(found, yaml.MappingNode):
        raise InvalidKubeconfig("it is no kubeconfig: it has no fields")
    for each in LISTS:
        _entries(found, each)
    return found


def _check_depth(text: str) -> None:
    """Raises InvalidKubeconfig for what would be composed by too many calls."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise InvalidKubeconfig(f"it is nested deeper than {MAX_DEPTH} levels")


def _entries(document: yaml.MappingNode, key: str) -> list[yaml.Node]:
    """Those of a list; none where there is none. Raises InvalidKubeconfig."""
    found = _get(document, key)
    if found is None or (isinstance(found, yaml.ScalarNode) and found.tag == "tag:yaml.org,2002:null"):
        return []
    if not isinstance(found, yaml.SequenceNode) or not all(isinstance(each, yaml.MappingNode) for each in found.value):
        raise InvalidKubeconfig(f"{key} is no list of fields (line {found.start_mark.line + 1})")
    return list(found.value)


def _name(entry: yaml.Node) -> str:
    found = _get(entry, "name")
    return str(found.value) if isinstance(found, yaml.ScalarNode) else ""


def _get(mapping: yaml.Node, key: str) -> yaml.Node | None:
    return next((value for name, value in mapping.value if name.value == key), None)


def _set(mapping: yaml.MappingNode, key: yaml.Node, value: yaml.Node) -> None:
    kept = [(name, old) for name, old in mapping.value if name.value != key.value]
    mapping.value = [*kept, (key, value)]


def _dump(document: yaml.MappingNode) -> bytes:
    return yaml.serialize(document, Dumper=yaml.SafeDumper, width=1 << 20, allow_unicode=True).encode()


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
