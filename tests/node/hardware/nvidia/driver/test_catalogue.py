"""The fault catalogue, entry by entry: what a driver can show or tell of it comes out of a real driver's process."""

from collections.abc import Callable, Mapping

import pytest

from gpuplane.node.core.kinds.nvidia.faults import CATALOGUE, CODES_THAT_NEED_PROBE
from gpuplane.node.core.kinds.nvidia.xids import xid_number
from gpuplane.node.hardware.nvidia import driverprocess
from gpuplane.node.hardware.nvidia.driver.errors import gpu_crash_fault, gpu_hang_fault
from gpuplane.node.model.health import XIDS_WITH_SEVERITY_IN_TEXT
from gpuplane.node.model.machine import Driver, Fault, Gpu, InjectedFailure, Link, MachineFile
from tests.node.hardware.nvidia.driver.standin import BINDINGS, StandIn
from tests.node.hardware.nvidia.driver.watched import Watched, watched

DERIVED = {
    "nvlink-down": "fewer NVLinks than before: a look tells how many there are",
    "ecc-uncorrectable": "a higher count than before: a look tells the count",
    "gpu-absent": "a GPU of an earlier look is not in this one",
    "gpu-unlisted": "a function on the PCI bus, of no GPU that the library lists",
    "gpu-init-failed": "a line of the kernel log",
    "gpu-bind-failed": "another",
    "nvswitch-fatal": "a line of the kernel log, which names no GPU",
    "nvswitch-nonfatal": "another",
}
"""Entries that no driver's library shows: the core finds them by comparing looks, and in the kernel log."""

SEEN = {code for code, entry in CATALOGUE.items() if entry.detected_by == "look"} - DERIVED.keys()
EVENTS = sorted({code for code, entry in CATALOGUE.items() if entry.detected_by == "event"} - DERIVED.keys())
OF_GPUS = sorted(code for code in SEEN if CATALOGUE[code].scope != "node")


def ill(index: int, code: str) -> Gpu:
    """A GPU with an NVLink, and this fault; "" for none."""
    return Gpu(
        index=index,
        uuid=f"GPU-{index}",
        minor=index,
        model="NVIDIA H100 80GB HBM3",
        memory_mib=81559,
        pci=f"0000:{index:02x}:00.0",
        links=(Link(peer="nvswitch", nvlink_count=4),),
        device_nodes=(f"/dev/nvidia{index}",),
        faults=(Fault(code, "described"),) if code else (),
    )


def node(*codes: str) -> MachineFile:
    """A machine with a GPU for each of these."""
    gpus = tuple(ill(index, code) for index, code in enumerate(codes))
    return MachineFile(driver=Driver("580.95.05", "13.0"), gpus=gpus, shared_nodes=("/dev/nvidiactl",))


async def test_every_fault_of_a_gpu_that_is_described_is_shown(standin: StandIn) -> None:
    """By one GPU for each, all of one machine, among GPUs that do well."""
    codes = [each for code in OF_GPUS if code != "gpu-missing" for each in ("", code)]
    standin.describe(node(*codes))
    async with watched(standin) as watch:
        await watch.until(lambda watch: watch.codes() == [[code] if code else [] for code in codes])


async def test_a_gpu_that_nvml_does_not_count_is_shown(standin: StandIn) -> None:
    """As the kernel's files know it, behind those that are counted; one that a person excluded is not."""
    described = node("", "query-failed", "gpu-missing")
    standin.describe(described)
    async with watched(standin) as watch:
        await watch.until(lambda watch: watch.codes() == [[], ["query-failed"], ["gpu-missing"]])
        known, missing = (described.gpus or ())[2], (watch.gpus() or ())[2]
        assert missing == Gpu(
            index=2,
            uuid=known.uuid,
            minor=known.minor,
            model=known.model,
            pci=known.pci,
            device_nodes=known.device_nodes,
            faults=missing.faults,
        )

        information = standin.root / f"proc/driver/nvidia/gpus/{known.pci}/information"
        information.write_text(information.read_text() + "GPU Excluded:\t Yes\n")
        await watch.until(lambda watch: watch.codes() == [[], ["query-failed"]])


@pytest.mark.parametrize("code", ["gpu-lost", "gpu-hang", "gpu-crash"])
async def test_a_gpu_that_is_missing_stays_so_whatever_befalls_another(standin: StandIn, code: str) -> None:
    """Though the other one cannot be asked for its address any more: it was known before."""
    standin.describe(node("", "", "gpu-missing"))
    async with watched(standin) as watch:
        await watch.until(lambda watch: watch.codes() == [[], [], ["gpu-missing"]])
        described = node("", code, "gpu-missing")
        standin.describe(described)
        await watch.until(lambda watch: watch.codes() == [[], [code], ["gpu-missing"]])
        standin.describe(described.but(gpus=tuple(gpu.but(numa=3) for gpu in described.gpus or ())))
        await watch.until(lambda watch: [gpu.numa for gpu in (watch.gpus() or ())[1:]] == [3, 3])
        assert watch.codes() == [[], [code], ["gpu-missing"]]


async def test_a_gpu_that_a_container_was_not_given_is_not_missing(standin: StandIn) -> None:
    """It stands in /proc there, and has no device node."""
    standin.describe(node("", "gpu-missing"))
    (standin.root / "dev/nvidia1").unlink()
    async with watched(standin) as watch:
        await watch.until(lambda watch: watch.codes() == [[]])


