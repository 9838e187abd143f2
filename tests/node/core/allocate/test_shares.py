"""Shares of memory and distinct shares: what one container may hold together, and what it is told."""

import re
from typing import Any

import pytest

from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core import mps
from gpuplane.node.core.allocate.response import allocate
from gpuplane.node.core.step import step
from gpuplane.node.model.config import Config, MemorySharedResource, MemoryUnit, ReplicatedResource, Settings, Sharing
from gpuplane.node.model.facts import AllocationsListed, MachineObserved
from gpuplane.node.model.machine import Gpu, Machine, Mig, MigDevice
from gpuplane.node.model.mps import DaemonStatus, MpsDaemon, SupervisorStatus, WantedDaemons
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.status import Statuses
from gpuplane.node.model.views import RequestRefused
from tests.golden import Golden

GPU, MEMORY = "nvidia.com/gpu", "nvidia.com/gpu.mem"
A, B, C = (Gpu(index=i, uuid=f"GPU-{name}", model="T4", memory_mib=10240) for i, name in enumerate("abc"))
PARTS = tuple(
    MigDevice(uuid=f"MIG-{n}", profile="1g.5gb", gpu_instance=n, mig_index=n, memory_mib=4864) for n in range(2)
)
CUT = Gpu(index=0, uuid="GPU-m", model="A100", memory_mib=40960, mig=Mig(enabled=True, devices=PARTS))
DISTINCT = Sharing(replicated_resources=(ReplicatedResource(GPU, 4, distinct_gpus=True),))


def counted(grain_mib: int = 1024, unit: MemoryUnit = "GiB", name: str = GPU) -> Sharing:
    """All memory of a resource in grains."""
    return Sharing(memory_resources=(MemorySharedResource(name, f"{name}.mem", grain_mib),), memory_unit=unit)


def node(sharing: Sharing, *gpus: Gpu, held: str = "", **settings: Any) -> Snapshot:
    """A node that shares so; `held`: ids that another pod has of its only resource."""
    name = sharing.memory_resources[0].rename if sharing.memory_resources else sharing.replicated_resources[0].name
    holding = (Allocation(name, tuple(held.split()), holder=PodRef.parse("ml/other/main")),) if held else ()
    start = Snapshot(config=Config(settings=Settings(sharing=sharing, **settings)), allocations=())
    return step(step(start, MachineObserved(Machine(gpus=gpus)), 0.0), AllocationsListed(holding, 0.0), 0.0)


def ids(device: str, *numbers: int) -> list[str]:
    """Shares of one device."""
    return [f"{device}::{n}" for n in numbers]


def refused(snapshot: Snapshot, resource: str, *wanted: str) -> str:
    """Why a request is."""
    with pytest.raises(RequestRefused) as refusal:
        allocate(snapshot, resource, wanted)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("grain", "unit", "count", "env"),
    [
        (1024, "GiB", 3, {"DEV": "10", "CONTAINER": "3", "MIB": "3072"}),
        (2048, "GiB", 5, {"DEV": "10", "CONTAINER": "10", "MIB": "10240"}),
        (256, "MiB", 2, {"DEV": "10240", "CONTAINER": "512", "MIB": "512"}),
    ],
)
def test_a_container_is_told_its_share(grain: int, unit: MemoryUnit, count: int, env: dict[str, str]) -> None:
    """As gpushare tells it, in the unit that is counted in; and in MiB under a name of ours."""
    got = allocate(node(counted(grain, unit), A, B), MEMORY, ids("GPU-b", *range(count)))

    assert got.env == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-b",
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_DEV": env["DEV"],
        "ALIYUN_COM_GPU_MEM_CONTAINER": env["CONTAINER"],
        "GPUPLANE_MEMORY_MIB": env["MIB"],
    }


