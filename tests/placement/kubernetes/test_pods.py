"""What a pod asks for, as kubelet and the systems that share GPUs count it."""

from typing import Any

import msgspec
import pytest

from gpuplane.model.nodeselection import NodeSelector, NodeSelectorTerm, Requirement, Toleration
from gpuplane.placement.kubernetes.objects import ApiPod
from gpuplane.placement.kubernetes.pods import NO_SUCH, GpusThere, read_pod
from gpuplane.placement.pods import Pod
from gpuplane.placement.requests import ANYWHERE, GpuRequest, NodeRules

THERE = GpusThere(
    {"nvidia.com/gpu": 0, "nvidia.com/gpu.shared": 0, "nvidia.com/gpumemory": 1024},
    frozenset({"Tesla-T4", "NVIDIA-A100-SXM4-80GB"}),
    frozenset({"GPU-0", "GPU-1"}),
)
ONE = GpuRequest(count=1, units=1, resource="nvidia.com/gpu")


def gpus(name: str = "c", number: int = 1, restarts: str | None = None) -> dict[str, Any]:
    found = {"name": name, "resources": {"limits": {"nvidia.com/gpu": f"{number}"}}}
    return found | ({"restartPolicy": restarts} if restarts else {})


def asking(**limits: str) -> dict[str, Any]:
    return {"name": "c", "resources": {"limits": limits}}


def pod(*containers: dict[str, Any], init: list[dict[str, Any]] | None = None, **metadata: Any) -> Pod:
    spec = {"containers": list(containers), "initContainers": init or []}
    return read_spec(spec, **metadata)


def read_spec(spec: dict[str, Any], **metadata: Any) -> Pod:
    document = {"metadata": {"name": "p", "namespace": "d", "uid": "u", **metadata}, "spec": spec}
    return read_pod(msgspec.json.decode(msgspec.json.encode(document), type=ApiPod), THERE)


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ({}, ()),
        ({"nvidia.com/gpu": "2"}, (ONE.but(count=2),)),
        ({"nvidia.com/gpu": "0"}, ()),
        ({"nvidia.com/gpu": "x"}, ()),
        ({"nvidia.com/gpumemory": "4"}, (GpuRequest(memory_mib=4096, resource="nvidia.com/gpumemory"),)),
        ({"nvidia.com/mig-1g.10gb": "2"}, (GpuRequest(profile="1g.10gb"),) * 2),
        ({"nvidia.com/mig-1g.10gb.me": "1"}, (GpuRequest(profile="1g.10gb+me"),)),
        ({"aliyun.com/gpu-mem": "3"}, (GpuRequest(memory_mib=3072),)),
        ({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000"}, (GpuRequest(count=2, memory_mib=3000),)),
        ({"nvidia.com/gpumem-percentage": "50", "nvidia.com/gpucores": "30"},
         (GpuRequest(memory_percent=50, milli=300),)),
        ({"nvidia.com/gpucores": "30"}, (GpuRequest(memory_percent=100, milli=300),)),
        ({"amd.com/gpu": "1"}, ()),
    ],
)  # fmt: skip
def test_what_a_container_asks_of_gpus(limits: dict[str, str], found: tuple[GpuRequest, ...]) -> None:
    assert pod(asking(**limits)).request.gpus == found


def test_containers_have_gpus_of_their_own() -> None:
    """Sidecars too; an init container has those of the others first, and more where it asks for more."""
    sidecar, first = gpus("side", restarts="Always"), gpus("init", 3)
    found = pod(gpus("a", 2), gpus("b"), init=[sidecar])
    assert list(zip(found.containers, found.request.gpus, strict=True)) == [
        ("side", ONE), ("a", ONE.but(count=2)), ("b", ONE),
    ]  # fmt: skip

    assert pod(gpus("a", 3), init=[first]).request.gpus == (ONE.but(count=3),)
    more = pod(gpus("a"), init=[first])
    assert list(zip(more.containers, more.request.gpus, strict=True)) == [("a", ONE), ("init", ONE.but(count=2))]


