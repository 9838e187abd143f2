"""What a Node has for pods: by our annotation, else by NVIDIA's labels; what cannot be read is told."""

from typing import Any

import msgspec
import pytest

from gpuplane.cluster.model.nodes import Gpu
from gpuplane.cluster.reading.nodes import SeenNode, read_node
from gpuplane.kubernetes.contracts.nodeannotation import ANNOTATION, encode_node_gpus
from gpuplane.kubernetes.contracts.nodegpus import NodeGpu, NodeGpus, NodeMigDevice, OfferedResource
from gpuplane.kubernetes.objects import ApiNode
from gpuplane.kubernetes.selectors import Taint

GPU = OfferedResource("nvidia.com/gpu")
LABELS = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360", "nvidia.com/gpu.count": "2"}


def read(capacity: dict[str, str], labels: dict[str, str] | None = None, **other: Any) -> SeenNode:
    """A Node as the API server has it."""
    node = {
        "metadata": {"name": "n", "labels": labels or {}, "annotations": other.pop("annotations", None)},
        "spec": other.pop("spec", {}),
        "status": {"capacity": {"cpu": "8", "memory": "32Gi", **capacity}, **other},
    }
    return read_node(msgspec.json.decode(msgspec.json.encode(node), type=ApiNode))


def test_the_annotation_says_what_there_is() -> None:
    told = NodeGpus((
        NodeGpu("0", "GPU-0", "NVIDIA H100 80GB HBM3", 81559, GPU, 4),
        NodeGpu("1", "GPU-1", "NVIDIA H100 80GB HBM3", 81559, GPU, 4, state="unhealthy", code="xid-79"),
        NodeGpu("2", "GPU-2", "NVIDIA H100 80GB HBM3", 81559, mig=(
            NodeMigDevice("2:0", "1g.10gb", 7, 0, OfferedResource("nvidia.com/mig-1g.10gb"), 1),
            NodeMigDevice("2:1", "1g.10gb", 8, 0, OfferedResource("nvidia.com/mig-1g.10gb"), 1),
        )),
        NodeGpu("3", "GPU-3", "NVIDIA H100 80GB HBM3", 81559, OfferedResource("nvidia.com/gpu", "memory", 1024), 79),
    ))  # fmt: skip
    seen = read({"nvidia.com/gpu": "12"}, annotations={ANNOTATION: encode_node_gpus(told)})

    model = "NVIDIA-H100-80GB-HBM3"
    assert seen.node.gpus == (
        Gpu("GPU-0", model, 81559, 4, resource="nvidia.com/gpu"),
        Gpu("GPU-1", model, 81559, 4, resource="nvidia.com/gpu", code="xid-79"),
        Gpu("GPU-2", model, 81559, is_partitioned=True, profiles={"1g.10gb": 2}),
        Gpu("GPU-3", model, 79 * 1024, resource="nvidia.com/gpu"),
    )
    assert seen.devices == {"0": 0, "1": 1, "2": 2, "2:0": 2, "2:1": 2, "3": 3}
    assert (seen.node.cpu_milli, seen.node.memory_bytes, seen.problem) == (8000, 32 << 30, "")


@pytest.mark.parametrize("text", ["{", "[]", '{"v": 99}', "x" * 9000])
def test_an_annotation_that_cannot_be_read_is_told_and_labels_count(text: str) -> None:
    seen = read({"nvidia.com/gpu": "2"}, LABELS, annotations={ANNOTATION: text})

    assert seen.problem
    assert [each.id for each in seen.node.gpus] == ["n/0", "n/1"]


