"""What containers were given, as it was when they got it, and whether any of it was given to two of them.

This is about what a container can use, whatever it is called now: a container that got a whole GPU works on all of it
when the GPU has another name, another layout or other shares, and until the container ends.
"""

from collections.abc import Iterable
from fractions import Fraction

from gpuplane.base.value import Value
from gpuplane.node.core.shares import unit_of
from tests.chaos.setups import OFF


class Given(Value):
    """One id that a container got.

    `gpu`: on which it is; `layout`: that this had then; `part`: of the memory of its unit (the GPU, or the MIG device),
    1 for all of it, 0 for a time slice.
    """

    pod: str
    resource: str
    id: str
    gpu: str
    layout: str
    part: Fraction

    def told(self) -> str:
        """For people."""
        how = {Fraction(0): "as a time slice", Fraction(1): "whole"}.get(self.part, f"as {self.part} of its memory")
        where = f", while {self.gpu} had the MIG layout {self.layout}," if self.layout != OFF else ""
        return f"{self.pod} has {self.id} of {self.resource}{where} {how}"


def given_twice(given: Iterable[Given]) -> str:
    """What was given to more than one; "" where nothing was."""
    by_gpu: dict[str, list[Given]] = {}
    for each in given:
        by_gpu.setdefault(each.gpu, []).append(each)
    for gpu, mine in by_gpu.items():
        if problem := _problem(mine):
            return f"{gpu} is given out {problem}: {'; '.join(each.told() for each in mine)}"
    return ""


def _problem(mine: list[Given]) -> str:
    """Why these cannot be held at once on one GPU."""
    if len({each.layout for each in mine}) > 1:
        return "in two layouts at once"
    for unit in {unit_of(each.id) for each in mine}:
        parts = [each.part for each in mine if unit_of(each.id) == unit]
        if sum(parts) > 1:
            return "more than once"
        if any(parts) and not all(parts):
            return "as time slices and in another way at the same time"
    ids = [(each.resource, each.id) for each in mine]
    return "under one id twice" if len(ids) != len(set(ids)) else ""
