"""The CDI files of claims, kept as they are wanted: one for each prepared claim, none without one.

What a file says is told only after it was read again. A claim that cannot be described now keeps its file. Files of
claims that nobody knows go: they are left by an agent that ended between the file and its promise. An agent that stands
by writes nothing. Others write into the directory too, so our files are looked at every so often.
"""

import asyncio
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpuplane.base import files
from gpuplane.base.document import MAX_BYTES
from gpuplane.base.pauses import Backoff
from gpuplane.base.text import Text, format_count, join
from gpuplane.base.value import Value
from gpuplane.node.core.containers.cdi.specstatus import spec_fingerprint
from gpuplane.node.core.dra.claimspecs import claim_specs
from gpuplane.node.core.dra.metadata import Files as Metadata
from gpuplane.node.core.dra.metadata import metadata_files
from gpuplane.node.core.dra.names import claim_file_name
from gpuplane.node.core.serving import standby_reason
from gpuplane.node.host.cdi import directory as disk
from gpuplane.node.model.cdi import Spec
from gpuplane.node.model.claims import PreparedClaim
from gpuplane.node.model.encoding import format_json
from gpuplane.node.model.facts import StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import CLAIM_FILES_PART, ClaimFilesStatus, PartState

NO_CLAIMS: Mapping[str, PreparedClaim] = {}

MAX_RETRY_INTERVAL = 16.0
"""Seconds between two tries where the disk refuses."""


class WantedClaimFiles(NamedTuple):
    """What the directory shall hold: the claims that have a file, and what those say that can be described now."""

    claims: Mapping[str, PreparedClaim]
    specs: Mapping[str, Spec]
    metadata: Metadata
    driver: str


async def keep_claim_files(node: Node, directory: Path, every: float = 1.0, plugins: Path | None = None) -> None:
    """Reconcile the claims' files with the views, for ever, and look at them every so many seconds.

    `plugins`: kubelet's directory of plugins, in which ours has the files that describe devices; its path here is that
    on the host. None: there are no such files.
    """
    keeper, pauses = _Keeper(node, directory, plugins), Backoff(every, MAX_RETRY_INTERVAL)
    while True:
        wanted = _wanted(node.snapshot)
        if wanted is not None:
            pauses.after(well=await keeper.round(wanted))
        await node.wait_until(partial(_changed, wanted), pauses.seconds)


def _wanted(snapshot: Snapshot) -> WantedClaimFiles | None:
    """None while this agent writes nothing, or it is not known yet what it has promised."""
    settings = snapshot.config.settings
    if standby_reason(snapshot) or settings is None or snapshot.machine is None:
        return None
    return WantedClaimFiles(
        snapshot.ledger.claims or NO_CLAIMS, claim_specs(snapshot), metadata_files(snapshot), settings.dra.driver
    )


def _changed(seen: WantedClaimFiles | None, snapshot: Snapshot) -> bool:
    now = _wanted(snapshot)
    if now is None or seen is None:
        return now is not seen
    return any(one is not other for one, other in zip(now, seen, strict=True))


class SeenClaimFile(Value):
    """A claim's file as it was read last. `spec`: what it says; None where it is no file of ours."""

    state: tuple[int, ...]
    spec: Spec | None


class _Keeper:
    """One directory, and what our files there were seen to say."""

    def __init__(self, node: Node, directory: Path, plugins: Path | None) -> None:
        self.node, self.directory, self.plugins = node, directory, plugins
        self.files: Mapping[str, SeenClaimFile] = {}

    async def round(self, wanted: WantedClaimFiles) -> bool:
        """Make the files what they shall be, and tell what they say then; whether that is one and the same."""
        problems = await asyncio.to_thread(self._reconcile, wanted)
        settings = self.node.snapshot.config.settings
        is_used = problems or wanted.claims or self.files or (settings is not None and settings.dra.enabled)
        if not is_used and CLAIM_FILES_PART not in self.node.snapshot.statuses:
            return True  # this node has no claims
        text = join("; ", [*problems.values()] or [f"{self.directory}: {format_count(len(self.files), 'claim')}"])
        found = {uid: spec_fingerprint(seen.spec) for uid, seen in self.files.items() if seen.spec is not None}
        root = str(metadata_directory(self.plugins, wanted.driver)) if self.plugins is not None else ""
        state: PartState = "failing" if problems else "ok"
        status = ClaimFilesStatus(state, text, fingerprints=found, problems=problems, metadata_root=root)
        self.node.apply(StatusChanged(CLAIM_FILES_PART, status))
        return not problems

    def _reconcile(self, wanted: WantedClaimFiles) -> dict[str, Text]:
        """What was refused, by the claim's UID, or "" for all. What a specification mounts is there before it."""
        problems: dict[str, Text] = {}
        if self.plugins is not None:
            problems |= reconcile_metadata(metadata_directory(self.plugins, wanted.driver), wanted.metadata)
        try:
            self.files = read_claim_files(self.directory, wanted.driver, self.files)
            changes: dict[str, Spec | None] = dict.fromkeys(self.files.keys() - wanted.claims.keys())
            changes |= {uid: spec for uid, spec in wanted.specs.items() if not self._says(uid, spec)}
            for uid, spec in changes.items():
                if spec is not None and (uid in problems or "" in problems):
                    continue  # what it would mount is not there
                try:
                    store_claim_file(self.directory, claim_file_name(wanted.driver, uid), spec)
                except OSError as error:
                    problems[uid] = f"{error.filename}: {error.strerror}"
            if changes:
                self.files = read_claim_files(self.directory, wanted.driver, self.files)
        except OSError as error:
            self.files = {}  # runtimes see no more of them than we do
            problems[""] = f"{error.filename}: {error.strerror}"
        return problems

    def _says(self, uid: str, spec: Spec) -> bool:
        return uid in self.files and self.files[uid].spec == spec


