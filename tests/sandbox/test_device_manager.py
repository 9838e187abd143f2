"""The device manager's books, choices and checkpoint: what always holds of them, without any I/O."""

import random
from collections import Counter
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.node.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.sandbox.kubelet.checkpoint import CorruptCheckpoint, decode, encode
from gpuplane.sandbox.kubelet.devices import STOP_GRACE_PERIOD, AllocationKey, Choice, Devices, KubeletError
from gpuplane.sandbox.kubelet.pods import Container, Pod, RunningPod, requested_resources
from gpuplane.sandbox.kubelet.topology import ids_by_numa_node, numa_nodes_by_id, split_by_affinity, topology_hint

DEV = "lab.io/dev"
IDS = [f"d{n}" for n in range(8)]
ids = st.sampled_from(IDS)
nodes = st.lists(st.integers(0, 3), max_size=2, unique=True).map(tuple)
lists = st.lists(st.tuples(ids, st.sampled_from(["Healthy", "Unhealthy", ""]), nodes), unique_by=lambda each: each[0])
ANSWER = pb.ContainerAllocateResponse(envs={"A": "1"}, cdi_devices=[pb.CDIDevice(name="lab.io/dev=1")])


def listed(*healthy: str, unhealthy: tuple[str, ...] = ()) -> Devices:
    """Books with one list, no NUMA nodes."""
    devices = Devices()
    said = [(id, "Healthy", ()) for id in healthy] + [(id, "Unhealthy", ()) for id in unhealthy]
    devices.update_list(DEV, said)
    return devices


# choosing


class Step(msgspec.Struct, frozen=True):
    """A list, a lost stream, a pod's end, or a pod's request and what the plugin advises."""

    devices: list[tuple[str, str, tuple[int, ...]]] | None = None
    lost: bool = False
    end: int | None = None
    wanted: int = 0
    advice: tuple[str, ...] = ()


steps = st.one_of(
    st.builds(Step, devices=lists),
    st.just(Step(lost=True)),
    st.builds(Step, end=st.integers(0, 5)),
    st.builds(Step, wanted=st.integers(1, 9), advice=st.lists(st.sampled_from([*IDS, "none-such"])).map(tuple)),
)


@given(st.lists(steps, max_size=30), st.integers(), st.booleans())
def test_nothing_is_given_twice(history: list[Step], seed: int, numa: bool) -> None:
    """Whatever plugins list and advise and whoever comes and goes: a container gets exactly as many as it wants, all
    healthy and free, or a refusal; and what it has it keeps."""
    devices, randomness, pods = Devices(), random.Random(seed), 0
    for step in history:
        before = dict(devices.allocated)
        if step.devices is not None:
            devices.update_list(DEV, step.devices)
        elif step.lost:
            devices.mark_disconnected(DEV, 0.0)
        elif step.end is not None:
            devices.free_others({place.uid for place in devices.allocated} - {str(step.end)})
            before.pop(AllocationKey(str(step.end), "c", DEV), None)
        else:
            pods += 1
            used = devices.held_ids(DEV)
            try:
                choice = devices.choose(DEV, step.wanted, (), randomness, numa)
            except KubeletError:
                free = devices.resources[DEV].healthy - used if DEV in devices.resources else set()
                assert len(free) < step.wanted
                continue
            chosen = choice.complete(step.advice, randomness)
            assert len(chosen) == len(set(chosen)) == step.wanted
            assert set(chosen) <= devices.resources[DEV].healthy - used
            devices.record_allocation(AllocationKey(str(pods), "c", DEV), chosen, ANSWER)
            before[AllocationKey(str(pods), "c", DEV)] = devices.allocated[AllocationKey(str(pods), "c", DEV)]
        assert devices.allocated == before
        held = Counter(id for each in devices.allocated.values() for id in each.ids)
        assert set(held.values()) <= {1}


@given(st.sets(ids, min_size=1), st.sets(ids), st.integers(1, 8), st.sets(ids), st.integers())
def test_what_may_be_reused_comes_first(
    healthy: set[str], had: set[str], wanted: int, advice: set[str], seed: int
) -> None:
    """An init container's devices: all of them before any other, and no preference where they suffice."""
    devices, randomness = listed(*healthy), random.Random(seed)
    devices.record_allocation(AllocationKey("pod", "init", DEV), had, ANSWER)
    try:
        choice = devices.choose(DEV, wanted, had, randomness)
    except KubeletError as refusal:
        free = len(healthy - had)
        assert str(refusal).endswith(f"Requested: {wanted - len(had)}, Available: {free}")
        return
    chosen = set(choice.complete(tuple(advice), randomness))
    assert len(chosen) == wanted
    assert len(chosen & had) == min(wanted, len(had))
    assert choice.is_complete == (wanted <= len(had))
    assert set(choice.taken) <= had


