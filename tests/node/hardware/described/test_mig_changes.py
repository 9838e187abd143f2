"""A described GPU is partitioned by the rules of a real one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.node.core.partitions.cards import Card, cards, profiles_of
from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.migattributes import mig_attributes
from gpuplane.node.hardware.described.migchanges import ChangeRefused, make_change, with_mig_details
from gpuplane.node.hardware.described.profiles import find_machine_file
from gpuplane.node.hardware.described.source import Described
from gpuplane.node.model.facts import ChangePartition, MachineObserved, PartitionChangeFinished
from gpuplane.node.model.machine import DeviceNodeStat, Gpu, GpuProcess, Machine, Mig, MigAttributes, MigDevice
from gpuplane.node.model.partitions import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    PartitionChange,
    ResetGpu,
    SetMigMode,
)
from tests.node.core.partitions.tables import can_exist


def gpu(capability: str = "9.0", model: str = "NVIDIA H100 80GB HBM3", memory: int = 81559, **mig: object) -> Gpu:
    """One that can be partitioned."""
    return with_mig_details(
        Gpu(
            index=0, uuid="GPU-0", minor=2, model=model, memory_mib=memory, compute_capability=capability,
            mig=Mig(**mig),  # type: ignore[arg-type]
        )
    )  # fmt: skip


def made(start: Gpu, *changes: PartitionChange, processes: tuple[GpuProcess, ...] = ()) -> Gpu:
    """After all of these."""
    for change in changes:
        start = make_change(start, change, processes)
    return start


def refused(start: Gpu, change: PartitionChange, *processes: GpuProcess) -> str:
    """Why a change is refused."""
    with pytest.raises(ChangeRefused) as caught:
        make_change(start, change, processes)
    return caught.value.problem


ON = SetMigMode(True)


def test_an_instance_becomes_a_device() -> None:
    """With the id, the nodes and the name that a real one would have there."""
    after = made(gpu(), ON, CreateGpuInstance(9, 4), CreateComputeInstance(9, 4, 3))
    [device] = after.mig_devices

    assert (device.profile, device.gpu_instance, device.compute_instance, device.mig_index) == ("3g.40gb", 2, 0, 0)
    assert device.device_nodes == ("/dev/nvidia-caps/nvidia-cap291", "/dev/nvidia-caps/nvidia-cap292")  # 3 + 270 + 18
    assert device.attributes == MigAttributes(
        multiprocessors=60, gpu_slices=3, compute_slices=3, copy_engines=3, decoders=3, jpeg_engines=3
    )  # as nvidia-smi mig -lgip shows a 3g.40gb of an H100
    assert device.memory_mib == 40448


def test_a_device_consists_of_what_a_real_one_does() -> None:
    """The described A100's are as nvidia-smi shows them: made again, without the file's entries, they are the same."""
    machine = read_machine(find_machine_file("a100-mig").read_bytes(), "a100-mig.yaml")
    for described in machine.gpus or ():
        bare = with_mig_details(described.but(mig=Mig(enabled=True)))
        assert described.mig is not None
        assert described.mig.instances is not None
        order = described.mig.but(devices=())
        for instance in described.mig.instances:
            bare = make_change(bare, CreateGpuInstance(*instance.placement), (), order)
            for part in sorted(instance.compute_instances, key=lambda each: each.id):
                bare = make_change(bare, CreateComputeInstance(*instance.placement, part.slices), (), order)
        known = {(each.gpu_instance, each.compute_instance): each for each in described.mig_devices}
        assert len(known) == len(bare.mig_devices)
        for each in bare.mig_devices:
            wanted = known[each.gpu_instance, each.compute_instance]
            assert each == wanted.but(uuid=each.uuid, mig_index=each.mig_index)


def test_a_part_of_an_instance_has_a_part_of_its_multiprocessors() -> None:
    """And all of its engines; a card that is not known tells its slices alone."""
    hopper, unknown = gpu(), gpu("9.9", "NVIDIA Nobody", 1000)
    after = made(hopper, ON, CreateGpuInstance(0, 0), *(CreateComputeInstance(0, 0, n) for n in (4, 2, 1)))
    told = [each.attributes for each in after.mig_devices if each.attributes is not None]

    assert [(each.multiprocessors, each.gpu_slices, each.compute_slices) for each in told] == [
        (64, 7, 4),
        (32, 7, 2),
        (16, 7, 1),
    ]
    assert {(each.copy_engines, each.decoders, each.optical_flow_engines) for each in told} == {(8, 7, 1)}
    assert mig_attributes(unknown, profiles_of(hopper)[0], 1) == MigAttributes(gpu_slices=1, compute_slices=1)


@pytest.mark.parametrize("card", cards(), ids=lambda card: card.name)
def test_every_profile_of_every_card_has_its_attributes(card: Card) -> None:
    """A larger one never has fewer multiprocessors or copy engines."""
    capability = {"20": "8.0", "23": "9.0", "29": "10.0", "31": "10.3", "2B": "12.0"}[card.device_ids[0][:2]]
    whole = Gpu(index=0, pci_id=f"0x{card.device_ids[0]}10DE", compute_capability=capability, mig=Mig())
    found = [mig_attributes(with_mig_details(whole), each, each.slices) for each in card.profiles]

    assert all(each.multiprocessors and each.copy_engines for each in found)
    ordered = sorted(found, key=lambda each: each.gpu_slices)
    assert [each.multiprocessors for each in ordered if each.gpu_slices > 1] == sorted(
        each.multiprocessors for each in ordered if each.gpu_slices > 1
    )
    assert [each.copy_engines for each in ordered] == sorted(each.copy_engines for each in ordered)


def test_a_device_of_the_file_comes_back_as_it_was() -> None:
    """With its UUID, nodes and memory. Another profile at its place has its UUID, too: that follows from the ids."""
    file = MigDevice(
        uuid="MIG-file", profile="1g.10gb", gpu_instance=13, memory_mib=77, device_nodes=("/dev/a", "/dev/b")
    )
    before = gpu(enabled=True, devices=(file,))
    gone = made(before, DestroyComputeInstance(19, 6, 0), DestroyGpuInstance(13, 19, 6))
    again = gone
    for change in (CreateGpuInstance(19, 6), CreateComputeInstance(19, 6, 1)):
        again = make_change(again, change, (), before.mig)
    other = make_change(made(gone, CreateGpuInstance(20, 6)), CreateComputeInstance(20, 6, 1), (), before.mig)

    assert again == before
    assert [(each.uuid, each.profile, each.memory_mib) for each in other.mig_devices] == [
        ("MIG-file", "1g.10gb+me", 9984)
    ]


def test_the_same_place_has_the_same_uuid_again() -> None:
    """And another place another one."""
    one = made(gpu(), ON, CreateGpuInstance(19, 6), CreateComputeInstance(19, 6, 1))
    again = made(
        one, DestroyComputeInstance(19, 6, 0), DestroyGpuInstance(13, 19, 6), CreateGpuInstance(19, 6),
        CreateComputeInstance(19, 6, 1),
    )  # fmt: skip
    other = made(one, CreateGpuInstance(19, 5), CreateComputeInstance(19, 5, 1))

    assert again == one
    assert len({each.uuid for each in other.mig_devices}) == 2


def test_what_the_driver_refuses() -> None:
    """By the codes of the change."""
    process = GpuProcess(gpu=0, pid=7, gpu_instance=13, compute_instance=0)
    full = made(gpu(), ON, CreateGpuInstance(9, 4), CreateComputeInstance(9, 4, 3))
    small = made(gpu(), ON, CreateGpuInstance(19, 6), CreateComputeInstance(19, 6, 1))

    assert refused(gpu(), CreateGpuInstance(19, 0)) == "not-supported", "not in MIG mode"
    assert refused(full, CreateGpuInstance(19, 6)) == "insufficient-resources"
    assert refused(full, CreateGpuInstance(9, 2)) == "not-supported", "no 3g begins there"
    assert refused(full, CreateGpuInstance(1, 0)) == "not-supported", "the constant of 2g is not its id"
    assert refused(full, CreateComputeInstance(9, 4, 1)) == "insufficient-resources"
    assert refused(full, DestroyGpuInstance(2, 9, 4)) == "in-use", "it has a compute instance"
    assert refused(full, DestroyGpuInstance(1, 9, 4)) == "gone", "that is another one"
    assert refused(full, DestroyComputeInstance(9, 0, 0)) == "gone"
    assert refused(full, SetMigMode(False)) == "in-use", "it has instances"
    assert refused(small, DestroyComputeInstance(19, 6, 0), process) == "in-use"
    assert refused(gpu(), ON, process) == "in-use"
    assert refused(Gpu(index=0), ON) == "not-supported"


def test_the_mode_of_an_ampere_needs_a_reset() -> None:
    """Until then it is pending, and can be taken back."""
    ampere = gpu("8.0", "NVIDIA A100-SXM4-80GB", 81920)
    pending = made(ampere, ON)
    assert pending.mig is not None
    assert (pending.mig.enabled, pending.mig.pending) == (False, True)
    assert made(pending, SetMigMode(False)) == ampere
    assert refused(pending, ResetGpu(), GpuProcess(gpu=0, pid=7)) == "in-use"
    after = made(pending, ResetGpu()).mig
    assert after is not None

    assert (after.enabled, after.pending) == (True, None)


def test_the_halves_of_some_cards_are_numbered_the_other_way_round() -> None:
    """As on GPU 1 of NVIDIA/DCGM#138. It stays so for what is made there."""
    ids = {5: "2g.20gb", 13: "1g.10gb", 14: "1g.10gb", 1: "3g.40gb"}
    devices = tuple(MigDevice(uuid=f"MIG-{id}", profile=name, gpu_instance=id) for id, name in ids.items())
    mirrored = gpu("8.0", "NVIDIA A100-SXM4-80GB", 81920, enabled=True, devices=devices)
    assert mirrored.mig is not None
    there = {each.id: (each.start, each.size) for each in mirrored.mig.instances or ()}
    gone = made(mirrored, DestroyComputeInstance(9, 4, 0), DestroyGpuInstance(1, 9, 4))
    more = gone
    for start in (4, 5, 6):
        more = make_change(more, CreateGpuInstance(19, start), (), mirrored.mig)

    assert there == {5: (0, 2), 13: (2, 1), 14: (3, 1), 1: (4, 4)}
    assert more.mig is not None
    assert {each.id: each.start for each in more.mig.instances or ()} == {5: 0, 13: 2, 14: 3, 7: 4, 8: 5, 9: 6}


