"""A machine that a file describes: what is told of it, as it is edited, fails, and is let go of."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator

import pytest

from gpuplane.base.strict import InvalidInput
from gpuplane.node.hardware.described import source
from gpuplane.node.hardware.described.failures import observed_facts
from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.source import Described
from gpuplane.node.model.facts import Fact, FaultOccurred, MachineObserved, ObserveMachine, StatusChanged
from gpuplane.node.model.machine import DeviceNodeStat, DriverFile, DriverLibrary, Machine, MachineFile
from gpuplane.node.model.status import DRIVER_PART, MACHINE_FILE_PART, DriverStatus, Status
from tests.golden import Golden
from tests.texts import as_shown

GOOD = b"""
driver: {version: 580.95.05, cuda: "13.0"}
gpus:
  - {index: 0, uuid: GPU-a, minor: 0, pci: "0000:07:00.0", model: NVIDIA H100}
  - index: 1
    uuid: GPU-b
    minor: 1
    pci: "0000:0f:00.0"
    model: NVIDIA H100
    mig:
      enabled: true
      devices:
        - {uuid: MIG-1, profile: 1g.10gb, gpu_instance: 7, mig_index: 0}
        - {uuid: MIG-2, profile: 1g.10gb, gpu_instance: 8, mig_index: 1}
