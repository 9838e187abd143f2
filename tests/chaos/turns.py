"""The plan of the play of holdings: what is done to a node, as a function of a seed.

All arguments are numbers from 0 to 1, which choose among what is there at that moment. What goes wrong takes several
steps of few kinds in a row, and the containers that hold something before them. So a round is a story: pods come, then
something befalls the agent and what it works with, then pods take all that is free, then some end.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Literal, TypeVar

from gpuplane.base.value import Value
from tests.chaos.damage import DAMAGES, PARTS
from tests.chaos.setups import PLACES

T = TypeVar("T")
Happening = Literal["edits", "death", "rival", "successor", "kubelet"]
WEIGHTS: dict[Happening, int] = {"edits": 4, "death": 16, "rival": 4, "successor": 1, "kubelet": 1}
QUIET = 40
"""Rounds from one quiet moment to the next."""


class Edits(Value):
    """What is changed: a GPU's layout, the configuration, or both. None: nothing.

    `akin`: the other configuration gives out the same ids, and they mean something else, where there is one.
    """

    gpu: float = 0.0
    layout: str | None = None
    setup: float | None = None
    akin: bool = False


class Round(Value):
    """One story.

    `come`: pods at its beginning, each with the place of its resource; `happening` what befalls the agent, with `edits`
    before it if `early`, else after, or while the agent is dead; `lost`: parts of the state directory, and `how`; all
    of it where `removed`; `rival_ends`: at the end a rival that is there is killed; `end`: how many of the pods end.
    """

    come: tuple[float, ...]
    happening: Happening
    edits: Edits
    early: bool
    lost: tuple[str, ...]
    how: str
    removed: bool
    rival_ends: bool
    end: float
    quiet: bool


LOSSES: tuple[tuple[str, ...], ...] = (*((part,) for part in PARTS), ("mig-parents", "share-layouts"), PARTS, ())


def rounds(seed: int) -> Iterator[Round]:
    """Random rounds without end."""
    chance, number = random.Random(seed), 0
    while True:
        number += 1
        edits = _edits(chance)
        yield Round(
            come=tuple(chance.random() for _ in range(chance.choice((2, 3, 4)))),
            happening=chance.choices(tuple(WEIGHTS), tuple(WEIGHTS.values()))[0],
            edits=edits,
            early=chance.random() < 0.15,
            lost=_lost(chance, edits),
            how=_one(tuple(DAMAGES), chance.random()),
            removed=chance.random() < 0.1,
            rival_ends=chance.random() < 0.6,
            end=chance.choice((0.3, 0.6, 0.9, 1.0)),
            quiet=number % QUIET == 0,
        )


def _edits(chance: random.Random) -> Edits:
    which = chance.choice(("layout", "layout", "setup", "setup", "setup", "both", "both", "neither"))
    return Edits(
        gpu=chance.random(),
        layout=_one(tuple(PLACES), chance.random()) if which in ("layout", "both") else None,
        setup=chance.random() if which in ("setup", "both") else None,
        akin=chance.random() < 0.8,
    )


def _lost(chance: random.Random, edits: Edits) -> tuple[str, ...]:
    """Often just what would tell of the change."""
    if chance.random() < 0.4:
        return chance.choice(LOSSES)
    return (*(("mig-parents",) if edits.layout else ()), *(("share-layouts",) if edits.setup is not None else ()))


def _one(choices: Sequence[T], place: float) -> T:
    return choices[int(place * len(choices))]