def test_cpu_and_memory_are_of_the_most_demanding_moment() -> None:
    """k8s.io/component-helpers/resource, PodRequests."""
    a, b = asking(cpu="500m", memory="1Gi"), asking(cpu="1", memory="512Mi")
    side = asking(cpu="250m", memory="1Mi") | {"name": "s", "restartPolicy": "Always"}

    assert (pod(a, b).request.cpu_milli, pod(a, b).request.memory_mib) == (1500, 1536)
    assert pod(a, b, init=[asking(cpu="2")]).request.cpu_milli == 2000
    assert pod(a, b, init=[side, asking(cpu="2")]).request.cpu_milli == 2250


@pytest.mark.parametrize(
    ("annotations", "models", "ids"),
    [
        ({"nvidia.com/use-gputype": "t4"}, {"Tesla-T4"}, set()),
        ({"nvidia.com/use-gputype": "A100,T4"}, set(THERE.models), set()),
        ({"nvidia.com/nouse-gputype": "A100"}, {"Tesla-T4"}, set()),
        ({"nvidia.com/use-gputype": "H100"}, {NO_SUCH}, set()),
        ({"nvidia.com/use-gpuuuid": "GPU-1"}, set(), {"GPU-1"}),
        ({"nvidia.com/nouse-gpuuuid": "GPU-1"}, set(), {"GPU-0"}),
        ({"nvidia.com/use-gpuuuid": "GPU-1", "nvidia.com/nouse-gpuuuid": "GPU-1"}, set(), {NO_SUCH}),
    ],
)
def test_annotations_of_hami_choose_among_gpus(annotations: dict[str, str], models: set[str], ids: set[str]) -> None:
    [wanted] = pod(gpus(), annotations=annotations).request.gpus

    assert ({*wanted.models}, {*wanted.ids}) == (models, ids)


@pytest.mark.parametrize(
    ("metadata", "can_move"),
    [
        ({}, False),
        ({"ownerReferences": [{"kind": "ReplicaSet", "controller": True}]}, True),
        ({"ownerReferences": [{"kind": "ReplicaSet"}]}, False),
        ({"ownerReferences": [{"kind": "DaemonSet", "controller": True}]}, False),
        ({"ownerReferences": [{"kind": "Job", "controller": True}],
          "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}}, False),
    ],
)  # fmt: skip
def test_a_pod_moves_only_if_it_would_come_again(metadata: dict[str, Any], can_move: bool) -> None:
    assert pod(gpus(), **metadata).can_move is can_move


def test_where_a_pod_may_go() -> None:
    """By selector, affinity and tolerations; those of a node that is not ready, which every pod has, are left out."""
    usual = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3}
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    required = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "m", "operator": "In", "values": ["A", "B"]}]}]}
    spec = {
        "containers": [gpus()],
        "nodeSelector": {"zone": "a"},
        "affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": required,
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}],
        }},
        "tolerations": [usual, gpu, gpu],
    }  # fmt: skip

    assert read_spec(spec).request.nodes == NodeRules(
        (("zone", "a"),),
        NodeSelector((NodeSelectorTerm((Requirement("m", "In", ("A", "B")),)),)),
        (Toleration("nvidia.com/gpu", "Exists", "", "NoSchedule"),),
    )
    assert read_spec({"containers": [gpus()], "tolerations": [usual]}).request.nodes == ANYWHERE


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "h"}]}}},
        {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "h"}]}}},
        {"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "topologyKey": "zone"}]},
    ],
)
def test_a_pod_stays_whose_place_depends_on_others(spec: dict[str, Any]) -> None:
    owned = {"ownerReferences": [{"kind": "ReplicaSet", "controller": True}]}

    assert read_spec({"containers": [gpus()]}, **owned).can_move
    assert not read_spec({"containers": [gpus()], **spec}, **owned).can_move
