"""What the driver writes into the kernel log, and how it is followed."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.base.text import MAX_CHARACTERS
from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.agent.node import Node
from gpuplane.node.core.health.devicehealth import health_without_parents
from gpuplane.node.core.health.kernellog import parse_kmsg_record
from gpuplane.node.core.health.state_machine import MAX_EVENT_CODES
from gpuplane.node.core.step import step
from gpuplane.node.host.kernellog import RECORDS_PER_TURN, watch_kernel_log
from gpuplane.node.model.facts import AllocationsListed, FaultOccurred, MachineObserved
from gpuplane.node.model.health import DeviceRecord, Finding
from gpuplane.node.model.machine import Fault, Gpu, Link, Machine, Mig, MigDevice
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.status import KERNEL_LOG_PART
from tests.texts import as_shown

GONE = "GPU has fallen off the bus."


def told(text: str, prefix: str = "4,7,5000000,-;NVRM: ") -> FaultOccurred | None:
    """What a record tells whose clock is 2 s behind, read at 100 s."""
    return parse_kmsg_record(f"{prefix}{text}".encode(), 2.0, 100.0)


LINES_WITHOUT_XID = [
    ("NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.", "xid-79"),
    ("NVRM: GPU at 0000:01:00.0 has fallen off the bus.", "xid-79"),
    (
        r"NVRM: The NVIDIA GPU 0000:01:00.0\x0aNVRM: (PCI ID: 10de:2330) installed in this system has\x0a"
        "NVRM: fallen off the bus and is not responding to commands.",
        "xid-79",
    ),
    ("NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x26:0x56:1474)", "gpu-init-failed"),
    ("nvidia: probe of 0000:01:00.0 failed with error -1", "gpu-bind-failed"),
    ("nvidia 0000:01:00.0: probe with driver nvidia failed with error -1", "gpu-bind-failed"),
]
"""What drivers 331 to 595 and Linux 3 to 6.18 wrote into public logs, as /dev/kmsg has it → the fault."""


@pytest.mark.parametrize(("line", "code"), LINES_WITHOUT_XID, ids=[line for line, _ in LINES_WITHOUT_XID])
def test_a_gpu_that_the_driver_cannot_start_has_no_xid(line: str, code: str) -> None:
    found = told(line, prefix="4,7,5000000,-;")

    assert found is not None
    assert (found.code, found.gpu, found.at, found.kernel_log_number) == (code, "0000:01:00.0", 7.0, 7)
    assert "NVRM" not in as_shown(found.message) and line.rsplit(" ", 1)[1] in as_shown(found.message)
    assert told(line, prefix="12,7,5000000,-;") is None, "a log daemon may repeat what any user says"


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: GPU at PCI:0000:01:00: GPU-cf1e233c-f6d6-2924-c14e-5a7dd3f34016",
        "NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0",
        "NVRM: RmInitAdapter failed! (0x62:0x65:2028)",
        "NVRM: The NVIDIA probe routine failed for 1 device(s).",
        r"NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1b80)\x0aNVRM: installed in this system is not supported",
        "nvidia 0000:01:00.0: enabling device (0000 -> 0002)",
        "nvidia: module license 'NVIDIA' taints kernel.",
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 235",
        "usb 1-1: probe with driver nvidia failed with error -1",
        "has fallen off the bus",
    ],
)
def test_what_names_no_gpu_or_no_fault_is_none(line: str) -> None:
    assert told(line, prefix="4,7,5000000,-;") is None


def test_a_gpu_that_fell_off_the_bus_while_the_driver_was_loaded_is_known_by_its_address() -> None:
    """It is listed no more, and remembered: what the log says of its address is said of it."""
    node = Node(Snapshot(), now=lambda: 100.0)
    gpus = tuple(Gpu(index=i, uuid=f"GPU-{i}", pci=f"0000:0{i}:00.0") for i in range(2))
    node.apply(MachineObserved(Machine(gpus=gpus)))
    node.apply(MachineObserved(Machine(gpus=gpus[:1])))
    for number, (line, _) in enumerate(LINES_WITHOUT_XID):
        fault = told(line, prefix=f"4,{number},5000000,-;")
        assert fault is not None
        node.apply(fault)

    health = node.snapshot.ledger.health
    assert health is not None
    assert {each.code for each in health.devices["GPU-1"].findings} == {
        "gpu-absent",
        "xid-79",
        "gpu-init-failed",
        "gpu-bind-failed",
    }


def event(code: str, gpu: str = "0000:01:00.0", **more: object) -> FaultOccurred:
    return FaultOccurred(**{"code": code, "gpu": gpu, "message": GONE, "at": 7.0, "kernel_log_number": 7, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"Xid (PCI:0000:01:00): 79, {GONE}", event("xid-79")),
        (
            "Xid (PCI:0000:1b:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004)",
            event(
                "xid-145-nonfatal",
                "0000:1b:00.0",
                message="RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004)",
            ),
        ),
        (
            "Xid (PCI:0000:1b:00): 145, RLW_SRC_TRACK Fatal XC1 i0 Link 17 (0x04084507 0x00000004)",
            event("xid-145", "0000:1b:00.0", message="RLW_SRC_TRACK Fatal XC1 i0 Link 17 (0x04084507 0x00000004)"),
        ),
        ("Xid (PCI:0000:01:00): 79, Nonfatal", event("xid-79", message="Nonfatal")),
        (
            f"Xid (PCI:0000:01:00): 79, pid=1234, name=python3, {GONE}",
            event("xid-79", message=f"pid=1234, name=python3, {GONE}", pids=(1234,)),
        ),
        (
            "Xid (PCI:0000:01:00): 43, pid='<unknown>', name=<unknown>, Ch 00000008",
            event("xid-43", message="pid='<unknown>', name=<unknown>, Ch 00000008"),
        ),
        ("Xid (PCI:0000:01:00): 79, pid=1234, x", event("xid-79", message="pid=1234, x", pids=(1234,))),
        ("Xid (PCI:0000:01:00): 8, pid=0, name=, x", event("xid-8", message="pid=0, name=, x")),
        (
            "Xid (PCI:0000:01:00): 13, pid=9, name=a, pid=7, GPU-I:03, x",
            event("xid-13", message="pid=9, name=a, pid=7, GPU-I:03, x", pids=(9,)),
        ),
        (
            "Xid (PCI:0000:3B:00 GPU-I:01 GPU-CI:02): 13, x",
            event("xid-13", "0000:3b:00.0", message="x", gpu_instance=1, compute_instance=2),
        ),
        (
            "Xid (PCI:10000:ff:1f GPU-I:10): 94, x",
            event("xid-94", "10000:ff:1f.0", message="x", gpu_instance=10),
        ),
        ("Xid (0000:03:00): 14, Channel 00000001", event("xid-14", "0000:03:00.0", message="Channel 00000001")),
        ("Xid (PCI:0000:01:00): 61", event("xid-61", message="")),
        ("Xid (PCI:0000:01:00): 61, ", event("xid-61", message="")),
        (
            "loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@host)",
            event(
                "driver-loaded",
                "",
                message="loading NVIDIA UNIX Open Kernel Module for x86_64 580.95.05 Release Build (root@host)",
            ),
        ),
        ("Xid (PCI:0000:01:00): x79, x", None),
        ("Xid (PCI:0000:01:00): 0, x", None),
        ("Xid (PCI:0000:01:00): -1, x", None),
        ("Xid (PCI:0000:01): 79, x", None),
        ("Xid (PCI:0000:01:00", None),
        ("", None),
    ],
)
def test_what_the_driver_says_is_understood(text: str, expected: FaultOccurred | None) -> None:
    """In all its wordings; the process that is named first is the one it befell, whatever its name is."""
    assert told(text) == expected


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("20034, Fatal, Link 30 LTSSM Fault Up", "nvswitch-fatal"),
        ("28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)", "nvswitch-nonfatal"),
        ("28006, Severity 0 Engine instance 46 Sub-engine instance 00", None),
        ("28006, Data {0x00140004, 0x00100000, 0x00140004}", None),
    ],
)
def test_an_nvswitch_names_itself_and_no_gpu(text: str, code: str | None) -> None:
    """The lines of NVIDIA's Fabric Manager User Guide: what it has, and how bad it is; two lines of details follow."""
    said = f"SXid (PCI:0000:c1:00.0): {text}"

    found = told(said, "3,7,5000000,-;nvidia-nvswitch3: ")

    assert found == (event(code, "", message=said) if code else None)


