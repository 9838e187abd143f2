"""A small cluster as kubectl writes it: six nodes of four GPUs, with a pod of two and one of one on each."""

from typing import Any

NAMES = [f"n{index}" for index in range(6)]
LABELS = {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
    "nvidia.com/gpu.count": "4",
    "nvidia.com/gpu.memory": "81920",
}


def node(name: str, gpus: int = 4) -> dict[str, Any]:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": f"{gpus}"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": LABELS | {"nvidia.com/gpu.count": f"{gpus}"}},
        "status": {"capacity": amounts, "allocatable": dict(amounts)},
    }


def pod(name: str, gpus: int, on: str = "", priority: int = 0) -> dict[str, Any]:
    """One of a ReplicaSet."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}
    resources = {"requests": {"cpu": "4"}, "limits": {"nvidia.com/gpu": f"{gpus}"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}", "ownerReferences": [owner]},
        "spec": {"priority": priority, "nodeName": on, "containers": [{"name": "c", "resources": resources}]},
        "status": {"phase": "Running" if on else "Pending"},
    }


def objects() -> list[dict[str, Any]]:
    """All of it, and pods that wait: one that would fit if others ended, one that fits, and one that never will."""
    running = [each for name in NAMES for each in (pod(f"a{name[1]}", 2, name, 1), pod(f"b{name[1]}", 1, name))]
    return [*map(node, NAMES), *running, pod("big", 4, priority=3), pod("small", 1), pod("huge", 8)]
