"""What a look tells of how GPUs can be partitioned, and are: the driver's process over the stand-in for the library."""

import pytest

from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.migchanges import with_mig_details
from gpuplane.node.hardware.described.profiles import find_machine_file
from gpuplane.node.hardware.nvidia.driver.mig import INSTANCE_REFRESH_OBSERVATIONS
from gpuplane.node.hardware.nvidia.driver.observation import THOROUGH_OBSERVATION_INTERVAL
from gpuplane.node.model.machine import Gpu, InjectedFailure, MachineFile, Mig
from tests.node.hardware.nvidia.driver.inside import Inside
from tests.node.hardware.nvidia.driver.machines import changed

QUERIES = (
    "nvmlDeviceGetGpuInstancePossiblePlacements",
    "nvmlDeviceGetGpuInstances",
    "nvmlGpuInstanceGetComputeInstances",
    "nvmlComputeInstanceGetInfo",
    "nvmlGpuInstanceGetComputeInstanceProfileInfo",
)
"""What is asked for nothing but profiles and instances."""
ERRORS = ("UNKNOWN", "NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "NO_PERMISSION")


@pytest.fixture
def a100() -> MachineFile:
    """A server with A100s, of which some are partitioned."""
    return read_machine(find_machine_file("a100-mig").read_bytes(), "a100-mig")


def mig_of(gpu: Gpu) -> Mig:
    """How it is partitioned."""
    assert gpu.mig is not None
    return gpu.mig


def look(inside: Inside, index: int) -> Mig:
    """How a GPU is partitioned, as the next look tells."""
    assert inside.observer is not None
    return mig_of((inside.observer.observe(()).gpus or ())[index])


def partitioned(machine: MachineFile) -> int:
    """The index of a GPU with MIG devices."""
    return next(gpu.index for gpu in machine.gpus or () if gpu.mig_devices)


def test_profiles_placements_and_instances_are_those_of_the_card(inside: Inside, a100: MachineFile) -> None:
    """With the ids that this card numbers them by, in MIG mode and without, and its PCI ids."""
    seen = inside.start(a100).observe(()).gpus or ()

    for told, described in zip(seen, a100.gpus or (), strict=True):
        assert told.mig == described.mig
        assert (told.pci_id, told.pci_subsystem) == (described.pci_id, described.pci_subsystem)
    mig = mig_of(seen[partitioned(a100)])
    assert {each.name: each.id for each in mig.profiles}["1g.10gb"] == 19
    assert mig.instances


def test_a_gpu_instance_without_a_compute_instance_is_seen(inside: Inside, a100: MachineFile) -> None:
    """It has no MIG device: the next thorough look finds it, or the first one after a change of ours."""
    index = partitioned(a100)
    mig = mig_of((a100.gpus or ())[index])
    inside.start(a100).observe(())
    last = (mig.instances or ())[-1]
    gone = {each.uuid for each in mig.devices if each.gpu_instance == last.id}
    empty = mig.but(
        devices=tuple(each for each in mig.devices if each.uuid not in gone),
        instances=(*(mig.instances or ())[:-1], last.but(compute_instances=())),
    )
    gpus = tuple(gpu.but(mig=empty) if gpu.index == index else gpu for gpu in a100.gpus or ())
    inside.standin.describe(a100.but(gpus=gpus))
    assert look(inside, index).instances == empty.instances

    (inside.observer or inside.start(a100)).forget_instances((a100.gpus or ())[index].uuid)
    bare = empty.but(instances=(empty.instances or ())[:-1])
    inside.standin.describe(a100.but(gpus=tuple(g.but(mig=bare) if g.index == index else g for g in gpus)))
    assert look(inside, index).instances == bare.instances
    inside.standin.describe(a100.but(gpus=gpus))
    assert [look(inside, index).instances for _ in range(INSTANCE_REFRESH_OBSERVATIONS + 1)][-1] == empty.instances


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("query", QUERIES)
def test_what_is_not_told_is_no_fault(inside: Inside, a100: MachineFile, query: str, error: str) -> None:
    """As an old driver, or one without rights: the GPU and its MIG devices are whole."""
    index = partitioned(a100)
    failure = InjectedFailure(effect="error", nvml_function=query, gpu=index, error=error)
    gpu = (inside.start(a100.but(failures=(failure,))).observe(()).gpus or ())[index]
    described = (a100.gpus or ())[index]

    assert not gpu.faults
    assert gpu.mig_devices == described.mig_devices
    if query == QUERIES[0]:
        assert mig_of(gpu) == Mig(enabled=True, devices=gpu.mig_devices, needs_reset=True)
    else:
        assert mig_of(gpu) == mig_of(described).but(instances=None)


@pytest.mark.parametrize("query", QUERIES)
def test_what_failed_once_is_asked_again(inside: Inside, a100: MachineFile, query: str) -> None:
    """By the next look."""
    index = partitioned(a100)
    failure = InjectedFailure(effect="error", nvml_function=query, gpu=index, error="TIMEOUT")
    inside.start(a100.but(failures=(failure,))).observe(())
    inside.standin.describe(a100)

    assert look(inside, index) == mig_of((a100.gpus or ())[index])


@pytest.mark.parametrize(
    ("capability", "told", "needs"),
    [("8.0", None, True), ("9.0", None, False), ("10.3", None, False), ("8.0", False, False), ("9.0", True, True)],
)
def test_whether_a_mode_needs_a_reset(
    inside: Inside, a100: MachineFile, capability: str, told: bool | None, needs: bool
) -> None:
    """The driver says it; where it does not know the question, generations before Hopper do."""
    index = partitioned(a100)
    mig = mig_of((a100.gpus or ())[index]).but(needs_reset=told)
    inside.start(changed(a100, index, mig=mig, compute_capability=capability))

    assert look(inside, index).needs_reset == needs


@pytest.mark.parametrize("enabled", [True, False])
def test_a_mode_that_waits_for_a_reset(inside: Inside, a100: MachineFile, enabled: bool) -> None:
    """Is told beside the one that is in force."""
    index = partitioned(a100)
    gpu = with_mig_details((a100.gpus or ())[index].but(mig=Mig(enabled=enabled, pending=not enabled)))
    inside.start(changed(a100, index, mig=gpu.mig))

    assert look(inside, index) == gpu.mig
    assert mig_of(gpu).pending is not enabled


def test_looks_ask_no_more_than_before(inside: Inside, a100: MachineFile) -> None:
    """Between thorough looks, and of a GPU that is not partitioned in these too."""
    plain = a100.but(gpus=tuple(with_mig_details(gpu.but(mig=Mig())) for gpu in a100.gpus or ()))
    without = a100.but(gpus=tuple(gpu.but(mig=None) for gpu in a100.gpus or ()))
    assert _calls(inside, plain) == _calls(inside, without)

    untold = a100.but(
        gpus=tuple(gpu.but(mig=gpu.mig and Mig(gpu.mig.enabled, gpu.mig.devices)) for gpu in a100.gpus or ())
    )
    more, less = _calls(inside, a100), _calls(inside, untold)
    instances = [each for gpu in a100.gpus or () if gpu.mig is not None for each in gpu.mig.instances or ()]
    assert more[1:THOROUGH_OBSERVATION_INTERVAL] == less[1:THOROUGH_OBSERVATION_INTERVAL]
    assert more[THOROUGH_OBSERVATION_INTERVAL] - less[THOROUGH_OBSERVATION_INTERVAL] <= 7 * len(
        a100.gpus or ()
    ) + 7 * len(instances)


@pytest.mark.parametrize("query", ["nvmlDeviceGetGpuInstanceProfileInfo", *QUERIES])
def test_what_is_for_the_privileged_is_not_asked_again_and_again(inside: Inside, a100: MachineFile, query: str) -> None:
    """An agent without rights does not ask more at each look than one that is told everything."""
    denied = [
        InjectedFailure(effect="error", nvml_function=query, gpu=gpu.index, error="NO_PERMISSION")
        for gpu in a100.gpus or ()
    ]
    plain = a100.but(gpus=tuple(with_mig_details(gpu.but(mig=Mig())) for gpu in a100.gpus or ()))
    for machine in (plain, a100) if query in QUERIES else (plain,):
        refused = _calls(inside, machine.but(failures=tuple(denied)))
        assert refused[1:THOROUGH_OBSERVATION_INTERVAL] == _calls(inside, machine)[1:THOROUGH_OBSERVATION_INTERVAL]


def _calls(inside: Inside, machine: MachineFile) -> list[int]:
    """How many calls each look makes, of two thorough ones and those between."""
    observer, made = inside.start(machine), []
    for _ in range(THOROUGH_OBSERVATION_INTERVAL + 1):
        before = inside.nvml.calls
        observer.observe(())
        made.append(inside.nvml.calls - before)
    return [0, *made[1:]]  # the first asks what cannot change
