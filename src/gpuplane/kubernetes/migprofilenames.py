"""The names of MIG profiles, as they stand in resource names (`nvidia.com/mig-1g.10gb`), configurations and requests.

`[<C>c.]<G>g.<N>gb[+attribute,…][-attribute,…]`, as go-nvlib and mig-parted write them. C is the number of compute
slices, and is left out where the compute instance has all of its GPU instance. N is no size: it is the profile's share
of the memory in eighths, in whole gigabytes. The attributes: `me` and `me.all` (media engines), `gfx` (graphics).
"""

import re

from gpuplane.base.value import Value

NAME = re.compile(
    r"(?:(?P<compute>[1-9]\d?)c\.)?(?P<slices>[1-9]\d?)g\.(?P<gigabytes>[1-9]\d{0,3})gb"
    r"(?:\+(?P<more>[a-z.]+(?:,[a-z.]+)*))?(?:-(?P<less>[a-z.]+(?:,[a-z.]+)*))?",
    re.ASCII,
)
ATTRIBUTES = {"me", "me.all", "gfx"}


class ProfileName(Value):
    """A name in its parts. `compute_slices` None: all of the GPU instance. `attributes`: "+me", "-me"…"""

    compute_slices: int | None
    slices: int
    gigabytes: int
    attributes: frozenset[str]


def parse_profile(name: str) -> ProfileName:
    """The parts of a name. Raises ValueError, with a text for people, for what is none."""
    found = NAME.fullmatch(name)
    if found is None:
        raise ValueError(
            f"{name!r} is not the name of a MIG profile: write one such as 1g.10gb, 1c.3g.40gb, 1g.10gb+me"
        )
    more, less = ((found[each] or "").split(",") if found[each] else [] for each in ("more", "less"))
    if unknown := sorted({*more, *less} - ATTRIBUTES):
        raise ValueError(f"{name!r}: no MIG profile has the attribute {unknown[0]!r}; known: me, me.all, gfx")
    if both := sorted({*more} & {*less}):
        raise ValueError(f"{name!r}: a MIG profile cannot have +{both[0]} and -{both[0]} at once")
    compute, slices = found["compute"] and int(found["compute"]), int(found["slices"])
    if compute and compute > slices:
        raise ValueError(
            f"{name!r}: a compute instance of {compute} slices does not fit into a GPU instance of {slices}"
        )
    return ProfileName(
        compute_slices=None if compute == slices else compute or None,
        slices=slices,
        gigabytes=int(found["gigabytes"]),
        attributes=frozenset({*(f"+{each}" for each in more), *(f"-{each}" for each in less)}),
    )
