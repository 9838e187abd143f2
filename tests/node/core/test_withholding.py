"""What containers hold stays theirs: withheld ids as a table, and as properties over live changes of everything."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.advertising import UNSAVED_LAYOUT_TEXT, offer
from gpuplane.node.core.inventory.resources import assign_units, list_resources
from gpuplane.node.core.reports.news import news
from gpuplane.node.core.shares import unit_of
from gpuplane.node.core.step import step
from gpuplane.node.core.withholding import (
    layout_from_environment,
    mig_topology,
    offered_index,
    overlap_reasons,
    withheld_reasons,
)
from gpuplane.node.model.config import (
    MemorySharedResource,
    MigStrategy,
    NamingRule,
    ReplicatedResource,
    Settings,
    Sharing,
)
from gpuplane.node.model.facts import (
    AllocateAnswered,
    AllocationsListed,
    ConfigLoaded,
    Fact,
    LedgerLoaded,
    LedgerStored,
    MachineObserved,
)
from gpuplane.node.model.machine import Gpu, Machine, Mig, MigDevice
from gpuplane.node.model.reasons import Holder
from gpuplane.node.model.sharelayout import TIME_SLICES, ShareLayout, memory_layout
from gpuplane.node.model.snapshot import Allocation, Snapshot, StoredLedger
from tests.golden import Golden
from tests.texts import as_shown

GPU, SHARED, SMALL = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"


def gpu(index: int, *slots: int, mig: bool = False) -> Gpu:
    """A GPU; in MIG mode where it has devices, whose UUIDs follow from their places, as with NVIDIA's driver."""
    devices = tuple(
        MigDevice(
            uuid=f"MIG-{index}-{n}",
            profile="1g.10gb" if n < 4 else "3g.40gb",
            gpu_instance=n,
            mig_index=slot,
            memory_mib=1024,
        )
        for slot, n in enumerate(slots)
    )
    return Gpu(
        index=index,
        uuid=f"GPU-{index}",
        model=f"M{index % 2}",
        memory_mib=4096,
        mig=Mig(enabled=mig or bool(slots), devices=devices),
    )


def machine(*gpus: Gpu) -> Machine:
    """These GPUs."""
    return Machine(gpus=gpus)


T4 = Gpu(index=2, uuid="GPU-2", model="T4", memory_mib=4096)
"""A GPU that cannot be divided."""


def hold(resource: str, *ids: str) -> Allocation:
    """A pod that holds ids of a resource."""
    return Allocation(resource, ids, holder=PodRef.parse("ns/p/c"))


MIXED = Settings(mig_strategy="mixed")
HALVED = Settings(sharing=Sharing(replicated_resources=(ReplicatedResource(GPU, 2),)))
RENAMED = Settings(sharing=Sharing(replicated_resources=(ReplicatedResource(GPU, 2, SHARED),)))
NAMED = Settings(gpus=(NamingRule("M0", "nvidia.com/m0"),))
MEMORY = "nvidia.com/gpu.mem"


def grained(mib: int, name: str = MEMORY) -> Settings:
    """GPUs whose memory is shared."""
    return Settings(sharing=Sharing(memory_resources=(MemorySharedResource(GPU, name, mib),)))


def by_mps(replicas: int, name: str = "") -> Settings:
    """GPUs that are shared by MPS."""
    return Settings(sharing=Sharing(replicated_resources=(ReplicatedResource(GPU, replicas, name),), strategy="mps"))


