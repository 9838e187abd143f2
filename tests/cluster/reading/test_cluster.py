"""Nodes and Pods as one picture: who has what, who waits, and what does not agree."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.cluster.answers.assumed import assume_places, build
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.policies import make_policy
from gpuplane.cluster.model.pods import tell_placement
from gpuplane.cluster.reading.cluster import SeenCluster, read_cluster
from gpuplane.kubernetes.contracts.nodeannotation import ANNOTATION, encode_node_gpus
from gpuplane.kubernetes.contracts.nodegpus import Holding, NodeGpu, NodeGpus, NodeMigDevice, OfferedResource
from gpuplane.kubernetes.objects import MAX_AMOUNT, ApiNode, ApiPod
from gpuplane.kubernetes.podref import PodRef

GPU, MIG = OfferedResource("nvidia.com/gpu"), OfferedResource("nvidia.com/mig-1g.10gb")


def node(name: str, gpus: int = 2, told: NodeGpus | None = None) -> dict[str, Any]:
    annotations = {} if told is None else {ANNOTATION: encode_node_gpus(told)}
    capacity = {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": f"{gpus}"}
    return {"metadata": {"name": name, "annotations": annotations}, "status": {"capacity": capacity}}


def pod(name: str, gpus: int = 1, on: str = "", phase: str = "Running", **spec: Any) -> dict[str, Any]:
    amounts = {"cpu": "1", "memory": "1Gi", **({"nvidia.com/gpu": f"{gpus}"} if gpus else {})}
    return {
        "metadata": {"name": name, "namespace": "d", "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": amounts}}], "nodeName": on, **spec},
        "status": {"phase": phase},
    }


def seen(nodes: list[dict[str, Any]], pods: list[dict[str, Any]]) -> SeenCluster:
    def read(objects: list[dict[str, Any]], kind: type) -> Any:
        return msgspec.json.decode(msgspec.json.encode(objects), type=list[kind])  # type: ignore[valid-type]

    return assume_places(read_cluster(read(nodes, ApiNode), read(pods, ApiPod)))


def told(*holdings: Holding, gpus: int = 2) -> NodeGpus:
    return NodeGpus(tuple(NodeGpu(f"{n}", f"GPU-{n}", "T4", 15360, GPU, 1) for n in range(gpus)), holdings)


def places(found: SeenCluster) -> dict[str, tuple[str, list[int]]]:
    return {
        each.name: (each.placement.node, [share.gpu for part in each.placement.shares for share in part])
        for each in found.pods
        if each.placement is not None
    }


def test_the_annotation_says_who_has_which_gpu() -> None:
    holding = Holding(PodRef("d", "a", container="c"), GPU, "1")
    found = seen([node("n", told=told(holding))], [pod("a", on="n"), pod("b", 0, on="n")])

    assert places(found) == {"d/a": ("n", [1]), "d/b": ("n", [])}
    assert found.notes == ()
    assert build(found).milli_free[0, :2].tolist() == [1000, 0]
    assert build(found).cpu_free[0] == 6000


def test_what_nobody_says_is_assumed_and_told() -> None:
    """Without the annotation the GPUs are not known, but their number is."""
    found = seen([node("n")], [pod("a", on="n"), pod("over", 2, on="n")])

    assert {(each.code, each.subject) for each in found.notes} == {("held-assumed", "n"), ("over-held", "n")}
    assert all(each.is_assumed for each in found.pods)
    assert sorted(build(found).milli_free[0, :2].tolist()) == [-1000, 0]
    assert not (build(found).room > 0).any()


def test_who_waits_stands_in_order_of_priority_and_who_has_ended_holds_nothing() -> None:
    pods = [pod("a"), pod("b", priority=5), pod("c", on="n", phase="Succeeded"), pod("d", on="elsewhere")]
    found = seen([node("n"), node("n")], pods)

    assert [each.name for each in found.waiting] == ["d/b", "d/a"]
    assert found.pods == ()
    assert [(each.code, each.subject) for each in found.notes] == [("duplicate-name", "n"), ("node-unknown", "d/d")]


def test_a_node_takes_no_more_pods_than_it_says() -> None:
    """Kube-scheduler, noderesources/fit.go."""
    full = node("full")
    full["status"]["capacity"]["pods"] = "1"
    found = seen([full], [pod("a", 0, on="full"), pod("b", 0)])

    assert found.notes == ()
    assert Engine(build(found), make_policy("binpack")).choose(found.waiting[0].request) is None


def test_who_does_not_wait_for_a_place() -> None:
    """One that waits for somebody else is told; one that ends already is not placed. What it has it still holds."""
    gates = [{"name": "kueue.x-k8s.io/admission"}]
    ending, running = pod("ending"), pod("running", on="n")
    for each in (ending, running):
        each["metadata"]["deletionTimestamp"] = "2026-11-24T00:00:00Z"
    found = seen([node("n")], [pod("gated", schedulingGates=gates), ending, running])

    assert found.waiting == ()
    assert [(each.code, each.subject) for each in found.notes] == [("gated", "d/gated"), ("held-assumed", "n")]
    assert build(found).milli_free[0].tolist() == [0, 1000]


def test_pods_without_a_uid_count() -> None:
    bare = pod("a", on="n")
    del bare["metadata"]["uid"]
    found = seen([node("n")], [bare])

    assert [(each.uid, each.name) for each in found.pods] == [("d/a", "d/a")]


def test_a_pod_that_is_there_twice_is_told_once() -> None:
    """It counts once. Two of one UID are two, as their names are."""
    copied = pod("b", on="n") | {"metadata": {"name": "b", "namespace": "d", "uid": "uid-a"}}
    found = seen([node("n"), node("n"), node("n")], [pod("a", on="n"), pod("a", on="n"), pod("a"), copied])

    assert [(each.name, each.uid) for each in found.pods] == [("d/a", "uid-a"), ("d/b", "d/b")]
    assert found.waiting == ()
    assert [each.subject for each in found.notes if each.code == "duplicate-name"] == ["n", "d/a", "d/b"]


def test_claims_are_not_read_and_told() -> None:
    found = seen([node("n")], [pod("a", 0, on="n", resourceClaims=[{"name": "g", "resourceClaimName": "c"}])])

    assert [(each.code, each.subject) for each in found.notes] == [("claims-unread", "d/a")]


def test_what_is_not_told_of_a_pod_is_assumed() -> None:
    """One of its two GPUs, as while kubelet admits it; not what it has of a device that is gone."""
    first = Holding(PodRef("d", "a", container="c"), GPU, "1")
    gone = Holding(PodRef("d", "a", container="c"), GPU, "GPU-lost")
    partly = seen([node("n", 3, told(first, gpus=3))], [pod("a", 2, on="n")])
    lost = seen([node("n", 3, told(first, gone, gpus=3))], [pod("a", 2, on="n")])

    assert places(partly) == {"d/a": ("n", [1, 0])}
    assert [each.is_assumed for each in (*partly.pods, *lost.pods)] == [True, False]
    assert [each.code for each in partly.notes] == ["held-assumed"]
    assert places(lost) == {"d/a": ("n", [1])}
    assert [each.code for each in lost.notes] == ["device-gone"]


def test_a_pod_has_as_many_shares_as_it_asks_for() -> None:
    """Two of one GPU, where the node has no other: NVIDIA's plugin gives those out (internal/rm/allocate.go)."""
    shared = node("n", 4)
    shared["metadata"]["labels"] = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": "1"}
    found = seen([shared], [pod("a", 2, on="n")])

    assert [each.code for each in found.notes] == ["held-assumed"]
    assert build(found).units_free[0].tolist() == [2]


