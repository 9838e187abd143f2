"""The catalogue, entry by entry, on a described machine: what each makes of a GPU, and what ends it.

The file is edited as a person would, its facts are told to a node, and so are the probes that the node wishes for.
"""

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec
import pytest

from gpuplane.node.core.kinds.nvidia.faults import CATALOGUE, CODES_THAT_NEED_PROBE
from gpuplane.node.core.ledger import adapt_to_new_boot
from gpuplane.node.core.step import next_due_time
from gpuplane.node.hardware.described.source import Described
from gpuplane.node.model.facts import (
    AllocationsListed,
    ConfigLoaded,
    DrainRequested,
    LedgerLoaded,
    MachineObserved,
    ProbeGpu,
)
from gpuplane.node.model.machine import Fault, GpuProcess, Incident, Machine, MachineFile
from gpuplane.node.model.snapshot import Ledger, Snapshot
from tests.node.core.health.world import SETTINGS, World, machine

BARE = machine(2)
LOOKS = tuple(code for code, entry in CATALOGUE.items() if entry.detected_by == "look")
OF_GPUS = tuple(code for code in LOOKS if CATALOGUE[code].scope != "node")
OF_THE_NODE = tuple(code for code in LOOKS if CATALOGUE[code].scope == "node")
EVENTS = (*(code for code, entry in CATALOGUE.items() if entry.detected_by == "event"), "xid-999")
STATES = {"note": "healthy", "degraded": "degraded", "unhealthy": "unhealthy"}
TURNS = 20
"""Turns of the event loop after which nothing more comes: nothing else here waits for anything outside of it."""


class Played(World):
    """A node, and the file that its machine is described by."""

    def __init__(self) -> None:
        self._versions = asyncio.Queue[bytes | OSError]()
        self.hardware = Described(self._read(), "node.yaml")
        self.file = MachineFile(gpus=BARE.gpus)
        super().__init__(Machine(), now=time.clock_gettime(time.CLOCK_BOOTTIME))

    def look(self) -> None:
        """The file's looks are the only ones."""

    async def _read(self) -> AsyncIterator[bytes | OSError]:
        while True:
            yield await self._versions.get()
            self._versions.task_done()

    async def watch(self) -> None:
        """Tell what comes of the file, for ever."""
        async for fact in self.hardware.facts():
            self.now = max(self.now, time.clock_gettime(time.CLOCK_BOOTTIME))
            self.apply(fact)

    async def edit(self, **changes: object) -> None:
        """The file becomes another."""
        self.file = self.file.but(**changes)
        self._versions.put_nowait(msgspec.yaml.encode(self.file))
        await self.come()

    async def show(self, *codes: str) -> None:  # type: ignore[override]
        """GPU 0 has these faults."""
        first, second = self.file.gpus or ()
        faults = tuple(Fault(code=code, message="described") for code in codes)
        await self.edit(gpus=(first.but(faults=faults), second))

    async def come(self) -> None:
        """All that there is to be told is told."""
        await self._versions.join()  # each was read, in a thread
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def pass_(self, seconds: float) -> None:
        """Time passes, and probes are carried out."""
        until = self.now + seconds
        while self.now < until:
            due = next_due_time(self.snapshot) or until
            self.wait(min(max(1.0, due - self.now), until - self.now))
            if wished := self.wished():  # else nothing comes
                for gpu, asked in wished.items():
                    await self.hardware.do(ProbeGpu(gpu=gpu, requested_at=asked))
                await self.come()