def test_the_instances_of_described_devices() -> None:
    """Their ids are places; where they are none, nothing can be changed, and nothing else is wrong."""
    two = MigDevice(uuid="MIG-1", profile="1c.3g.40gb", gpu_instance=2, compute_instance=1)
    known = gpu(enabled=True, devices=(two, two.but(uuid="MIG-2", compute_instance=0, profile="2c.3g.40gb")))
    assert known.mig is not None
    assert known.mig.instances is not None
    [instance] = known.mig.instances

    assert (instance.placement, {each.id: each.slices for each in instance.compute_instances}) == ((9, 4), {0: 2, 1: 1})
    unknown = gpu(enabled=True, devices=(two.but(gpu_instance=9),)).mig
    assert unknown is not None
    assert unknown.instances is None
    assert refused(gpu(enabled=True, devices=(two.but(gpu_instance=9),)), CreateGpuInstance(19, 0)) == "not-supported"


PLACES = st.sampled_from(
    [(19, n) for n in range(7)] + [(20, 2), (15, 0), (15, 6), (14, 2), (9, 0), (9, 4), (5, 0), (0, 0)]
)


@given(
    st.lists(
        st.tuples(st.sampled_from(["create", "part", "destroy", "unpart"]), PLACES, st.integers(1, 7)), max_size=30
    )
)
def test_whatever_is_tried_the_card_is_a_possible_one(steps: list[tuple[str, tuple[int, int], int]]) -> None:
    """Nothing overlaps; ids, UUIDs and slots are unique; nodes are those of their place."""
    card = made(gpu(), ON)
    for what, (profile, start), number in steps:
        there = {} if card.mig is None else {each.placement: each for each in card.mig.instances or ()}
        id = there[profile, start].id if (profile, start) in there else number
        changes: dict[str, PartitionChange] = {
            "create": CreateGpuInstance(profile, start),
            "part": CreateComputeInstance(profile, start, number),
            "destroy": DestroyGpuInstance(id, profile, start),
            "unpart": DestroyComputeInstance(profile, start, number % 3),
        }
        change = changes[what]
        try:
            card = make_change(card, change, ())
        except ChangeRefused:
            continue
        assert card.mig is not None
        assert can_exist(card.mig.profiles, [each.placement for each in card.mig.instances or ()])
        parts = {(each.id, part.id) for each in card.mig.instances or () for part in each.compute_instances}
        assert {(each.gpu_instance, each.compute_instance) for each in card.mig_devices} == parts
        for values in zip(*((each.uuid, each.mig_index, each.device_nodes) for each in card.mig_devices), strict=True):
            assert len(set(values)) == len(parts)


