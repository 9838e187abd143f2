"""The annotation of our Node: what it says of a snapshot, that it can be read back, and that it is never too long."""

import json
from contextlib import suppress
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.kubernetes.contracts.nodeannotation import MAX_BYTES, decode_node_gpus, encode_node_gpus, fit
from gpuplane.kubernetes.contracts.nodegpus import (
    CutPart,
    Holding,
    NodeGpu,
    NodeGpus,
    NodeMigDevice,
    OfferedResource,
    State,
)
from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.reports.nodeannotation import node_gpus
from gpuplane.node.core.step import step
from gpuplane.node.model.config import MemorySharedResource, ReplicatedResource, Settings, Sharing
from gpuplane.node.model.facts import (
    AllocationsListed,
    ConfigLoaded,
    DevicesObserved,
    DrainRequested,
    Fact,
    MachineObserved,
    StatusChanged,
)
from gpuplane.node.model.health import Drain
from gpuplane.node.model.machine import Device, DeviceList, Fault, Gpu, Machine, Mig, MigDevice
from gpuplane.node.model.sharelayout import memory_layout
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.status import KUBELET_LOCK_PART, TurnStatus

H100, GPU, SMALL = "NVIDIA H100 80GB HBM3", "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
WHOLE = Settings()
CUT_ORDER = get_args(CutPart)
STATES = get_args(State)


def gpu(index: int, mig_devices: int | None = None, *, faults: tuple[Fault, ...] = ()) -> Gpu:
    devices = (
        MigDevice(f"MIG-{index}-{slot}", "1g.10gb", gpu_instance=7 + slot, mig_index=slot, memory_mib=9728)
        for slot in range(mig_devices or 0)
    )
    mig = None if mig_devices is None else Mig(enabled=mig_devices > 0, devices=tuple(devices))
    return Gpu(index=index, uuid=f"GPU-{index}", model=H100, memory_mib=81559, mig=mig, faults=faults)


def held(resource: str, *ids: str, by: str = "ml/train/main", mib: int = 0) -> Allocation:
    layout = memory_layout(mib, mps=False).encoded if mib else Allocation(resource, ()).share_layout
    return Allocation(resource=resource, devices=ids, holder=PodRef.parse(by), share_layout=layout)


def node(
    *gpus: Gpu, settings: Settings = WHOLE, holds: tuple[Allocation, ...] = (), facts: tuple[Fact, ...] = ()
) -> Snapshot:
    snapshot = Snapshot()
    settings = settings.but(device_list_strategy=("envvar",))
    first = (ConfigLoaded(settings), MachineObserved(Machine(gpus=gpus)), AllocationsListed(holds, 0.0))
    for at, fact in enumerate((*first, *facts)):
        snapshot = step(snapshot, fact, float(at))
    return snapshot


def said(snapshot: Snapshot) -> NodeGpus:
    """What the annotation says, as whoever reads the Node has it."""
    found = node_gpus(snapshot)
    assert found is not None
    read = decode_node_gpus(encode_node_gpus(found))
    assert read == found
    return read


def test_the_text() -> None:
    """Key by key."""
    snapshot = node(
        gpu(0, faults=(Fault("gpu-lost", "it has fallen off the bus"),)),
        gpu(1, 2),
        settings=Settings(mig_strategy="mixed"),
        holds=(held(SMALL, "MIG-1-1"),),
    )
    found = node_gpus(snapshot)
    assert found is not None
    assert json.loads(encode_node_gpus(found)) == {
        "version": 2,
        "models": [[H100, 81559]],
        "resources": [[GPU, "", 0], [SMALL, "", 0]],
        "gpus": [
            {"index": "0", "uuid": "GPU-0", "resource": 0, "ids": 1, "state": "unhealthy", "code": "gpu-lost"},
            {
                "index": "1",
                "uuid": "GPU-1",
                "mig": [{"profile": "1g.10gb", "devices": [[0, 7], [1, 8]], "resource": 1, "ids": 1}],
            },
        ],
        "held": {"ml": [["train/main", 1, {"1:1": 1}]]},
    }


