"""What is asked about a cluster: the plan can be made, and decisions see those before them in their places."""

import json
from random import Random
from typing import Any

import msgspec
import pytest

from gpuplane.base.strict import InvalidInput
from gpuplane.cluster.answers.assumed import assume_places
from gpuplane.cluster.answers.explain import show_waiting
from gpuplane.cluster.answers.plan import movable, show_plan
from gpuplane.cluster.engine.configuration import PlacementConfig
from gpuplane.cluster.reading.cluster import SeenCluster
from gpuplane.cluster.reading.listing import read_saved
from gpuplane.cluster.simulation.clusters import trace_of
from gpuplane.kubernetes.objects import ApiPod, decode_objects
from tests.cluster.reading.small import node, objects, pod

USUAL = PlacementConfig()


def read(items: list[Any]) -> SeenCluster:
    return assume_places(read_saved(json.dumps({"kind": "List", "items": items}).encode(), "c.json"))


def test_a_file_of_kubectl_is_a_cluster() -> None:
    found = read([*objects(), {"kind": "Service", "metadata": 5}])

    assert len(found.nodes) == 6
    assert len(found.pods) == 12
    assert [each.name for each in found.waiting] == ["team/big", "team/small", "team/huge"]
    assert {note.code for note in found.notes} == {"held-assumed"}


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"items": 5}', "kind: List", "[" * 50_000, '{"items":' * 50_000])
def test_what_kubectl_did_not_write(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"c\.json: it is not what `kubectl get"):
        read_saved(text.encode(), "c.json")


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"kind": "Node", "metadata": None}, "node 7"),
        ({"kind": "Node", "metadata": {"name": "x", "labels": [1]}}, "x"),
        ({"kind": "Pod", "metadata": {"name": "x", "namespace": "y"}, "spec": 5}, "y/x"),
        ({"kind": "Pod", "metadata": {"name": ["x"]}, "spec": 5}, "pod 16"),
        ({"kind": 5, "metadata": {"name": "z"}, "spec": 5}, "z"),
        ([], "node 7"),
    ],
)
def test_a_malformed_object_takes_no_other_with_it(wrong: Any, name: str) -> None:
    found = read([*objects(), wrong])

    assert len(found.nodes) == 6
    assert len(found.pods) + len(found.waiting) == 15
    assert [note.subject for note in found.notes if note.code == "object-unreadable"] == [name]


def test_an_object_that_is_nested_deep_is_malformed() -> None:
    deep = b'{"metadata":{"name":"x"},"spec":{"nodeSelector":' + b"[" * 5000 + b"]" * 5000 + b"}}"
    good = json.dumps(pod("p", 1)).encode()
    found, unreadable = decode_objects([msgspec.Raw(deep), msgspec.Raw(good)], ApiPod, "pod")

    assert [each.metadata.name for each in found] == ["p"]
    assert [*unreadable] == ["pod 1"]


def test_decisions_see_those_before_them() -> None:
    """Of three single GPUs that wait for the one that is free, the most important gets it."""
    waiting = [pod(name, 1, priority=priority) for name, priority in (("x", 1), ("y", 5), ("z", 1))]
    found = show_waiting(read([node("n0"), pod("a", 3, "n0", 2), *waiting]), USUAL)

    assert [(each.pod, each.place is not None) for each in found] == [
        ("team/y", True), ("team/x", False), ("team/z", False),
    ]  # fmt: skip
    assert [each.left for each in found[0].gpus if each.code == "chosen"] == [0]
    assert found[1].preemption is None
    assert found[1].ending is not None
    assert list(found[1].ending.pods) == ["team/a"]
    assert found[1].counts == {"gpus-in-use": 1}


def test_a_pod_that_has_just_been_placed_can_be_preempted() -> None:
    found = show_waiting(read([node("n0"), pod("x", 4, priority=1)]), USUAL, "team/x")
    assert [each.place is not None for each in found] == [True]

    cluster = read([node("n0"), pod("low", 4), pod("later", 4)])
    assert show_waiting(cluster, USUAL, "team/later")[0].ending is not None


def test_a_running_pod_is_decided_as_if_it_came_now() -> None:
    [found] = show_waiting(read(objects()), USUAL, "team/b3")

    assert found.now is not None
    assert found.place is not None
    assert found.counts["chosen"] == 1
    assert found.counts["worse"] == 5
    with pytest.raises(KeyError):
        show_waiting(read(objects()), USUAL, "team/b9")