def test_devices_that_are_held_by_nobody_known_are_not_free() -> None:
    """Of a pod that is gone from the list, of a pod without a name, and of a device that is gone itself."""
    holdings = (
        Holding(PodRef("d", "gone", container="c"), GPU, "0"),
        Holding(PodRef(), GPU, "1"),
        Holding(PodRef("d", "a", container="c"), GPU, "GPU-lost"),
    )
    found = seen([node("n", told=told(*holdings))], [])

    assert (build(found).milli_free[0, :2] == 0).all()
    assert [(each.code, each.detail) for each in found.notes] == [("device-gone", "GPU-lost")]


def test_a_pod_has_what_is_held_without_a_name() -> None:
    """It holds the last free device while kubelet admits it."""
    found = seen([node("n", told=told(Holding(PodRef(), GPU, "1")))], [pod("a", on="n")])

    assert places(found) == {"d/a": ("n", [1])}


def test_mig_devices_are_held_by_profile() -> None:
    mig = tuple(NodeMigDevice(f"0:{n}", "1g.10gb", 7 + n, 0, MIG, 1) for n in range(2))
    gpus = NodeGpus(
        (NodeGpu("0", "GPU-0", "A100", 81920, mig=mig),), (Holding(PodRef("d", "a", container="c"), MIG, "0:1"),)
    )
    found = seen([node("n", told=gpus)], [pod("a", 0, on="n")])
    cluster = build(found)

    assert cluster.mig_free("1g.10gb")[0, 0] == 1


def test_a_waiting_pod_is_placed_and_told_to_its_node() -> None:
    """From the API to the decision: by container and UUID."""
    holding = Holding(PodRef("d", "a", container="c"), GPU, "0")
    found = seen([node("n", told=told(holding))], [pod("a", on="n"), pod("b")])
    cluster, [waiting] = build(found), found.waiting
    placement = Engine(cluster, make_policy("binpack")).choose(waiting.request)
    assert placement
    node_ = cluster.nodes[0]
    assert node_

    said = tell_placement(waiting.but(placement=placement), node_)

    assert (said.uid, said.node) == ("uid-b", "n")
    assert [(each.name, [gpu.uuid for gpu in each.gpus]) for each in said.containers] == [("c", ["GPU-1"])]


