"""The profiles print as their servers do: each matrix stands here as published, to be held against its source."""

import pytest

from gpuplane.base import strict
from gpuplane.node.hardware.described.profiles import find_machine_file
from gpuplane.node.model.machine import Gpu, MachineFile

PAIRS_BELOW_A_NODE = """
    X    PXB  SYS  SYS  SYS  SYS  SYS  SYS  3
    PXB  X    SYS  SYS  SYS  SYS  SYS  SYS  3
    SYS  SYS  X    PXB  SYS  SYS  SYS  SYS  1
    SYS  SYS  PXB  X    SYS  SYS  SYS  SYS  1
    SYS  SYS  SYS  SYS  X    PXB  SYS  SYS  7
    SYS  SYS  SYS  SYS  PXB  X    SYS  SYS  7
    SYS  SYS  SYS  SYS  SYS  SYS  X    PXB  5
    SYS  SYS  SYS  SYS  SYS  SYS  PXB  X    5
"""

PAIRS_BELOW_A_SWITCH = """
    X    PIX  NODE NODE SYS  SYS  SYS  SYS  0
    PIX  X    NODE NODE SYS  SYS  SYS  SYS  0
    NODE NODE X    PIX  SYS  SYS  SYS  SYS  0
    NODE NODE PIX  X    SYS  SYS  SYS  SYS  0
    SYS  SYS  SYS  SYS  X    PIX  NODE NODE 1
    SYS  SYS  SYS  SYS  PIX  X    NODE NODE 1
    SYS  SYS  SYS  SYS  NODE NODE X    PIX  1
    SYS  SYS  SYS  SYS  NODE NODE PIX  X    1
"""

FOURS_BELOW_A_SOCKET = """
    X    NODE NODE NODE SYS  SYS  SYS  SYS  0
    NODE X    NODE NODE SYS  SYS  SYS  SYS  0
    NODE NODE X    NODE SYS  SYS  SYS  SYS  0
    NODE NODE NODE X    SYS  SYS  SYS  SYS  0
    SYS  SYS  SYS  SYS  X    NODE NODE NODE 1
    SYS  SYS  SYS  SYS  NODE X    NODE NODE 1
    SYS  SYS  SYS  SYS  NODE NODE X    NODE 1
    SYS  SYS  SYS  SYS  NODE NODE NODE X    1
"""

TREE_OF_A_DGX_2 = """
    X    PIX  PXB  PXB  NODE NODE NODE NODE SYS  SYS  SYS  SYS  SYS  SYS  SYS  SYS  0
    PIX  X    PXB  PXB  NODE NODE NODE NODE SYS  SYS  SYS  SYS  SYS  SYS  SYS  SYS  0
    PXB  PXB  X    PIX  NODE NODE NODE NODE SYS  SYS  SYS  SYS  SYS  SYS  SYS  SYS  0
    PXB  PXB  PIX  X    NODE NODE NODE NODE SYS  SYS  SYS  SYS  SYS  SYS  SYS  SYS  0
    NODE NODE NODE NODE X    PIX  PXB  PXB  SYS  SYS  SYS  SYS  SYS  SYS  SYS  SYS  0
    NODE NODE NODE NODE PIX  X    PXB  PXB  SYS  SYS  SYS  SYS  SYS  SYS  SYS  SYS  0
    NODE NODE NODE NODE PXB  PXB  X    PIX  SYS  SYS  SYS  SYS  SYS  SYS  SYS  SYS  0
    NODE NODE NODE NODE PXB  PXB  PIX  X    SYS  SYS  SYS  SYS  SYS  SYS  SYS  SYS  0
    SYS  SYS  SYS  SYS  SYS  SYS  SYS  SYS  X    PIX  PXB  PXB  NODE NODE NODE NODE 1
    SYS  SYS  SYS  SYS  SYS  SYS  SYS  SYS  PIX  X    PXB  PXB  NODE NODE NODE NODE 1
    SYS  SYS  SYS  SYS  SYS  SYS  SYS  SYS  PXB  PXB  X    PIX  NODE NODE NODE NODE 1
    SYS  SYS  SYS  SYS  SYS  SYS  SYS  SYS  PXB  PXB  PIX  X    NODE NODE NODE NODE 1
    SYS  SYS  SYS  SYS  SYS  SYS  SYS  SYS  NODE NODE NODE NODE X    PIX  PXB  PXB  1
    SYS  SYS  SYS  SYS  SYS  SYS  SYS  SYS  NODE NODE NODE NODE PIX  X    PXB  PXB  1
    SYS  SYS  SYS  SYS  SYS  SYS  SYS  SYS  NODE NODE NODE NODE PXB  PXB  X    PIX  1
    SYS  SYS  SYS  SYS  SYS  SYS  SYS  SYS  NODE NODE NODE NODE PXB  PXB  PIX  X    1
"""