"""
OK = StatusChanged(DRIVER_PART, DriverStatus("ok", "described by node.yaml"))


RELEASED = StatusChanged(DRIVER_PART, DriverStatus("waiting", "released", released=True))
NOTHING_REFUSED = StatusChanged(MACHINE_FILE_PART, None)
MENDED = StatusChanged(MACHINE_FILE_PART, Status("ok", "node.yaml can be read again"))
TURNS = 20
"""Turns of the event loop after which nothing more comes: nothing else here waits for anything outside of it."""


class Edited:
    """A described machine whose file is edited here."""

    def __init__(self) -> None:
        self._versions = asyncio.Queue[bytes | OSError]()
        self.hardware = Described(self._read(), "node.yaml")
        self.facts: list[Fact] = []

    async def _read(self) -> AsyncIterator[bytes | OSError]:
        while True:
            yield await self._versions.get()
            self._versions.task_done()

    async def watch(self) -> None:
        """Take facts, for ever."""
        async for fact in self.hardware.facts():
            self.facts.append(fact)

    async def told(self, *versions: bytes | OSError) -> list[Fact]:
        """What is told after an edit, or after nothing but what was done before."""
        for version in versions:
            self._versions.put_nowait(version)
        await self._versions.join()  # each was read, in a thread
        for _ in range(TURNS):
            await asyncio.sleep(0)
        told, self.facts = self.facts, []
        return told


@pytest.fixture
async def edited() -> AsyncIterator[Edited]:
    """A machine whose file has not been read yet."""
    edited = Edited()
    task = asyncio.create_task(edited.watch())
    yield edited
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def look(*failures: str) -> MachineObserved:
    """The machine, failing in these ways."""
    (looked,) = (fact for fact in facts(*failures) if isinstance(fact, MachineObserved))
    return looked


def facts(*failures: str) -> list[StatusChanged[DriverStatus] | MachineObserved]:
    """What is told of the machine, failing in these ways."""
    return observed_facts(read_machine(failing(*failures), "node.yaml"), "node.yaml")


def failing(*failures: str) -> bytes:
    """The file with these failures."""
    return GOOD + b"failures:\n" + b"".join(f"  - {{{each}}}\n".encode() for each in failures) if failures else GOOD


async def test_a_good_file_is_told_and_told_again_when_it_changes(edited: Edited) -> None:
    """The driver is well, and this is the machine."""
    assert await edited.told() == []
    assert await edited.told(GOOD) == [look(), OK, NOTHING_REFUSED]
    assert await edited.told(b"gpus: []") == [MachineObserved(Machine(gpus=())), OK, NOTHING_REFUSED]


MISSING = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


async def test_a_bad_edit_is_refused_and_the_good_one_stays(edited: Edited, golden: Golden) -> None:
    """It says nothing against the driver; a good edit ends it, which is told as well."""
    await edited.told(GOOD)
    *rest, refused = await edited.told(GOOD.replace(b"minor: 1", b"minro: 1"))
    assert rest == [look(), OK]
    assert isinstance(refused, StatusChanged)
    assert refused.part == MACHINE_FILE_PART
    assert refused.status is not None
    assert as_shown(refused.status.text).startswith("node.yaml:7: ")
    golden(refused.status.text)

    assert await edited.told(MISSING) == [
        look(),
        OK,
        StatusChanged(MACHINE_FILE_PART, Status("failing", f"node.yaml: {MISSING.strerror}")),
    ]
    for _ in range(2):
        assert await edited.told(GOOD) == [look(), OK, MENDED]


async def test_a_file_that_never_was_good_is_a_driver_that_fails(edited: Edited) -> None:
    """There is nothing else to show. A good one makes it well, and that is all there is to say."""
    assert await edited.told(MISSING) == [
        StatusChanged(DRIVER_PART, DriverStatus("failing", f"node.yaml: {MISSING.strerror}"))
    ]
    assert await edited.told(GOOD) == [look(), OK, NOTHING_REFUSED]


async def test_what_is_let_go_of_tells_nothing(edited: Edited) -> None:
    """Until it is taken up: then it is as it is by then."""
    await edited.told(GOOD)
    await edited.hardware.release()
    assert await edited.told() == [RELEASED]
    assert await edited.told(b"gpus: []") == [RELEASED]

    await edited.hardware.do(ObserveMachine())
    assert await edited.told() == [MachineObserved(Machine(gpus=())), OK, NOTHING_REFUSED]


async def test_a_silent_driver_gives_no_look(edited: Edited, golden: Golden) -> None:
    """It says that it hangs; until the file changes, the last look at its GPUs stays in force."""
    await edited.told(GOOD)
    seen, *rest = await edited.told(failing("effect: hang"))
    assert isinstance(seen, MachineObserved)
    [silent] = seen.machine.faults
    assert silent.code == "driver-hang"
    assert "nvmlInit" in as_shown(silent.message)
    assert seen == MachineObserved(look().machine.but(gpus=None, faults=(silent,)))
    assert rest == [
        StatusChanged(DRIVER_PART, DriverStatus("failing", silent.message, code="driver-hang")),
        NOTHING_REFUSED,
    ]
    golden(silent.message)
    assert await edited.told(GOOD) == [look(), OK, NOTHING_REFUSED]


@pytest.mark.parametrize(
    ("failure", "code", "call"),
    [
        (
            "effect: error, nvml_function: nvmlInit*, error: DRIVER_NOT_LOADED",
            "driver-not-loaded",
            "nvmlInit",
        ),
        (
            "effect: error, nvml_function: nvmlDeviceGetCount",
            "driver-failed",
            "nvmlDeviceGetCount",
        ),
        ("effect: crash, nvml_function: nvmlInit_v2", "driver-crash", "nvmlInit"),
    ],
)
def test_a_driver_that_fails_as_a_whole_shows_no_gpus(failure: str, code: str, call: str, golden: Golden) -> None:
    """GPUs that were seen before stay, by the rules of a look."""
    looked, condition = facts(failure)

    assert isinstance(looked, MachineObserved)
    [fault] = looked.machine.faults
    assert fault.code == code
    assert call in as_shown(fault.message)
    assert condition == StatusChanged(DRIVER_PART, DriverStatus("failing", fault.message, code=code))
    assert looked == MachineObserved(look().machine.but(gpus=None, faults=(fault,)))
    golden(fault.message, code)


@pytest.mark.parametrize(
    ("failure", "faults"),
    [
        ("effect: hang", [("gpu-hang", "nvmlDeviceGetHandleByIndex")]),
        ("effect: crash, nvml_function: nvmlDeviceGetU*", [("gpu-crash", "nvmlDeviceGetUUID")]),
        ("effect: error, nvml_function: nvmlDeviceGetName, error: TIMEOUT", [("query-failed", "nvmlDeviceGetName")]),
        ("effect: error, error: RESET_REQUIRED", [("reset-required", "nvmlDeviceGetHandleByIndex")]),
        ("effect: error, nvml_function: nvmlDeviceSetMigMode", []),
        ("effect: error, nvml_function: nvmlDeviceGetName, error: NOT_SUPPORTED", []),
    ],
)
def test_a_failure_of_one_gpu_is_its_fault_alone(failure: str, faults: list[tuple[str, str]], golden: Golden) -> None:
    """It keeps its description; a call that no look makes is nothing."""
    first, second = look(f"gpu: 1, {failure}").machine.gpus or ()

    assert first == (look().machine.gpus or ())[0]
    assert second.but(faults=()) == (look().machine.gpus or ())[1]
    assert [fault.code for fault in second.faults] == [code for code, _ in faults]
    for fault, (code, call) in zip(second.faults, faults, strict=True):
        assert call in as_shown(fault.message)
        golden(fault.message, code)


@pytest.mark.parametrize("other", ["effect: error, nvml_function: nvmlDeviceGetHandleByIndex", "effect: hang"])
def test_distances_are_asked_among_the_gpus_that_are_seen(other: str) -> None:
    """Where only one is, a failure of that query shows nothing."""
    failing = "gpu: 0, effect: error, nvml_function: nvmlDeviceGetTopologyCommonAncestor"

    assert [bool(gpu.faults) for gpu in look(failing).machine.gpus or ()] == [True, False]
    assert [bool(gpu.faults) for gpu in look(failing, f"gpu: 1, {other}").machine.gpus or ()] == [False, True]


def happened(facts: list[Fact]) -> list[tuple[str, int | None]]:
    """The code of each event, and its number in the kernel log."""
    return [(fact.code, fact.kernel_log_number) for fact in facts if isinstance(fact, FaultOccurred)]


async def test_incidents_are_numbered_in_their_order_unless_they_have_numbers(edited: Edited) -> None:
    """So that old ones can be taken out of a file, and a new agent still knows the others by their numbers."""
    both = GOOD + b"incidents: [{gpu: 0, code: xid-79}, {gpu: 0, code: xid-94}]"
    assert happened(await edited.told(both)) == [("xid-79", 0), ("xid-94", 1)]
    later = GOOD + b"incidents: [{gpu: 0, code: xid-13, kernel_log_number: 7}, {gpu: 0, code: xid-31}]"
    assert happened(await edited.told(later)) == [("xid-13", 7), ("xid-31", 8)]


async def test_an_incident_waits_for_the_first_look_that_counts_the_gpus(edited: Edited) -> None:
    """Before that nobody can tell whom it befell, and it would be forgotten."""
    befallen = GOOD + b"incidents: [{gpu: 0, code: xid-79}]\n"
    failing = befallen + b"failures: [{effect: crash}]\n"
    assert happened(await edited.told(failing)) == []
    assert happened(await edited.told(befallen)) == [("xid-79", 0)]
    assert happened(await edited.told(failing, befallen)) == []
    assert happened(await edited.told(failing.replace(b"79}", b"79}, {gpu: 0, code: xid-94}"))) == [("xid-94", 1)]


LINKED = b"minor: 0, links: [{peer: nvlink, nvlink_count: 2}],"
NEAR = b'minor: 0, distances: {"0000:0f:00.0": NEAR},'
OWN = b'minor: 0, distances: {"0000:07:00.0": SYS},'
NOWHERE = b"devices: [{id: a, kind: b, numa: -1}]\ngpus:"
NO_VERSION = b"driver_file_layout: debian"
BOTH = b"driver: {version: 580.95.05, files_error: gone, files: {}}"
RELATIVE = (
    b"driver: {version: 1.2.3, files: {libraries: [{path: lib/x.so, symlinks: [a/b]}], "
    b"sockets: [{path: /s, container_path: s}]}}"
)
DRIVER_LINES = b'driver: {version: 580.95.05, cuda: "13.0"}'
UNKNOWN_DRIVER = b"major_numbers: {nvidia-uwm: 511, nvidia: 4096}\ngpus:"
ODD_NUMBERS = (
    b"device_node_stats: {/etc/x: {major: 1, minor: 1}, /dev/y: {major: 1, minor: -1}, "
    b"/dev/z: {major: 1, minor: 2, mode: 4096}}\ngpus:"
)
SAME_NUMBERS = b"device_node_stats:\n  /dev/a: {major: 1, minor: 1}\n  /dev/b: {major: 1, minor: 1}\ngpus:"
SAME_CARD = b"minor: 0, dri: [/dev/dri/card1, /dev/dri/card1],"
UNKNOWN_GPU = b"failures: [{effect: hang, gpu: 7}]\ngpus:"
UNKNOWN_CALL = (
    b"failures: [{effect: hang, nvml_function: nvmlInit_v2}, "
    b"{effect: hang, nvml_function: nvmlDeviceGetNme*, gpu: 1}]\ngpus:"
)
UNKNOWN_ERROR = b"failures: [{effect: error, gpu: 1, error: GPU_LOST}]\ngpus:"


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (b"uuid: GPU-b", b"uuid: GPU-a", 6),
        (b"uuid: MIG-2", b"uuid: MIG-1", 14),
        (b"uuid: MIG-2", b"uuid: x", 14),
        (
            b"gpus:",
            b"faults: [{code: driver-hung, message: x}]\ngpus:",
            3,
        ),
        (
            b"mig_index: 1",
            b"faults: [{code: querry-failed, message: x}], mig_index: 1",
            14,
        ),
        (
            b"minor: 0,",
            b"minor: 0, faults: [{code: xid-79, message: x}],",
            4,
        ),
        (
            b"minor: 0,",
            b"minor: 0, faults: [{code: gpu-lsot, message: x}],",
            4,
        ),
        (b"uuid: GPU-b", b"uuid: b", 6),
        (b"- index: 1", b"- index: 0", 5),
        (b"minor: 1", b"minor: 0", 7),
        (b"0000:0f:00.0", b"0000:07:00.0", 8),
        (b"mig_index: 1", b"mig_index: 0", 14),
        (b": 8,", b": 7,", 14),
        (b"0000:0f:00.0", b"0F:00.0", 8),
        (b"enabled: true", b"enabled: false", 10),
        (b"minor: 0,", LINKED, 4),
        (b"minor: 0,", OWN, 4),
        (b"minor: 0,", b"minor: 0, numa: -1,", 4),
        (b"minor: 0,", b"minor: 0, pci_class: '0x0302',", 4),
        (b"minor: 0,", b"minor: 0, pcie_root: '0000:16',", 4),
        (b"minor: 0,", b"minor: 0, fabric: {cluster: rack-7, clique: 1},", 4),
        (b"gpus:", NOWHERE, 3),
        (b"minor: 0,", NEAR, 4),
        (
            DRIVER_LINES,
            NO_VERSION,
            2,
        ),
        (DRIVER_LINES, BOTH, 2),
        (b"gpus:", SAME_NUMBERS, 5),
        (b"minor: 0,", SAME_CARD, 4),
        (b"gpus:", UNKNOWN_GPU, 3),
        (b"gpus:", UNKNOWN_CALL, 3),
        (b"gpus:", UNKNOWN_ERROR, 3),
    ],
)
def test_a_machine_that_contradicts_itself_is_refused(before: bytes, after: bytes, line: int, golden: Golden) -> None:
    """With the file, the line, and what is wrong."""
    assert before in GOOD
    with pytest.raises(InvalidInput) as invalid:
        read_machine(GOOD.replace(before, after), "node.yaml")

    [error] = invalid.value.errors
    assert error.startswith(f"node.yaml:{line}: ")
    golden(error, after.decode())


@pytest.mark.parametrize(
    ("before", "after", "subjects"),
    [
        (
            DRIVER_LINES,
            RELATIVE,
            ["'lib/x.so'", "'a/b'", "'s'"],
        ),
        (
            b"gpus:",
            UNKNOWN_DRIVER,
            ["'nvidia-uwm'", "4096"],
        ),
        (
            b"gpus:",
            ODD_NUMBERS,
            ["'/etc/x'", "1:-1", "4096"],
        ),
    ],
)
def test_files_and_numbers_that_cannot_be_are_refused(
    before: bytes, after: bytes, subjects: list[str], golden: Golden
) -> None:
    """All of them at once."""
    with pytest.raises(InvalidInput) as invalid:
        read_machine(GOOD.replace(before, after), "node.yaml")

    assert len(invalid.value.errors) == len(subjects)
    assert all(subject in error for subject, error in zip(subjects, invalid.value.errors, strict=True))
    golden(invalid.value.errors, after.decode())


def test_a_layout_and_majors_are_said_out_in_what_is_read() -> None:
    """Files of the driver's version beside those that are stated, numbers of all nodes but those that are stated."""
    words = b"""
driver_file_layout: redhat
driver: {version: 580.95.05, files: {files: [{path: /usr/bin/nvidia-imex}]}}
major_numbers: {nvidia: 195, nvidiactl: 195, nvidia-uvm: 511, nvidia-caps: 237, drm: 226}
device_node_stats: {/dev/nvidia0: {major: 195, minor: 0, gid: 44}}
shared_nodes: [/dev/nvidiactl, /dev/infiniband/rdma_cm]
gpus:
  - index: 0
    device_nodes: [/dev/nvidia0]
    dri: [/dev/dri/card1, /dev/dri/renderD128]
    mig:
      enabled: true
      devices: [{uuid: MIG-1, profile: 1g.5gb, gpu_instance: 7, device_nodes: [/dev/nvidia-caps/nvidia-cap66]}]
"""
    machine = read_machine(words, "node.yaml")
    assert machine.driver is not None
    assert machine.driver.files is not None
    files = machine.driver.files

    assert (machine.driver_file_layout, machine.major_numbers) == (None, {})
    assert (
        DriverLibrary("/usr/lib64/libcuda.so.580.95.05", "libcuda.so.1", ("libcuda.so", "libcuda.so.1"))
        in files.libraries
    )
    assert {DriverFile("/usr/bin/nvidia-imex"), DriverFile("/usr/bin/nvidia-smi")} <= set(files.files)
    assert machine.device_node_stats == {
        "/dev/nvidiactl": DeviceNodeStat(195, 255),
        "/dev/nvidia-uvm": DeviceNodeStat(511, 0),
        "/dev/nvidia-uvm-tools": DeviceNodeStat(511, 1),
        "/dev/nvidia0": DeviceNodeStat(195, 0, gid=44),
        "/dev/dri/card1": DeviceNodeStat(226, 1, mode=0o660, gid=39),
        "/dev/dri/renderD128": DeviceNodeStat(226, 128, gid=105),
        "/dev/nvidia-caps/nvidia-cap66": DeviceNodeStat(237, 66, mode=0o444),
    }