@pytest.mark.parametrize(
    ("machine", "settings", "held", "ids"),
    [
        # the same id under the same name: kubelet knows
        (machine(gpu(0), gpu(1)), Settings(), hold(GPU, "GPU-0"), ""),
        (machine(gpu(0)), HALVED, hold(GPU, "GPU-0::1"), ""),
        (machine(gpu(0, 0, 1)), MIXED, hold(SMALL, "MIG-0-0"), ""),
        # another name
        (machine(gpu(0), gpu(1)), NAMED, hold(GPU, "GPU-0"), "GPU-0"),
        (machine(gpu(0), gpu(1)), Settings(), hold("nvidia.com/m0", "GPU-0"), "GPU-0"),
        # other shares
        (machine(gpu(0), gpu(1)), HALVED, hold(GPU, "GPU-0"), "GPU-0::0 GPU-0::1"),
        (machine(gpu(0), gpu(1)), HALVED, hold(GPU, "GPU-0::7"), "GPU-0::0 GPU-0::1"),
        (machine(gpu(0), gpu(1)), RENAMED, hold(GPU, "GPU-0::0"), "GPU-0::0 GPU-0::1"),
        (machine(gpu(0), gpu(1)), Settings(), hold(GPU, "GPU-1::0", "GPU-0::1"), "GPU-0 GPU-1"),
        # another layout
        (machine(gpu(0, 0, 1), gpu(1)), MIXED, hold(GPU, "GPU-0"), "MIG-0-0 MIG-0-1"),
        (machine(gpu(0, 0, 1)), MIXED, hold(GPU, "GPU-0::3"), "MIG-0-0 MIG-0-1"),
        (machine(gpu(0, 0, 1)), Settings(mig_strategy="single"), hold(SMALL, "MIG-0-1"), "MIG-0-1"),
        # siblings do not overlap, whether the held one is offered or left
        (machine(gpu(0, 0, 5)), Settings(mig_strategy="single"), hold("nvidia.com/mig-3g.40gb", "MIG-0-5"), ""),
        # memory, whole GPUs and time slices
        (machine(gpu(0), gpu(1)), grained(2048), hold(GPU, "GPU-0"), "GPU-0::0 GPU-0::1"),
        (machine(gpu(0), gpu(1)), grained(2048), hold(GPU, "GPU-0::0"), "GPU-0::0 GPU-0::1"),
        (machine(gpu(0), gpu(1)), Settings(), hold(MEMORY, "GPU-0::3"), "GPU-0"),
        (machine(gpu(0), gpu(1)), HALVED, hold(MEMORY, "GPU-0::0"), "GPU-0::0 GPU-0::1"),
        (machine(gpu(0), gpu(1)), grained(2048), hold(MEMORY, "GPU-0::3"), "GPU-0::0 GPU-0::1"),
        (machine(gpu(0), gpu(1)), grained(2048), hold(MEMORY, "GPU-0::1"), ""),
        # what is not ours, or not here
        (machine(gpu(0)), Settings(), hold("nvidia.com/other", "GPU-9"), ""),
        (machine(gpu(0)), Settings(), hold("example.com/nic", "eth0"), ""),
    ],
)
def test_what_overlaps_with_a_held_device_is_withheld(
    machine: Machine, settings: Settings, held: Allocation, ids: str, golden: Golden
) -> None:
    """Each way in which a live change can offer again what a container holds."""
    found = overlap_reasons(
        offered_index(list_resources(machine, settings)[0]), [held], mig_topology(machine.gpus or (), None), {}
    )

    assert sorted(id for _, id in found) == ids.split()
    for why in set(found.values()):
        assert (why.kind, why.holder) == ("held", Holder(resource=held.resource, pod=held.holder))
        golden(why.text, held.resource)


