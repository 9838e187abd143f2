"""Sharing configurations as NVIDIA documents them (README of k8s-device-plugin 0.20, GPU Operator, "GPU sharing"), word
for word: the same resources, the same ids and the same answers, or a difference that the documentation lists.
"""

from typing import Any

import pytest

from gpuplane.node.core import mps
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.allocate.response import allocate
from gpuplane.node.core.config.resolve import resolve_settings
from gpuplane.node.core.step import step
from gpuplane.node.model.config import Config
from gpuplane.node.model.facts import MachineObserved
from gpuplane.node.model.machine import Gpu, Machine, Mig, MigDevice
from gpuplane.node.model.mps import DaemonStatus, SupervisorStatus, WantedDaemons
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import Statuses
from gpuplane.node.model.views import RequestRefused


def gpu(index: int, *profiles: str) -> Gpu:
    """An A100, cut into MIG devices where there are any."""
    parts = tuple(
        MigDevice(uuid=f"MIG-{index}-{n}", profile=profile, gpu_instance=n + 1, mig_index=n)
        for n, profile in enumerate(profiles)
    )
    mig = Mig(enabled=True, devices=parts) if profiles else Mig()
    return Gpu(
        index=index,
        uuid=f"GPU-{index}",
        model="NVIDIA A100-SXM4-40GB",
        memory_mib=40960,
        compute_capability="8.0",
        mig=mig,
    )


EIGHT = tuple(gpu(i) for i in range(8))
CUT = (
    gpu(0, *("1g.5gb",) * 7),
    gpu(1, "2g.10gb", "2g.10gb", "3g.20gb"),
    gpu(2, "7g.40gb"),
    gpu(3),
)


def node(text: str, *gpus: Gpu) -> Snapshot:
    """A node with this configuration; where it wants MPS daemons, they run."""
    start = Snapshot(config=Config(settings=resolve_settings(text.encode(), "c.yaml")), allocations=())
    snapshot = step(start, MachineObserved(Machine(gpus=gpus)), 0.0)
    wishes = mps.desired_daemons(snapshot) or WantedDaemons()
    run = tuple(DaemonStatus(each.name, "ok", "", tuple(each.client_memory_mib_by_device)) for each in wishes.daemons)
    return snapshot.but(statuses=Statuses(mps.part_statuses(wishes, SupervisorStatus(0.0, 1, run), "", 0.0)))


def counts(snapshot: Snapshot) -> dict[str, int]:
    """Resource → healthy devices."""
    return {
        each.name.removeprefix("nvidia.com/"): sum(not device.unavailable_reason for device in each.devices)
        for each in offer(snapshot).resources
    }


SLICING = """
version: v1
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: 10
"""
RENAMED = """
version: v1
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - name: nvidia.com/gpu
      replicas: 10
"""
MPS = """
version: v1
sharing:
  mps:
    resources:
    - name: nvidia.com/gpu
      replicas: 10
"""
FINE = """
version: v1
flags:
  migStrategy: mixed
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: 8
    - name: nvidia.com/mig-1g.5gb
      replicas: 2
    - name: nvidia.com/mig-2g.10gb
      replicas: 2
    - name: nvidia.com/mig-3g.20gb
      replicas: 3
    - name: nvidia.com/mig-7g.40gb
      replicas: 7
"""
T4 = """
version: v1
flags:
  migStrategy: none
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: 4
"""
SINGLE = """
version: v1
flags:
  migStrategy: single
sharing:
  timeSlicing:
    renameByDefault: true
    resources:
    - name: nvidia.com/gpu
      replicas: 2
"""


@pytest.mark.parametrize(
    ("text", "gpus", "expected"),
    [
        ("version: v1\n", EIGHT, {"gpu": 8}),
        (SLICING, EIGHT, {"gpu": 80}),
        (RENAMED, EIGHT, {"gpu.shared": 80}),
        (MPS, EIGHT, {"gpu": 80}),
        (T4, EIGHT, {"gpu": 32}),
        (FINE, EIGHT, {"gpu": 64}),
        (FINE, CUT, {"gpu": 8, "mig-1g.5gb": 14, "mig-2g.10gb": 4, "mig-3g.20gb": 3, "mig-7g.40gb": 7}),
        (SINGLE, CUT[:1], {"gpu.shared": 14}),
        (SINGLE, EIGHT, {"gpu.shared": 16}),
        # deliberate differences: theirs gives up the node, or offers as whole what is not
        (SINGLE, CUT, {"gpu.shared": 14}),
        (T4, CUT, {"gpu": 4}),
        (T4.replace("migStrategy: none", "wholeMigGpus: true"), CUT, {"gpu": 16}),
    ],
)
def test_a_documented_configuration_advertises_what_is_documented(
    text: str, gpus: tuple[Gpu, ...], expected: dict[str, int]
) -> None:
    """Resources without their prefix, and how many of each."""
    assert counts(node(text, *gpus)) == expected


@pytest.mark.parametrize(
    ("text", "name", "ids", "env"),
    [
        (SLICING, "gpu", "GPU-3::7", {"NVIDIA_VISIBLE_DEVICES": "GPU-3"}),
        (SLICING, "gpu", "GPU-3::7 GPU-3::1 GPU-0::0", {"NVIDIA_VISIBLE_DEVICES": "GPU-3,GPU-0"}),
        (RENAMED, "gpu.shared", "GPU-0::9", {"NVIDIA_VISIBLE_DEVICES": "GPU-0"}),
        (RENAMED, "gpu.shared", "GPU-0::9 GPU-1::9", None),
        (
            MPS,
            "gpu",
            "GPU-1::0",
            {"NVIDIA_VISIBLE_DEVICES": "GPU-1", "CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu/pipe"},
        ),
        (MPS, "gpu", "GPU-1::0 GPU-2::0", None),
        (
            MPS.replace("    resources", "    failRequestsGreaterThanOne: false\n    resources"),
            "gpu",
            "GPU-1::0 GPU-2::0",
            {"NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-2", "CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu/pipe"},
        ),
        (SLICING, "gpu", "GPU-3::10", None),  # no such share
        (SLICING, "gpu", "GPU-3", None),
    ],
)
def test_a_documented_configuration_answers_as_documented(
    text: str, name: str, ids: str, env: dict[str, Any] | None
) -> None:
    """What a container that holds these ids gets; None for a refusal."""
    snapshot, wanted = node(text, *EIGHT), ids.split()
    if env is None:
        with pytest.raises(RequestRefused):
            allocate(snapshot, f"nvidia.com/{name}", wanted)
    else:
        assert allocate(snapshot, f"nvidia.com/{name}", wanted).env == env