def test_by_mps_a_share_is_a_limit_of_each_process() -> None:
    """Of the one GPU that the container sees, and beside what it is told; without its daemon nothing is given out."""
    snapshot = node(counted().but(mps_limits_memory=True), A, B)
    assert "MPS" in refused(snapshot, MEMORY, "GPU-b::0")
    daemon = DaemonStatus(MEMORY, "ok", "", ("GPU-a", "GPU-b"))
    stands = mps.part_statuses(WantedDaemons((MpsDaemon(MEMORY, {}),)), SupervisorStatus(0.0, 1, (daemon,)), "", 0.0)
    got = allocate(snapshot.but(statuses=Statuses(stands)), MEMORY, ids("GPU-b", 0, 1, 2))

    assert got.env["GPUPLANE_MEMORY_MIB"] == "3072"
    assert got.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=3072M"
    assert got.env["CUDA_MPS_PIPE_DIRECTORY"] == f"/mps/{MEMORY}/pipe"
    assert [each.container_path for each in got.mounts] == [f"/mps/{MEMORY}/pipe", "/dev/shm"]


def test_a_mix_of_gpus_is_refused_with_what_each_has_free(golden: Golden) -> None:
    """Where none has room for it, the most that one has is what could be asked for."""
    held = " ".join([*ids("GPU-a", *range(7)), *ids("GPU-b", *range(5)), *ids("GPU-c", *range(10))])

    reason = refused(node(counted(), A, B, C, held=held), MEMORY, *ids("GPU-a", 7, 8, 9), *ids("GPU-b", 5, 6, 7))

    assert re.findall(r"(\d+) GiB", reason) == ["6", "5", "5", "3"]
    assert re.findall(r"GPU \d", reason) == ["GPU 1", "GPU 0", "GPU 2"]
    golden(reason)


def test_who_wants_more_than_any_gpu_has_is_not_told_to_wait(golden: Golden) -> None:
    """It would be in vain: also when all pods have ended, no GPU has so much. Nor has the node more GPUs."""
    reason = refused(node(counted(), A, B), MEMORY, *ids("GPU-a", *range(10)), "GPU-b::0")

    assert "wait" not in reason
    golden(reason, "memory")
    distinct = refused(node(DISTINCT, A, B), GPU, "GPU-a::0", "GPU-a::1", "GPU-b::0")
    assert "wait" not in distinct
    golden(distinct, "distinct shares")


def test_a_mix_that_need_not_be_is_laid_to_kubelet(golden: Golden) -> None:
    """There is room on one GPU, and the advice said so."""
    reason = refused(node(counted(), A, B), MEMORY, "GPU-a::0", "GPU-b::0")

    golden(reason)


def test_memory_of_mig_devices_comes_from_one_of_them(golden: Golden) -> None:
    """Also where they are of one GPU: a process computes on one MIG device."""
    snapshot = node(counted(name="nvidia.com/mig-1g.5gb"), CUT, mig_strategy="mixed")
    memory = "nvidia.com/mig-1g.5gb.mem"

    assert allocate(snapshot, memory, ids("MIG-1", 0, 3)).env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "2"
    golden(refused(snapshot, memory, "MIG-0::0", "MIG-1::0"))


@pytest.mark.parametrize("wanted", [["GPU-a::0", "GPU-b::3"], ["GPU-c::1"]])
def test_distinct_shares_are_of_different_gpus(wanted: list[str]) -> None:
    """Then they are given."""
    got = allocate(node(DISTINCT, A, B, C), GPU, wanted)

    assert got.env["NVIDIA_VISIBLE_DEVICES"] == ",".join(id.partition("::")[0] for id in wanted)


def test_two_distinct_shares_of_one_gpu_are_refused(golden: Golden) -> None:
    """With how many GPUs there are, or with whom to blame."""
    held = " ".join([*ids("GPU-b", 0, 1, 2, 3), *ids("GPU-c", 0, 1, 2, 3)])

    golden(refused(node(DISTINCT, A, B, C, held=held), GPU, "GPU-a::0", "GPU-a::1"), "too few are free")
    golden(refused(node(DISTINCT, A, B, C), GPU, "GPU-a::0", "GPU-a::1"), "enough are free")


def test_distinct_shares_of_mig_devices_are_of_different_gpus() -> None:
    """Two MIG devices of a GPU are one GPU."""
    sharing = Sharing(replicated_resources=(ReplicatedResource("nvidia.com/mig-1g.5gb", 1, distinct_gpus=True),))

    reason = refused(node(sharing, CUT, mig_strategy="mixed"), "nvidia.com/mig-1g.5gb", "MIG-0", "MIG-1")
    assert "GPU-m" in reason