@pytest.mark.parametrize(
    ("before", "after", "stays"),
    [
        (grained(1024), grained(2048), False),
        (grained(2048), grained(1024), False),
        (grained(1024), grained(1024), True),
        (HALVED, grained(2048, GPU), False),
        (grained(2048, GPU), HALVED, False),
        (HALVED, by_mps(2), False),
        (by_mps(2), HALVED, False),
        (by_mps(2), by_mps(4), False),
        (by_mps(2), grained(1024, GPU), False),
        # a time slice is no part of a GPU
        (HALVED, Settings(sharing=Sharing(replicated_resources=(ReplicatedResource(GPU, 8),))), True),
    ],
)
def test_the_same_id_that_means_something_else_is_withheld(
    before: Settings, after: Settings, stays: bool, golden: Golden
) -> None:
    """Over a restart too; and where the configuration is taken back, kubelet's count is right again."""
    gpus, name = machine(gpu(0), gpu(1)), list_resources(machine(gpu(0)), before)[0][0].name
    pod = hold(name, "GPU-0::0")
    offered = step_by_step(MachineObserved(gpus), ConfigLoaded(before), AllocationsListed((), 0.5))
    changed = step_by_step(AllocationsListed((pod,), 1.0), ConfigLoaded(after), start=offered)
    restarted = step_by_step(
        LedgerLoaded(changed.ledger), MachineObserved(gpus), ConfigLoaded(after), AllocationsListed((pod,), 1.0)
    )
    expected = set() if stays else {id for _, id in withheld_reasons(changed) if id.startswith("GPU-0")}

    assert withheld_reasons(changed) == withheld_reasons(restarted)
    assert {id for _, id in withheld_reasons(changed)} == expected
    assert stays or len(expected) > 1
    for why in set(withheld_reasons(changed).values()):
        golden(why.text, name)
    assert not withheld_reasons(step_by_step(ConfigLoaded(before), start=changed))
    assert not withheld_reasons(step_by_step(AllocationsListed((), 1.0), start=changed))
    ended = step_by_step(AllocationsListed((), 1.0), start=changed)
    assert (
        ended.ledger.share_layouts
        == step_by_step(MachineObserved(gpus), ConfigLoaded(after), AllocationsListed((), 1.0)).ledger.share_layouts
    )


def test_what_has_to_be_remembered_is_on_disk_before_it_is_given_out() -> None:
    """A grant leaves nothing to write, so an agent that dies right after its answer has forgotten nothing."""
    gpus, sharing = machine(gpu(0, 0), gpu(1)), Sharing((ReplicatedResource(SMALL, 2), ReplicatedResource(GPU, 2)))
    offered = step_by_step(MachineObserved(gpus), ConfigLoaded(MIXED.but(sharing=sharing)), AllocationsListed((), 1.0))
    assert (offered.ledger.mig_parents, set(offered.ledger.share_layouts or {})) == (
        {"MIG-0-0": "GPU-0"},
        {"MIG-0-0", "GPU-1"},
    )
    for grant in (AllocateAnswered(SMALL, ("MIG-0-0::1",)), AllocateAnswered(GPU, ("GPU-1::0",))):
        assert step_by_step(grant, start=offered).ledger == offered.ledger


def test_a_gpu_in_mig_mode_is_not_offered_whole_while_a_part_of_it_is_held() -> None:
    """NVIDIA's way under none makes one thing of what was several."""
    gpus, pod = machine(gpu(0, 0, 1), gpu(1)), hold(SMALL, "MIG-0-0")
    start = step_by_step(MachineObserved(gpus), ConfigLoaded(MIXED), AllocationsListed((pod,), 1.0))
    whole = step_by_step(ConfigLoaded(Settings(whole_mig_gpus=True)), start=start)

    assert healthy(whole) == {"GPU-1"}
    assert healthy(step_by_step(AllocationsListed((), 1.0), start=whole)) == {"GPU-0", "GPU-1"}


EMPTY = Snapshot()


def step_by_step(*facts: Fact, start: Snapshot = EMPTY) -> Snapshot:
    """The snapshot after some facts."""
    for fact in facts:
        start = step(start, fact, 1.0)
    return start


def healthy(snapshot: Snapshot) -> set[str]:
    """The ids that kubelet may give out."""
    return {device.id for each in offer(snapshot).resources for device in each.devices if not device.unavailable_reason}