def test_an_nvswitch_is_a_fault_of_each_gpu_with_nvlinks() -> None:
    """A fatal error degrades them, and the GPU at its link has an XID of its own. Others have nothing to do with it."""
    linked = (Link(peer="nvswitch", nvlink_count=18),)
    gpus = (*(Gpu(index=n, uuid=f"GPU-{n}", links=linked) for n in (0, 1)), Gpu(index=2, uuid="GPU-2"))
    snapshot = step(Snapshot(), MachineObserved(Machine(gpus=gpus)), 1.0)
    for number, gravity in enumerate(("Fatal", "Non-fatal")):
        line = (
            f"3,{number},2000000,-;nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, {gravity}, Link 30 LTSSM Fault Up"
        )
        event = parse_kmsg_record(line.encode(), 0.0, 2.0)
        assert event is not None
        snapshot = step(snapshot, event, 2.0)

    assert snapshot.ledger.health is not None
    counts = {key: each.fault_counts for key, each in snapshot.ledger.health.devices.items() if each.fault_counts}
    assert counts == {key: {"nvswitch-fatal": 1, "nvswitch-nonfatal": 1} for key in ("GPU-0", "GPU-1")}
    states = {each.device: each.state for each in health_without_parents(snapshot) if each.device}
    assert states == {"GPU-0": "degraded", "GPU-1": "degraded", "GPU-2": "healthy"}


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("4,7,5000000,-;NVRM: ", True),
        ("3,7,5000000,-,caller=T1234;NVRM: ", True),
        ("6,7,5000000,c;NVRM: ", True),
        ("4,7,5000000;NVRM: ", False),  # no record of the kernel is without flags
        ("12,7,5000000,-;NVRM: ", False),  # facility 1: a program wrote it
        ("30,7,5000000,-;NVRM: ", False),  # facility 3: a daemon
        ("4,7,5000000,-;kernel: NVRM: ", False),
        (" NVRM: ", False),
        ("NVRM: ", False),
        ("", False),
    ],
)
def test_only_the_kernel_is_believed(prefix: str, expected: bool) -> None:
    """Any user of a machine can have a log daemon write a line there, and none can pretend to be the kernel."""
    assert (told(f"Xid (PCI:0000:01:00): 79, {GONE}", prefix) is not None) == expected


