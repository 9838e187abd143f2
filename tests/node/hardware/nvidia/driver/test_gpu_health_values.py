"""What GPUs tell of their own health, and what follows from it."""

from collections.abc import Mapping

import pytest

from gpuplane.node.hardware.nvidia.driver.gpuhealth import (
    FAULT_OF_FIELD_VALUE,
    LINK_ERROR_GROWTHS,
    LINK_ERROR_WINDOW,
    RETIRABLE_PAGES,
    GpuHealth,
)
from gpuplane.node.hardware.nvidia.driver.nvml import Subject
from gpuplane.node.hardware.nvidia.driver.observation import THOROUGH_OBSERVATION_INTERVAL
from gpuplane.node.model.machine import FabricClique, Fault, Gpu, InjectedFailure, Link, Machine, MachineFile
from tests.node.hardware.nvidia.driver.inside import Inside
from tests.node.hardware.nvidia.driver.machines import changed
from tests.node.hardware.nvidia.driver.standin import SHOWN, StandIn
from tests.node.hardware.nvidia.driver.watched import Watched, watched

LINKS = tuple(range(4))


def shown(inside: Inside, rich: MachineFile, raw: Mapping[str, str | int], looks: int = 1) -> list[list[str]]:
    """The codes of each GPU's faults, where the library says this."""
    observer = inside.start(rich)
    inside.standin.describe(rich, raw)
    machine = [observer.observe(()) for _ in range(looks)][-1]
    return [[fault.code for fault in gpu.faults] for gpu in machine.gpus or ()]


def test_a_gpu_that_tells_nothing_has_no_fault(inside: Inside, rich: MachineFile) -> None:
    """As an old one, or one of an old driver."""
    keys = [f"gpu.{index}.{key}" for index in range(5) for key in _keys()]

    assert shown(inside, rich, dict.fromkeys(keys, "")) == [[]] * 5


def _keys() -> list[str]:
    fields = [f"field.{field}.{link}" for field, link in FAULT_OF_FIELD_VALUE]
    return [*fields, *{key for told in SHOWN.values() for key in told}, "width.max", "field.4.0"]


@pytest.mark.parametrize(
    ("raw", "codes"),
    [
        ({"field.230.0": 3}, ["recovery-drain"]),
        ({"field.230.0": 6}, ["recovery-reset"]),
        ({"field.230.0": 7}, ["recovery-reboot"]),
        ({"field.230.0": 99}, []),
        ({"field.307.0": 1}, ["remap-pending"]),
        ({"field.307.0": 1, "field.144.0": 1}, ["remap-pending"]),
        ({"field.29.0": RETIRABLE_PAGES - 1}, []),
        ({"field.29.0": 1, "field.30.0": RETIRABLE_PAGES - 1}, ["pages-exhausted"]),
        ({"clocks": 0x1 | 0x4 | 0x8 | 0x10}, []),  # idle, power cap, any slowdown, sync boost
        ({"clocks": 0x20 | 0x80}, ["thermal-slowdown", "power-slowdown"]),
        ({"fabric": "0 0"}, []),
        ({"fabric": "1 0"}, ["fabric-pending"]),
        ({"fabric": "2 999"}, ["fabric-pending"]),  # the status says something of a registration that is over
        ({"fabric": "3 0"}, []),
        ({"width": 0}, []),
        ({"width": 16, "width.max": 8}, []),
    ],
    ids=str,
)
def test_what_a_gpu_tells_means_this(
    inside: Inside, rich: MachineFile, raw: Mapping[str, str | int], codes: list[str]
) -> None:
    """Of that GPU alone."""
    assert shown(inside, rich, {f"gpu.2.{key}": value for key, value in raw.items()}) == [[], [], codes, [], []]


@pytest.mark.parametrize(
    ("raw", "fabric"),
    [
        ("3 0 7 0123abcd0000400080000000ffff0000", FabricClique("0123abcd-0000-4000-8000-0000ffff0000", 7)),
        ("3 0 0 0123abcd0000400080000000ffff0000", FabricClique("0123abcd-0000-4000-8000-0000ffff0000", 0)),
        ("3 0 7 00000000000000000000000000000000", None),  # a domain no larger than the node: HGX H100
        ("3 999 7 0123abcd0000400080000000ffff0000", None),  # it failed
        ("2 0 7 0123abcd0000400080000000ffff0000", None),  # it is under way
        ("", None),
    ],
)
def test_a_gpu_is_in_a_fabric_once_it_is_registered_there(
    inside: Inside, rich: MachineFile, raw: str, fabric: FabricClique | None
) -> None:
    """And stays there in the looks that do not ask."""
    observer = inside.start(rich)
    inside.standin.describe(rich, {"gpu.2.fabric": raw})

    assert [(observer.observe(()).gpus or ())[2].fabric for _ in range(THOROUGH_OBSERVATION_INTERVAL + 1)] == [
        fabric
    ] * (THOROUGH_OBSERVATION_INTERVAL + 1)