@pytest.fixture
async def played() -> AsyncIterator[Played]:
    """A node with two GPUs that do well."""
    played = Played()
    task = asyncio.create_task(played.watch())
    await played.edit()
    assert played.verdicts() == {}
    yield played
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def check(played: Played, code: str, device: str = "0") -> None:
    """The device stands as the severity of this fault says, and the other GPU does well."""
    severity = CATALOGUE[code].severity if code in CATALOGUE else "unhealthy"
    found = played.diagnosis(device)
    assert (found.state.replace("probing", "unhealthy"), found.code) == (
        STATES[severity],
        "" if severity == "note" else code,
    )
    assert bool(found.advice) == (severity != "note")
    ill = {"0": {"GPU-0"}, "node": {"GPU-0", "GPU-1"}}[device] if severity == "unhealthy" else set()
    assert played.ill() == ill


async def end(played: Played, ends: str, lasts: float) -> None:
    """What ends a fault is had."""
    match ends:
        case "process-ended":
            await played.edit(processes=())
        case "gpu-reset":
            await played.show("recovery-reset")
            await played.show()
        case "node-rebooted":
            ledger = adapt_to_new_boot(played.snapshot.ledger, "the next boot", time.time(), played.now)
            played.snapshot = Snapshot(ledger=Ledger(boot_id="the next boot"))
            for fact in (LedgerLoaded(ledger), ConfigLoaded(SETTINGS), AllocationsListed((), played.now)):
                played.apply(fact)
            played.apply(MachineObserved(Machine(gpus=played.file.gpus)))
        case "restored-by-admin":
            played.apply(DrainRequested("GPU-0", None))
        case "time-passed":
            await played.pass_(lasts)


@pytest.mark.parametrize("code", OF_GPUS)
async def test_what_a_look_shows_of_a_gpu(played: Played, code: str) -> None:
    """It stands after its patience and stays while it is shown; then it ends by what the catalogue says."""
    entry = CATALOGUE[code]
    await played.show(code)
    if entry.grace_period:
        assert played.diagnosis("0").state in ("suspect", "healthy")
        assert played.ill() == set()
    await played.pass_(entry.grace_period)
    check(played, code)
    await played.pass_(600)
    check(played, code)
    await played.show()
    if entry.clear_when in ("node-rebooted", "restored-by-admin"):
        await played.pass_(600)
        check(played, code)
        await end(played, entry.clear_when, entry.clear_after)
    await played.pass_(70)  # a probe may have failed a minute ago
    assert played.state("0") == "healthy"


@pytest.mark.parametrize("code", OF_THE_NODE)
async def test_what_a_look_shows_of_the_node(played: Played, code: str) -> None:
    """It concerns every GPU, and is over at once, for no GPU is the cause."""
    patience = CATALOGUE[code].grace_period
    await played.edit(faults=(Fault(code=code, message="described"),))
    if patience:
        assert played.diagnosis("node").state == "suspect"
        assert played.ill() == set()
    await played.pass_(patience)
    check(played, code, "node")
    await played.pass_(600)
    check(played, code, "node")
    await played.edit(faults=())
    assert played.verdicts() == {}
    assert played.ill() == set()


@pytest.mark.parametrize("code", EVENTS)
async def test_what_happens_to_a_gpu(played: Played, code: str) -> None:
    """It stands at once, and stays until what ends it was had; what no entry ends makes no GPU ill."""
    ends = CATALOGUE[code].clear_when if code in CATALOGUE else "gpu-reset"
    await played.edit(
        incidents=(Incident(gpu=0, code=code, pids=(7,) if ends == "process-ended" else ()),),
        processes=(GpuProcess(gpu=0, pid=7),),
    )
    check(played, code)
    assert played.diagnosis("0").fault_counts == {code: 1}
    if ends != "time-passed":
        await played.pass_(600)
        check(played, code)
    await end(played, ends, CATALOGUE[code].clear_after if code in CATALOGUE else 0.0)
    await played.pass_(70)
    assert played.state("0") == "healthy"


def test_every_entry_is_tried() -> None:
    """And what only a probe can end is among what looks show."""
    assert {*OF_GPUS, *OF_THE_NODE, *EVENTS} - {"xid-999"} == CATALOGUE.keys()
    assert set(CODES_THAT_NEED_PROBE) <= set(OF_GPUS)