@pytest.mark.parametrize(
    ("layout", "free"),
    [
        (machine(gpu(0), gpu(1)), {"GPU-1"}),
        (machine(gpu(0, 5, 6), gpu(1)), {"GPU-1"}),
        (machine(gpu(0, 0, 1), gpu(1)), {"MIG-0-0", "MIG-0-1", "GPU-1"}),
    ],
)
def test_a_mig_device_that_is_gone_withholds_what_took_its_place(layout: Machine, free: set[str]) -> None:
    """The GPU became whole, or was cut otherwise, under a container: nothing of that GPU is given out until it ends.

    Where the device is there again, all is as before. A restart in between changes nothing.
    """
    pod = hold(SMALL, "MIG-0-0")
    before = step_by_step(
        MachineObserved(machine(gpu(0, 0, 1), gpu(1))), ConfigLoaded(MIXED), AllocationsListed((pod,), 1.0)
    )
    assert before.ledger.mig_parents == {"MIG-0-0": "GPU-0", "MIG-0-1": "GPU-0"}

    assert healthy(step_by_step(MachineObserved(layout), start=before)) == free
    restarted = step_by_step(
        LedgerLoaded(before.ledger), MachineObserved(layout), ConfigLoaded(MIXED), AllocationsListed((pod,), 1.0)
    )
    assert healthy(restarted) == free
    ended = step_by_step(AllocationsListed((), 1.0), start=restarted)
    assert before.ledger.mig_parents.items() <= (ended.ledger.mig_parents or {}).items()
    assert healthy(ended) == {device.id for each in list_resources(layout, MIXED)[0] for device in each.devices}


def test_where_a_mig_device_was_is_remembered_for_good() -> None:
    """Kubelet may tell late who holds one that has gone, and even its GPU."""
    start = step_by_step(
        MachineObserved(machine(gpu(0, 0, 1), gpu(1, 0))), ConfigLoaded(MIXED), AllocationsListed((), 1.0)
    )
    whole = step_by_step(MachineObserved(machine(gpu(0), gpu(1))), start=start)
    assert healthy(step_by_step(AllocationsListed((hold(SMALL, "MIG-0-0"),), 2.0), start=whole)) == {"GPU-1"}

    gone = step_by_step(
        MachineObserved(machine(gpu(1))),
        AllocationsListed((), 2.0),
        AllocationsListed((hold(SMALL, "MIG-0-0"),), 3.0),
        start=start,
    )
    assert healthy(gone) == {"GPU-1"}


def test_an_old_name_of_a_mig_device_tells_its_gpu() -> None:
    """Drivers before 470 named a MIG device by its GPU: nothing need be remembered."""
    snapshot = step_by_step(
        MachineObserved(machine(gpu(0), gpu(1))),
        ConfigLoaded(MIXED),
        AllocationsListed((hold(SMALL, "MIG-GPU-0/7/0"),), 1.0),
    )

    assert healthy(snapshot) == {"GPU-1"}


@pytest.mark.parametrize("layout", [machine(gpu(0), gpu(1), T4), machine(gpu(0, 5), gpu(1), T4)])
def test_a_lost_mig_device_of_which_nobody_remembers_its_gpu_withholds_each_that_may_have_been_it(
    layout: Machine, golden: Golden
) -> None:
    """The ledger was lost, or another plugin gave it out: until its pod ends, and the pod is the reason."""
    pod = hold(SMALL, "MIG-0-0")
    start = step_by_step(MachineObserved(layout), ConfigLoaded(MIXED), AllocationsListed((pod,), 1.0))

    assert healthy(start) == {T4.uuid}
    [why] = set(withheld_reasons(start).values())
    golden(why.text, SMALL)
    assert healthy(step_by_step(AllocationsListed((), 2.0), start=start)) > {T4.uuid, "GPU-1"}


def test_a_mig_device_that_comes_back_tells_its_gpu() -> None:
    """Then nothing else need be withheld."""
    pod = hold(SMALL, "MIG-0-0")
    lost = step_by_step(MachineObserved(machine(gpu(0), gpu(1))), ConfigLoaded(MIXED), AllocationsListed((pod,), 1.0))
    back = step_by_step(MachineObserved(machine(gpu(0, 0, 1), gpu(1))), start=lost)
    assert healthy(lost) == set()
    assert healthy(back) == {"MIG-0-0", "MIG-0-1", "GPU-1"}