@given(st.lists(ids), st.integers(0, 8), st.integers(0, 8), st.integers())
def test_a_preference_is_followed_as_far_as_it_can_be(advice: list[str], taken: int, wanted: int, seed: int) -> None:
    """As many of the advised ids as there is room for; the rest in its order."""
    open = tuple(IDS[taken:])
    choice = Choice(max(wanted, taken), tuple(IDS[:taken]), open, open)
    chosen = set(choice.complete(advice, random.Random(seed)))
    room, advised = choice.size - taken, set(advice) & set(open)
    assert chosen >= set(choice.taken)
    assert len(chosen) == choice.size
    assert len(chosen & advised) >= min(room, len(advised))


@pytest.mark.parametrize(
    ("devices", "wanted", "message"),
    [
        (Devices(), 1, "cannot allocate unregistered device lab.io/dev"),
        (listed(), 1, "no healthy devices present; cannot allocate unhealthy devices lab.io/dev"),
        (listed(unhealthy=("a",)), 1, "no healthy devices present; cannot allocate unhealthy devices lab.io/dev"),
        (listed("a"), 2, "requested number of devices unavailable for lab.io/dev. Requested: 2, Available: 1"),
    ],
)
def test_the_words_of_a_refusal(devices: Devices, wanted: int, message: str) -> None:
    """Kubelet's (manager.go, devicesToAllocate)."""
    with pytest.raises(KubeletError) as refusal:
        devices.choose(DEV, wanted, (), random.Random(0))
    assert str(refusal.value) == message


# the figures


@given(lists)
def test_capacity_is_the_list_and_allocatable_what_is_healthy(devices: list[tuple[str, str, tuple[int, ...]]]) -> None:
    """And once the stream has ended nothing is allocatable, until the next list."""
    books = Devices()
    books.update_list(DEV, devices)
    healthy = sum(health == "Healthy" for _, health, _ in devices)
    assert books.capacities() == {DEV: (len(devices), healthy)}
    books.mark_disconnected(DEV, 5.0)
    assert books.capacities() == {DEV: (len(devices), 0)}
    assert {id: books.health(DEV, id) == "Healthy" for id, _, _ in devices} == {
        id: h == "Healthy" for id, h, _ in devices
    }
    books.mark_connected(DEV)
    books.update_list(DEV, devices)
    assert books.capacities() == {DEV: (len(devices), healthy)}
    assert books.remove_expired(1e9) == []


def test_a_resource_goes_when_its_plugin_was_gone_for_longer_than_the_grace() -> None:
    devices = listed("a")
    devices.mark_disconnected(DEV, 10.0)
    assert devices.remove_expired(10.0 + STOP_GRACE_PERIOD) == []
    assert devices.remove_expired(10.1 + STOP_GRACE_PERIOD) == [DEV]
    assert devices.capacities() == {}


def test_a_resource_that_is_held_is_a_device_plugins_even_when_it_is_gone() -> None:
    """So a pod that asks for it is refused by the device manager (isDevicePluginResource)."""
    devices = Devices()
    assert not devices.is_plugin_resource(DEV)
    devices.record_allocation(AllocationKey("pod", "c", DEV), ["a"], ANSWER)
    assert devices.is_plugin_resource(DEV)


# NUMA


@pytest.mark.parametrize(
    ("available", "reusable", "wanted", "expected"),
    [
        ("abcd", "", 1, {0}),
        ("abcd", "", 2, {0}),
        ("acd", "", 2, {1}),
        ("abcd", "", 3, {0, 1}),
        ("ac", "", 2, {0, 1}),
        ("abcdx", "", 5, set()),
        ("cd", "a", 1, {0}),
        ("cd", "a", 2, {0, 1}),
        ("m", "", 1, {0}),
        ("xy", "", 1, set()),
    ],
)
def test_a_hint_is_the_fewest_nodes_and_the_lowest(
    available: str, reusable: str, wanted: int, expected: set[int]
) -> None:
    """a, b on node 0; c, d on node 1; m on both; x, y on none. All that is reused has to be near."""
    where = {"a": (0,), "b": (0,), "c": (1,), "d": (1,), "m": (0, 1), "x": (), "y": ()}
    assert topology_hint(where, available, reusable, wanted) == expected


@given(st.dictionaries(ids, nodes), st.sets(st.integers(0, 3)))
def test_devices_are_parted_by_a_hint(where: dict[str, tuple[int, ...]], mask: set[int]) -> None:
    """Each is near, far or without NUMA; without a hint none is near or far."""
    near, far, nowhere = split_by_affinity(where, where, frozenset(mask))
    assert sorted([*near, *far, *nowhere]) == sorted(where)
    assert set(near) == {id for id, each in where.items() if set(each) & mask}
    assert not mask or set(nowhere) == {id for id, each in where.items() if not each}


@given(st.dictionaries(ids, nodes.map(lambda each: tuple(sorted(each)))))
def test_ids_by_node_and_nodes_by_id_say_the_same(where: dict[str, tuple[int, ...]]) -> None:
    assert {id: tuple(sorted(each)) for id, each in numa_nodes_by_id(ids_by_numa_node(where)).items()} == where


