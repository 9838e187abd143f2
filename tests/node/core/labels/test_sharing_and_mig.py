"""Labels of GPUs and MIG devices by sharing and MIG strategy, against tables written by hand from the guide.

Each table is what GPU Feature Discovery 0.20 writes of `gpu.*`, `mig*` and `mps.*`; what is otherwise here is named.
"""

from collections.abc import Mapping

import pytest

from gpuplane.node.model.machine import Machine
from tests.node.core.labels.labelled import labels, table, with_differences
from tests.node.core.labels.machines import A100, H100, L40S, T4, cut, gpu, machine

Ours = Mapping[str, Mapping[str, str | None]]

TWO_A100 = machine(gpu(0), gpu(1))
A100_HARDWARE = "gpu.memory=81920\ngpu.family=ampere\ngpu.compute.major=8\ngpu.compute.minor=0\n"
A100_WHOLE = f"{A100_HARDWARE}gpu.product=NVIDIA-A100-SXM4-80GB\ngpu.count=2\n"
UNSHARED = "gpu.replicas=1\ngpu.sharing-strategy=none\n"
NO_MPS, MPS = "mig.capable=true\nmps.capable=false\n", "mig.capable=true\nmps.capable=true\n"
INVALID = """
gpu.product=NVIDIA-A100-SXM4-80GB-MIG-INVALID
gpu.count=0
gpu.replicas=0
gpu.sharing-strategy=
gpu.memory=0
gpu.family=ampere
gpu.compute.major=8
gpu.compute.minor=0
"""
SINGLE, MIXED = "flags: {migStrategy: single}", "flags: {migStrategy: mixed}"
SLICED = "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}"
RENAMED = "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 4}]}}"
BY_MPS = "flags: {mpsRoot: /run/nvidia/mps}\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}"

