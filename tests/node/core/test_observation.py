"""What a look means beside the one before it."""

import pytest

from gpuplane.node.core.observation import merge_observation, replace_gpu_of_same_uuid
from gpuplane.node.model.machine import DeviceNodeStat, Driver, Fault, Gpu, Machine, Mig, MigDevice

WHOLE = Gpu(index=1, uuid="GPU-b", minor=1, model="NVIDIA H100", pci="0000:02:00.0", memory_mib=81559, mig=Mig())
BEFORE = Machine(driver=Driver("580.95.05", "13.0"), gpus=(Gpu(index=0, uuid="GPU-a", pci="0000:01:00.0"), WHOLE))
LOST = (Fault("gpu-lost", "it fell off the bus"),)


@pytest.mark.parametrize(
    "seen",
    [
        Gpu(index=1, faults=LOST),
        Gpu(index=1, pci="0000:02:00.0", faults=LOST),
        Gpu(index=1, uuid="GPU-b", faults=LOST),
        Gpu(index=1, uuid="GPU-b", model="NVIDIA H100", pci="0000:02:00.0", minor=1, faults=LOST),
    ],
)
def test_a_gpu_that_is_not_described_whole_keeps_what_was_known_of_it(seen: Gpu) -> None:
    """Whether it is known by its index, its place, or its UUID; with its new faults."""
    assert merge_observation(BEFORE, Machine(gpus=(seen,))).gpus == (WHOLE.but(faults=LOST),)


def test_a_gpu_is_known_by_its_place_when_its_index_has_moved() -> None:
    """A GPU that left changes the indices of those behind it."""
    merged = merge_observation(BEFORE, Machine(gpus=(Gpu(index=0, pci="0000:02:00.0", faults=LOST),)))

    assert merged.gpus == (WHOLE.but(index=0, faults=LOST),)


def test_a_gpu_that_is_described_whole_is_as_described() -> None:
    """What it no longer has is gone: only a fault is a reason to doubt the look."""
    plain = Gpu(index=1, uuid="GPU-b", model="NVIDIA H100")

    assert merge_observation(BEFORE, Machine(gpus=(plain,))).gpus == (plain,)


def test_gpus_that_cannot_be_counted_stay() -> None:
    """With the driver that was last seen, and the fault that says why."""
    merged = merge_observation(BEFORE, Machine(faults=(Fault("driver-missing", "no library"),)))

    assert (merged.gpus, merged.driver) == (BEFORE.gpus, BEFORE.driver)
    assert merged.faults[0].code == "driver-missing"


def test_what_stays_keeps_the_numbers_of_its_nodes() -> None:
    """Of GPUs that cannot be counted, and of a GPU that cannot be described; what is gone leaves none behind."""
    numbers = {f"/dev/nvidia{minor}": DeviceNodeStat(195, minor) for minor in range(2)}
    control = {"/dev/nvidiactl": DeviceNodeStat(195, 255)}
    gpus = tuple(gpu.but(device_nodes=(f"/dev/nvidia{gpu.index}",)) for gpu in BEFORE.gpus or ())
    before = BEFORE.but(gpus=gpus, device_node_stats={**numbers, "/dev/nvidiactl": DeviceNodeStat(234, 255)})

    assert merge_observation(before, Machine(device_node_stats=control, faults=LOST)).device_node_stats == {
        **numbers,
        **control,
    }
    lost = Machine(gpus=(Gpu(index=1, uuid="GPU-b", faults=LOST),), device_node_stats=control)
    assert merge_observation(before, lost).device_node_stats == {"/dev/nvidia1": DeviceNodeStat(195, 1), **control}
    assert merge_observation(before, Machine(gpus=(), device_node_stats=control)).device_node_stats == control


def test_an_unknown_gpu_with_a_fault_is_what_little_it_is() -> None:
    """Nothing of another GPU is taken for it."""
    strange = Gpu(index=5, faults=LOST)

    assert merge_observation(BEFORE, Machine(gpus=(strange,))).gpus == (strange,)


def test_a_gpu_whose_uuid_is_told_is_no_other() -> None:
    """Of two GPUs one is left, with another index, and the other is known by its old index alone: it stays unknown."""
    first, second = BEFORE.gpus or ()
    strange = Gpu(index=0, faults=LOST)

    assert merge_observation(BEFORE, Machine(gpus=(strange, first.but(index=1)))).gpus == (strange, first.but(index=1))
    assert merge_observation(BEFORE, Machine(gpus=(first, Gpu(index=1, faults=LOST)))).gpus == (
        first,
        second.but(faults=LOST),
    )


def test_a_partitioning_that_is_not_told_stays() -> None:
    """While a query of it fails; when all is told, it is as told."""
    mig = Mig(enabled=True, devices=(MigDevice("MIG-1", "1g.10gb", 7),))
    before = Machine(gpus=(WHOLE.but(mig=mig),))

    assert merge_observation(before, Machine(gpus=(WHOLE.but(mig=None, faults=LOST),))).gpus == (
        WHOLE.but(mig=mig, faults=LOST),
    )
    assert merge_observation(before, Machine(gpus=(WHOLE.but(mig=Mig()),))).gpus == (WHOLE.but(mig=Mig()),)


@pytest.mark.parametrize("faults", [(), LOST])
def test_a_mig_device_that_is_not_described_whole_keeps_what_was_known_of_it(faults: tuple[Fault, ...]) -> None:
    """Its profile above all: a resource is named by it. Its siblings are as told, and what is gone is gone."""
    first, second = (
        MigDevice(f"MIG-{i}", "1g.10gb", i, mig_index=i, memory_mib=9856, device_nodes=("a", "b")) for i in (7, 8)
    )
    blank = MigDevice("MIG-8", "", 0, mig_index=0, faults=LOST)
    strange = MigDevice("MIG-9", "", 0, mig_index=1, faults=LOST)

    def gpu(*devices: MigDevice) -> Gpu:
        return WHOLE.but(mig=Mig(enabled=True, devices=devices))

    merged = merge_observation(
        Machine(gpus=(gpu(first, second),)), Machine(gpus=(gpu(blank, strange).but(faults=faults),))
    )

    assert merged.gpus == (gpu(second.but(mig_index=0, faults=LOST), strange).but(faults=faults),)


def test_a_look_at_one_gpu_alone_keeps_its_place_among_the_others() -> None:
    """Its index and its distances, which it cannot tell; of the rest it is the newest."""
    far = WHOLE.but(distances={"0000:01:00.0": "SYS"})
    alone = WHOLE.but(index=0, uncorrected_errors=3)

    machine = replace_gpu_of_same_uuid(Machine(gpus=(Gpu(index=0, uuid="GPU-a"), far)), alone)

    assert machine is not None
    assert machine.gpus == (Gpu(index=0, uuid="GPU-a"), far.but(uncorrected_errors=3))
