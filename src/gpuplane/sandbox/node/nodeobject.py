"""The Node object of a played node, as kubelet 1.36 makes it (pkg/kubelet/kubelet_node_status.go, nodestatus). Pure."""

import platform
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import NamedTuple

from gpuplane.kubernetes.quantities import parse_quantity
from gpuplane.sandbox.node.objects import Json
from gpuplane.sandbox.node.podstatus import full_image_name

KUBELET_PORT = 10250
LEASE_SECONDS = 40
"""How long a node counts as alive after it was heard of last (nodeLeaseDurationSeconds)."""
PODS = "110"
CPUS_PER_GPU, GIB_PER_GPU, GIB_OF_DISK = 16, 128, 500
"""What a played node has beside its GPUs: about what such servers have."""
PLAYED_LABEL = "gpuplane.io/played-node"
"""The label of a node that is played."""
PCI_LABEL = "feature.node.kubernetes.io/pci-10de.present"
"""The label of a node with a GPU of NVIDIA, as node-feature-discovery sets it."""
HEALTHY_CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class NodeFacts(NamedTuple):
    """What a played node says of itself. `devices`: resource → (capacity, allocatable); `images`: those it has seen."""

    name: str
    address: str
    gpus: int
    version: str
    machine_id: str
    devices: Mapping[str, tuple[int, int]] = {}
    images: Iterable[str] = ()


def new_node(facts: NodeFacts) -> Json:
    """The object with which a node registers."""
    system = {"kubernetes.io/arch": _architecture(), "kubernetes.io/os": "linux"}
    labels = {**system, **{f"beta.{name}": value for name, value in system.items()}}
    labels |= {"kubernetes.io/hostname": facts.name, PLAYED_LABEL: "true"}
    if facts.gpus:
        labels[PCI_LABEL] = "true"
    annotations = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
    metadata = {"name": facts.name, "labels": labels, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def node_status(facts: NodeFacts, before: Json, now: str) -> Json:
    """Its status now. Of `before`, what it was, conditions keep their times, and resources that are gone stay as 0."""
    devices = {name: (0, 0) for name in before.get("capacity") or () if "/" in name} | dict(facts.devices)
    whole = capacity(facts.gpus)
    return {
        "addresses": [
            {"type": "InternalIP", "address": facts.address},
            {"type": "Hostname", "address": facts.name},
        ],
        "capacity": whole | {name: str(total) for name, (total, _) in devices.items()},
        "allocatable": allocatable(facts.gpus) | {name: str(free) for name, (_, free) in devices.items()},
        "conditions": [_condition(before, *each, now) for each in HEALTHY_CONDITIONS],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": KUBELET_PORT}},
        "images": [{"names": [full_image_name(each)], "sizeBytes": 1} for each in sorted(facts.images)],
        "nodeInfo": {
            "architecture": _architecture(),
            "bootID": facts.machine_id,
            "containerRuntimeVersion": "containerd://2.1.9",
            "kernelVersion": platform.release(),
            "kubeProxyVersion": "",
            "kubeletVersion": facts.version,
            "machineID": facts.machine_id,
            "operatingSystem": "linux",
            "osImage": "gpuplane sandbox (a played node)",
            "systemUUID": facts.machine_id,
        },
    }


def capacity(gpus: int) -> Json:
    """What the node has, but for devices of plugins."""
    return {
        "cpu": str(CPUS_PER_GPU * max(gpus, 1)),
        "memory": f"{GIB_PER_GPU * max(gpus, 1)}Gi",
        "ephemeral-storage": f"{GIB_OF_DISK}Gi",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        "pods": PODS,
    }


def allocatable(gpus: int) -> Json:
    """What pods may have of that: kubelet keeps 100 MiB of memory and a tenth of the disk (eviction thresholds)."""
    memory = f"{GIB_PER_GPU * max(gpus, 1) * 1024 - 100}Mi"
    return capacity(gpus) | {"memory": memory, "ephemeral-storage": f"{GIB_OF_DISK * 9 // 10}Gi"}


def quantities_of(amounts: Mapping[str, str]) -> dict[str, Decimal]:
    """Amounts as numbers."""
    return {name: parse_quantity(amount) or Decimal(0) for name, amount in amounts.items()}


def lease(name: str, node_uid: str, now: str) -> Json:
    """The object that says that a node is alive."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease", "ownerReferences": [owner]},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now},
    }


def _condition(before: Json, type: str, status: str, reason: str, message: str, now: str) -> Json:
    known: Json = next((each for each in before.get("conditions") or () if each["type"] == type), {})
    since = known.get("lastTransitionTime") if known.get("status") == status else None
    times = {"lastHeartbeatTime": now, "lastTransitionTime": since or now}
    return {"type": type, "status": status, "reason": reason, "message": message, **times}


def _architecture() -> str:
    return ARCHITECTURES.get(platform.machine(), platform.machine())