async def test_a_mig_device_has_its_own(standin: StandIn, rich: MachineFile) -> None:
    """One without its nodes; its siblings and its GPU do well."""
    gpu = (rich.gpus or ())[1]
    assert gpu.mig is not None
    first, *others = gpu.mig.devices
    bad = first.but(faults=(Fault("node-missing", "described"),))
    standin.describe(rich.but(gpus=(gpu.but(index=0, mig=gpu.mig.but(devices=(bad, *others))),)))
    async with watched(standin) as watch:
        await watch.until(lambda watch: watch.devices() == [["node-missing"], [], [], []])

        assert watch.codes() == [[]]


def broken(standin: StandIn, rich: MachineFile, **failure: str) -> None:
    """A driver that fails as a whole."""
    described = {"effect": "error", "nvml_function": "nvmlInit*", **failure}
    standin.describe(rich.but(failures=(InjectedFailure(**described),)))  # type: ignore[arg-type]


DRIVERS: Mapping[str, Callable[[StandIn, MachineFile], object]] = {
    "driver-hang": lambda standin, rich: broken(standin, rich, effect="hang"),
    "driver-crash": lambda standin, rich: broken(standin, rich, effect="crash"),
    "driver-failed": lambda standin, rich: broken(standin, rich, error="UNKNOWN"),
    "driver-denied": lambda standin, rich: broken(standin, rich, error="NO_PERMISSION"),
    "driver-missing": lambda standin, rich: standin.library.unlink(),
    "driver-unusable": lambda standin, rich: standin.library.write_text("no library"),
    "driver-not-loaded": lambda standin, rich: standin.unload(),
    "driver-mismatch": lambda standin, rich: standin.load("590.44.01"),
}
"""What happens to a driver that then shows this; the two others follow from what the agent itself does."""


def fault(watch: Watched) -> list[str]:
    """The faults of the driver as a whole."""
    machine = watch.node.snapshot.machine
    return [each.code for each in machine.faults] if machine else []


@pytest.mark.parametrize("code", DRIVERS)
async def test_every_fault_of_the_driver_is_shown(standin: StandIn, rich: MachineFile, code: str) -> None:
    """As the fault of the node, in words of its own; the condition says the same."""
    DRIVERS[code](standin, rich)
    async with watched(standin) as watch:
        await watch.until(lambda watch: fault(watch) == [code] and watch.driver()[0] == "failing")

        machine = watch.node.snapshot.machine
        assert machine is not None
        assert machine.faults[0].message == watch.driver()[1] != ""


async def test_a_process_that_cannot_be_started_is_a_fault_of_the_driver(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch, rich: MachineFile
) -> None:
    """It is started once it can be."""
    with monkeypatch.context() as patch:
        patch.setattr(driverprocess, "DRIVER_COMMAND", (str(standin.root / "nothing"),))
        async with watched(standin) as watch:
            await watch.until(lambda watch: fault(watch) == ["driver-start"])
            patch.undo()
            await watch.until(lambda watch: watch.gpus() == rich.gpus and not fault(watch))


async def test_what_was_let_go_of_is_not_looked_at(standin: StandIn, rich: MachineFile) -> None:
    """Until the next look."""
    async with watched(standin) as watch:
        await watch.until(lambda watch: watch.gpus() == rich.gpus)
        await watch.hardware.release()
        await watch.until(lambda watch: fault(watch) == ["not-looked"])


async def test_every_event_that_is_described_is_told(standin: StandIn, rich: MachineFile) -> None:
    """Each once, of the GPU that it befell, in the order in which they came; an XID without a row, too."""
    graded = {
        f"xid-{number}" for number in XIDS_WITH_SEVERITY_IN_TEXT
    }  # of which the library does not tell the gravity
    codes = [code for code in (*EVENTS, "xid-9999") if code not in graded]
    gpu = (rich.gpus or ())[3]
    async with watched(standin) as watch:
        await watch.until(lambda watch: watch.gpus() == rich.gpus)
        for code in codes:
            standin.happen(3, code)
        await watch.hear(lambda watch: len(watch.happened()) >= len(codes))

        told = watch.happened()
        assert sorted(event.code for event in told) == sorted(codes)
        assert [event.code for event in told if event.code not in BINDINGS] == [c for c in codes if c not in BINDINGS]
        assert {event.gpu for event in told if event.code not in BINDINGS} == {gpu.uuid}
        assert {event.gpu for event in told if event.code in BINDINGS} == {gpu.pci}
        assert all(event.kernel_log_number is None for event in told)


def test_nothing_of_the_catalogue_is_left_out() -> None:
    """Each entry is shown by one of these tests, or is on the list of those that no driver shows, with the reason."""
    of_driver = {*DRIVERS, "driver-start", "not-looked"}

    assert {*OF_GPUS, *of_driver, *EVENTS, *DERIVED} == set(CATALOGUE)
    assert not {*OF_GPUS} & of_driver
    assert [code for code in EVENTS if xid_number(code) is not None] == [
        code for code in EVENTS if code.startswith("xid-")
    ]


def test_charges_have_the_catalogues_codes() -> None:
    """A GPU that is not asked any more carries what only a probe can lift."""
    assert {gpu_hang_fault("f").code, gpu_crash_fault("f").code} == set(CODES_THAT_NEED_PROBE)