@pytest.mark.parametrize(
    ("capacity", "allocatable", "labels", "gpus"),
    [
        ({}, None, LABELS, []),
        ({"nvidia.com/gpu": "2"}, None, LABELS, [("Tesla-T4", 15360, 1, "")] * 2),
        ({"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": "1"}, LABELS,
         [("Tesla-T4", 15360, 1, ""), ("Tesla-T4", 15360, 1, "not-allocatable")]),
        ({"nvidia.com/gpu": "8"}, None, LABELS | {"nvidia.com/gpu.replicas": "4",
          "nvidia.com/gpu.product": "Tesla-T4-SHARED"}, [("Tesla-T4", 15360, 4, "")] * 2),
        ({"nvidia.com/gpu.shared": "8"}, None, LABELS, [("Tesla-T4", 15360, 4, "")] * 2),
        ({"nvidia.com/gpu": "96"}, None, LABELS | {"nvidia.com/gpu.replicas": "48"}, [("Tesla-T4", 15360, 48, "")] * 2),
        ({"nvidia.com/gpu": "3000"}, None, LABELS, [("Tesla-T4", 15360, 1500, "")] * 2),
        ({"nvidia.com/gpu": "2"}, None, {}, [("", 0, 1, "")] * 2),
        ({"nvidia.com/gpu": "many"}, None, LABELS, []),
        ({"nvidia.com/gpu": "1"}, None, LABELS | {"nvidia.com/gpu.memory": "-1"}, [("Tesla-T4", 0, 1, "")]),
        ({"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"}, None, LABELS, [("Tesla-T4", 15360, 1, "")] * 2),
        ({"aliyun.com/gpu-mem": "30"}, None, LABELS, [("Tesla-T4", 15360, 1, "not-offered")] * 2),
        ({"aliyun.com/gpu-mem": "30"}, None, {}, []),
    ],
)  # fmt: skip
def test_labels_and_capacity_say_what_there_is(
    capacity: dict[str, str],
    allocatable: dict[str, str] | None,
    labels: dict[str, str],
    gpus: list[tuple[str, int, int, str]],
) -> None:
    """Of a node of NVIDIA's plugin, or of gpushare's."""
    seen = read(capacity, labels, **({} if allocatable is None else {"allocatable": {"cpu": "8", **allocatable}}))

    assert [(each.model, each.memory_mib, each.units, each.code) for each in seen.node.gpus] == gpus


def test_mig_devices_of_the_mixed_strategy_are_spread_over_gpus() -> None:
    seen = read({"nvidia.com/mig-1g.10gb": "3", "nvidia.com/mig-1g.10gb.me": "1"}, LABELS)

    assert [(each.is_partitioned, each.profiles) for each in seen.node.gpus] == [
        (True, {"1g.10gb": 2, "1g.10gb+me": 1}),
        (True, {"1g.10gb": 1, "1g.10gb+me": 0}),
    ]


def test_renamed_shares_of_mig_devices_are_of_their_profile() -> None:
    seen = read({"nvidia.com/mig-1g.10gb.shared": "4", "nvidia.com/mig-1g.10gb": "2"}, LABELS)

    assert [each.profiles for each in seen.node.gpus] == [{"1g.10gb": 3}] * 2


def test_a_node_has_other_resources() -> None:
    """What of it is allocatable, GPUs among it: kube-scheduler counts them, whichever they are. What is not
    allocatable is not there."""
    mine = OfferedResource("example.com/gpu")
    told = NodeGpus((NodeGpu("0", "GPU-0", "T4", 15360, mine, 1),))
    amounts = {"pods": "110", "ephemeral-storage": "1500k", "hugepages-1Gi": "0", "hugepages-2Mi": "5Mi",
               "rdma/hca": "4", "aliyun.com/gpu-mem": "3", "nvidia.com/gpu": "2", "nvidia.com/mig-1g.10gb": "1",
               "example.com/gpu": "1"}  # fmt: skip
    allocatable = amounts | {"rdma/hca": "3"}
    del allocatable["nvidia.com/mig-1g.10gb"]
    found = read(amounts, allocatable=allocatable, annotations={ANNOTATION: encode_node_gpus(told)})

    assert found.node.others == {
        "pods": 110, "ephemeral-storage": 1_500_000, "hugepages-2Mi": 5 << 20, "rdma/hca": 3, "aliyun.com/gpu-mem": 3,
        "nvidia.com/gpu": 2, "example.com/gpu": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "is_schedulable"),
    [
        ({}, True),
        ({"unschedulable": True}, False),
        ({"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]}, False),
        ({"taints": [{"key": "node.kubernetes.io/x", "effect": "PreferNoSchedule"}]}, True),
        ({"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}, True),
    ],
)
def test_a_node_that_is_closed_takes_no_pod(spec: dict[str, Any], is_schedulable: bool) -> None:
    """A taint that GPU pods tolerate does not close it."""
    assert read({}, spec=spec).node.is_schedulable is is_schedulable


def test_taints_that_a_pod_may_tolerate_are_kept_apart() -> None:
    taints = [
        {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule", "timeAdded": "2026-11-24T00:00:00Z"},
        {"key": "soft", "effect": "PreferNoSchedule"},
        {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},
    ]
    node = read({}, spec={"taints": taints}).node

    assert node.taints == (Taint("nvidia.com/gpu", "NoSchedule", "present"),)
    assert not node.is_schedulable
