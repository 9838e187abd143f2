"""Real machines: the sets that are advised, written by hand from how their GPUs are joined.

Beside each stands why, in the words of its topology, and never what some other program answers.
"""

from collections.abc import Iterable, Sequence

import pytest

from gpuplane.node.core.choice.gpusetrequest import GpuSetRequest
from gpuplane.node.core.choice.gpusets import GpuSetTable
from gpuplane.node.core.choice.linkscores import link_score_matrix, total_link_score
from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.profiles import find_machine_file
from gpuplane.node.model.machine import Gpu, Link


def profile(name: str) -> Sequence[Gpu]:
    return read_machine(find_machine_file(name).read_bytes(), name).gpus or ()


def machine(matrix: str) -> Sequence[Gpu]:
    """GPUs as `nvidia-smi topo -m` prints them, the NUMA node at the end; `NV2/PHB`: two lanes, and PHB without them;
    `-` where no distance is known."""
    rows = [line.split() for line in matrix.strip().splitlines()]
    pci = [f"0000:{n:02x}:00.0" for n in range(len(rows))]
    return tuple(_gpu(index, row, pci) for index, row in enumerate(rows))


def _gpu(index: int, row: Sequence[str], pci: Sequence[str]) -> Gpu:
    *ways, numa = row
    links = tuple(
        Link(peer, int(way.partition("/")[0][2:])) for peer, way in zip(pci, ways, strict=True) if way[:2] == "NV"
    )
    far = {peer: way.split("/")[-1] for peer, way in zip(pci, ways, strict=True) if way not in ("X", "-")}
    return Gpu(index=index, uuid=f"GPU-{index}", pci=pci[index], numa=int(numa), links=links, distances=far)


FOUR_RTX_8000 = machine("""
    X       PHB     PHB     NV2/PHB 0
    PHB     X       NV2/PHB PHB     0
    PHB     NV2/PHB X       PHB     0
    NV2/PHB PHB     PHB     X       0
""")
"""Four Quadro RTX 8000 with a bridge of two lanes between 0 and 3, and one between 1 and 2."""

MIXED_PCIE = machine("""
    X       PIX     NODE    NODE    SYS     SYS     0
    PIX     X       NV4/NODE NODE   SYS     SYS     0
    NODE    NV4/NODE X      PIX     SYS     SYS     0
    NODE    NODE    PIX     X       SYS     SYS     0
    SYS     SYS     SYS     SYS     X       -       1
    SYS     SYS     SYS     SYS     -       X       1
""")
"""Two PCIe switches on one socket, with a bridge from the one to the other; on the other socket two GPUs of which the
driver tells no distance."""

ALL = range(8)

# Cube mesh of NVLinks; {0, 1, 2, 3} and {4, 5, 6, 7} have nine lanes each inside, and 2-3 and 6-7 are the pairs that
# have two lanes and a PCIe switch.
DGX_1 = [
    (ALL, (), 1, [0]),  # whichever goes, the other four stay whole
    (ALL, (), 2, [2, 3]),  # two lanes and one switch; 6-7 is as good, and stays
    (ALL, (), 3, [0, 2, 3]),  # five lanes; so have 1-2-3, 4-6-7 and 5-6-7
    (ALL, (), 4, [0, 1, 2, 3]),  # nine lanes, and nine are left
    (ALL, (), 8, [0, 1, 2, 3, 4, 5, 6, 7]),
    ([0, 1, 4, 5], (), 2, [0, 4]),  # two lanes across the sockets before one on a switch; 1-5 has two as well
    ([0, 5, 6], (), 2, [5, 6]),  # not 0-5: no NVLink at all
    ([0, 5, 6, 7], (), 1, [0]),  # leaves 6-7
    ([1, 2, 3, 6, 7], (), 1, [1]),  # leaves 2-3 and 6-7 with a lane from each to the other
    (ALL, [5], 2, [5, 6]),  # two lanes on one socket, before 1-5 which has two across
    (ALL, [0], 4, [0, 1, 2, 3]),
    (ALL, [3, 4], 4, [0, 2, 3, 4]),  # seven lanes, as the ring 0-3-7-4 has, but three of the four on one socket
]

RTX_8000 = [
    (range(4), (), 1, [0]),  # leaves the pair 1-2
    ([1, 2, 3], (), 1, [3]),  # its bridge leads nowhere
    (range(4), (), 2, [0, 3]),  # a bridge; and leaves one
    ([0, 1, 2], (), 2, [1, 2]),
    (range(4), (), 3, [0, 1, 2]),  # three of four hold one bridge, whichever they are
    (range(4), [2], 2, [1, 2]),
    ([0, 1], (), 2, [0, 1]),
]

# All behind NVSwitches, pairs below a PCIe switch: 0-1, 2-3, 4-5, 6-7.
DGX_A100 = [
    (ALL, (), 1, [0]),
    ([0, 1, 2], (), 1, [2]),  # its neighbour is taken
    ([1, 2, 3, 4, 5, 6, 7], (), 1, [1]),
    (ALL, (), 2, [0, 1]),
    ([1, 2, 3, 6], (), 2, [2, 3]),
    ([1, 3, 5, 7], (), 2, [1, 3]),
    ([0, 1, 2, 3, 4], (), 3, [0, 1, 4]),  # leaves 2-3
    (ALL, (), 4, [0, 1, 2, 3]),
    ([0, 2, 3, 4, 6, 7], (), 4, [2, 3, 6, 7]),
    (ALL, [7], 2, [6, 7]),
]

