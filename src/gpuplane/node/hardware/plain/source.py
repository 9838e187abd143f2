"""Devices of other kinds than GPUs, from the versions of one machine file: a source of its own.

In a described machine they are as the file says. On a real node the file only names them: whether their device nodes
exist is looked up. What is wrong with a driver hides none of them, and nothing here waits for one.
"""

import asyncio
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from gpuplane.base import strict
from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.model.facts import DevicesObserved, Fact, StatusChanged
from gpuplane.node.model.machine import Device, DeviceList, Fault, MachineFile
from gpuplane.node.model.status import DEVICES_FILE_PART, Part, Status

OBSERVATION_INTERVAL = 1.0
"""Seconds between two looks at the device nodes of a real node."""


class PlainDevices:
    """The source of plain devices. `root`: its /dev has their nodes; None: they are as the file describes them."""

    part: Part[Status] = Part("plain devices")

    def __init__(self, versions: AsyncIterator[bytes | OSError], name: str, root: Path | None = None) -> None:
        self._versions, self._name, self._root = versions, name, root
        self._lists: Mapping[str, DeviceList] = {}
        self._problem: str | None = None  # of the newest version of the file; None: nothing was ever wrong with it
        self._changed = asyncio.Event()

    async def facts(self) -> AsyncGenerator[Fact, None]:
        """The devices of each kind, whenever they are others. A bad version changes nothing."""
        reading = asyncio.create_task(self._read())
        reading.add_done_callback(lambda _: self._changed.set())
        told: dict[str, DeviceList] = {}
        try:
            while not reading.done() or self._changed.is_set():
                self._changed.clear()
                found = {kind: self._look(each) for kind, each in self._lists.items()}
                for kind in told.keys() | found.keys():
                    seen = found.get(kind, DeviceList(devices=()))
                    if told.get(kind) != seen:
                        told[kind] = seen
                        yield DevicesObserved(kind, seen)
                if self._root is not None and self._problem is not None:
                    yield StatusChanged(DEVICES_FILE_PART, Status("failing" if self._problem else "ok", self._problem))
                await self._wait()
            reading.result()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _wait(self) -> None:
        if self._root is None:
            await self._changed.wait()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(OBSERVATION_INTERVAL):
                await self._changed.wait()

    async def _read(self) -> None:
        async for version in self._versions:
            try:
                if isinstance(version, OSError):
                    raise strict.InvalidInput([f"{self._name}: {version.strerror}"])
                file = read_machine(version, self._name)
                if self._root is not None and file != MachineFile(devices=file.devices):
                    raise strict.InvalidInput(
                        [f"{self._name}: only devices can be written here, for this is no machine"]
                    )
            except strict.InvalidInput as error:
                self._problem = str(error)
            else:
                self._lists = file.lists_by_kind
                self._problem = None if self._problem is None else ""
            self._changed.set()

    def _look(self, described: DeviceList) -> DeviceList:
        if self._root is None or described.devices is None:
            return described
        return described.but(devices=tuple(self._look_at(device) for device in described.devices))

    def _look_at(self, device: Device) -> Device:
        missing = tuple(_missing_nodes(self._root, device)) if self._root is not None else ()
        faults = (Fault(code="device-node-missing", message=why) for why in missing)
        return device.but(faults=(*device.faults, *faults)) if missing else device


def _missing_nodes(root: Path, device: Device) -> Iterator[str]:
    """What is wrong with the device nodes of a device, below a root. A link is what it leads to, as for a runtime."""
    for path in device.device_nodes:
        try:
            mode = (root / path.lstrip("/")).stat().st_mode
        except OSError as error:
            yield f"{path}: {error.strerror}"
        else:
            if not (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)):
                yield f"{path} is not a device node"
