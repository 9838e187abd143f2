"""Which profile of a card a MIG profile's name means.

Boards and drivers round the gigabytes of a name differently (7g.79gb on one board is 7g.80gb on another). So a name
means the profile of the same slices and attributes that is nearest to it. One that is further away than rounding
explains is of another board (4g.93gb of GB200 on a B200, which has 4g.90gb), and is refused: a container would get
less memory than it asks for.
"""

from collections.abc import Collection, Sequence

from gpuplane.kubernetes.migprofilenames import ProfileName, parse_profile
from gpuplane.node.model.partitions import GpuInstanceProfile

DRIFT, SMALL_DRIFT = 0.025, 0.05
"""By which part of itself a profile's gigabytes may differ; by the second where that is one gigabyte."""


def find_profile(name: str, profiles: Sequence[GpuInstanceProfile]) -> tuple[GpuInstanceProfile, int]:
    """(the profile that a name means on this card, the compute slices of its compute instance).

    Raises ValueError, with a text for people, where the card has none.
    """
    wanted = parse_profile(name)
    named = [(each, found) for each in profiles if (found := known_name(each)) and _is_alike(found, wanted)]
    nearest, parts = min(named, key=lambda each: abs(each[1].gigabytes - wanted.gigabytes), default=(None, wanted))
    if nearest is None or not _is_near(parts.gigabytes, wanted.gigabytes):
        raise ValueError(f"this GPU has no profile {name}; {_known([each.name for each in profiles])}")
    compute = wanted.compute_slices or nearest.slices
    if nearest.compute_profiles and all(each.slices != compute for each in nearest.compute_profiles):
        sizes = ", ".join(f"{each.slices}c" for each in nearest.compute_profiles)
        raise ValueError(f"{nearest.name} has no compute instances of {compute} slices; it has {sizes}")
    return nearest, compute


def known_name(profile: GpuInstanceProfile) -> ProfileName | None:
    """The parts of a profile's name; None if a driver tells a profile whose name is none: nobody can request it."""
    try:
        return parse_profile(profile.name)
    except ValueError:
        return None


def profile_name(profile: GpuInstanceProfile, compute_slices: int) -> str:
    """The name of a compute instance of so many slices in a GPU instance of this profile."""
    return profile.name if compute_slices == profile.slices else f"{compute_slices}c.{profile.name}"


def label_name(name: str) -> str:
    """A profile's name as a part of a label's value, which may not have a `+`."""
    return name.replace("+", ".")


def _is_alike(one: ProfileName, other: ProfileName) -> bool:
    return (one.slices, one.attributes) == (other.slices, other.attributes)


def _is_near(one: int, other: int) -> bool:
    return abs(one - other) <= max(DRIFT * max(one, other), min(1, SMALL_DRIFT * max(one, other)))


def _known(names: Collection[str]) -> str:
    return f"it has {', '.join(names)}" if names else "its profiles are not known"