def test_whole_gpus_and_mig_devices() -> None:
    """Each with its resource; a GPU whose MIG devices are offered has none of its own."""
    found = said(node(gpu(0), gpu(1, 2), settings=Settings(mig_strategy="mixed")))
    whole, parted = found.gpus
    assert (whole.model, whole.memory_mib, whole.resource, whole.ids) == (H100, 81559, OfferedResource(GPU), 1)
    assert (parted.resource, parted.ids) == (None, 0)
    assert parted.mig == tuple(
        NodeMigDevice(f"1:{slot}", "1g.10gb", gpu_instance=7 + slot, resource=OfferedResource(SMALL), ids=1)
        for slot in (0, 1)
    )


def test_time_slices() -> None:
    sharing = Sharing(replicated_resources=(ReplicatedResource(GPU, 4),))
    found = said(node(gpu(0), settings=Settings(sharing=sharing), holds=(held(GPU, "GPU-0::1", "GPU-0::3"),)))
    assert found.gpus[0].resource == OfferedResource(GPU, "time-slicing")
    assert found.gpus[0].ids == 4
    assert found.holdings == (Holding(PodRef.parse("ml/train/main"), OfferedResource(GPU, "time-slicing"), "0", 2),)


def test_memory_is_told_in_mib() -> None:
    """Of what is held too, as the container got it: also where a share is of another size by now."""
    sharing = Sharing(memory_resources=(MemorySharedResource(name=GPU, rename=f"{GPU}.mem", share_mib=1024),))
    holds = (held(f"{GPU}.mem", "GPU-0::0", "GPU-0::1", mib=1024), held(f"{GPU}.mem", "GPU-1::0", mib=2048))
    found = said(node(gpu(0), gpu(1), settings=Settings(sharing=sharing), holds=holds))
    assert found.gpus[0].resource == OfferedResource(f"{GPU}.mem", "memory", 1024)
    assert found.gpus[0].ids == 79
    assert [(each.device, each.memory_mib) for each in found.holdings] == [("0", 2048), ("1", 2048)]


def test_what_is_held_otherwise() -> None:
    """A device that is no longer there has its id; a pod of which the name is not known its UID; a device of another
    kind is none of a GPU."""
    holds = (
        held(SMALL, "MIG-gone"),
        held(GPU, "GPU-0", by="uid-1/main"),
        held(GPU, "GPU-1", by=""),
        held("gpuplane.io/kvm", "device-node:kvm"),
    )
    kvm = Device(id="kvm", kind="device-node", device_nodes=("/dev/kvm",))
    snapshot = node(gpu(0), gpu(1), holds=holds, facts=(DevicesObserved("device-node", DeviceList(devices=(kvm,))),))
    assert said(snapshot).holdings == (
        Holding(PodRef(uid="uid-1", container="main"), OfferedResource(GPU), "0"),
        Holding(PodRef.parse("ml/train/main"), OfferedResource(SMALL), "MIG-gone"),
        Holding(PodRef(), OfferedResource(GPU), "1"),
    )


def test_how_devices_stand() -> None:
    """With the code of the fault, or of the reason."""
    drained = DrainRequested("GPU-1", Drain(reason="a fan"))
    snapshot = node(gpu(0, faults=(Fault("gpu-lost", "?"),)), gpu(1), gpu(2, 1), gpu(3), facts=(drained,))
    states = [(each.state, each.code) for each in said(snapshot).gpus]
    assert states == [("unhealthy", "gpu-lost"), ("drained", "drained"), ("withheld", "mig-mode"), ("healthy", "")]


def test_a_driver_that_fails_is_told() -> None:
    """Of the node, and of each GPU as it was seen last."""
    lost = Machine(gpus=None, faults=(Fault("driver-missing", "no libnvidia-ml.so.1"),))
    found = said(node(gpu(0), facts=(MachineObserved(lost),)))
    [last] = found.gpus
    assert (found.state, found.code) == (last.state, last.code) == ("unhealthy", "driver-missing")

    never = said(node(facts=(MachineObserved(lost),)))
    assert (never.state, never.code, never.gpus) == ("unhealthy", "driver-missing", ())


@pytest.mark.parametrize("missing", range(3))
def test_before_all_is_known_nothing_is_said(missing: int) -> None:
    """Neither while another agent serves: what was written last stays."""
    facts: list[Fact] = [
        ConfigLoaded(Settings(device_list_strategy=("envvar",))),
        MachineObserved(Machine(gpus=(gpu(0),))),
        AllocationsListed((), 0.0),
    ]
    del facts[missing]
    snapshot = Snapshot()
    for fact in facts:
        snapshot = step(snapshot, fact, 1.0)
    assert node_gpus(snapshot) is None