def metadata_directory(plugins: Path, driver: str) -> Path:
    """Where a driver's files are that describe devices to containers, as kubelet's helper library has them."""
    return plugins / driver / "dra-device-metadata"


def reconcile_metadata(directory: Path, wanted: Metadata) -> dict[str, Text]:
    """Make the files below a directory what they shall be, and remove those of other claims.

    What was refused, by the claim's UID, which each path begins with; by "" where it is the directory.
    """
    problems: dict[str, Text] = {}
    if not wanted and not directory.exists():
        return problems
    try:
        disk.check_trusted(directory)
        there = os.listdir(directory) if directory.exists() else []  # noqa: PTH208 (half the time)
    except OSError as error:
        return {"": f"{error.filename}: {error.strerror}"} if wanted else problems
    kept = {path.partition("/")[0] for path in wanted}
    for name in there:
        if name not in kept:
            _remove(directory / name)
    for path, document in wanted.items():
        file, content = directory / path, format_json(document)
        try:
            _make_directories(directory, file.parent)
            if not file.exists() or files.read(file, MAX_BYTES, follow=False) != content:
                files.replace(file, content, mode=0o644)
        except OSError as error:
            problems[path.partition("/")[0]] = f"{error.filename or file}: {error.strerror}"
    return problems


def _make_directories(root: Path, directory: Path) -> None:
    """The directories from a root to one below it. What else has one of their names is removed. Raises OSError."""
    root.mkdir(mode=0o755, parents=True, exist_ok=True)
    for each in (*reversed(directory.relative_to(root).parents), directory.relative_to(root)):
        path = root / each
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            path.mkdir(mode=0o755)


def _remove(path: Path) -> None:
    """Remove what is not ours, whatever it is. What cannot be removed describes nothing that is mounted, and stays."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def read_claim_files(directory: Path, driver: str, before: Mapping[str, SeenClaimFile]) -> Mapping[str, SeenClaimFile]:
    """UID of a claim → its file; what has not changed is not read again. Raises OSError."""
    first, last = claim_file_name(driver, "\0").split("\0")
    try:
        names = sorted(os.listdir(directory))  # noqa: PTH208 (half the time)
    except FileNotFoundError:
        return {}
    disk.check_trusted(directory)
    uids = (name[len(first) : -len(last)] for name in names if name.startswith(first) and name.endswith(last))
    return {uid: _look_at_file(directory / f"{first}{uid}{last}", before.get(uid)) for uid in uids}


def _look_at_file(path: Path, before: SeenClaimFile | None) -> SeenClaimFile:
    try:
        there = path.lstat()
        state = there.st_mode, there.st_ino, there.st_size, there.st_mtime_ns, there.st_ctime_ns
        if before is not None and before.state == state:
            return before
        return SeenClaimFile(state, disk.SPEC_DECODER.decode(files.read(path, MAX_BYTES, follow=False)))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return SeenClaimFile((), None)  # it is written anew, or removed


def store_claim_file(directory: Path, name: str, spec: Spec | None) -> None:
    """Make a claim's file say that; None: no file. Raises OSError.

    It is not synced: after a crash of the machine it is made again of the ledger, before any container starts by it.
    The same claim may have a file of NVIDIA's driver, which defines the same device; two would make it nobody's.
    """
    if spec is None:
        (directory / name).unlink(missing_ok=True)
        return
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    disk.check_trusted(directory)
    disk.replace_file(directory, name, format_json(spec), sync=False)
    (directory / f"{name.removesuffix('.json')}.yaml").unlink(missing_ok=True)