@pytest.mark.parametrize("settings", [grained(1024), grained(2048), HALVED, by_mps(2)])
def test_a_held_share_of_which_nobody_remembers_what_it_is_withholds_all_of_its_gpu(
    settings: Settings, golden: Golden
) -> None:
    """Kubelet counts ids, and this one may be a gibibyte or two. It stays so until it ends, whatever changes."""
    gpus, name = machine(gpu(0), gpu(1)), list_resources(machine(gpu(0)), settings)[0][0].name
    pod = hold(name, "GPU-0::1")
    start = step_by_step(MachineObserved(gpus), ConfigLoaded(settings), AllocationsListed((pod,), 1.0))
    again = step_by_step(
        LedgerLoaded(start.ledger), MachineObserved(gpus), ConfigLoaded(settings), AllocationsListed((pod,), 1.0)
    )
    changed = step_by_step(ConfigLoaded(MIXED), ConfigLoaded(settings), start=again)

    for snapshot in (start, again, changed):
        assert {id.partition("::")[0] for _, id in withheld_reasons(snapshot)} == {"GPU-0"}
        [why] = set(withheld_reasons(snapshot).values())
        golden(why.text, name)
    assert not withheld_reasons(step_by_step(AllocationsListed((), 2.0), start=changed))


@pytest.mark.parametrize(
    ("environment", "layout"),
    [
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-0"}, TIME_SLICES),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu/pipe"}, None),
        ({"GPUPLANE_MEMORY_MIB": "2048"}, memory_layout(1024, mps=False)),
        ({"GPUPLANE_MEMORY_MIB": "2048", "CUDA_MPS_PIPE_DIRECTORY": "/mps/x/pipe"}, memory_layout(1024, mps=True)),
        ({"GPUPLANE_MEMORY_MIB": "2049"}, None),
        ({"GPUPLANE_MEMORY_MIB": "much"}, None),
        ({"GPUPLANE_MEMORY_MIB": "0"}, None),
        ({"GPUPLANE_MEMORY_MIB": "9" * 5000}, None),
    ],
)
def test_the_environment_of_a_container_shows_the_layout_of_its_two_shares(
    environment: dict[str, str], layout: ShareLayout | None
) -> None:
    assert layout_from_environment(environment, 2) == layout


def test_a_share_of_which_nobody_remembers_what_it_is_counts_as_its_container_was_told() -> None:
    """So a node with time slices goes over from NVIDIA's plugin at once. What is remembered is believed first, and
    where not all that hold shares of a device were told the same, it is unknown."""
    gpus, slices = machine(gpu(0), gpu(1)), HALVED
    told = hold(GPU, "GPU-0::0").but(share_layout=TIME_SLICES.encoded)
    silent = hold(GPU, "GPU-0::1")

    start = step_by_step(MachineObserved(gpus), ConfigLoaded(slices), AllocationsListed((told,), 1.0))
    assert (withheld_reasons(start), healthy(start)) == ({}, {f"GPU-{i}::{n}" for i in range(2) for n in range(2)})
    assert healthy(step_by_step(ConfigLoaded(grained(1024, GPU)), start=start)) == {f"GPU-1::{n}" for n in range(4)}

    late = step_by_step(
        AllocationsListed((told,), 2.0),
        start=step_by_step(MachineObserved(gpus), ConfigLoaded(slices), AllocationsListed((told, silent), 1.0)),
    )
    assert set(
        healthy(step_by_step(MachineObserved(gpus), ConfigLoaded(slices), AllocationsListed((told, silent), 1.0)))
    ) == {
        "GPU-1::0",
        "GPU-1::1",
    }
    assert not withheld_reasons(late)

    known = LedgerLoaded(EMPTY.ledger.but(share_layouts={"GPU-0": memory_layout(1024, mps=False).encoded}))
    assert healthy(
        step_by_step(known, MachineObserved(gpus), ConfigLoaded(slices), AllocationsListed((told,), 1.0))
    ) == {
        "GPU-1::0",
        "GPU-1::1",
    }


