"""What a pod asks for, as kubelet and the systems that share GPUs count it."""

from typing import Any

import msgspec
import pytest

from gpuplane.cluster.model.pods import Pod
from gpuplane.cluster.model.requests import NO_NODE_RULES, GpuRequest, NodeRules
from gpuplane.cluster.reading.pods import NO_SUCH_GPU, GpusThere, read_pod
from gpuplane.kubernetes.objects import ApiPod, Container, ObjectMetadata, PodSpec, ResourceRequirements
from gpuplane.kubernetes.selectors import NodeSelector, NodeSelectorTerm, Requirement, Toleration

THERE = GpusThere(
    {"nvidia.com/gpu": 0, "nvidia.com/gpu.shared": 0, "nvidia.com/gpumemory": 1024},
    frozenset({"Tesla-T4", "NVIDIA-A100-SXM4-80GB"}),
    frozenset({"GPU-0", "GPU-1"}),
)
ONE = GpuRequest(count=1, units=1, resource="nvidia.com/gpu")
HAMI = GpuRequest(resource="nvidia.com/gpu")


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
        ({"nvidia.com/mig-1g.10gb.shared": "1"}, (GpuRequest(profile="1g.10gb"),)),
        ({"aliyun.com/gpu-mem": "3"}, (GpuRequest(memory_mib=3072, resource="aliyun.com/gpu-mem"),)),
        ({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000"}, (HAMI.but(count=2, memory_mib=3000),)),
        ({"nvidia.com/gpumem-percentage": "50", "nvidia.com/gpucores": "30"},
         (HAMI.but(memory_percent=50, milli=300),)),
        ({"nvidia.com/gpucores": "30"}, (HAMI.but(memory_percent=100, milli=300),)),
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

    assert (pod(a, b).request.cpu_milli, pod(a, b).request.memory_bytes) == (1500, 1536 << 20)
    assert pod(a, b, init=[asking(cpu="2")]).request.cpu_milli == 2000
    assert pod(a, b, init=[side, asking(cpu="2")]).request.cpu_milli == 2250


def test_other_resources_are_counted_as_the_scheduler_does() -> None:
    """A place among the node's pods, and all that is neither CPU nor memory. What HAMi asks the scheduler
    to overlook is overlooked."""
    limits = {"ephemeral-storage": "1500k", "hugepages-2Mi": "4Mi", "rdma/hca": "1", "nvidia.com/hostdev": "2",
              "nvidia.com/gpu": "1", "nvidia.com/gpumem": "1", "nvidia.com/mig-1g.10gb": "1",
              "nvidia.com/priority": "1", "nvidia.com/gpumemory": "1", "aliyun.com/gpu-mem": "1"}  # fmt: skip
    first = asking(**{"rdma/hca": "4"})
    side = asking(**{"rdma/hca": "1"}) | {"restartPolicy": "Always"}

    assert pod({"name": "c"}).request.others == (("pods", 1),)
    assert pod(asking(**limits)).request.others == (
        ("aliyun.com/gpu-mem", 1), ("ephemeral-storage", 1_500_000), ("hugepages-2Mi", 4 << 20), ("nvidia.com/gpu", 1),
        ("nvidia.com/gpumemory", 1), ("nvidia.com/hostdev", 2), ("nvidia.com/mig-1g.10gb", 1), ("pods", 1),
        ("rdma/hca", 1),
    )  # fmt: skip
    assert dict(pod(asking(**limits), init=[side, first]).request.others)["rdma/hca"] == 5


@pytest.mark.parametrize(
    ("resources", "found"),
    [
        ({"requests": {"cpu": "3", "memory": "2Gi", "hugepages-2Mi": "6Mi", "rdma/hca": "9"}}, (3100, 2048, 6)),
        ({"limits": {"cpu": "3", "hugepages-2Mi": "6Mi"}}, (1100, 1024, 6)),
        ({}, (1100, 1024, 0)),
    ],
)
def test_a_pod_may_ask_as_a_whole(resources: dict[str, Any], found: tuple[int, int, int]) -> None:
    """Its request replaces those of the containers, its limit counts where they say nothing; its overhead is added
    (PodRequests; the defaults of the API server)."""
    containers = [asking(cpu="1", memory="1Gi")]
    request = read_spec({"containers": containers, "resources": resources, "overhead": {"cpu": "100m"}}).request

    others = dict(request.others)
    assert (request.cpu_milli, request.memory_bytes >> 20, others.get("hugepages-2Mi", 0) >> 20) == found
    assert "rdma/hca" not in others


RESIZED = {"name": "c", "resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "3"}}
PENDING = {"type": "PodResizePending", "status": "True"}


@pytest.mark.parametrize(
    ("status", "cpu_milli"),
    [
        ({}, 1000),
        ({"containerStatuses": [{"name": "c"}]}, 1000),
        ({"containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "3"}}]}, 1000),  # of a kubelet before 1.33
        ({"containerStatuses": [RESIZED]}, 3000),
        ({"containerStatuses": [RESIZED | {"allocatedResources": {}}]}, 2000),
        ({"containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": "500m"}}}]}, 1000),
        ({"containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": "500m"}}}],
          "conditions": [{"type": "Ready"}, PENDING | {"reason": "Infeasible"}]}, 500),
        ({"containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": "500m"}}}],
          "conditions": [PENDING | {"reason": "Deferred"}]}, 1000),
        ({"containerStatuses": [RESIZED | {"name": "another"}]}, 1000),
    ],
)  # fmt: skip
def test_a_container_that_is_resized_in_place_counts_with_the_larger_amount(
    status: dict[str, Any], cpu_milli: int
) -> None:
    """What it has by its status, or asks for; as long as its node can give that at all (determineContainerReqs)."""
    document = {"metadata": {"name": "p"}, "spec": {"containers": [asking(cpu="1")]}, "status": status}
    found = read_pod(msgspec.json.decode(msgspec.json.encode(document), type=ApiPod), THERE)

    assert found.request.cpu_milli == cpu_milli


