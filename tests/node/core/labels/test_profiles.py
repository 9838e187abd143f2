"""The labels of every profile, against tables written by hand from the field guide's rules (not from our output).

Each table is what NVIDIA's GPU Feature Discovery 0.20 writes. What is otherwise here is named beside it.
"""

import pytest

from gpuplane.node.hardware.described.profiles import profile_names
from tests.node.core.labels.labelled import labels, profile, table, with_differences

DRIVER_570 = """
cuda.driver.major=570
cuda.driver.minor=172
cuda.driver.rev=08
cuda.driver-version.major=570
cuda.driver-version.minor=172
cuda.driver-version.revision=08
cuda.driver-version.full=570.172.08
cuda.runtime.major=12
cuda.runtime.minor=8
cuda.runtime-version.major=12
cuda.runtime-version.minor=8
cuda.runtime-version.full=12.8
"""
DRIVER_580 = """
cuda.driver.major=580
cuda.driver.minor=95
cuda.driver.rev=05
cuda.driver-version.major=580
cuda.driver-version.minor=95
cuda.driver-version.revision=05
cuda.driver-version.full=580.95.05
cuda.runtime.major=13
cuda.runtime.minor=0
cuda.runtime-version.major=13
cuda.runtime-version.minor=0
cuda.runtime-version.full=13.0
"""
WHOLE = """
gfd.timestamp=1763870000
vgpu.present=false
mps.capable=false
gpu.sharing-strategy=none
gpu.replicas=1
"""
ALWAYS: dict[str, dict[str, str | None]] = {"timestamp": {"gfd.timestamp": None}, "vgpu": {"vgpu.present": None}}

THEIRS = {
    "a100-mig": f"""{WHOLE}{DRIVER_570}
gpu.machine=DGXA100-920-23687-2530-000
mig.capable=true
gpu.mode=compute
gpu.product=NVIDIA-A100-SXM4-80GB
gpu.count=8
gpu.memory=81920
gpu.family=ampere
gpu.compute.major=8
gpu.compute.minor=0
""",
    "big-16": f"""{WHOLE}{DRIVER_570}
gpu.machine=NVIDIA-DGX-2
mig.capable=false
gpu.mode=compute
gpu.product=Tesla-V100-SXM3-32GB
gpu.count=16
gpu.memory=32768
gpu.family=volta
gpu.compute.major=7
gpu.compute.minor=0
""",
    "dgx-a100": f"""{WHOLE}{DRIVER_570}
gpu.machine=DGXA100-920-23687-2530-000
mig.capable=true
gpu.mode=compute
gpu.product=NVIDIA-A100-SXM4-80GB
gpu.count=8
gpu.memory=81920
gpu.family=ampere
gpu.compute.major=8
gpu.compute.minor=0
""",
    "dgx1-v100": f"""{WHOLE}{DRIVER_570}
gpu.machine=DGX-1
mig.capable=false
gpu.mode=compute
gpu.product=Tesla-V100-SXM2-16GB
gpu.count=8
gpu.memory=16384
gpu.family=volta
gpu.compute.major=7
gpu.compute.minor=0
""",
    "gb200-nvl": f"""{WHOLE}{DRIVER_570}
gpu.machine=GB200-NVL
mig.capable=true
gpu.mode=compute
gpu.clique=6b200a72-5c1e-4f0d-9d3a-2f6e1b7c8d90.32766
gpu.product=NVIDIA-GB200
gpu.count=4
gpu.memory=189471
gpu.family=blackwell
gpu.compute.major=10
gpu.compute.minor=0
""",
    "hgx-b200": f"""{WHOLE}{DRIVER_580}
gpu.machine=DGXB200
mig.capable=true
gpu.mode=compute
gpu.product=NVIDIA-B200
gpu.count=8
gpu.memory=183359
gpu.family=blackwell
gpu.compute.major=10
gpu.compute.minor=0
""",
    "hgx-h100": f"""{WHOLE}{DRIVER_570}
gpu.machine=DGXH100
mig.capable=true
gpu.mode=compute
gpu.product=NVIDIA-H100-80GB-HBM3
gpu.count=8
gpu.memory=81559
gpu.family=hopper
gpu.compute.major=9
gpu.compute.minor=0
""",
    "hgx-h200": f"""{WHOLE}{DRIVER_580}
gpu.machine=SYS-821GE-TNHR
mig.capable=true
gpu.mode=compute
gpu.product=NVIDIA-H200
gpu.count=8
gpu.memory=143771
gpu.family=hopper
gpu.compute.major=9
gpu.compute.minor=0
""",
    "l40s": f"""{WHOLE}{DRIVER_580}
gpu.machine=AS--4125GS-TNRT
mig.capable=false
gpu.mode=compute
gpu.product=NVIDIA-L40S
gpu.count=8
gpu.memory=46068
gpu.family=ada-lovelace
gpu.compute.major=8
gpu.compute.minor=9
""",
    "t4": f"""{WHOLE}{DRIVER_570}
gpu.machine=g4dn.xlarge
mig.capable=false
gpu.mode=compute
gpu.product=Tesla-T4
gpu.count=1
gpu.memory=15360
gpu.family=turing
gpu.compute.major=7
gpu.compute.minor=5
""",
    "workstation": f"""{WHOLE}{DRIVER_580}
gpu.machine=System-Product-Name
mig.capable=false
gpu.mode=graphics
gpu.product=one of the two, at random
gpu.count=1
gpu.memory=of the same one
gpu.family=ada-lovelace
gpu.compute.major=8
gpu.compute.minor=9
""",
}

