"""What HAMi and gpushare have written on Nodes and Pods counts as they mean it; texts are as their code writes them."""

import json
from typing import Any

import pytest

from gpuplane.cluster.answers.assumed import assume_places, build
from gpuplane.cluster.answers.explain import show_waiting
from gpuplane.cluster.engine.configuration import PlacementConfig
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.policies import make_policy
from gpuplane.cluster.model.nodes import Gpu
from gpuplane.cluster.reading.cluster import SeenCluster
from gpuplane.cluster.reading.listing import read_saved
from gpuplane.cluster.reading.peers import (
    ALIYUN_INDEX_ANNOTATION,
    HAMI_ALLOCATION_ANNOTATION,
    HAMI_DEVICES_ANNOTATION,
    HeldGpu,
    held_gpus,
    registered_gpus,
)
from gpuplane.kubernetes.objects import ApiPod, Container, ObjectMetadata, PodSpec
from tests.cluster.reading.small import node, pod

A, B = "GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec", "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"
ONCE = f"{A},10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:{B},10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,false:"
V100 = Gpu(A, "Tesla-V100-PCIE-32GB", 32768, resource="nvidia.com/gpu", containers=10)
C = HeldGpu("", container="c")
DEVICES = [
    {"id": B, "index": 1, "count": 10, "devmem": 81920, "devcore": 100, "type": "NVIDIA-NVIDIA A100-SXM4-80GB",
     "mode": "hami-core", "health": True},
    {"id": A, "count": 10, "devmem": 81920, "devcore": 100, "type": "NVIDIA-NVIDIA A100-SXM4-80GB", "numa": 1,
     "mode": "hami-core", "health": True},
]  # fmt: skip