def test_a_plan_says_who_fits_then() -> None:
    """Two nodes with two of four GPUs taken each: one move, and a pod of four fits."""
    cluster = read([node("n0"), node("n1"), pod("a", 2, "n0"), pod("b", 2, "n1"), pod("big", 4)])
    found = show_plan(cluster, USUAL, 5)

    assert [each.pod for each in found.moves] in (["team/a"], ["team/b"])
    assert found.fit_before == ()
    assert found.fit_after == ("team/big",)
    assert (found.free_before, found.free_after) == (4, 4)
    assert found.moves[0].gain == pytest.approx(found.gain)
    assert found.moves[0].is_assumed
    assert show_plan(cluster, USUAL, 0).moves == ()


@pytest.mark.parametrize("why", ["nobody", "DaemonSet", "kept"])
def test_who_would_not_start_again_stays(why: str) -> None:
    stays = [pod("a", 2, "n0"), pod("b", 2, "n1")]
    for each in stays:
        metadata = each["metadata"]
        if why == "nobody":
            metadata["ownerReferences"] = []
        elif why == "DaemonSet":
            metadata["ownerReferences"][0]["kind"] = "DaemonSet"
        else:
            metadata["annotations"] = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    cluster = read([node("n0"), node("n1"), *stays, pod("big", 4)])

    assert movable(cluster) == []
    assert show_plan(cluster, USUAL, 5).moves == ()


def test_a_cluster_is_a_trace_of_its_open_nodes_and_its_pods() -> None:
    closed = node("n9")
    closed["spec"] = {"unschedulable": True}
    shared = pod("shared", 1)
    shared["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "40960"}
    found = trace_of(read([*objects(), closed, shared]))

    assert {each.name for each in found.nodes} == {f"n{index}" for index in range(6)}
    assert {each.name: each.demand_milli for each in found.pods if each.name[5] not in "ab"} == {
        "team/huge": 8000, "team/small": 1000, "team/shared": 500,
    }  # fmt: skip
    assert sum(each.demand_milli for each in found.pods) == 18_000 + 4000 + 9000 + 500


TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists"}


def test_a_pod_does_not_go_where_a_taint_or_its_affinity_keeps_it_from() -> None:
    tainted, other = node("n0"), node("n1")
    tainted["spec"] = {"taints": [TAINT]}
    other["metadata"] = {"name": "n1", "labels": other["metadata"]["labels"] | {"pool": "b"}}
    picky, tolerant = pod("picky", 1), pod("tolerant", 1)
    selector = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "NotIn", "values": ["b"]}]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}
    picky["spec"]["affinity"] = tolerant["spec"]["affinity"] = affinity
    tolerant["spec"]["tolerations"] = [TOLERATION]
    found = {each.pod: each for each in show_waiting(read([tainted, other, picky, tolerant]), USUAL)}

    assert found["team/picky"].counts == {"labels": 1, "taint": 1}
    assert found["team/picky"].ending is None
    assert found["team/tolerant"].counts == {"chosen": 1, "labels": 1}


@pytest.mark.parametrize("is_tolerated", [False, True])
def test_no_pod_is_moved_to_where_it_could_not_go(is_tolerated: bool) -> None:
    """A pod of four fits if the two GPUs beside the taint take what does tolerate it."""
    tainted = node("n0")
    tainted["spec"] = {"taints": [TAINT]}
    pods = [pod("b", 2, "n1"), pod("big", 4)]
    if is_tolerated:
        pods[0]["spec"]["tolerations"] = [TOLERATION]
    plan = show_plan(read([tainted, node("n1"), *pods]), USUAL, 1)

    assert [(each.pod, each.after.node) for each in plan.moves] == ([("team/b", "n0")] if is_tolerated else [])
    assert plan.fit_after == (("team/big",) if is_tolerated else ())


def test_a_plan_says_the_same_of_the_waiting_as_another_one_of_the_same_cluster() -> None:
    """What was tried before it, on a copy of the cluster, does not count."""
    waiting = [pod(f"w{index}", 1 + index % 3) for index in range(9)]
    cluster = read([*map(node, ("n0", "n1", "n2")), pod("a", 1, "n0"), pod("b", 3, "n1"), *waiting])
    plan = show_plan(cluster, USUAL, 0)

    assert plan.fit_before == plan.fit_after