def test_a_record_is_its_first_line() -> None:
    """The lines after it are the record's properties."""
    record = b"4,7,5000000,-;NVRM: Xid (PCI:0000:01:00): 79, x\n SUBSYSTEM=pci\n DEVICE=+pci:0000:01:00.0\n"

    assert parse_kmsg_record(record, 2.0, 100.0) == event("xid-79", message="x")


def test_nothing_happens_later_than_now() -> None:
    """The kernel's clock may be ahead of the one that we count by."""
    found = told(f"Xid (PCI:0000:01:00): 79, {GONE}", "4,7,99999999,-;NVRM: ")

    assert found is not None
    assert found.at == 100.0


def test_a_message_is_for_people() -> None:
    """One line that changes no terminal; what the kernel escaped is read again, as far as it can be shown."""
    name = r"\x1b[31mp\xc3\xa4th\x5cx\x0aNVRM: Xid\x00 \xff" + "\u202e" + "y" * MAX_CHARACTERS
    found = told(f"Xid (PCI:0000:01:00): 13, pid=1, name={name}, Graphics Exception")

    assert found is not None
    assert as_shown(found.message).startswith("pid=1, name= [31mpäth\\x NVRM: Xid \N{REPLACEMENT CHARACTER} y")
    assert found.message.isprintable()
    assert len(found.message) == MAX_CHARACTERS