def test_of_init_containers_sidecars_alone_are_resized() -> None:
    side = {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}
    first = {"name": "i", "resources": {"requests": {"cpu": "2"}}}
    grown = {"resources": {"requests": {"cpu": "8"}}}

    def cpu_milli(*resized: str) -> int:
        status = {"initContainerStatuses": [grown | {"name": name} for name in resized]}
        spec = {"initContainers": [side, first], "containers": [asking(cpu="1")]}
        document = {"metadata": {"name": "p"}, "spec": spec, "status": status}
        return read_pod(msgspec.json.decode(msgspec.json.encode(document), type=ApiPod), THERE).request.cpu_milli

    assert [cpu_milli(), cpu_milli("i"), cpu_milli("s")] == [3000, 3000, 10_000]


def test_a_sidecar_keeps_its_gpus_while_init_containers_run_after_it() -> None:
    """Those that run before it have given theirs back (kubelet, cm/devicemanager, devicesToReuse). The last one is
    recorded of kubelet 1.36: its checkpoint has three devices."""
    side, first = gpus("side", restarts="Always"), gpus("init", 2)

    def count(init: list[dict[str, Any]], *containers: dict[str, Any]) -> int:
        return sum(each.count for each in pod(*containers, init=init).request.gpus)

    assert count([side, first], gpus("a")) == 3
    assert count([first, side], gpus("a")) == 2
    assert count([side, first], gpus("a", 2)) == 3
    assert count([first, side, gpus("again", 2)], gpus("a")) == 3
    assert count([side, first, gpus("again", 3)], gpus("a")) == 4
    assert count([gpus("init-dev"), side], gpus("app-one", 2)) == 3


def test_an_init_container_has_the_memory_of_those_after_it() -> None:
    """A sidecar before it keeps its own."""
    side = asking(**{"nvidia.com/gpumemory": "5"}) | {"name": "side", "restartPolicy": "Always"}
    first, last = asking(**{"nvidia.com/gpumemory": "4"}), asking(**{"nvidia.com/gpumemory": "3"})

    assert [each.memory_mib for each in pod(last, init=[side, first]).request.gpus] == [5120, 4096]


@pytest.mark.parametrize(("resources", "unit"), [({}, 1024), ({"aliyun.com/gpu-mem": 256}, 256)])
def test_containers_have_memory_of_one_gpu_of_gpushare_together(resources: dict[str, int], unit: int) -> None:
    """Its extender adds them up, and looks for one GPU (pkg/utils/pod.go, pkg/cache/nodeinfo.go). Nodes of this agent
    may offer it by that name, and say how much each id is."""
    spec = PodSpec(
        [
            Container(name, ResourceRequirements(limits={"aliyun.com/gpu-mem": amount}))
            for name, amount in (("a", "3"), ("b", "2"))
        ]
    )
    found = read_pod(ApiPod(ObjectMetadata("p"), spec), GpusThere(resources))

    assert found.request.gpus == (GpuRequest(memory_mib=5 * unit, resource="aliyun.com/gpu-mem"),)
    assert found.containers == ("a",)