def test_what_is_asked_seldom_is_told_until_it_is_over(inside: Inside, rich: MachineFile) -> None:
    """It is seen within as many looks as there are to a thorough one, is told by each, and goes as it came."""
    observer = inside.start(rich)
    observer.observe(())
    for told in (SHOWN["pcie-degraded"], {}):
        inside.standin.describe(rich, {f"gpu.2.{key}": value for key, value in told.items()})
        codes = ["pcie-degraded"] * bool(told)
        seen = [
            [fault.code for fault in (observer.observe(()).gpus or ())[2].faults]
            for _ in range(3 * THOROUGH_OBSERVATION_INTERVAL)
        ]

        assert codes in seen[:THOROUGH_OBSERVATION_INTERVAL]
        first = seen.index(codes)
        assert seen[first:] == [codes] * len(seen[first:])


def test_a_link_that_goes_down_is_seen_soon(inside: Inside, rich: MachineFile) -> None:
    """At the next thorough look; one that comes up again, too. No other GPU is asked where it is."""
    observer = inside.start(rich)
    observer.observe(())
    for lanes in (11, 12):
        machine = changed(rich, 0, links=(Link(peer="nvswitch", nvlink_count=lanes),))
        inside.standin.describe(
            machine.but(failures=(InjectedFailure(effect="error", nvml_function="*TopologyCommonAncestor", gpu=2),))
        )
        for _ in range(THOROUGH_OBSERVATION_INTERVAL):
            seen = observer.observe(())

        assert seen.gpus == machine.gpus


async def test_a_link_that_is_down_is_a_finding(standin: StandIn, rich: MachineFile) -> None:
    """The driver tells how many links there are, and the agent remembers how many there were."""
    gpu = (rich.gpus or ())[0]
    async with watched(standin) as watch:
        await watch.until(lambda watch: watch.gpus() == rich.gpus)
        standin.describe(changed(rich, 0, links=(Link(peer="nvswitch", nvlink_count=11),)))
        await watch.until(lambda watch: found(watch, gpu.uuid) == ["nvlink-down"])


def found(watch: Watched, gpu: str) -> list[str]:
    """The codes of what is found to be wrong with a GPU."""
    health = watch.node.snapshot.ledger.health
    return [each.code for each in health.devices[gpu].findings] if health and gpu in health.devices else []


class Counting:
    """A GPU whose NVLinks count errors."""

    def __init__(self, inside: Inside, rich: MachineFile) -> None:
        self.inside, self.rich, self.vitals = inside, rich, GpuHealth()
        inside.start(rich)

    def observe(self, now: float, errors: str | int) -> tuple[Fault, ...]:
        """The faults of a thorough look at this time, with so many errors."""
        self.inside.standin.describe(self.rich, {"gpu.0.field.161.3": errors, "gpu.0.field.52.0": 7})
        handle = self.inside.nvml.call("nvmlDeviceGetHandleByIndex", 0)
        subject = Subject(self.inside.nvml, Gpu(index=0, uuid="GPU-x"), handle)
        self.vitals.observe(subject, LINKS, now, thorough=True)
        return tuple(subject.faults)


def test_nvlinks_that_have_errors_again_and_again_are_a_fault(inside: Inside, rich: MachineFile) -> None:
    """As often as is written, within a minute; the same words however many, and over a minute after the first."""
    gpu = Counting(inside, rich)
    assert gpu.observe(0.0, 1000) == ()
    times = [5.0 * n for n in range(1, LINK_ERROR_GROWTHS + 1)]
    told = [gpu.observe(now, 1000 + int(now)) for now in times]

    assert [[fault.code for fault in faults] for faults in told] == [[]] * (LINK_ERROR_GROWTHS - 1) + [
        ["nvlink-errors"]
    ]
    assert gpu.observe(times[-1] + 5, 99999) == told[-1]
    assert gpu.observe(times[0] + LINK_ERROR_WINDOW, 99999) == told[-1]
    assert gpu.observe(times[-1] + LINK_ERROR_WINDOW, 99999) == ()


def test_an_error_now_and_then_is_none(inside: Inside, rich: MachineFile) -> None:
    """However many at once; a counter that begins anew, or is not told for a while, is no growth."""
    gpu = Counting(inside, rich)
    errors: list[str | int] = [0, 10_000, 10_000, 0, 0, "", "", 0, 5]

    assert [gpu.observe(5.0 * n, count) for n, count in enumerate(errors)] == [()] * len(errors)
    assert [gpu.observe(100.0 + LINK_ERROR_WINDOW * n, 100 * n) for n in range(10)] == [()] * 10


def test_looks_that_show_the_same_are_equal(inside: Inside, rich: MachineFile) -> None:
    """Though counters run."""
    ill = rich.but(gpus=tuple(gpu.but(faults=(Fault("nvlink-errors", "described"),)) for gpu in rich.gpus or ()))
    observer = inside.start(ill)
    looks: list[Machine] = [
        observer.observe(()) for _ in range((LINK_ERROR_GROWTHS + 3) * THOROUGH_OBSERVATION_INTERVAL)
    ]

    assert [fault.code for fault in (looks[-1].gpus or ())[0].faults] == ["nvlink-errors"]
    assert looks[-1] == looks[-THOROUGH_OBSERVATION_INTERVAL]


@pytest.mark.parametrize(("error", "codes"), [(15, ["gpu-lost"]), (16, ["reset-required"]), (999, []), (2, [])])
def test_a_field_may_have_an_error_of_its_own(inside: Inside, rich: MachineFile, error: int, codes: list[str]) -> None:
    """That the GPU is lost or needs a reset is heard; any other says no more than that this GPU has no such field."""
    assert shown(inside, rich, {"gpu.0.field.144.0": f"!{error}"}) == [codes, [], [], [], []]