@pytest.mark.parametrize("ids", [3, 48, 1500])
@pytest.mark.parametrize("is_told", [True, False])
def test_a_shared_gpu_has_as_many_pods_as_ids(ids: int, is_told: bool) -> None:
    """Those that hold one, by the annotation or as assumed, and those that come."""
    gpus = (NodeGpu("0", "GPU-0", "T4", 15360, GPU, ids),)
    holding = Holding(PodRef("d", "a", container="c"), GPU, "0", 2)
    described = node("n", ids, NodeGpus(gpus, (holding,)) if is_told else None)
    described["status"]["capacity"] |= {"cpu": "1000000", "pods": "10000"}
    described["metadata"]["labels"] = {"nvidia.com/gpu.replicas": f"{ids}", "nvidia.com/gpu.count": "1"}
    holders = [pod("a", on="n")] if is_told else [pod("a", on="n"), pod("b", on="n")]
    found = seen([described], [*holders, pod("new")])
    cluster, request = build(found), found.waiting[0].request.but(cpu_milli=0, memory_bytes=0)
    engine = Engine(cluster, make_policy("binpack"))
    placed = 0
    while placement := engine.choose(request):
        cluster.take(request, placement)
        placed += 1

    assert placed == ids - 2


@pytest.mark.parametrize("amount", [1 << 62, 1 << 63, -1])
def test_amounts_that_no_gpu_has_are_told_and_labels_count(amount: int) -> None:
    text = json.dumps({"v": 1, "models": [["T4", amount]], "resources": [["nvidia.com/gpu", "", 0]],
                       "gpus": [{"i": "0", "u": "GPU-0", "r": 0, "n": 1}]})  # fmt: skip
    described = node("n")
    described["metadata"]["annotations"] = {ANNOTATION: text}
    found = seen([described], [pod("a", on="n")])

    assert [(each.code, each.subject) for each in found.notes] == [
        ("annotation-unreadable", "n"),
        ("held-assumed", "n"),
    ]
    assert build(found).milli_free[0, :2].tolist() == [0, 1000]


def test_amounts_of_any_size_are_added_within_64_bits() -> None:
    """As large as they are read, of the node and of its pods."""
    largest = 1 << 30
    shared = OfferedResource("nvidia.com/gpu", "memory", largest)
    described = NodeGpus((NodeGpu("0", "GPU-0", "T4", largest, shared, largest),))
    asking = pod("a", 1 << 62, on="n"), pod("b", 1 << 62), pod("c", on="n")
    found = seen([node("n", told=described)], [*asking])
    cluster = build(found)

    assert cluster.gpu_memory_mib[0, 0] == MAX_AMOUNT
    assert Engine(cluster, make_policy("binpack")).choose(found.waiting[0].request) is None


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 1 << 70) | st.sampled_from(["", "x", "1", "-1", "1e99", "GPU-0"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "cpu"]), inner, max_size=2),
    max_leaves=4,
)
AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", "pods", "rdma/hca", "nvidia.com/gpu", "nvidia.com/mig-1g.10gb",
                     "nvidia.com/gpumem", "aliyun.com/gpu-mem", "nvidia.com/gpucores"]),
    st.sampled_from(["0", "1", "3", "-1", "1Gi", "1e30", "nonsense", "500m", "99999999999999999999"]),
    max_size=4,
)  # fmt: skip


@given(
    st.lists(st.tuples(st.sampled_from("ab"), AMOUNTS, st.sampled_from(["", "{}", "x"])), max_size=3),
    st.lists(
        st.tuples(st.sampled_from(["", "a", "b", "c"]), AMOUNTS, AMOUNTS, st.none() | st.just("Always")), max_size=6
    ),
)
def test_any_cluster_is_read_and_takes_no_more_than_there_is(
    nodes: list[tuple[str, dict[str, str], str]], pods: list[tuple[str, dict[str, str], dict[str, str], str | None]]
) -> None:
    found = seen(
        [
            {"metadata": {"name": name, "annotations": {ANNOTATION: text}}, "status": {"capacity": capacity}}
            for name, capacity, text in nodes
        ],
        [
            {
                "metadata": {"name": f"p{index}", "namespace": "d", "uid": f"{index}"},
                "spec": {
                    "nodeName": on,
                    "initContainers": [{"name": "a", "resources": {"limits": first}, "restartPolicy": restarts}],
                    "containers": [{"name": "b", "resources": {"limits": first}},
                                   {"name": "c", "resources": {"requests": second}}],
                },
            }
            for index, (on, first, second, restarts) in enumerate(pods)
        ],
    )  # fmt: skip
    cluster = build(found)
    engine = Engine(cluster, make_policy("waste-price"))

    assert (cluster.room >= -1).all()
    over = {each.subject for each in found.notes if each.code == "over-held"}
    assert over == {name for name in cluster.rows if cluster.is_over_held(name)}
    before = {name: cluster.is_over_held(name) for name in cluster.rows}
    for each in found.waiting:
        if placement := engine.choose(each.request):
            cluster.take(each.request, placement)
    assert {name: cluster.is_over_held(name) for name in cluster.rows} == before
    for each in found.pods:
        assert each.placement is not None
        cluster.give_back(each.request, each.placement)
