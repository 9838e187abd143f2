"""The agent's side: it writes what is wanted, and tells how the daemons stand. Waits for nobody."""

import asyncio
import errno
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path

import msgspec

from gpuplane.base import files
from gpuplane.node.core.mps import desired_daemons, part_statuses
from gpuplane.node.host.mps.files import FILES_FOLDER, STATUS_FILE, WANTED_FILE, decode_file, write_file
from gpuplane.node.model.facts import StatusChanged
from gpuplane.node.model.mps import SupervisorStatus, WantedDaemons
from gpuplane.node.model.node import Node
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import MPS_COMPUTE_MODES_PART, MPS_REQUESTS_PART, AnyPart, Status

IDLE_CHECK_INTERVAL = 2.0
"""Seconds between two looks for a supervisor's word while no daemon is wanted and none is known."""


async def keep_mps_requests(node: Node, again: float = 2.0) -> None:
    """Keep the file of wanted daemons equal to the view, for ever.

    A disk that refuses is tried again `again` seconds later.

    Where MPS was never wanted nothing is written, and there is no directory.
    """
    asked: dict[Path, WantedDaemons] = {}
    met: object = None  # what was wanted, and where it was found to be written
    async for _ in node.changes(desired_daemons, attrgetter("config.settings")):
        while (wanted := desired_daemons(node.snapshot)) is not None and (wanted, _root(node)) != met:
            here = _folder(node) / WANTED_FILE
            for path in [each for each in asked if each != here]:  # another root is in force: nobody there any more
                asked |= (
                    _try(node, path, WantedDaemons(daemons_in_use=wanted.daemons_in_use)) if asked[path].daemons else {}
                )
            if asked.get(here) == wanted or not (wanted.daemons or here.exists()):
                met = wanted, _root(node)
                break
            if done := _try(node, here, wanted):
                asked |= done
            else:
                await asyncio.sleep(again)


def _try(node: Node, path: Path, wanted: WantedDaemons) -> Mapping[Path, WantedDaemons]:
    """What is written then: nothing, and the status says why, where the disk refuses."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if reason := _risk(path.parent):
            raise OSError(errno.EPERM, reason, str(path.parent))
        write_file(path, wanted)
    except OSError as error:
        reason = (
            f"{error.filename or path}: {error.strerror}: the agent cannot send the supervisor the list of "
            "needed daemons"
        )
        node.apply(StatusChanged(MPS_REQUESTS_PART, Status("failing", reason)))
        return {}
    if MPS_REQUESTS_PART in node.snapshot.statuses:
        node.apply(StatusChanged(MPS_REQUESTS_PART, None))
    return {path: wanted}


async def follow_supervisor_status(node: Node, every: float = 0.2) -> None:
    """Watch the supervisor's word, for ever.

    Tells from the moment on from which something may be offered: what is served must not look ill for a while."""
    while not await node.wait_until(lambda snapshot: desired_daemons(snapshot) is not None, 3600.0):
        pass
    told: Mapping[AnyPart, Status] = {}
    while True:
        wanted = desired_daemons(node.snapshot)
        if wanted is not None:
            path = _folder(node) / STATUS_FILE
            heard = _read_statuses(wanted, path, told, node.now())
            for part in told.keys() - heard.keys():
                node.apply(StatusChanged(part, None))
            for part, status in heard.items():
                if told.get(part) != status:
                    node.apply(StatusChanged(part, status))
            told = heard
        if told or _wants_daemons(node.snapshot):
            await asyncio.sleep(every)
        else:
            await node.wait_until(_wants_daemons, IDLE_CHECK_INTERVAL)


def _read_statuses(
    wanted: WantedDaemons, path: Path, told: Mapping[AnyPart, Status], now: float
) -> Mapping[AnyPart, Status]:
    """How everything stands. Where anybody could write it nothing is believed, and modes are as they were told last."""
    where = str(path.parent.parent)
    if not (reason := _risk(path.parent)):
        return part_statuses(wanted, _status(path), where, now)
    heard = {MPS_COMPUTE_MODES_PART: told[MPS_COMPUTE_MODES_PART]} if MPS_COMPUTE_MODES_PART in told else {}
    silent = part_statuses(wanted, None, where, now)
    return {
        **heard,
        **dict.fromkeys(silent, Status("failing", f"the agent does not trust the supervisor's status file: {reason}")),
    }


def _risk(folder: Path) -> str:
    """Who else could write what we read there, and read what we write; "" if nobody could, or nothing is there."""
    try:
        return files.untrusted_reason(folder)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{error.filename}: {error.strerror}"


def _wants_daemons(snapshot: Snapshot) -> bool:
    """Whether any daemon is wanted."""
    wanted = desired_daemons(snapshot)
    return wanted is not None and bool(wanted.daemons)


def _status(path: Path) -> SupervisorStatus | None:
    """The supervisor's last word; None where there is none that can be read."""
    try:
        return decode_file(files.read(path, follow=False), SupervisorStatus)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _folder(node: Node) -> Path:
    return Path(_root(node)) / FILES_FOLDER


def _root(node: Node) -> str:
    settings = node.snapshot.config.settings
    assert settings is not None  # something is wanted only by a configuration
    return settings.mps_root