OURS: dict[str, dict[str, dict[str, str | None]]] = {
    "workstation": {
        "several-models": {"gpu.product": "NVIDIA-RTX-6000-Ada-Generation", "gpu.memory": "49140"},
    },
}


def by_model(model: str, *values: str) -> dict[str, str | None]:
    """Our labels of a model."""
    suffixes = ("count", "memory", "family", "compute.major", "compute.minor")
    return {f"gpuplane.io/gpu.{model}.{key}": value for key, value in zip(suffixes, values, strict=True)}


BY_MODEL: dict[str, dict[str, str | None]] = {
    "a100-mig": by_model("NVIDIA-A100-SXM4-80GB", "8", "81920", "ampere", "8", "0"),
    "big-16": by_model("Tesla-V100-SXM3-32GB", "16", "32768", "volta", "7", "0"),
    "dgx-a100": by_model("NVIDIA-A100-SXM4-80GB", "8", "81920", "ampere", "8", "0"),
    "dgx1-v100": by_model("Tesla-V100-SXM2-16GB", "8", "16384", "volta", "7", "0"),
    "gb200-nvl": by_model("NVIDIA-GB200", "4", "189471", "blackwell", "10", "0"),
    "hgx-b200": by_model("NVIDIA-B200", "8", "183359", "blackwell", "10", "0"),
    "hgx-h100": by_model("NVIDIA-H100-80GB-HBM3", "8", "81559", "hopper", "9", "0"),
    "hgx-h200": by_model("NVIDIA-H200", "8", "143771", "hopper", "9", "0"),
    "l40s": by_model("NVIDIA-L40S", "8", "46068", "ada-lovelace", "8", "9"),
    "t4": by_model("Tesla-T4", "1", "15360", "turing", "7", "5"),
    "workstation": {
        **by_model("NVIDIA-GeForce-RTX-4090", "1", "24564", "ada-lovelace", "8", "9"),
        **by_model("NVIDIA-RTX-6000-Ada-Generation", "1", "49140", "ada-lovelace", "8", "9"),
    },
}


def expected(name: str) -> dict[str, str]:
    """A profile's labels without any configuration."""
    ours = {**ALWAYS, "by-model": BY_MODEL[name], **OURS.get(name, {})}
    return with_differences(table(THEIRS[name]), ours)


def test_every_profile_has_a_table() -> None:
    """None is shipped without."""
    assert sorted(THEIRS) == sorted(profile_names()) == sorted(BY_MODEL)


@pytest.mark.parametrize("name", profile_names())
def test_a_profile_has_the_labels_of_its_table(name: str) -> None:
    """All of them and no other, without a configuration."""
    assert labels(profile(name)) == expected(name)