FILE = """
driver: {version: "580.95.05"}
gpus:
  - {index: 0, uuid: GPU-0, minor: 0, model: NVIDIA H100 80GB HBM3, memory_mib: 81559, compute_capability: "9.0",
     mig: {}}
  - {index: 1, uuid: GPU-1, minor: 1, model: NVIDIA H100 80GB HBM3, memory_mib: 81559, compute_capability: "9.0",
     mig: {}}
major_numbers: {nvidia-caps: 236, nvidia: 195, nvidiactl: 195}
shared_nodes: [/dev/nvidiactl]
"""


class File:
    """Versions of a machine file, as they come."""

    def __init__(self, text: str) -> None:
        self.versions = asyncio.Queue[bytes]()
        self.put(text)

    def put(self, text: str) -> None:
        """Another version."""
        self.versions.put_nowait(text.encode())

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield await self.versions.get()


async def test_a_look_shows_the_change_before_it_is_said_and_a_new_version_keeps_it() -> None:
    """Unless that has the GPU partitioned otherwise."""
    file = File(FILE)
    hardware = Described(aiter(file), "m.yaml")
    async with aclosing(hardware.facts()) as facts:
        machine = Machine()

        async def until(kind: type) -> object:
            nonlocal machine
            async with asyncio.timeout(60):
                async for fact in facts:
                    machine = fact.machine if isinstance(fact, MachineObserved) else machine
                    if isinstance(fact, kind):
                        return fact
            raise AssertionError

        await until(MachineObserved)
        changes: list[PartitionChange] = [ON, CreateGpuInstance(9, 0), CreateComputeInstance(9, 0, 3)]
        for number, change in enumerate(changes, 1):
            await hardware.do(ChangePartition("GPU-0", change, float(number)))
            told = await until(PartitionChangeFinished)
            assert told == PartitionChangeFinished("GPU-0", change, float(number))
        [device] = machine.gpu("GPU-0").mig_devices  # type: ignore[union-attr]
        assert machine.device_node_stats[device.device_nodes[0]] == DeviceNodeStat(236, 12, mode=0o444)
        file.put(FILE.replace("580.95.05", "581.00.00"))
        await until(MachineObserved)
        assert machine.driver is not None
        assert machine.driver.version == "581.00.00"
        assert machine.gpu("GPU-0").mig_devices == (device,)  # type: ignore[union-attr]
        file.put(FILE.replace("mig: {}", "mig: {enabled: true}", 1))
        await until(MachineObserved)
        assert machine.gpu("GPU-0").mig_devices == ()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("effect", "error", "problem", "is_made"),
    [
        ("error", "IN_USE", "in-use", False),
        ("error", "UNKNOWN", "failed", False),
        ("hang", "", "failed", False),
        ("crash", "", "failed", True),
    ],
)
async def test_a_call_that_fails(effect: str, error: str, problem: str, is_made: bool) -> None:
    """As the file says; a crash comes after the change, a hang before it."""
    failure = f"{{effect: {effect}, nvml_function: nvmlDeviceSetMigMode, gpu: 1{f', error: {error}' if error else ''}}}"
    hardware = Described(aiter(File(f"{FILE}failures: [{failure}]\n")), "m.yaml")
    machine, told = Machine(), None
    async with aclosing(hardware.facts()) as facts, asyncio.timeout(60):
        async for fact in facts:
            if isinstance(fact, MachineObserved):
                machine = fact.machine
                if told is None:
                    await hardware.do(ChangePartition("GPU-1", ON, 1.0))
            if isinstance(fact, PartitionChangeFinished):
                told = fact
                break
    assert told is not None

    assert (told.problem, told.outcome_unknown) == (problem, effect != "error")
    assert machine.gpu("GPU-1").mig_enabled == is_made  # type: ignore[union-attr]
    assert read_machine(FILE.encode(), "m.yaml").gpu("GPU-0").mig.needs_reset is False  # type: ignore[union-attr]