@pytest.mark.parametrize(
    ("annotations", "models", "ids"),
    [
        ({"nvidia.com/use-gputype": "t4"}, {"Tesla-T4"}, set()),
        ({"nvidia.com/use-gputype": "A100,T4"}, set(THERE.models), set()),
        ({"nvidia.com/nouse-gputype": "A100"}, {"Tesla-T4"}, set()),
        ({"nvidia.com/use-gputype": "NVIDIA-Tesla T4"}, {"Tesla-T4"}, set()),
        ({"nvidia.com/nouse-gputype": "NVIDIA-NVIDIA A100-SXM4-80GB"}, {"Tesla-T4"}, set()),
        ({"nvidia.com/use-gputype": "H100"}, {NO_SUCH_GPU}, set()),
        ({"nvidia.com/use-gpuuuid": "GPU-1"}, set(), {"GPU-1"}),
        ({"nvidia.com/nouse-gpuuuid": "GPU-1"}, set(), {"GPU-0"}),
        ({"nvidia.com/use-gpuuuid": "GPU-1", "nvidia.com/nouse-gpuuuid": "GPU-1"}, set(), {NO_SUCH_GPU}),
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
        ({"ownerReferences": [{"kind": "Node", "controller": True}]}, False),
        ({"ownerReferences": [{"kind": "ReplicaSet", "controller": True}],
          "deletionTimestamp": "2026-11-24T00:00:00Z"}, False),
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
    assert read_spec({"containers": [gpus()], "tolerations": [usual]}).request.nodes == NO_NODE_RULES


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


def test_a_pod_stays_that_has_claims() -> None:
    owned = {"ownerReferences": [{"kind": "ReplicaSet", "controller": True}]}

    assert not read_spec({"containers": [gpus()], "resourceClaims": [{"name": "g"}]}, **owned).can_move


@pytest.mark.parametrize(
    ("metadata", "can_end"),
    [
        ({}, True),
        ({"ownerReferences": [{"kind": "ReplicaSet", "controller": True}]}, True),
        ({"ownerReferences": [{"kind": "DaemonSet", "controller": True}]}, True),
        ({"ownerReferences": [{"kind": "Node", "controller": True}]}, False),
        ({"annotations": {"kubernetes.io/config.mirror": "8d1"}}, False),
    ],
)
def test_kubernetes_cannot_end_a_static_pod(metadata: dict[str, Any], can_end: bool) -> None:
    found = pod(gpus(), **metadata)
    assert found.can_end is can_end
    assert found.comes_back is ("DaemonSet" in str(metadata))


@pytest.mark.parametrize(("policy", "may_preempt"), [(None, True), ("PreemptLowerPriority", True), ("Never", False)])
def test_whether_others_end_for_a_pod(policy: str | None, may_preempt: bool) -> None:
    assert read_spec({"containers": [gpus()], "preemptionPolicy": policy}).may_preempt is may_preempt


def test_a_pod_of_a_file_without_a_uid_is_known_by_its_name() -> None:
    found = read_pod(msgspec.json.decode(b'{"metadata": {"name": "p"}}', type=ApiPod), THERE)

    assert (found.uid, found.name) == ("default/p", "default/p")


def test_what_a_pod_has_by_a_claim_is_not_asked_of_device_plugins() -> None:
    """The scheduler writes which extended resources those are (Kubernetes 1.34, DRAExtendedResource)."""
    container = asking(**{"nvidia.com/gpu": "1", "example.com/nic": "1"})
    mappings = [
        {"containerName": "c", "requestName": "r", "resourceName": name} for name in container["resources"]["limits"]
    ]
    status = {"extendedResourceClaimStatus": {"requestMappings": mappings, "resourceClaimName": "p-extended"}}
    document = {"metadata": {"name": "p"}, "spec": {"containers": [container]}, "status": status}
    found = read_pod(msgspec.json.decode(msgspec.json.encode(document), type=ApiPod), THERE)

    assert (found.request.gpus, found.request.others) == ((), (("pods", 1),))