PIECES = st.sampled_from(
    ["4,7,50,-;", "NVRM: ", "Xid (", "PCI:", "0000:01:00", " GPU-I:", " GPU-CI:", "1", "): ", "79", ", ", "pid=", "\n"]
)


@given(st.binary() | st.lists(PIECES | st.text(max_size=3)).map(lambda parts: "".join(parts).encode(errors="replace")))
def test_any_bytes_are_an_event_or_nothing(record: bytes) -> None:
    """Nothing is raised, and what is told is sound."""
    found = parse_kmsg_record(record, 2.0, 100.0)

    if found is not None:
        assert found.message.isprintable()
        assert found.at <= 100.0
        assert all(0 < pid < 1 << 40 for pid in found.pids)


# ---- followed

MIG = Mig(enabled=True, devices=(MigDevice(uuid="MIG-a", profile="1g", gpu_instance=1),))
MACHINE = Machine(
    gpus=(
        Gpu(index=0, uuid="GPU-a", pci="0000:01:00.0"),
        Gpu(index=1, uuid="GPU-b", pci="0000:02:00.0", mig=MIG),
    )
)


def xid(seq: int, number: int = 79, gpu: int = 1, inside: str = "") -> str:
    """A record about a GPU: 1 is GPU-a, 2 is GPU-b."""
    return f"4,{seq},{seq}000000,-;NVRM: Xid (PCI:0000:{gpu:02}:00{inside}): {number}, x\n SUBSYSTEM=pci\n"


@asynccontextmanager
async def following(path: Path, node: Node, again: float = 0.01, *, pids: bool = True) -> AsyncIterator[None]:
    task = asyncio.create_task(watch_kernel_log(node, path, 0.01, again, pids=pids))
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def seen() -> Node:
    """A node whose GPUs were counted."""
    node = Node(Snapshot())
    node.apply(MachineObserved(MACHINE))
    return node


def record(node: Node, device: str) -> DeviceRecord:
    health = node.snapshot.ledger.health
    return health.devices.get(device, DeviceRecord()) if health else DeviceRecord()


def findings(node: Node, device: str) -> list[Finding]:
    return list(record(node, device).findings)


async def until(node: Node, ready: Callable[[], bool]) -> None:
    assert await node.wait_until(lambda _: ready(), 60), (node.snapshot.ledger.health, node.snapshot.statuses)


def standing(node: Node) -> tuple[str, str]:
    found = node.snapshot.statuses.of(KERNEL_LOG_PART)
    return (found.state, as_shown(found.text)) if found else ("", "")


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


async def test_what_is_in_the_log_and_what_comes_is_told(tmp_path: Path) -> None:
    """Of the GPU, or of the MIG device in which it happened; a record that comes in pieces is one record."""
    log, node = tmp_path / "kmsg", seen()
    log.write_text("6,1,1,-;Linux version 6.12\n" + xid(2))
    async with following(log, node):
        await until(node, lambda: bool(findings(node, "GPU-a")))
        assert standing(node) == ("ok", str(log))
        part = xid(3, 94, 2, " GPU-I:01 GPU-CI:00")
        append(log, part[:40])
        append(log, part[40:])
        await until(node, lambda: bool(findings(node, "MIG-a")))
        assert [each.code for each in findings(node, "MIG-a")] == ["xid-94"]
        assert not findings(node, "GPU-b")


async def test_what_was_judged_is_not_judged_again(tmp_path: Path) -> None:
    """The log is read from its beginning after a restart of whatever part; each record counts once."""
    log, node = tmp_path / "kmsg", seen()
    log.write_text(xid(2))
    async with following(log, node):
        await until(node, lambda: bool(findings(node, "GPU-a")))
    append(log, xid(3, 48))
    async with following(log, node):
        await until(node, lambda: len(findings(node, "GPU-a")) == 2)
    assert dict(record(node, "GPU-a").fault_counts) == {"xid-48": 1, "xid-79": 1}