def test_no_move_takes_the_place_of_a_pod_that_waits() -> None:
    random, moves = Random(5), 0
    for _ in range(60):
        nodes = [node(f"n{index}", random.choice((1, 2, 4))) for index in range(random.randint(2, 4))]
        pods = [pod(f"a{n}", random.choice((0, 1, 1, 2)), f"n{random.randrange(len(nodes))}") for n in range(6)]
        waiting = [pod(f"w{n}", random.choice((1, 2, 4)), priority=n % 2) for n in range(random.randint(1, 4))]
        found = show_plan(read([*nodes, *pods, *waiting]), USUAL, 6)
        assert set(found.fit_before) <= set(found.fit_after)
        moves += len(found.moves)
    assert moves


def test_a_pod_moves_to_gpus_as_good_as_those_that_it_has() -> None:
    """Not from a whole A100 to a quarter of one, nor to another model; unless it names both."""
    whole, shared, other = node("n0", 2), node("n1"), node("n2", 1)
    shared["metadata"]["labels"] |= {"nvidia.com/gpu.replicas": "4"}
    shared["status"]["capacity"] |= {"nvidia.com/gpu": "16"}
    shared["status"]["allocatable"] |= {"nvidia.com/gpu": "16"}
    other["metadata"]["labels"] |= {"nvidia.com/gpu.product": "Tesla-T4"}
    items = [whole, shared, other, pod("a", 1, "n0"), pod("big", 2)]

    plan = show_plan(read(items), USUAL, 1)
    assert plan.moves == ()
    [placed] = movable(read(items))
    assert [(each.models, each.milli, each.memory_mib) for each in placed.request.gpus] == [
        (frozenset({"NVIDIA-A100-SXM4-80GB"}), 1000, 81920)
    ]
    better = show_plan(read([*items, node("n3", 1)]), USUAL, 1)
    assert [(each.pod, each.after.node) for each in better.moves] == [("team/a", "n3")]


def test_two_pods_are_not_promised_the_end_of_the_same_one() -> None:
    running = [pod("low", 4, "n0", 1), pod("mid", 4, "n1", 3)]
    waiting = [pod(name, 4, priority=5) for name in ("x", "y", "z")]
    found = show_waiting(read([node("n0"), node("n1"), *running, *waiting]), USUAL)

    assert [each.preemption and [*each.preemption.pods] for each in found] == [["team/low"], ["team/mid"], None]
    assert found[2].ending is not None
    assert [*found[2].ending.pods] in (["team/x"], ["team/y"])
    assert found[2].ending.waiting == tuple(found[2].ending.pods)
    assert [each.pod for each in show_waiting(read([node("n0"), *waiting]), USUAL, "team/y")] == ["team/y"]


def test_who_preempts_nobody_and_who_would_be_back_at_once() -> None:
    """A pod of a DaemonSet is preempted as others are, but it makes no room for one that preempts nobody: it is there
    again before that."""
    running, waiting = [pod("a", 4, "n0", 1), pod("b", 4, "n1", 2)], pod("x", 4, priority=5)
    running[0]["metadata"]["ownerReferences"][0]["kind"] = "DaemonSet"
    [found] = show_waiting(read([node("n0"), node("n1"), *running, waiting]), USUAL)
    assert found.preemption is not None
    assert [*found.preemption.pods] == ["team/a"]

    waiting["spec"]["preemptionPolicy"] = "Never"
    [found] = show_waiting(read([node("n0"), node("n1"), *running, waiting]), USUAL)
    assert found.preemption is None
    assert found.ending is not None
    assert [*found.ending.pods] == ["team/b"]


def test_a_node_of_a_file_that_says_nothing_of_pods_takes_any_number() -> None:
    silent = node("n0")
    for amounts in silent["status"].values():
        del amounts["pods"]
    found = read([silent, *(pod(f"p{n}", 1) for n in range(4))])
    assert all(each.place is not None for each in show_waiting(found, USUAL))


def test_what_is_given_back_of_a_node_with_too_many_pods_makes_up_for_that_first() -> None:
    """64 GiB and two pods of 48: when one ends there are 16 left, and not 48."""
    full = node("n0")
    for amounts in full["status"].values():
        amounts["memory"] = "64Gi"
    pods = [pod("a", 0, "n0"), pod("b", 0, "n0"), *(pod(name, 0, priority=5) for name in ("w", "x"))]
    for each, memory in zip(pods, ("48Gi", "48Gi", "16Gi", "16Gi"), strict=True):
        each["spec"]["containers"][0]["resources"] = {"requests": {"memory": memory}}
    cluster = read([full, *pods])
    first, second = show_waiting(cluster, USUAL)

    assert "over-held" in {each.code for each in cluster.notes}
    assert (first.place, second.place) == (None, None)
    assert first.preemption is not None
    assert second.preemption is not None
    assert sorted([*first.preemption.pods, *second.preemption.pods]) == ["team/a", "team/b"]