@pytest.mark.parametrize("id", ["GPU-0-_-3", "GPU-0-1", "GPU-0/7"])
def test_the_id_of_another_plugin_that_begins_with_a_gpus_withholds_that_gpu(id: str) -> None:
    """gpushare and HAMi number shares so; what they stand for is not known here."""
    pod = hold("aliyun.com/gpu-mem", id)
    assert healthy(
        step_by_step(MachineObserved(machine(gpu(0), gpu(1))), ConfigLoaded(MIXED), AllocationsListed((pod,), 1.0))
    ) == {"GPU-1"}


def test_shares_wait_while_the_disk_may_hold_that_they_are_others() -> None:
    """After a restart it would be believed. What it has nothing about counts as unknown then, and need not wait."""
    gpus = machine(gpu(0), gpu(1))
    start = step_by_step(
        LedgerLoaded(EMPTY.ledger), MachineObserved(gpus), ConfigLoaded(grained(1024)), AllocationsListed((), 1.0)
    )
    assert len(healthy(start)) == 8

    old, new = ({"GPU-0": memory_layout(mib, mps=False).encoded} for mib in (1024, 2048))
    written = step_by_step(LedgerStored(StoredLedger(possible_share_layouts=(old,))), start=start)
    changed = step_by_step(ConfigLoaded(grained(2048)), start=written)
    assert healthy(changed) == {"GPU-1::0", "GPU-1::1"}
    assert offer(changed).resources[0].devices[0].unavailable_reason == UNSAVED_LAYOUT_TEXT
    assert len(healthy(step_by_step(LedgerStored(StoredLedger(possible_share_layouts=(old, new))), start=changed))) == 2
    assert len(healthy(step_by_step(LedgerStored(StoredLedger(possible_share_layouts=(new,))), start=changed))) == 4
    assert not [each for each in news(written, changed) if "not available" in as_shown(each.text)]


def test_while_kubelet_is_silent_nothing_is_forgotten() -> None:
    """Before the first list of a new process the ledger's places stay."""
    start = step_by_step(
        MachineObserved(machine(gpu(0, 0))), ConfigLoaded(MIXED), AllocationsListed((hold(SMALL, "MIG-0-0"),), 1.0)
    )

    assert step_by_step(LedgerLoaded(start.ledger), MachineObserved(machine(gpu(0)))).ledger.mig_parents == {
        "MIG-0-0": "GPU-0"
    }


STRATEGIES: st.SearchStrategy[MigStrategy] = st.sampled_from(["none", "single", "mixed"])
NAMES = st.sampled_from([GPU, SHARED, SMALL, "nvidia.com/m0", "nvidia.com/mig-3g.40gb"])
DEVICES = (
    st.none()
    | st.integers(1, 3)
    | st.lists(st.sampled_from(["0", "1", "GPU-1", "0:0", "MIG-1-1"]), min_size=1).map(tuple)
)
SETTINGS = st.builds(
    Settings,
    mig_strategy=STRATEGIES,
    whole_mig_gpus=st.booleans(),
    gpus=st.lists(st.builds(NamingRule, st.sampled_from(["M0", "*"]), NAMES), max_size=2).map(tuple),
    mig=st.lists(st.builds(NamingRule, st.sampled_from(["1g.*", "*"]), NAMES), max_size=2).map(tuple),
    sharing=st.builds(
        Sharing,
        st.lists(st.builds(ReplicatedResource, NAMES, st.integers(1, 3), st.just("") | NAMES, DEVICES), max_size=3).map(
            tuple
        ),
        memory_resources=st.lists(
            st.builds(MemorySharedResource, NAMES, st.just(MEMORY), st.just(512) | st.just(1024), DEVICES), max_size=1
        ).map(tuple),
    ),
)
LAYOUTS = st.sampled_from([(), (0, 1), (2, 5), (0, 5), (0, 1, 2, 3)])
MACHINES = st.lists(LAYOUTS, min_size=1, max_size=3).map(
    lambda cut: machine(*(gpu(i, *each) for i, each in enumerate(cut)))
)