def test_the_gpus_that_hami_has_registered() -> None:
    """As it does now, and as it once did (its docs/develop/protocol.md)."""
    assert registered_gpus(ONCE, 20) == (V100, V100.but(id=B, code="unhealthy"))
    assert [(each.id, each.model, each.memory_mib) for each in registered_gpus(json.dumps(DEVICES), 20)] == [
        (A, "NVIDIA-A100-SXM4-80GB", 81920), (B, "NVIDIA-A100-SXM4-80GB", 81920),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", 0), ("[]", 0), ("[", 0), ("[" * 5000, 0), ("x", 0), ("a,b", 0), (ONCE, 2), (ONCE + ONCE, 40),
        (f"{A},x,1,1,m,0,true:", 1), (f"{A},1,-1,1,m,0,true:", 1), ('[{"id": ""}]', 0), ('[{"id": 5}]', 0),
    ],
)  # fmt: skip
def test_what_hami_has_not_registered(text: str, ids: int) -> None:
    with pytest.raises(ValueError, match=HAMI_DEVICES_ANNOTATION):
        registered_gpus(text, ids)


@pytest.mark.parametrize(
    ("annotations", "held"),
    [
        ({HAMI_ALLOCATION_ANNOTATION: f"{A},NVIDIA,3000,30:;"}, (C.but(id=A, memory_mib=3000, milli=300),)),
        ({HAMI_ALLOCATION_ANNOTATION: f"{A},NVIDIA,3000,0:{B},NVIDIA,3000,0:;"},
         (C.but(id=A, memory_mib=3000), C.but(id=B, memory_mib=3000))),
        ({HAMI_ALLOCATION_ANNOTATION: f";{B},NVIDIA,3000,500:;"}, (C.but(id=B, memory_mib=3000, milli=1000),)),
        ({HAMI_ALLOCATION_ANNOTATION: f"{A},NVIDIA,1,0:;{B},NVIDIA,2,0:;"},
         (HeldGpu(A, -1, 1, container="i", is_before=True), C.but(id=B, memory_mib=2))),
        ({HAMI_ALLOCATION_ANNOTATION: f"{A},NVIDIA,1,0:;;;"}, (HeldGpu(A, -1, 1),)),
        ({HAMI_ALLOCATION_ANNOTATION: f"{A}[1-0],NVIDIA,3000,0:;"}, (C.but(id=A, memory_mib=3000),)),
        ({HAMI_ALLOCATION_ANNOTATION: f"{A},NVIDIA,3000:;"}, ()),
        ({HAMI_ALLOCATION_ANNOTATION: f"{A},NVIDIA,-1,0:;"}, ()),
        ({HAMI_ALLOCATION_ANNOTATION: f"{A},NVIDIA,{10**30},0:;"}, ()),
        ({ALIYUN_INDEX_ANNOTATION: "3"}, (HeldGpu("", 3),)),
        ({ALIYUN_INDEX_ANNOTATION: "-1"}, ()),
        ({}, ()),
    ],
)  # fmt: skip
def test_the_gpus_that_a_pod_has(annotations: dict[str, str], held: tuple[HeldGpu, ...]) -> None:
    """An init container comes first, or HAMi has not counted it; where there are other containers, nobody knows whose
    they are."""
    spec = PodSpec(containers=[Container("c")], init_containers=[Container("i")])

    assert held_gpus(ApiPod(ObjectMetadata(annotations=annotations), spec)) == held


def read(*items: dict[str, Any]) -> SeenCluster:
    return assume_places(read_saved(json.dumps({"items": items}).encode(), "c.json"))


def of_hami(ids: str = "20") -> dict[str, Any]:
    found = node("n0")
    found["metadata"]["annotations"] = {HAMI_DEVICES_ANNOTATION: json.dumps(DEVICES)}
    found["status"] = {"capacity": {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": ids}}
    return found


def annotated(name: str, limits: dict[str, str], **annotations: str) -> dict[str, Any]:
    found = pod(name, 1, "n0")
    found["spec"]["containers"][0]["resources"]["limits"] = limits
    found["metadata"]["annotations"] = annotations
    return found


def test_pods_of_hami_are_where_it_has_put_them() -> None:
    """Two on the second GPU, though they would fit the first; who asks for no memory has all of a GPU."""
    shared = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8192", "nvidia.com/gpucores": "20"}
    pods = [annotated(name, shared, **{HAMI_ALLOCATION_ANNOTATION: f"{B},NVIDIA,8192,20:;"}) for name in ("a", "b")]
    whole = annotated("whole", {"nvidia.com/gpu": "1"}, **{HAMI_ALLOCATION_ANNOTATION: f"{A},NVIDIA,81920,100:;"})
    found = read(of_hami(), *pods, whole)
    cluster = build(found)

    assert found.notes == ()
    assert not any(each.is_assumed for each in found.pods)
    assert cluster.milli_free[0].tolist() == [0, 600]
    assert cluster.gpu_memory_free[0].tolist() == [0, 81920 - 2 * 8192]


def test_what_hami_gives_by_default_is_what_a_pod_has() -> None:
    """Its `defaultMem` is not in the pod's resources, but in its annotation."""
    small = annotated("a", {"nvidia.com/gpu": "1"}, **{HAMI_ALLOCATION_ANNOTATION: f"{B},NVIDIA,8192,0:;"})
    found = read(of_hami(), small)

    assert found.notes == ()
    assert build(found).gpu_memory_free[0].tolist() == [81920, 81920 - 8192]
    assert build(found).milli_free[0].tolist() == [1000, 900]


def test_hami_splits_a_gpu_no_further_than_it_has_registered() -> None:
    """Whatever is left of it (pkg/device/nvidia/fit_checks.go, checkCardTimeSlicing)."""
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1024"}
    pods = [annotated(f"p{n}", limits, **{HAMI_ALLOCATION_ANNOTATION: f"{A},NVIDIA,1024,0:;"}) for n in range(10)]
    waits = annotated("waits", limits, **{"nvidia.com/use-gpuuuid": A})
    waits["spec"]["nodeName"] = ""

    def fits(cluster: SeenCluster) -> bool:
        return Engine(build(cluster), make_policy("binpack")).choose(cluster.waiting[0].request) is not None

    assert fits(read(of_hami(), *pods[1:], waits))
    assert not fits(read(of_hami(), *pods, waits))
    together = read(
        of_hami(), *pods[2:], *(waits | {"metadata": waits["metadata"] | {"name": n, "uid": n}} for n in "xyz")
    )
    assert [each.place is not None for each in show_waiting(together, PlacementConfig())] == [True, True, False]
    assert [each.preemption or each.ending for each in show_waiting(together, PlacementConfig())][2] is not None


def test_a_pod_of_hami_goes_to_nodes_of_hami_alone() -> None:
    """Where there are any: its scheduler looks at no others. In a cluster without one it is taken as it says."""
    plain, limits = node("plain"), {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1024"}
    waits = annotated("waits", limits)
    waits["spec"]["nodeName"] = ""
    whole = pod("whole", 1)

    [by_memory, all_of_it] = show_waiting(read(of_hami(), plain, waits, whole), PlacementConfig())
    assert by_memory.counts == {"chosen": 1, "no-others": 1}
    assert all_of_it.counts == {"chosen": 1, "worse": 1}
    assert show_waiting(read(plain, waits), PlacementConfig())[0].counts == {"chosen": 1}


@pytest.mark.parametrize(
    ("text", "free"),
    [
        (f"{A},NVIDIA,8192,0:;{A},NVIDIA,4096,0:;", [81920 - 8192, 81920]),
        (f"{A},NVIDIA,8192,0:;{B},NVIDIA,4096,0:;", [81920 - 8192, 81920 - 4096]),
        (f"{A},NVIDIA,2048,0:;{A},NVIDIA,4096,0:;", [81920 - 4096, 81920]),
        (f";{B},NVIDIA,4096,0:;", [81920, 81920 - 4096]),
        (f"{B},NVIDIA,4096,0:;", [81920, 81920 - 4096]),
    ],
)
def test_init_containers_of_hami_count_as_far_as_they_have_more(text: str, free: list[int]) -> None:
    """Of each GPU the most that is used at once (pkg/scheduler/score.go, applyPeakUsage)."""
    shared = annotated("a", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096"}, **{HAMI_ALLOCATION_ANNOTATION: text})
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8192"}
    shared["spec"]["initContainers"] = [{"name": "i", "resources": {"limits": limits}}]
    found = read(of_hami(), shared)

    assert found.notes == ()
    assert build(found).gpu_memory_free[0].tolist() == free


def test_a_pod_of_hami_has_the_gpus_that_are_told_and_others_are_assumed() -> None:
    """One container has two different ones."""
    both = annotated(
        "a",
        {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "4096"},
        **{HAMI_ALLOCATION_ANNOTATION: f"{B},NVIDIA,4096,0:;"},
    )
    found = read(of_hami(), both)

    assert [each.code for each in found.notes] == ["held-assumed"]
    assert build(found).gpu_memory_free[0].tolist() == [81920 - 4096, 81920 - 4096]


def test_what_hami_says_of_another_plugin_s_node_is_noted() -> None:
    found = read(of_hami("4"))

    assert [(each.code, each.subject) for each in found.notes] == [("annotation-unreadable", "n0")]
    assert len(found.nodes[0].gpus) == 4


def test_a_pod_that_has_a_gpu_nobody_knows_counts_where_it_fits() -> None:
    stranger = annotated(
        "a", {"nvidia.com/gpumem": "8192"}, **{HAMI_ALLOCATION_ANNOTATION: "GPU-other,NVIDIA,8192,0:;"}
    )
    found = read(of_hami(), stranger)

    assert [each.is_assumed for each in found.pods] == [True]
    assert [each.code for each in found.notes] == ["held-assumed"]


def test_pods_of_gpushare_are_on_the_gpu_of_their_annotation() -> None:
    """All containers of a pod are on one."""
    shared = node("n0")
    shared["status"] = {
        "capacity": {"cpu": "64", "pods": "110", "aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"}
    }
    first = annotated("a", {"aliyun.com/gpu-mem": "4"}, **{ALIYUN_INDEX_ANNOTATION: "1"})
    first["spec"]["containers"].append({"name": "d", "resources": {"limits": {"aliyun.com/gpu-mem": "2"}}})
    found = read(shared, first)

    assert not found.pods[0].is_assumed
    assert build(found).gpu_memory_free[0].tolist() == [15360, 15360 - 6 * 1024]


def test_a_pod_of_gpushare_fits_where_one_gpu_has_room_for_all_of_it() -> None:
    """Not on two GPUs, and not on a node of another plugin."""
    shared = node("n0")
    shared["status"] = {
        "capacity": {"cpu": "64", "pods": "110", "aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"}
    }
    waits = annotated("a", {"aliyun.com/gpu-mem": "8"})
    waits["spec"] |= {"nodeName": "", "containers": waits["spec"]["containers"] * 2}
    found = read(shared, node("n1"), waits)

    assert Engine(build(found), make_policy("binpack")).choose(found.waiting[0].request) is None


def test_memory_is_counted_in_the_unit_of_a_node_that_says_how_many_gpus_it_has() -> None:
    """128 GiB of four GPUs are not 128 MiB of one."""
    silent, shared = node("n0"), node("n1")
    silent["status"] = {"capacity": {"aliyun.com/gpu-mem": "128"}}
    del silent["metadata"]["labels"]
    shared["status"] = {
        "capacity": {"cpu": "64", "pods": "110", "aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"}
    }
    waits = annotated("a", {"aliyun.com/gpu-mem": "4"})
    waits["spec"]["nodeName"] = ""
    [found] = read(silent, shared, waits).waiting

    assert found.request.gpus[0].memory_mib == 4096
