"""Shipped machine profiles with configurations: what `golden/kubelet` has a file for, each."""

from typing import NamedTuple


class Case(NamedTuple):
    """An agent to start."""

    name: str
    machine: str
    flags: tuple[str, ...] = ()
    config: str = ""
    wants: int = 1
    """How many resources register."""
    cdi: bool = False
    """Whether its CDI documents are golden too."""


PROFILES = (
    "a100-mig", "big-16", "dgx-a100", "dgx1-v100", "gb200-nvl", "hgx-b200", "hgx-h100", "hgx-h200", "l40s", "t4",
    "workstation",
)  # fmt: skip

CRI = "--device-list-strategy=cdi-cri"
SLICES = "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 3}]}}\n"
RENAMED = """
version: v1
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources: [{name: gpu, replicas: 2, devices: [0, 1]}, {name: gpu, replicas: 4, rename: gpu-quarter, devices: [2]}]
"""
DISTINCT = "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, distinctGPUs: true}]}}\n"
MEMORY = "version: v1\nsharing: {memory: {unit: GiB, shareSize: 16, resources: [{name: gpu, devices: [0, 1]}]}}\n"
NAMED = "version: v1\nresources: {gpus: [{pattern: '*3090*', name: big}, {pattern: '*A*', name: ampere}]}\n"
MIG_SLICES = """
version: v1
flags: {migStrategy: mixed}
resources: {gpus: [{pattern: "*", name: gpu}], mig: [{pattern: "1g.*", name: mig-small}]}
sharing: {timeSlicing: {resources: [{name: mig-small, replicas: 2}, {name: gpu, replicas: 2, rename: gpu-half}]}}
"""
STRATEGIES = ("volume-mounts", "cdi-annotations", "envvar,cdi-cri")

CASES = (
    *(Case(f"{name}-plain", name) for name in PROFILES),
    *(Case(f"{name}-cdi", name, (CRI,), cdi=True) for name in ("dgx-a100", "hgx-h200", "gb200-nvl", "workstation")),
    *(Case(f"{name}-slices", name, config=SLICES) for name in ("t4", "l40s", "dgx1-v100", "a100-mig")),
    *(Case(f"l40s-{each}", "l40s", (f"--device-list-strategy={each}",)) for each in STRATEGIES),
    Case("a100-mig-single", "a100-mig", ("--mig-strategy=single",)),
    Case("a100-mig-mixed", "a100-mig", ("--mig-strategy=mixed", CRI), wants=6, cdi=True),
    Case("a100-mig-whole", "a100-mig", ("--whole-mig-gpus",)),
    Case("a100-mig-slices-mixed", "a100-mig", config=MIG_SLICES, wants=5),
    Case("hgx-h100-renamed", "hgx-h100", config=RENAMED, wants=3),
    Case("hgx-h100-distinct", "hgx-h100", config=DISTINCT),
    Case("hgx-b200-memory", "hgx-b200", config=MEMORY, wants=2),
    Case("workstation-named", "workstation", config=NAMED),
    Case("dgx-a100-specs", "dgx-a100", ("--pass-device-specs", "--device-id-strategy=index")),
    Case(
        "dgx-a100-fabric", "dgx-a100",
        ("--mofed-enabled", "--gds-enabled", "--gdrcopy-enabled", "--pass-device-specs", CRI, "--driver-root=/drv"),
    ),
    Case("gb200-nvl-imex", "gb200-nvl", ("--imex-channel-ids=0", CRI, "--cdi-annotation-prefix=cdi.example/")),
    Case("l40s-packed", "l40s", ("--shared-devices-allocation-policy=packed",), config=SLICES),
)  # fmt: skip