def test_gpus_that_cannot_be_read_are_not_missed(golden: Golden) -> None:
    """A failure names one of them: the mistake is told, and nothing that is none."""
    with pytest.raises(InvalidInput) as invalid:
        read_machine(b"gpus: [{index: two}]\nfailures: [{effect: hang, gpu: 0}]", "node.yaml")

    (error,) = invalid.value.errors
    assert error.startswith("node.yaml:1: gpus[0].index: ")


async def test_a_large_file_is_read_beside_the_event_loop(edited: Edited, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubelet does not wait for it."""
    others_come, came = threading.Event(), list[bool]()

    def read_slowly(data: bytes, file: str) -> MachineFile:
        came.append(others_come.wait(5))
        return read_machine(data, file)

    monkeypatch.setattr(source, "read_machine", read_slowly)
    asyncio.get_running_loop().call_later(0.05, others_come.set)
    await edited.told(GOOD)

    assert came == [True]


async def test_many_incidents_at_once_leave_others_their_turn(edited: Edited) -> None:
    """Each becomes a snapshot of its own."""
    first = await edited.told(GOOD)
    incidents = b"".join(b"  - {gpu: 0, code: xid-%d}\n" % (i % 90 + 1) for i in range(2000))

    told = await edited.told(GOOD + b"incidents:\n" + incidents)
    assert len(told) < 2000, "more turns than those that are waited for"
    while len(told) < len(first) + 2000:
        told += await edited.told()

    assert sum(isinstance(fact, FaultOccurred) for fact in told) == 2000


@pytest.mark.parametrize("name", [b"GPU-a", b"MIG-1", b"NVIDIA H100"])
def test_a_name_that_no_driver_tells_is_refused(name: bytes) -> None:
    """It would be in every list, log line and label."""
    with pytest.raises(InvalidInput) as caught:
        read_machine(GOOD.replace(name, name + b"x" * 100_000, 1), "node.yaml")

    assert [len(error) < 200 for error in caught.value.errors] == [True]


def test_more_gpus_than_a_driver_has_numbers_for_are_refused() -> None:
    """Each is compared with each."""
    gpus = b"".join(b"  - {index: %d, uuid: GPU-%d}\n" % (i, i) for i in range(257))
    with pytest.raises(InvalidInput) as caught:
        read_machine(b"gpus:\n" + gpus, "node.yaml")

    assert len(caught.value.errors) == 1