HYBRID_CUBE_MESH = """
    X    NV1  NV1  NV2  NV2  SYS  SYS  SYS  0
    NV1  X    NV2  NV1  SYS  NV2  SYS  SYS  0
    NV1  NV2  X    NV2  SYS  SYS  NV1  SYS  0
    NV2  NV1  NV2  X    SYS  SYS  SYS  NV1  0
    NV2  SYS  SYS  SYS  X    NV1  NV1  NV2  1
    SYS  NV2  SYS  SYS  NV1  X    NV2  NV1  1
    SYS  SYS  NV1  SYS  NV1  NV2  X    NV2  1
    SYS  SYS  SYS  NV1  NV2  NV1  NV2  X    1
"""


@pytest.mark.parametrize(
    ("name", "matrix"),
    [
        ("dgx-a100", PAIRS_BELOW_A_NODE),
        ("a100-mig", PAIRS_BELOW_A_NODE),
        ("hgx-h100", FOURS_BELOW_A_SOCKET),
        ("hgx-h200", FOURS_BELOW_A_SOCKET),
        ("hgx-b200", FOURS_BELOW_A_SOCKET),
        ("l40s", PAIRS_BELOW_A_SWITCH),
        ("big-16", TREE_OF_A_DGX_2),
    ],
)
def test_pcie_is_as_published(name: str, matrix: str) -> None:
    """`nvidia-smi topo -mp`, with the NUMA node at the end."""
    found = gpus(name)

    assert [row(gpu, found, "") for gpu in found] == [line.split() for line in matrix.strip().splitlines()]


@pytest.mark.parametrize(
    ("name", "links"),
    [
        ("dgx-a100", "NV12"),
        ("hgx-h100", "NV18"),
        ("hgx-h200", "NV18"),
        ("hgx-b200", "NV18"),
        ("gb200-nvl", "NV18"),
        ("big-16", "NV6"),
    ],
)
def test_behind_switches_all_are_equally_near(name: str, links: str) -> None:
    """`nvidia-smi topo -m` prints the lanes to the switches for every pair."""
    found = gpus(name)

    for gpu in found:
        assert set(row(gpu, found, links)[:-1]) == {"X", links}


def test_a_dgx_1_is_a_hybrid_cube_mesh() -> None:
    """`nvidia-smi topo -m` of NVIDIA's DGX-1 with V100."""
    found = gpus("dgx1-v100")

    assert [row(gpu, found, "") for gpu in found] == [line.split() for line in HYBRID_CUBE_MESH.strip().splitlines()]


def gpus(name: str) -> tuple[Gpu, ...]:
    found = strict.load_yaml_as(find_machine_file(name).read_bytes(), MachineFile, f"{name}.yaml").gpus
    assert found
    return found


def row(gpu: Gpu, peers: tuple[Gpu, ...], switched: str) -> list[str]:
    """A GPU's row of the matrix. `switched` is what stands for a way through switches, "" to print PCIe only."""
    direct = {link.peer: f"NV{link.nvlink_count}" for link in gpu.links}
    if switched and direct.get("nvswitch") == switched:
        direct |= {peer.pci: switched for peer in peers if peer is not gpu}
    ways = {gpu.pci: "X", **gpu.distances, **{peer: way for peer, way in direct.items() if peer != "nvswitch"}}
    return [*(ways[peer.pci] for peer in peers), str(gpu.numa)]