@given(MACHINES, SETTINGS)
def test_every_unit_is_offered_once_or_left_with_a_reason(machine: Machine, settings: Settings) -> None:
    """Whatever is configured: no id twice, no unit under two names, none lost, none both offered and left."""
    resources, left = list_resources(machine, settings)
    ids = Counter(device.id for each in resources for device in each.devices)
    names = {(each.name, device.unit.id) for each in resources for device in each.devices}
    units = {decision.unit.id for decision in assign_units(machine, settings)}

    assert max(ids.values(), default=1) == 1
    assert len({each.name for each in resources}) == len(resources)
    assert sorted([unit for _, unit in names] + [each.unit for each in left]) == sorted(units)
    assert all(each.reason for each in left)


def homes(machine: Machine) -> dict[str, str]:
    """Unit → GPU of everything on a machine."""
    found = {each.uuid: each.uuid for each in machine.gpus or ()}
    return found | {device.uuid: each.uuid for each in machine.gpus or () for device in each.mig_devices}


Meaning = tuple[str, str, str]
"""What an id stood for: its resource, its unit, and how much of that it was."""


def meanings(state: Snapshot) -> dict[tuple[str, str], Meaning]:
    """What each offered id stands for."""
    return {
        (each.name, device.id): (each.name, device.unit.id, f"{device.id != device.unit.id} {each.share_mib}")
        for each in offer(state).resources
        for device in each.devices
    }


@given(st.data())
def test_no_live_change_gives_out_what_a_container_holds(data: st.DataObject) -> None:
    """Pods come and go, layouts and configurations change, the agent restarts; in any order.

    At every point, whoever asks kubelet for a healthy id gets nothing that overlaps with what a container holds by
    another id or name, or that meant something else then. Of a MIG device that is gone, everything on its GPU counts
    as overlapping.
    """
    settings = data.draw(SETTINGS)
    state = step_by_step(MachineObserved(data.draw(MACHINES)), ConfigLoaded(settings), AllocationsListed((), 1.0))
    places: dict[str, str] = {}
    meant: dict[tuple[str, str], Meaning] = {}
    for _ in range(data.draw(st.integers(1, 8))):
        seen = state.machine
        assert seen is not None
        places |= homes(seen)
        held = state.allocations or ()
        match data.draw(st.sampled_from(["pod", "end", "layout", "config", "restart"])):
            case "pod":
                used = {(each.resource, id) for each in held for id in each.devices}
                free = [
                    (each.name, device.id)
                    for each in offer(state).resources
                    for device in each.devices
                    if not device.unavailable_reason and (each.name, device.id) not in used
                ]
                if free:
                    name, id = data.draw(st.sampled_from(free))
                    meant[name, id] = meanings(state)[name, id]
                    state = step_by_step(AllocationsListed((*held, hold(name, id)), 1.0), start=state)
            case "end" if held:
                gone = data.draw(st.sampled_from(held))
                state = step_by_step(
                    AllocationsListed(tuple(each for each in held if each is not gone), 1.0), start=state
                )
            case "layout":
                state = step_by_step(MachineObserved(data.draw(MACHINES)), start=state)
            case "config":
                state = step_by_step(ConfigLoaded(data.draw(SETTINGS)), start=state)
            case "restart":
                settings, look = state.config.settings or settings, MachineObserved(seen)
                state = step_by_step(
                    LedgerLoaded(state.ledger), look, ConfigLoaded(settings), AllocationsListed(held, 1.0)
                )
        _check(state, places, meant)


def _check(state: Snapshot, places: dict[str, str], meant: dict[tuple[str, str], Meaning]) -> None:
    assert state.machine is not None
    there, means = homes(state.machine), meanings(state)
    offered = {(each.name, device.id): device for each in offer(state).resources for device in each.devices}
    for allocation in state.allocations or ():
        for held in allocation.devices:
            if means.get((allocation.resource, held)) == meant[allocation.resource, held]:
                continue
            unit = unit_of(held)
            for device in offered.values():
                overlap = device.unit.id == unit or device.unit.gpu == unit
                overlap |= unit not in there and device.unit.gpu == places[unit]
                overlap |= device.unit.id == places[unit]  # the whole GPU of a MIG device
                assert not (overlap and not device.unavailable_reason), f"{held} is held and {device.id} free"