CASES: dict[str, tuple[Machine, str, str, Ours]] = {
    "whole": (TWO_A100, "", f"{NO_MPS}{A100_WHOLE}{UNSHARED}", {}),
    "time slices": (
        TWO_A100,
        SLICED,
        f"{NO_MPS}{A100_HARDWARE}gpu.product=NVIDIA-A100-SXM4-80GB-SHARED\ngpu.count=2\n"
        "gpu.replicas=4\ngpu.sharing-strategy=time-slicing",
        {},
    ),
    "time slices under another name": (
        TWO_A100,
        RENAMED,
        f"{NO_MPS}{A100_WHOLE}gpu.replicas=4\ngpu.sharing-strategy=time-slicing",
        {},
    ),
    "MPS": (
        TWO_A100,
        BY_MPS,
        f"{MPS}{A100_HARDWARE}gpu.product=NVIDIA-A100-SXM4-80GB-SHARED\ngpu.count=2\n"
        "gpu.replicas=4\ngpu.sharing-strategy=mps",
        {},
    ),
    "sharing of a resource that is not there": (
        TWO_A100,
        "sharing: {timeSlicing: {resources: [{name: nvidia.com/mig-1g.10gb, replicas: 4}]}}",
        f"{NO_MPS}{A100_WHOLE}{UNSHARED}",
        {},
    ),
    "one GPU of two is shared": (  # NVIDIA's shares both, and so says it
        TWO_A100,
        "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, devices: [1], replicas: 4}]}}",
        f"{NO_MPS}{A100_HARDWARE}gpu.product=NVIDIA-A100-SXM4-80GB-SHARED\ngpu.count=2\n"
        "gpu.replicas=4\ngpu.sharing-strategy=time-slicing",
        {
            "chosen-devices": {
                "gpu.product": "NVIDIA-A100-SXM4-80GB",
                "gpu.replicas": "1",
                "gpu.sharing-strategy": "none",
            }
        },
    ),
    "a name of one's own": (  # NVIDIA's drops the name
        TWO_A100,
        "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, rename: gpu.quarter, replicas: 4}]}}",
        f"{NO_MPS}{A100_HARDWARE}gpu.product=NVIDIA-A100-SXM4-80GB-SHARED\ngpu.count=2\n"
        "gpu.replicas=4\ngpu.sharing-strategy=time-slicing",
        {"chosen-devices": {"gpu.product": "NVIDIA-A100-SXM4-80GB"}},
    ),
    "shares of memory": (  # as NVIDIA's would have it without that section
        TWO_A100,
        "sharing: {memory: {resources: [{name: nvidia.com/gpu, rename: nvidia.com/gpu.mem, shareSize: 8}]}}",
        f"{NO_MPS}{A100_WHOLE}{UNSHARED}",
        {"memory-shares": {"gpu.replicas": "10", "gpu.sharing-strategy": "time-slicing"}},
    ),
    "shares of memory by MPS": (
        TWO_A100,
        "flags: {mpsRoot: /run/nvidia/mps}\n"
        "sharing: {memory: {enforcedByMPS: true, "
        "resources: [{name: nvidia.com/gpu, rename: nvidia.com/gpu.mem, shareSize: 8}]}}",
        f"{NO_MPS}{A100_WHOLE}{UNSHARED}",
        {"memory-shares": {"gpu.replicas": "10", "gpu.sharing-strategy": "mps", "mps.capable": "true"}},
    ),
    "MIG mode without a strategy": (
        machine(cut(0, "3g.40gb", "3g.40gb"), cut(1)),
        SLICED,
        f"{NO_MPS}{A100_WHOLE}gpu.replicas=0\ngpu.sharing-strategy=none",
        {},
    ),
    "MIG mode on one of two without a strategy": (
        machine(cut(0, "3g.40gb"), gpu(1)),
        SLICED,
        f"{NO_MPS}{A100_HARDWARE}gpu.product=NVIDIA-A100-SXM4-80GB-SHARED\ngpu.count=2\n"
        "gpu.replicas=4\ngpu.sharing-strategy=time-slicing",
        {},
    ),
    "single without MIG mode": (TWO_A100, SINGLE, f"mig.strategy=single\n{NO_MPS}{A100_WHOLE}{UNSHARED}", {}),
    "single": (
        machine(cut(0, *["1g.10gb"] * 7), cut(1, *["1g.10gb"] * 5)),
        SINGLE,
        f"""mig.strategy=single
{NO_MPS}
gpu.product=NVIDIA-A100-SXM4-80GB-MIG-1g.10gb
gpu.count=12
gpu.replicas=1
gpu.sharing-strategy=none
gpu.memory=9856
gpu.family=ampere
gpu.compute.major=8
gpu.compute.minor=0
gpu.multiprocessors=14
gpu.slices.gi=1
gpu.slices.ci=1
gpu.engines.copy=1
gpu.engines.decoder=0
gpu.engines.encoder=0
gpu.engines.jpeg=0
gpu.engines.ofa=0
""",
        {},
    ),
    "single, shared": (
        machine(cut(0, "3g.40gb", "3g.40gb")),
        f"{SINGLE}\n{SLICED}",
        f"""mig.strategy=single
{NO_MPS}
gpu.product=NVIDIA-A100-SXM4-80GB-MIG-3g.40gb-SHARED
gpu.count=2
gpu.replicas=4
gpu.sharing-strategy=time-slicing
gpu.memory=40192
gpu.family=ampere
gpu.compute.major=8
gpu.compute.minor=0
gpu.multiprocessors=42
gpu.slices.gi=3
gpu.slices.ci=3
gpu.engines.copy=3
gpu.engines.decoder=2
gpu.engines.encoder=0
gpu.engines.jpeg=0
gpu.engines.ofa=0
""",
        {},
    ),
    "single, with media engines and another name": (
        machine(cut(0, "1g.10gb+me")),
        f"{SINGLE}\n{RENAMED}",
        f"""mig.strategy=single
{NO_MPS}
gpu.product=NVIDIA-A100-SXM4-80GB-MIG-1g.10gbme
gpu.count=1
gpu.replicas=4
gpu.sharing-strategy=time-slicing
gpu.memory=9856
gpu.family=ampere
gpu.compute.major=8
gpu.compute.minor=0
gpu.multiprocessors=14
gpu.slices.gi=1
gpu.slices.ci=1
gpu.engines.copy=1
gpu.engines.decoder=1
gpu.engines.encoder=0
gpu.engines.jpeg=1
gpu.engines.ofa=1
""",
        {},
    ),
    "single, one GPU without an instance": (
        machine(cut(0, "3g.40gb", "3g.40gb"), cut(1)),
        SINGLE,
        f"mig.strategy=single\n{NO_MPS}{INVALID}",
        {},
    ),
    "single, one GPU not in MIG mode": (
        machine(cut(0, "3g.40gb", "3g.40gb"), gpu(1)),
        SINGLE,
        f"mig.strategy=single\n{NO_MPS}{INVALID}",
        {},
    ),
    "single, two profiles": (
        machine(cut(0, "3g.40gb", "3g.40gb"), cut(1, "3g.40gb", "2g.20gb")),
        SINGLE,
        f"mig.strategy=single\n{NO_MPS}{INVALID}",
        {},
    ),
    "mixed without MIG mode": (TWO_A100, MIXED, f"mig.strategy=mixed\n{NO_MPS}{A100_WHOLE}{UNSHARED}", {}),
    "mixed": (
        machine(cut(0, "3g.40gb", "2g.20gb", "1g.10gb+me"), cut(1, "3g.40gb"), cut(2), gpu(3)),
        f"{MIXED}\nsharing: {{timeSlicing: {{resources: [{{name: nvidia.com/mig-3g.40gb, replicas: 2}}]}}}}",
        f"""mig.strategy=mixed
{NO_MPS}
{A100_HARDWARE}
gpu.product=NVIDIA-A100-SXM4-80GB
gpu.count=4
{UNSHARED}
mig-3g.40gb.product=NVIDIA-A100-SXM4-80GB-MIG-3g.40gb-SHARED
mig-3g.40gb.count=2
mig-3g.40gb.replicas=2
mig-3g.40gb.sharing-strategy=time-slicing
mig-3g.40gb.memory=40192
mig-3g.40gb.multiprocessors=42
mig-3g.40gb.slices.gi=3
mig-3g.40gb.slices.ci=3
mig-3g.40gb.engines.copy=3
mig-3g.40gb.engines.decoder=2
mig-3g.40gb.engines.encoder=0
mig-3g.40gb.engines.jpeg=0
mig-3g.40gb.engines.ofa=0
mig-2g.20gb.product=NVIDIA-A100-SXM4-80GB-MIG-2g.20gb
mig-2g.20gb.count=1
mig-2g.20gb.replicas=1
mig-2g.20gb.sharing-strategy=none
mig-2g.20gb.memory=19968
mig-2g.20gb.multiprocessors=28
mig-2g.20gb.slices.gi=2
mig-2g.20gb.slices.ci=2
mig-2g.20gb.engines.copy=2
mig-2g.20gb.engines.decoder=1
mig-2g.20gb.engines.encoder=0
mig-2g.20gb.engines.jpeg=0
mig-2g.20gb.engines.ofa=0
mig-1g.10gb.me.product=NVIDIA-A100-SXM4-80GB-MIG-1g.10gbme
mig-1g.10gb.me.count=1
mig-1g.10gb.me.replicas=1
mig-1g.10gb.me.sharing-strategy=none
mig-1g.10gb.me.memory=9856
mig-1g.10gb.me.multiprocessors=14
mig-1g.10gb.me.slices.gi=1
mig-1g.10gb.me.slices.ci=1
mig-1g.10gb.me.engines.copy=1
mig-1g.10gb.me.engines.decoder=1
mig-1g.10gb.me.engines.encoder=0
mig-1g.10gb.me.engines.jpeg=1
mig-1g.10gb.me.engines.ofa=1
""",
        {},
    ),
    "mixed, a part of a GPU instance": (
        machine(cut(0, "1c.3g.40gb")),
        MIXED,
        f"""mig.strategy=mixed
{NO_MPS}
{A100_HARDWARE}
gpu.product=NVIDIA-A100-SXM4-80GB
gpu.count=1
gpu.replicas=0
gpu.sharing-strategy=none
mig-1c.3g.40gb.product=NVIDIA-A100-SXM4-80GB-MIG-1c.3g.40gb
mig-1c.3g.40gb.count=1
mig-1c.3g.40gb.replicas=1
mig-1c.3g.40gb.sharing-strategy=none
mig-1c.3g.40gb.memory=40192
mig-1c.3g.40gb.multiprocessors=14
mig-1c.3g.40gb.slices.gi=3
mig-1c.3g.40gb.slices.ci=1
mig-1c.3g.40gb.engines.copy=3
mig-1c.3g.40gb.engines.decoder=2
mig-1c.3g.40gb.engines.encoder=0
mig-1c.3g.40gb.engines.jpeg=0
mig-1c.3g.40gb.engines.ofa=0
""",
        {},
    ),
    "MPS and a GPU in MIG mode": (  # NVIDIA's ends, and writes nothing: this is what its rules say of the rest
        machine(cut(0, "3g.40gb"), gpu(1)),
        BY_MPS,
        f"mig.capable=true\n{A100_HARDWARE}gpu.product=NVIDIA-A100-SXM4-80GB-SHARED\ngpu.count=2\n"
        "gpu.replicas=4\ngpu.sharing-strategy=mps",
        {"mps-and-mig": {"mps.capable": "true"}},
    ),
    "two models": (  # NVIDIA's says the last one, and which that is changes
        machine(gpu(0, L40S), gpu(1, T4), gpu(2, L40S)),
        "",
        f"""mig.capable=false
mps.capable=false
gpu.product=at random
gpu.count=at random
gpu.memory=at random
gpu.family=at random
gpu.compute.major=at random
gpu.compute.minor=at random
{UNSHARED}""",
        {
            "several-models": {
                "gpu.product": "NVIDIA-L40S",
                "gpu.count": "2",
                "gpu.memory": "46068",
                "gpu.family": "ada-lovelace",
                "gpu.compute.major": "8",
                "gpu.compute.minor": "9",
            }
        },
    ),
    "two models, one of them in MIG mode": (
        machine(cut(0, "3g.40gb"), cut(1, "3g.40gb"), gpu(2, H100)),
        MIXED,
        f"""mig.strategy=mixed
{NO_MPS}
gpu.product=at random
gpu.count=at random
gpu.replicas=at random
gpu.sharing-strategy=none
gpu.memory=at random
gpu.family=at random
gpu.compute.major=at random
gpu.compute.minor=0
mig-3g.40gb.product=NVIDIA-A100-SXM4-80GB-MIG-3g.40gb
mig-3g.40gb.count=2
mig-3g.40gb.replicas=1
mig-3g.40gb.sharing-strategy=none
mig-3g.40gb.memory=40192
mig-3g.40gb.multiprocessors=42
mig-3g.40gb.slices.gi=3
mig-3g.40gb.slices.ci=3
mig-3g.40gb.engines.copy=3
mig-3g.40gb.engines.decoder=2
mig-3g.40gb.engines.encoder=0
mig-3g.40gb.engines.jpeg=0
mig-3g.40gb.engines.ofa=0
""",
        {
            "several-models": {
                "gpu.product": "NVIDIA-A100-SXM4-80GB",
                "gpu.count": "2",
                "gpu.replicas": "0",
                "gpu.memory": "81920",
                "gpu.family": "ampere",
                "gpu.compute.major": "8",
            }
        },
    ),
    "one model of two sizes": (  # NVIDIA's says the last one's
        machine(gpu(0, memory_mib=81559), gpu(1, memory_mib=81920)),
        "",
        f"{NO_MPS}{A100_WHOLE}{UNSHARED}",
        {"unlike-gpus": {"gpu.memory": "81559"}},
    ),
    "a GPU that does not tell its memory": (
        machine(gpu(0, memory_mib=0)),
        "",
        f"{NO_MPS}gpu.family=ampere\ngpu.compute.major=8\ngpu.compute.minor=0\n"
        f"gpu.product=NVIDIA-A100-SXM4-80GB\ngpu.count=1\n{UNSHARED}",
        {},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_case_has_the_labels_of_its_table(case: str) -> None:
    """All of `gpu.*`, `mig*` and `mps.*` but what is of the server, and no other."""
    described, config, theirs, ours = CASES[case]

    seen = labels(described, config)

    common = ("nvidia.com/cuda.", "nvidia.com/gpu.machine", "nvidia.com/gpu.mode", "gpuplane.io/")
    assert {key: value for key, value in seen.items() if not key.startswith(common)} == with_differences(
        table(theirs), ours
    )


def test_models_are_labelled_by_themselves() -> None:
    """Each with what its GPUs are, in MIG mode or not."""
    seen = labels(machine(cut(0, "3g.40gb"), gpu(1, A100), gpu(2, T4)), SINGLE)

    assert {key: value for key, value in seen.items() if key.startswith("gpuplane.io/")} == table(
        """
        gpuplane.io/gpu.NVIDIA-A100-SXM4-80GB.count=2
        gpuplane.io/gpu.NVIDIA-A100-SXM4-80GB.memory=81920
        gpuplane.io/gpu.NVIDIA-A100-SXM4-80GB.family=ampere
        gpuplane.io/gpu.NVIDIA-A100-SXM4-80GB.compute.major=8
        gpuplane.io/gpu.NVIDIA-A100-SXM4-80GB.compute.minor=0
        gpuplane.io/gpu.Tesla-T4.count=1
        gpuplane.io/gpu.Tesla-T4.memory=15360
        gpuplane.io/gpu.Tesla-T4.family=turing
        gpuplane.io/gpu.Tesla-T4.compute.major=7
        gpuplane.io/gpu.Tesla-T4.compute.minor=5
        """
    )