# All behind NVSwitches, four on each socket: 0-3 and 4-7.
HGX_H100 = [
    (ALL, (), 1, [0]),
    (range(1, 8), (), 1, [1]),  # leaves the four of one socket
    ([0, 1, 2, 3, 4, 5, 6], (), 1, [4]),
    (ALL, (), 2, [0, 1]),
    (range(1, 8), (), 2, [1, 2]),
    ([0, 1, 2, 3, 4, 5], (), 2, [4, 5]),
    (range(1, 8), (), 3, [1, 2, 3]),
    (range(1, 8), (), 4, [4, 5, 6, 7]),
    (ALL, (), 5, [0, 1, 2, 3, 4]),
    (ALL, [3, 4], 2, [3, 4]),
]

MIXED = [
    (range(6), (), 1, [4]),  # leaves the four of the socket with the bridge
    (range(4), (), 1, [0]),  # leaves the bridge
    (range(6), (), 2, [1, 2]),  # the bridge
    ([0, 2, 3, 4, 5], (), 2, [2, 3]),  # a switch
    ([0, 3, 4, 5], (), 2, [0, 3]),  # one socket as the driver tells it; as good as one as the kernel tells it
    ([0, 4, 5], (), 2, [4, 5]),
    ([0, 4], (), 2, [0, 4]),
    (range(6), (), 3, [0, 1, 2]),  # the bridge and one switch; 1-2-3 is as good
    (range(6), (), 4, [0, 1, 2, 3]),
    (range(6), [5], 2, [4, 5]),
]

# Pairs below a switch, two pairs a socket.
L40S = [
    (ALL, (), 1, [0]),
    (ALL, (), 2, [0, 1]),
    ([1, 2, 4, 5, 6, 7], (), 2, [4, 5]),  # a switch before a socket
    ([0, 2, 5, 6, 7], (), 2, [6, 7]),
    ([0, 2, 4, 5, 6, 7], (), 4, [4, 5, 6, 7]),
    ([0, 2, 5], (), 2, [0, 2]),
    ([0, 2, 4, 5], (), 1, [0]),  # leaves 4-5
    (ALL, (), 4, [0, 1, 2, 3]),
]

Case = tuple[Iterable[int], Iterable[int], int, list[int]]


@pytest.mark.parametrize(
    ("gpus", "cases"),
    [
        pytest.param(gpus, cases, id=name)
        for name, gpus, cases in (
            ("DGX-1 Volta", profile("dgx1-v100"), DGX_1),
            ("4×RTX 8000", FOUR_RTX_8000, RTX_8000),
            ("DGX A100", profile("dgx-a100"), DGX_A100),
            ("HGX H100", profile("hgx-h100"), HGX_H100),
            ("mixed PCIe", MIXED_PCIE, MIXED),
            ("L40S", profile("l40s"), L40S),
        )
    ],
)
def test_the_sets_that_are_advised(gpus: Sequence[Gpu], cases: Sequence[Case]) -> None:
    """Each: what is available, what is required, how many; and which."""
    table = GpuSetTable(link_score_matrix(gpus, "topology"))
    found = [
        (
            available,
            required,
            size,
            [*table.best_set(GpuSetRequest(frozenset(available), frozenset(required), size))],
        )
        for available, required, size, _ in cases
    ]

    assert found == cases


@pytest.mark.parametrize(
    ("gpus", "pair", "expected"),
    [
        (profile("dgx1-v100"), (0, 3), 230),  # two lanes, PHB
        (profile("dgx1-v100"), (0, 4), 210),  # two lanes, SYS
        (profile("dgx1-v100"), (0, 1), 150),  # one lane, PIX
        (profile("dgx1-v100"), (0, 5), 10),  # SYS
        (profile("dgx-a100"), (0, 1), 1240),  # twelve lanes to the switches each, PXB
        (profile("hgx-h100"), (0, 7), 1810),
        (MIXED_PCIE, (4, 5), 20),  # one NUMA node, no distance known
        (FOUR_RTX_8000, (0, 3), 230),
        (profile("gb200-nvl"), (0, 1), 1820),
    ],
)
def test_what_a_pair_is_worth(gpus: Sequence[Gpu], pair: tuple[int, int], expected: int) -> None:
    assert total_link_score(link_score_matrix(gpus, "topology"), pair) == expected


def test_a_link_that_only_one_end_has_up_is_down() -> None:
    one, other = FOUR_RTX_8000[0], FOUR_RTX_8000[3]
    half = other.but(links=(Link(one.pci, 1),))

    assert link_score_matrix((one, half), "topology") == ((0, 130), (130, 0))
    assert link_score_matrix((one, other.but(links=())), "topology") == ((0, 30), (30, 0))


def test_under_numa_one_node_comes_before_all_links() -> None:
    """Of a DGX-1, the four of a socket have a higher link score than any others, and links decide among them."""
    gpus = profile("dgx1-v100")
    table = GpuSetTable(link_score_matrix(gpus, "numa"))

    assert table.best_set(GpuSetRequest(frozenset({0, 1, 4}), frozenset(), 2)) == (0, 1)  # 0-4 has two lanes
    assert table.best_set(GpuSetRequest(frozenset({0, 1, 2, 4, 5, 6, 7}), frozenset(), 2)) == (6, 7)