# the checkpoint

places = st.builds(AllocationKey, st.text(max_size=3), st.text(max_size=3), st.sampled_from([DEV, "lab.io/other"]))
answers = st.builds(
    pb.ContainerAllocateResponse,
    envs=st.dictionaries(st.text(max_size=3), st.text(max_size=3)),
    mounts=st.lists(st.builds(pb.Mount, container_path=st.text(), host_path=st.text(), read_only=st.booleans())),
)


@given(st.dictionaries(places, st.tuples(st.sets(ids), answers), max_size=4), lists)
def test_what_is_allocated_survives_the_checkpoint(
    held: dict[AllocationKey, tuple[set[str], pb.ContainerAllocateResponse]],
    devices: list[tuple[str, str, tuple[int, ...]]],
) -> None:
    """Who holds what, with NUMA nodes and answers; registered resources come back without devices. Written again it is
    the same but for these."""
    books = Devices()
    books.update_list(DEV, devices)
    for place, (taken, answer) in held.items():
        books.record_allocation(place, taken, answer)
    found = decode(encode(books))
    assert {p: ({i: set(n) for i, n in h.ids.items()}, h.response) for p, h in found.allocated.items()} == {
        p: ({i: set(n) for i, n in h.ids.items()}, h.response) for p, h in books.allocated.items()
    }
    assert found.capacities() == {DEV: (0, 0)}
    assert decode(encode(found)) == found


@given(st.binary())
def test_any_bytes_are_refused_or_read(content: bytes) -> None:
    """No bytes can do more than be refused."""
    with pytest.raises(CorruptCheckpoint):
        decode(content)


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["Data", "Checksum", "PodDeviceEntries", "RegisteredDevices", "-1", "x"]), inner
        )
    ),
    max_leaves=12,
)


@given(json)
def test_any_json_is_refused_or_read(content: object) -> None:
    """Also where its shape is almost right."""
    with pytest.raises(CorruptCheckpoint):
        decode(msgspec.json.encode(content))


@given(st.data())
def test_a_changed_checkpoint_is_refused_or_says_the_same(data: st.DataObject) -> None:
    """One byte is changed: only what makes no difference to what it says is read."""
    books = listed("a", "b")
    books.record_allocation(AllocationKey("pod", "c", DEV), ["a"], ANSWER)
    content = bytearray(encode(books))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] = data.draw(st.integers(0, 255))
    with suppress(CorruptCheckpoint):
        assert decode(bytes(content)) == decode(encode(books))


# pods


@pytest.mark.parametrize(
    ("init", "sidecars", "containers", "expected"),
    [
        ((), (), (1, 2), 3),
        ((5,), (), (1, 2), 5),
        ((2, 2), (), (3,), 3),
        ((2,), (0,), (3,), 5),
        ((), (), (0,), 0),
    ],
)
def test_what_the_scheduler_counts(
    init: tuple[int, ...], sidecars: tuple[int, ...], containers: tuple[int, ...], expected: int
) -> None:
    """The sum of what lasts, or the largest of what runs before."""
    first = tuple(Container(f"i{n}", {DEV: count}) for n, count in enumerate(init))
    rest = tuple(Container(f"c{n}", {DEV: count}) for n, count in enumerate(containers))
    pod = Pod("a", rest, init=first, sidecars=frozenset(f"i{n}" for n in sidecars))
    assert requested_resources(pod).get(DEV, 0) == expected


def test_of_two_answers_that_collide_the_first_holds() -> None:
    """As kubelet merges what a container gets of several resources."""
    one = pb.ContainerAllocateResponse(
        envs={"A": "1"},
        annotations={"a": "1"},
        mounts=[pb.Mount(container_path="/m", host_path="/1")],
        devices=[pb.DeviceSpec(container_path="/d", host_path="/1")],
        cdi_devices=[pb.CDIDevice(name="x/y=1")],
    )
    two = pb.ContainerAllocateResponse(
        envs={"A": "2", "B": "2"},
        annotations={"a": "2", "b": "2"},
        mounts=[pb.Mount(container_path="/m", host_path="/2"), pb.Mount(container_path="/n", host_path="/2")],
        devices=[pb.DeviceSpec(container_path="/d", host_path="/2")],
        cdi_devices=[pb.CDIDevice(name="x/y=1"), pb.CDIDevice(name="x/y=2")],
    )
    got = RunningPod(Pod("a"), {"main": {"x/one": one, "x/two": two}}).response()
    assert (dict(got.envs), dict(got.annotations)) == ({"A": "1", "B": "2"}, {"a": "1", "b": "2"})
    assert [(each.container_path, each.host_path) for each in got.mounts] == [("/m", "/1"), ("/n", "/2")]
    assert [each.host_path for each in got.devices] == ["/1"]
    assert [each.name for each in got.cdi_devices] == ["x/y=1", "x/y=2"]