def test_one_that_stands_by_says_nothing() -> None:
    snapshot = node(gpu(0), facts=(StatusChanged(KUBELET_LOCK_PART, TurnStatus("waiting", "another", turn="standby")),))
    assert node_gpus(snapshot) is None


NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-.", min_size=1, max_size=253)
SHORT = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=63)
CODES = st.sampled_from(("", "xid-79", "gpu-lost", "held-in-unknown-layout", "mps-too-many-clients"))
RESOURCES = st.sampled_from(
    [
        OfferedResource(GPU),
        OfferedResource(SMALL),
        OfferedResource(f"{GPU}.shared", "time-slicing"),
        OfferedResource(f"{GPU}.shared", "mps"),
        OfferedResource(f"{GPU}.mem", "memory", 1024),
        OfferedResource("example.com/" + "x" * 63),
    ]
)
HOLDERS = st.one_of(
    st.just(PodRef()),
    st.builds(lambda space, name, box: PodRef(namespace=space, name=name, container=box), SHORT, NAMES, SHORT),
    st.builds(lambda uid, box: PodRef(uid=uid, container=box), st.uuids().map(str), SHORT),
)


@st.composite
def told(draw: st.DrawFn) -> NodeGpus:
    """Up to 16 GPUs of any state, with up to 7 MIG devices each, and a holder of each unit."""
    unit = {
        "resource": st.none() | RESOURCES,
        "ids": st.integers(0, 4096),
        "state": st.sampled_from(STATES),
        "code": CODES,
    }
    gpus, indices = [], []
    uniform = draw(st.booleans())
    whole = {key: draw(each) for key, each in unit.items()}
    for index in range(draw(st.integers(0, 16))):
        mig = []
        for slot in range(draw(st.integers(0, 7))):
            facts = whole if uniform else {key: draw(each) for key, each in unit.items()}
            instance = draw(st.integers(0, 14)), draw(st.integers(0, 7))
            profile = draw(st.sampled_from(("1g.10gb", "1g.10gb+me", "3g.40gb")))
            mig.append(NodeMigDevice(f"{index}:{slot}", profile, *instance, **facts))
            indices.append(f"{index}:{slot}")
        indices.append(str(index))
        facts = whole if uniform else {key: draw(each) for key, each in unit.items()}
        model = draw(st.sampled_from((H100, "", "NVIDIA " + "É" * 80)))
        gpus.append(
            NodeGpu(str(index), f"GPU-{draw(st.uuids())}", model, draw(st.integers(0, 300000)), mig=tuple(mig), **facts)
        )
    holders = draw(st.lists(HOLDERS, max_size=12)) or [PodRef()]
    held = {
        (draw(st.sampled_from(holders)), draw(RESOURCES), device): draw(st.integers(1, 4096))
        for device in (*indices, "MIG-" + "0" * 36)
        if draw(st.booleans())
    }
    holdings = tuple(Holding(*key, ids) for key, ids in held.items())
    return NodeGpus(tuple(gpus), holdings, draw(st.sampled_from(STATES)), draw(CODES))


def ordered(found: NodeGpus) -> NodeGpus:
    return found.but(holdings=tuple(sorted(found.holdings, key=repr)))


@given(told())
def test_it_is_never_too_long_and_can_be_read_back(whole: NodeGpus) -> None:
    """What was left out is said, in one order, and as little as needed. The same state is the same text."""
    text = encode_node_gpus(whole)
    read = decode_node_gpus(text)

    assert len(text.encode()) <= MAX_BYTES
    assert read.cut == CUT_ORDER[: len(read.cut)]
    assert ordered(read) == ordered(fit(whole))
    assert encode_node_gpus(read) == text
    if not read.cut:
        assert ordered(read) == ordered(whole)
    if "held" not in read.cut:
        assert sum(each.ids for each in read.holdings) == sum(each.ids for each in whole.holdings)
    if "gpus" not in read.cut:
        assert [each.but(mig=()) for each in read.gpus] == [each.but(mig=()) for each in whole.gpus]
    shuffled = whole.but(holdings=tuple(reversed(whole.holdings)))
    assert encode_node_gpus(shuffled) == text