def test_a_pod_on_a_sick_gpu_counts_as_the_scheduler_counts_it() -> None:
    """Of eight GPUs one has died under its pod: seven are allocatable and eight given out, so two pods have to end."""
    sick = node("n0", 8)
    sick["status"]["allocatable"]["nvidia.com/gpu"] = "7"
    pods = [pod(f"r{n}", 1, "n0") for n in range(8)]
    [found] = show_waiting(read([sick, *pods, pod("w", 1, priority=10)]), USUAL)

    assert found.preemption is not None
    assert len(found.preemption.pods) == 2
    [found] = show_waiting(read([sick, *pods[1:], pod("w", 1)]), USUAL)
    assert found.place is None
    [found] = show_waiting(read([sick, *pods[2:], pod("w", 1)]), USUAL)
    assert found.place is not None


def test_a_plan_gains_nothing_of_a_node_that_has_too_many_pods() -> None:
    """Two moves would only make up for what is too much there."""
    full = node("n0")
    for amounts in full["status"].values():
        amounts["cpu"] = "8"
    pods = [pod(name, 1, "n0") for name in "abcd"]
    assert show_plan(read([full, node("n1"), *pods, pod("w", 1)]), USUAL, 2).fit_after == ("team/w",)
    plan = show_plan(read([full, *pods]), USUAL, 4)
    assert (plan.moves, plan.usable_before) == ((), 0)


def test_two_pods_do_not_take_one_port_of_a_node() -> None:
    with_port = [pod("a", 1, "n0"), pod("b", 1), pod("c", 1)]
    for each in with_port:
        each["spec"]["containers"][0]["ports"] = [{"containerPort": 8080, "hostPort": 8080}, {"containerPort": 90}]
    with_port[2]["spec"]["containers"][0]["ports"][0]["protocol"] = "UDP"
    by_tcp, by_udp = show_waiting(read([node("n0"), *with_port]), USUAL)

    assert (by_tcp.place, by_tcp.counts) == (None, {"others-in-use": 1})
    assert by_udp.place is not None


def test_shared_mig_devices_are_another_resource() -> None:
    shared = node("n0", 0)
    for amounts in shared["status"].values():
        amounts["nvidia.com/mig-1g.10gb.shared"] = "4"
        del amounts["nvidia.com/gpu"]
    pods = [pod("a", 0), pod("b", 0)]
    for each, name in zip(pods, ("nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.shared"), strict=True):
        each["spec"]["containers"][0]["resources"]["limits"] = {name: "1"}

    assert [each.place is not None for each in show_waiting(read([shared, *pods]), USUAL)] == [False, True]


def test_a_node_can_be_filled_to_the_byte() -> None:
    """Decimal units are no whole MiB."""
    decimal = node("n0")
    for amounts in decimal["status"].values():
        amounts |= {"memory": "10G", "ephemeral-storage": "10G"}
    pods = [pod(f"p{n}", 0, "n0" if n < 5 else "") for n in range(11)]
    for each in pods:
        each["spec"]["containers"][0]["resources"] = {"requests": {"memory": "1G", "ephemeral-storage": "1G"}}
    found = read([decimal, *pods])

    assert found.notes == ()
    assert [each.place is not None for each in show_waiting(found, USUAL)] == [True] * 5 + [False]


def test_a_pod_that_asks_nothing_of_what_is_held_too_much_fits() -> None:
    """Kube-scheduler looks only at what a pod asks for."""
    full = node("n0")
    for amounts in full["status"].values():
        amounts |= {"cpu": "4", "memory": "1Gi"}
    pods = [pod("a", 1, "n0"), pod("b", 1, "n0"), pod("w", 1), pod("x", 1)]
    pods[2]["spec"]["containers"][0]["resources"]["requests"] = {}

    without_cpu, with_cpu = show_waiting(read([full, *pods]), USUAL)
    assert without_cpu.place is not None
    assert with_cpu.counts == {"cpu-in-use": 1}
