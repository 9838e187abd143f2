"""What a described MIG device consists of: the multiprocessors and engines that `nvidia-smi mig -lgip` shows.

Those of an A100, an A30, an H100 SXM and an RTX PRO 6000 are as printed there, and so are those of up to two slices of
a B200. Its larger ones have as many more as they have slices: that is not verified.
"""

from collections.abc import Mapping

from gpuplane.node.core.partitions.layouts import memory_slices
from gpuplane.node.model.machine import Gpu, MigAttributes
from gpuplane.node.model.partitions import GpuInstanceProfile

ProfileSize = tuple[int, int, str]
"""Compute slices, memory slices, and what the profile's name says beyond its sizes: "+me"."""
Engines = tuple[int, int, int, int, int, int]
"""Multiprocessors, copy engines, decoders, encoders, JPEG engines, optical flow engines."""

A100_PROFILES: Mapping[ProfileSize, Engines] = {
    (1, 1, ""): (14, 1, 0, 0, 0, 0),
    (1, 1, "+me"): (14, 1, 1, 0, 1, 1),
    (1, 2, ""): (14, 1, 1, 0, 0, 0),
    (2, 2, ""): (28, 2, 1, 0, 0, 0),
    (3, 4, ""): (42, 3, 2, 0, 0, 0),
    (4, 4, ""): (56, 4, 2, 0, 0, 0),
    (7, 8, ""): (98, 7, 5, 0, 1, 1),
}
A30_PROFILES: Mapping[ProfileSize, Engines] = {
    (1, 1, ""): (14, 1, 1, 0, 0, 0),
    (1, 1, "+me"): (14, 1, 1, 0, 1, 1),
    (2, 2, ""): (28, 2, 2, 0, 0, 0),
    (2, 2, "+me"): (28, 2, 2, 0, 1, 1),
    (4, 4, ""): (56, 4, 4, 0, 1, 1),
}
HOPPER_PROFILES: Mapping[ProfileSize, Engines] = {
    (1, 1, ""): (16, 1, 1, 0, 1, 0),
    (1, 1, "+me"): (16, 1, 1, 0, 1, 1),
    (1, 2, ""): (26, 1, 1, 0, 1, 0),
    (2, 2, ""): (32, 2, 2, 0, 2, 0),
    (3, 4, ""): (60, 3, 3, 0, 3, 0),
    (4, 4, ""): (64, 4, 4, 0, 4, 0),
    (7, 8, ""): (132, 8, 7, 0, 7, 1),
}
B200_PROFILES: Mapping[ProfileSize, Engines] = {
    (1, 1, ""): (18, 2, 1, 0, 1, 0),
    (1, 1, "+me"): (18, 2, 1, 0, 1, 1),
    (1, 2, ""): (30, 2, 1, 0, 1, 0),
    (2, 2, ""): (36, 4, 2, 0, 2, 0),
    (3, 4, ""): (54, 6, 3, 0, 3, 0),
    (4, 4, ""): (72, 8, 4, 0, 4, 0),
    (7, 8, ""): (126, 16, 7, 0, 7, 1),
}
RTX_PRO_PROFILES: Mapping[ProfileSize, Engines] = {
    (1, 1, ""): (46, 1, 1, 1, 1, 0),
    (1, 1, "+gfx"): (46, 1, 1, 1, 1, 0),
    (1, 1, "+me"): (46, 1, 1, 1, 1, 1),
    (1, 1, "+me.all"): (46, 1, 4, 4, 4, 1),
    (1, 1, "-me"): (46, 1, 0, 0, 0, 0),
    (2, 2, ""): (94, 2, 2, 2, 2, 0),
    (2, 2, "+gfx"): (94, 2, 2, 2, 2, 0),
    (2, 2, "+me.all"): (94, 2, 4, 4, 4, 1),
    (2, 2, "-me"): (94, 2, 0, 0, 0, 0),
    (4, 4, ""): (188, 4, 4, 4, 4, 1),
    (4, 4, "+gfx"): (188, 4, 4, 4, 4, 1),
}
PROFILES_OF_CARD: Mapping[tuple[str, int], Mapping[ProfileSize, Engines]] = {
    ("8", 8): A100_PROFILES,
    ("8", 4): A30_PROFILES,
    ("9", 8): HOPPER_PROFILES,
    ("10", 8): B200_PROFILES,
    ("12", 4): RTX_PRO_PROFILES,
}
"""Major number of the compute capability, memory slices of the card → what its profiles consist of."""


def mig_attributes(gpu: Gpu, profile: GpuInstanceProfile, compute_slices: int) -> MigAttributes:
    """Those of a compute instance of so many slices in a GPU instance of this profile; engines are of the GPU instance.

    Of a card that is not known, only the slices are.
    """
    slices = MigAttributes(gpu_slices=profile.slices, compute_slices=compute_slices)
    profiles = gpu.mig.profiles if gpu.mig is not None else ()
    card = PROFILES_OF_CARD.get((gpu.compute_capability.partition(".")[0], memory_slices(profiles)), {})
    suffix = profile.name.partition("gb")[2]
    found = card.get((profile.slices, profile.size, suffix))
    if found is None:
        return slices
    whole, copy, decoders, encoders, jpeg, optical_flow = found
    part = card[1, 1, ""][0] * compute_slices
    return slices.but(
        multiprocessors=whole if compute_slices == profile.slices else part,
        copy_engines=copy,
        decoders=decoders,
        encoders=encoders,
        jpeg_engines=jpeg,
        optical_flow_engines=optical_flow,
    )
