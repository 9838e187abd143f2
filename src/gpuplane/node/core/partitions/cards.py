"""Which GPUs can be partitioned, and into what, where no driver tells: for described machines and for planning ahead.

The tables are NVIDIA's: the profiles of each card are those of mig-parted's default configuration, the placements those
of the MIG user guide (go-nvml's mocks of A100 and A30 have the same). A real driver tells its own (nvmlDeviceGet…
PossiblePlacements), and then this is not used. The ids of profiles are those that `nvidia-smi mig -lgip` shows on an
A100 and an A30; the other cards are taken to have the same. Blackwell's placements are not verified: `is_verified`.
"""

from collections.abc import Iterator
from functools import cache

from gpuplane.base.value import Value
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.partitions import ComputeInstanceProfile, GpuInstanceProfile

NVIDIA = "10DE"
SIZES = (1, 2, 3, 4, 7)
"""Compute slices of compute instances, in the order of their profiles' ids (NVML_COMPUTE_INSTANCE_PROFILE_*)."""
NO_COMPUTE_PROFILE = (4, 3)
"""A GPU instance of 4 slices has compute instances of 1, 2 and 4 slices (`nvidia-smi mig -lcip`; mig-parted's
pkg/mig/config/known_configs.go), and none of 3."""

SEVEN_SLICES: tuple[tuple[str, int, int, int, tuple[int, ...], int], ...] = (
    # of the name, id, compute slices, memory slices, where one can begin, most of them
    ("1g", 19, 1, 1, (0, 1, 2, 3, 4, 5, 6), 7),
    ("1g+me", 20, 1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
    ("1g*2", 15, 1, 2, (0, 2, 4, 6), 4),
    ("2g", 14, 2, 2, (0, 2, 4), 3),
    ("3g", 9, 3, 4, (0, 4), 2),
    ("4g", 5, 4, 4, (0,), 1),
    ("7g", 0, 7, 8, (0,), 1),
)
FOUR_SLICES: tuple[tuple[str, int, int, int, tuple[int, ...], int], ...] = (
    ("1g", 14, 1, 1, (0, 1, 2, 3), 4),
    ("1g+me", 21, 1, 1, (0, 1, 2, 3), 1),
    ("2g", 5, 2, 2, (0, 2), 2),
    ("2g+me", 6, 2, 2, (0, 2), 1),
    ("4g", 0, 4, 4, (0,), 1),
)
FOUR_SLICES_WITH_GRAPHICS: tuple[tuple[str, int, int, int, tuple[int, ...], int], ...] = (
    ("1g", 14, 1, 1, (0, 1, 2, 3), 4),
    ("1g+me", 21, 1, 1, (0, 1, 2, 3), 1),
    ("1g+gfx", 47, 1, 1, (0, 1, 2, 3), 4),
    ("1g-me", 67, 1, 1, (0, 1, 2, 3), 4),
    ("1g+me.all", 65, 1, 1, (0, 1, 2, 3), 1),
    ("2g", 5, 2, 2, (0, 2), 2),
    ("2g+gfx", 35, 2, 2, (0, 2), 2),
    ("2g-me", 66, 2, 2, (0, 2), 2),
    ("2g+me.all", 64, 2, 2, (0, 2), 1),
    ("4g", 0, 4, 4, (0,), 1),
    ("4g+gfx", 32, 4, 4, (0,), 1),
)
FOUR_SLICES_WITH_ONE_ENGINE: tuple[tuple[str, int, int, int, tuple[int, ...], int], ...] = (
    ("1g", 14, 1, 1, (0, 1, 2, 3), 1),
    ("1g+me", 21, 1, 1, (0, 1, 2, 3), 1),
    ("1g+gfx", 47, 1, 1, (0, 1, 2, 3), 1),
    ("1g-me", 67, 1, 1, (0, 1, 2, 3), 3),
    ("2g-me", 66, 2, 2, (0, 2), 1),
    ("4g", 0, 4, 4, (0,), 1),
    ("4g+gfx", 32, 4, 4, (0,), 1),
)

MEMORY_MIB = {
    "A100 40GB": {1: 4864, 2: 9856, 4: 19968, 8: 40192},
    "A100 80GB": {1: 9856, 2: 19968, 4: 40192, 8: 80384},
    "H100 80GB": {1: 9984, 2: 20096, 4: 40448, 8: 81152},
    "H100 NVL 94GB": {1: 11008, 2: 22144, 4: 47488, 8: 95360},
    "A30 24GB": {1: 5952, 2: 11968, 4: 24000},
}
"""Card → memory slices → what an instance of these has, as `nvidia-smi mig -lgip` shows it. Of other cards it is taken
to be the instance's share of the card's memory; a driver keeps a little of that."""

_TABLE: tuple[tuple[str, str, str, str, int], ...] = (
    # name, PCI device ids, gigabytes of 1g, 1g with two memory slices, 2g, 3g, 4g and 7g (or of 1g, 2g, 4g), MiB in all
    ("A100 40GB", "20B0 20B1 20F1 20F6", "5 10 10 20 20 40", "", 40960),
    ("A100 80GB", "20B2 20B5 20F3 20F5", "10 20 20 40 40 80", "", 81920),
    ("H100 80GB", "2330 2331 2322 2324", "10 20 20 40 40 80", "", 81559),
    ("H100 NVL 94GB", "2321 233A", "12 24 24 47 47 94", "", 95830),
    ("H100, GH200 or H20 96GB", "2342 233D 2329 20B6", "12 24 24 48 48 96", "", 97871),
    ("H200 141GB", "2335 233B", "18 35 35 71 71 141", "", 143771),
    ("GH200 144GB", "2348", "18 36 36 72 72 144", "", 147000),
    ("B200", "2901", "23 45 45 90 90 180", "unverified", 183359),
    ("GB200", "2941", "23 47 47 93 93 186", "unverified", 189471),
    ("B300", "3182", "34 67 67 135 135 269", "unverified", 275040),
    ("GB300", "31C2", "35 70 70 139 139 278", "unverified", 284208),
    ("A30 24GB", "20B7", "6 12 24", "", 24576),
    ("RTX PRO 5000 Blackwell 48GB", "2BB3", "12 24 48", "unverified one-engine", 48935),
    ("RTX PRO 6000 Blackwell 96GB", "2BB5 2BB1 2BB4", "24 48 96", "unverified graphics", 97887),
)

EXPORTED = {"A800": "A100", "H800": "H100"}
"""Models that are another one for other countries."""


class Card(Value):
    """A GPU that can be partitioned. `device_ids`: of its PCI function, "2330". `is_verified`: its placements are."""

    name: str
    device_ids: tuple[str, ...]
    memory_mib: int
    profiles: tuple[GpuInstanceProfile, ...]
    is_verified: bool

    @property
    def slices(self) -> int:
        """Compute slices."""
        return max(each.slices for each in self.profiles)


@cache
def cards() -> tuple[Card, ...]:
    """Every card, by its generation."""
    return tuple(
        Card(
            name=name,
            device_ids=tuple(ids.split()),
            memory_mib=memory,
            profiles=tuple(_profiles(name, gigabytes.split(), memory, remarks)),
            is_verified="unverified" not in remarks,
        )
        for name, ids, gigabytes, remarks, memory in _TABLE
    )


def _profiles(card: str, gigabytes: list[str], memory_mib: int, remarks: str) -> Iterator[GpuInstanceProfile]:
    if len(gigabytes) == 3:
        rows, sizes = FOUR_SLICES, dict(zip("124", gigabytes, strict=True))
        rows = FOUR_SLICES_WITH_GRAPHICS if "graphics" in remarks else rows
        rows = FOUR_SLICES_WITH_ONE_ENGINE if "one-engine" in remarks else rows
    else:
        rows, sizes = SEVEN_SLICES, dict(zip(("1", "1*2", "2", "3", "4", "7"), gigabytes, strict=True))
    whole = max(start + size for *_, size, starts, _ in rows for start in starts)
    for kind, id, slices, size, starts, count in rows:
        suffix = kind.removeprefix(f"{slices}g").removeprefix("*2")
        amount = sizes[f"{slices}*2" if kind.endswith("*2") else str(slices)]
        yield GpuInstanceProfile(
            id=id,
            name=f"{slices}g.{amount}gb{suffix}",
            slices=slices,
            size=size,
            starts=starts,
            count=count,
            memory_mib=MEMORY_MIB.get(card, {}).get(size) or memory_mib * size // whole,
            compute_profiles=compute_profiles(slices),
        )


def compute_profiles(slices: int) -> tuple[ComputeInstanceProfile, ...]:
    """The compute instances that a GPU instance of so many compute slices can have."""
    return tuple(
        ComputeInstanceProfile(id=id, slices=size, count=slices // size)
        for id, size in enumerate(SIZES)
        if size <= slices and (slices, size) != NO_COMPUTE_PROFILE
    )


def card_of(gpu: Gpu) -> Card | None:
    """The card that a GPU is, by its PCI id; without one by the name of its model and its memory. None for others."""
    device = gpu.pci_id.upper().removeprefix("0X").removesuffix(NVIDIA)
    if gpu.pci_id:
        return next((card for card in cards() if device in card.device_ids), None)
    named = [card for card in cards() if _is_named(gpu, card)]
    return min(named, key=lambda card: abs(gpu.memory_mib - card.memory_mib), default=None)


def _is_named(gpu: Gpu, card: Card) -> bool:
    """Whether a GPU has one of the card's names, and its memory."""
    words = {EXPORTED.get(word, word) for word in gpu.model.upper().replace("-", " ").split()}
    models = {word.rstrip(",").upper() for word in card.name.replace(" or ", " ").split() if not word.endswith("GB")}
    is_near = abs(gpu.memory_mib - card.memory_mib) < card.memory_mib * 0.03
    return is_near and bool(models & words)


def profiles_of(gpu: Gpu) -> tuple[GpuInstanceProfile, ...]:
    """What a GPU can be partitioned into: what the driver tells; else what its card can; () where neither is known."""
    if gpu.mig is None:
        return ()
    if gpu.mig.profiles:
        return gpu.mig.profiles
    card = card_of(gpu)
    return () if card is None else card.profiles