async def test_processes_that_a_probe_would_not_see_are_not_named(tmp_path: Path) -> None:
    """An agent with a PID namespace of its own would take them for gone. It waits for whoever held the GPU instead."""
    log, node, holder = tmp_path / "kmsg", seen(), PodRef("ns", "p", container="c")
    node.apply(AllocationsListed((Allocation("nvidia.com/gpu", ("GPU-a",), holder),), 0.0))
    log.write_text("4,2,2000000,-;NVRM: Xid (PCI:0000:01:00): 94, pid=7, name=x, Contained: SM\n")
    async with following(log, node, pids=False):
        await until(node, lambda: bool(findings(node, "GPU-a")))
    assert [(each.pids, each.holders) for each in findings(node, "GPU-a")] == [((), (holder,))]


async def test_nothing_is_read_before_the_gpus_are_counted(tmp_path: Path) -> None:
    """What is read of a GPU that is not known is lost: the log waits, and a look that counts nothing is not enough."""
    log, node = tmp_path / "kmsg", Node(Snapshot())
    os.mkfifo(log)
    async with following(log, node):
        node.apply(MachineObserved(Machine(faults=(Fault("driver-not-loaded", "no kernel driver"),))))
        for _ in range(10):
            await asyncio.sleep(0)
        with pytest.raises(OSError, match="No such device"):  # nobody has opened it
            os.open(log, os.O_WRONLY | os.O_NONBLOCK)
        node.apply(MachineObserved(MACHINE))
        await until(node, lambda: standing(node)[0] == "ok")
        append(log, xid(1))
        await until(node, lambda: bool(findings(node, "GPU-a")))


async def test_a_pipe_wakes_us(tmp_path: Path) -> None:
    """As the device does; writers may come and go."""
    log, node = tmp_path / "kmsg", seen()
    os.mkfifo(log)
    async with following(log, node):
        await until(node, lambda: standing(node)[0] == "ok")
        for seq, code in ((1, 79), (2, 48), (3, 95)):
            append(log, xid(seq, code))
            await until(node, lambda seq=seq: len(findings(node, "GPU-a")) == seq)  # type: ignore[misc]
        with log.open("w", buffering=1) as writer:
            for seq, code in ((4, 62), (5, 61)):
                writer.write(xid(seq, code))
                await until(node, lambda seq=seq: len(findings(node, "GPU-a")) == seq)  # type: ignore[misc]


async def test_when_it_happened(tmp_path: Path) -> None:
    """What was in the log: by the log's clock. What we waited for: now, for that clock is not kept right."""
    log, node = tmp_path / "kmsg", Node(Snapshot(), now=lambda: 5e8)
    node.apply(MachineObserved(MACHINE))
    log.write_text(xid(3))
    async with following(log, node):
        await until(node, lambda: bool(findings(node, "GPU-a")))
        assert findings(node, "GPU-a")[0].since < 5e8
        append(log, xid(4, gpu=2))
        await until(node, lambda: bool(findings(node, "GPU-b")))
        assert findings(node, "GPU-b")[0].since == 5e8


async def test_a_log_that_cannot_be_read_is_said_and_tried_again(tmp_path: Path) -> None:
    """With what cannot be known then. It takes nothing else away."""
    log, node = tmp_path / "kmsg", seen()
    async with following(log, node):
        await until(node, lambda: standing(node)[0] == "waiting")
        assert standing(node)[1].startswith(f"{log}: {os.strerror(errno.ENOENT)}: ")
        log.mkdir()
        await until(node, lambda: "it is a directory" in standing(node)[1])
        log.rmdir()
        log.write_text(xid(1))
        await until(node, lambda: bool(findings(node, "GPU-a")))
        assert standing(node) == ("ok", str(log))


