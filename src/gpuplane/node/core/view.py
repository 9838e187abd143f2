"""Views: pure functions of a snapshot, or of parts of one, that are asked many times before those change.

A view remembers its last answer of each node. The memory lies beside the snapshots of that node: a snapshot shares it
with the one that it was made of (`Snapshot.memory`). So whoever asks about ten thousand nodes in turn derives each
answer once, and the memory of a node goes with its last snapshot.
"""

from collections.abc import Callable
from functools import update_wrapper
from typing import Generic, ParamSpec, TypeVar

from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import CLAIM_FILES_PART, CLAIM_REQUESTS_PART, AnyPart, Statuses

ABOUT_CLAIMS: tuple[AnyPart, ...] = (CLAIM_FILES_PART, CLAIM_REQUESTS_PART)

P = ParamSpec("P")
R = TypeVar("R")


class part_view(Generic[P, R]):  # noqa: N801 (a decorator)
    """A view of parts of a snapshot, and of what was derived from it. `of` remembers; a plain call does not.

    An answer that equals the one before *is* the one before. So who depends on an answer may compare by identity, and a
    view of views derives anew only where its own parts have changed. (Comparing costs little: equal parts are mostly
    the same objects, which Python compares by identity first.)
    """

    def __init__(self, derive: Callable[P, R]) -> None:
        self.derive = derive
        update_wrapper(self, derive)

    def __call__(self, *parts: P.args, **named: P.kwargs) -> R:
        return self.derive(*parts, **named)

    def of(self, snapshot: Snapshot, *parts: P.args, **named: P.kwargs) -> R:
        """The answer for these parts, remembered beside the snapshots of this node."""
        assert not named, "a view takes its arguments by position"
        memory = snapshot.memory
        last: tuple[tuple[object, ...], R] | None = memory.get(self)
        if last is not None and last[0] == parts:
            return last[1]
        answer = self.derive(*parts, **named)
        if last is not None and answer == last[1]:
            answer = last[1]
        memory[self] = parts, answer
        return answer


class view(Generic[P, R]):  # noqa: N801 (a decorator)
    """A view of a snapshot: it remembers the answer to the last question about each node, as `part_view.of` does."""

    def __init__(self, derive: Callable[P, R]) -> None:
        self.derive = derive
        update_wrapper(self, derive)

    def __call__(self, *question: P.args, **named: P.kwargs) -> R:
        assert not named, "a view takes its arguments by position"
        memory = question[0].memory  # type: ignore[attr-defined]  # of a snapshot
        last: tuple[tuple[object, ...], R] | None = memory.get(self)
        if last is not None and last[0] == question:
            return last[1]
        answer = self.derive(*question, **named)
        if last is not None and answer == last[1]:
            answer = last[1]
        memory[self] = question, answer
        return answer


@view
def without_allocations(snapshot: Snapshot) -> Snapshot:
    """The snapshot without what containers and claims hold, nor how that is stored: the very same object after an
    Allocate, and after a claim was prepared. A part that is about claims alone is in it where it is not well."""
    ledger, statuses = snapshot.ledger, snapshot.statuses
    if well := [part for part in ABOUT_CLAIMS if part in statuses and statuses[part].state == "ok"]:
        statuses = Statuses({part: status for part, status in statuses.items() if part not in well})
    return snapshot.but(
        generation=0,
        allocations=None,
        ledger=ledger.but(claims=None) if ledger.claims else ledger,
        stored_ledger=snapshot.stored_ledger.but(ledger=None),
        statuses=statuses,
    )
