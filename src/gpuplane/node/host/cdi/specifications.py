"""The specification files, kept as they are wanted.

What is wanted is on disk before anybody is given a device by it: the status says what the files hold, as they were
read after they were written. The files stay when the agent ends, for containers restart without it.

An agent that stands by for another writes nothing: it looks what is there, so that it can begin with that.

Others write into the directory too, so it is looked at every second: by `stat`, for the reasons of `host/filewatch.py`.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

from gpuplane.base.pauses import Backoff
from gpuplane.base.text import join
from gpuplane.node.core.allocations import held_allocations
from gpuplane.node.core.containers.cdi.desiredspecs import (
    conflict_statuses,
    desired_spec_of_file,
    desired_specs,
    is_any_kind_and_config_known,
    spec_notes,
    summarize_specs,
)
from gpuplane.node.core.containers.cdi.names import CDI_KINDS
from gpuplane.node.core.containers.cdi.specbuilder import SpecBuildResult
from gpuplane.node.core.containers.cdi.specstatus import spec_fingerprints
from gpuplane.node.core.serving import standby_reason
from gpuplane.node.host.cdi import directory as disk
from gpuplane.node.host.cdi.hook import watch_hook
from gpuplane.node.model.cdi import Spec
from gpuplane.node.model.facts import StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import CDI_FILES_PART, CdiFilesStatus, PartState

IDLE_INTERVAL_FACTOR = 5
"""Looks in whose place there is one while nothing is wanted: of what is there then, some is let go of at the most."""

WantedSpecifications: TypeAlias = tuple[Mapping[str, SpecBuildResult], bool]

MAX_RETRY_INTERVAL = 16.0
"""Seconds between two tries where the disk refuses."""


async def keep_specifications(
    node: Node, directory: Path, hook: Path, driver_root: Path | None, every: float = 1.0
) -> None:
    """Reconcile the directory with the view, and tell whether our hook can be called, for ever.

    `driver_root`: where this process sees the driver's root; None where it does not.
    """
    if (
        CDI_FILES_PART not in node.snapshot.statuses
    ):  # else this part has been restarted, and its last status still holds
        node.apply(
            StatusChanged(
                CDI_FILES_PART, CdiFilesStatus("waiting", "the agent does not know yet which CDI files are needed")
            )
        )
    async with asyncio.TaskGroup() as group:
        group.create_task(watch_hook(node, hook, driver_root))
        group.create_task(SpecificationKeeper(node, directory).keep(every))


class SpecificationKeeper:
    """One directory, and what it was seen to hold last."""

    def __init__(self, node: Node, directory: Path) -> None:
        self.node, self.directory = node, directory
        self.files: disk.SeenFiles = {}
        self.done: object = None  # what the last round went by, where it left nothing to do

    async def keep(self, every: float) -> None:
        """Go round whenever something else is wanted, and look every so many seconds; less often while that fails."""
        pauses, tidied = Backoff(every, MAX_RETRY_INTERVAL), False
        while True:
            seen = _wanted(self.node.snapshot)
            if not tidied and not standby_reason(self.node.snapshot):
                await asyncio.to_thread(disk.remove_temporary_files, self.directory)
                tidied = True
            if is_any_kind_and_config_known(self.node.snapshot) and self._given() != self.done:
                pauses.after(well=await self.round())
            await self.node.wait_until(
                partial(_changed, seen),
                pauses.seconds if seen[0] or self.done is None else IDLE_INTERVAL_FACTOR * every,
            )

    def _given(self) -> object:
        """All that a round goes by. It changes by a round that writes; so the next one sees what came of it."""
        snapshot = self.node.snapshot
        held, glance = held_allocations(snapshot), disk.directory_state(self.directory)
        return _wanted(snapshot), snapshot.machine, snapshot.devices, held, snapshot.config, glance

    async def round(self) -> bool:
        """Make the files what they shall be, and say what they are then; whether that is one and the same."""
        problems: list[str] = []
        given = self._given()
        try:
            self.files = await asyncio.to_thread(disk.read_directory, self.directory, self.files)
            self._tell_of_others()
            if not standby_reason(self.node.snapshot) and (changes := self._changes()):
                problems += await asyncio.to_thread(_store, self.directory, changes)
                self.files = await asyncio.to_thread(disk.read_directory, self.directory, self.files)
                problems += [] if problems else self._spoilt(changes)
        except OSError as error:
            self.files = {}  # runtimes see no more of them than we do
            problems.append(_describe_error(error))
        specs = disk.our_specs(self.files).values()
        text = join("; ", problems or [f"{self.directory}: {summarize_specs(specs)}", *spec_notes(self.node.snapshot)])
        state: PartState = "failing" if problems else "ok"
        self.node.apply(
            StatusChanged(CDI_FILES_PART, CdiFilesStatus(state, text, fingerprints=spec_fingerprints(specs)))
        )
        self.done = None if problems else given
        return not problems

    def _changes(self) -> Mapping[str, Spec | None]:
        """Kind → what its file shall hold, where it does not."""
        there = disk.our_specs(self.files)
        shall = {kind: desired_spec_of_file(self.node.snapshot, kind, there.get(kind)) for kind in CDI_KINDS}
        return {kind: spec for kind, spec in shall.items() if not disk.holds_spec(self.files, kind, spec)}

    def _spoilt(self, changes: Mapping[str, Spec | None]) -> list[str]:
        """What does not hold what was just written there."""
        spoilt = [kind for kind, spec in changes.items() if not disk.holds_spec(self.files, kind, spec)]
        paths = (self.directory / disk.file_names_of_kind(kind)[0] for kind in spoilt)
        return [
            f"{path}: the file changed after the agent wrote it: does another program write it too?" for path in paths
        ]

    def _tell_of_others(self) -> None:
        before = dict(self.node.snapshot.statuses.of_kind("cdi conflict"))
        told = conflict_statuses(
            self.node.snapshot, disk.our_specs(self.files), disk.foreign_specs(self.directory, self.files)
        )
        for part in before.keys() - told.keys():
            self.node.apply(StatusChanged(part, None))
        for part, status in told.items():
            self.node.apply(StatusChanged(part, status))


def _wanted(snapshot: Snapshot) -> WantedSpecifications:
    """What is wanted, and whether it is this agent that writes it."""
    return desired_specs(snapshot), not standby_reason(snapshot)


def _changed(seen: WantedSpecifications, snapshot: Snapshot) -> bool:
    now = _wanted(snapshot)
    return now[0] is not seen[0] or now[1] != seen[1]


def _store(directory: Path, changes: Mapping[str, Spec | None]) -> list[str]:
    """What was refused. One file costs the others nothing."""
    problems = []
    for kind, spec in changes.items():
        try:
            disk.store_spec(directory, kind, spec)
        except OSError as error:
            problems.append(_describe_error(error))
    return problems


def _describe_error(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}"