def test_the_usual_full_node_fits_whole() -> None:
    """16 GPUs with 7 MIG devices each, and a pod on each."""
    holds = tuple(held(SMALL, f"MIG-{i}-{n}", by=f"team-{i}/worker-{i}-{n}/main") for i in range(16) for n in range(7))
    found = said(node(*(gpu(i, 7) for i in range(16)), settings=Settings(mig_strategy="mixed"), holds=holds))
    assert found.cut == ()
    assert len(found.holdings) == 112


def test_long_names_go_first() -> None:
    """Of as few pods as possible; how much is held stays."""
    pods = [f"team/{'x' * 200}-{i}-{n}/main" for i in range(16) for n in range(7)]
    holds = tuple(held(SMALL, f"MIG-{n // 7}-{n % 7}", by=pod) for n, pod in enumerate(pods))
    whole = node_gpus(node(*(gpu(i, 7) for i in range(16)), settings=Settings(mig_strategy="mixed"), holds=holds))
    assert whole is not None
    text = encode_node_gpus(whole)
    read = decode_node_gpus(text)
    assert read.cut == ("containers", "pods")
    assert MAX_BYTES - 300 < len(text) <= MAX_BYTES
    assert len(read.holdings) == 112
    assert 5 < sum(each.holder.identifies_pod for each in read.holdings) < 40


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ("{}", "cannot be read"),
        ('{"version": 3, "gpus": 7}', "has version 3; this program reads version 2"),
        ('{"version": 2, "gpus": 7}', "cannot be read"),
        ('{"version": 2, "gpus": [{"index": "0"}]}', "cannot be read"),
        ('{"version": 2, "models": [["x", 1]], "gpus": [{"index": "0", "model": -1}]}', "cannot be read"),
        (
            '{"version": 2, "models": [["x", 1]], '
            '"gpus": [{"index": "0", "mig": [{"profile": "a", "devices": [[1]]}]}]}',
            "cannot be read",
        ),
        ('{"version": 2, "held": {"a": [["b/c", 0, {"0": 1}]]}}', "cannot be read"),
        (f'{{"version": 2, "more": "{"x" * MAX_BYTES}"}}', "more than 8192 bytes"),
        ("\ud800", "cannot be read"),
        (f'{{"version": 2, "models": [["x", {1 << 31}]], "gpus": []}}', "cannot be read"),
        ('{"version": 2, "models": [["x", -1]], "gpus": []}', "cannot be read"),
        (f'{{"version": 2, "resources": [["r", "memory", {1 << 31}]]}}', "cannot be read"),
        (f'{{"version": 2, "models": [["x", 1]], "gpus": [{{"index": "0", "ids": {1 << 31}}}]}}', "cannot be read"),
        (
            f'{{"version": 2, "resources": [["r", "", 0]], "held": {{"a": [["b", 0, {{"0": {1 << 31}}}]]}}}}',
            "cannot be read",
        ),
        ('{"version": 2, "resources": [["r", "", 0]], "held": {"a": [["b", 0, {"0": -1}]]}}', "cannot be read"),
        ("[" * 8000, "cannot be read"),
        ('{"version": 2, "more": ' + "[" * 8000, "cannot be read"),
        ('{"version":' * 1600, "cannot be read"),
        ('{"x":' * 1600, "cannot be read"),
    ],
)
def test_a_text_that_somebody_else_wrote(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decode_node_gpus(text)


KEYS = st.sampled_from(("version", "gpus", "models", "mig", "index", "devices", "held", "profile"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda each: st.lists(each) | st.dictionaries(KEYS, each)
)


@given(JSON)
def test_no_text_makes_another_error(found: object) -> None:
    """Whatever stands there is read, or is a ValueError."""
    text = json.dumps({**found, "version": 2} if isinstance(found, dict) else found)
    with suppress(ValueError):
        decode_node_gpus(text)


def test_keys_of_a_newer_program_are_ignored() -> None:
    assert decode_node_gpus(
        '{"version": 2, "colour": "red", "models": [["x", 1]], "gpus": [{"index": "0", "numa": 1}]}'
    ).gpus