async def test_a_log_without_an_end_is_not_read(tmp_path: Path) -> None:
    """Another device than the kernel's log."""
    log, node = tmp_path / "kmsg", seen()
    log.symlink_to("/dev/zero")
    async with following(log, node):
        await until(node, lambda: "it is a device, and must be /dev/kmsg" in standing(node)[1])


async def test_records_that_were_overwritten_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says EPIPE, once, and goes on with the oldest that it still has."""
    log, node, read, lost = tmp_path / "kmsg", seen(), os.read, [True]
    log.write_text(xid(5))

    def overwritten(fd: int, size: int) -> bytes:
        if lost:
            lost.clear()
            raise BrokenPipeError
        return read(fd, size)

    monkeypatch.setattr(os, "read", overwritten)
    async with following(log, node):
        await until(node, lambda: bool(findings(node, "GPU-a")))
        assert not lost


async def test_a_line_without_end_is_given_up(tmp_path: Path) -> None:
    """It costs no memory, and what comes after it is read."""
    log, node = tmp_path / "kmsg", seen()
    log.write_text("x" * 1_000_000)
    async with following(log, node):
        await until(node, lambda: standing(node)[0] == "ok")
        append(log, "\n" + xid(1))
        await until(node, lambda: bool(findings(node, "GPU-a")))


async def test_this_machines_kernel_log_is_read_or_it_is_said_why_not() -> None:
    """The device itself, with whatever rights this process has."""
    node = seen()
    async with following(Path("/dev/kmsg"), node, again=60):
        await until(node, lambda: standing(node)[0] in ("ok", "waiting"))
        assert standing(node)[1].startswith("/dev/kmsg")


async def test_many_records_at_once_leave_others_their_turn(tmp_path: Path) -> None:
    """A file gives thousands of them with one read. What no driver has is not remembered without end."""
    log = tmp_path / "kmsg"
    lines = (f"4,{n},5000000,-;NVRM: Xid (PCI:0000:01:00): {n % 900 + 1}, x" for n in range(1, 2001))
    log.write_text("\n".join(lines) + "\n")
    node = Node(Snapshot())
    node.apply(MachineObserved(Machine(gpus=(Gpu(index=0, uuid="GPU-0", pci="0000:01:00.0"),))))
    watcher, turns = asyncio.create_task(watch_kernel_log(node, log)), 0
    while (node.snapshot.ledger.health is None) or node.snapshot.ledger.health.last_kernel_log_number < 2000:
        await asyncio.sleep(0)
        turns += 1
    watcher.cancel()
    await asyncio.gather(watcher, return_exceptions=True)

    assert turns >= 2000 / RECORDS_PER_TURN
    assert len(node.snapshot.ledger.health.devices["GPU-0"].fault_counts) == MAX_EVENT_CODES


@pytest.mark.parametrize("fatal_first", [True, False])
def test_an_xid_that_the_library_told_without_its_gravity_counts_once(fatal_first: bool) -> None:
    """The library and the kernel log tell the same one, in any order; a later one that is not fatal is another."""
    line = told("Xid (PCI:0000:1b:00): 145, RLW_REMAP Fatal XC0 i0 Link 17 (0x04084507 0x00000040)")
    assert line is not None
    event = FaultOccurred(code="xid-145-nonfatal", gpu="GPU-0", message="", at=line.at + 0.1)
    gpu = Gpu(index=0, uuid="GPU-0", pci="0000:1b:00.0")
    snapshot = step(Snapshot(), MachineObserved(Machine(gpus=(gpu,))), 1.0)
    for each in (line, event) if fatal_first else (event, line):
        snapshot = step(snapshot, each, 8.0)

    assert snapshot.ledger.health is not None
    assert snapshot.ledger.health.devices["GPU-0"].fault_counts == {"xid-145": 1}
    assert [each.code for each in snapshot.ledger.health.devices["GPU-0"].findings] == ["xid-145"]
    snapshot = step(snapshot, event.but(at=20.0), 20.0)
    assert snapshot.ledger.health is not None
    assert snapshot.ledger.health.devices["GPU-0"].fault_counts == {"xid-145": 1, "xid-145-nonfatal": 1}
