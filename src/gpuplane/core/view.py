"""Views: pure functions of values that are asked about many times before those change."""

from collections.abc import Callable
from functools import update_wrapper
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class view(Generic[P, R]):  # noqa: N801 (a decorator)
    """Remembers the answer to the question that was asked last: a request costs no derivation.

    An answer that equals the one before *is* the one before. So who depends on an answer may compare by identity, and a
    view of views derives anew only where its own parts have changed. (Comparing costs little: equal parts are mostly
    the same objects, which Python compares by identity first.)
    """

    def __init__(self, derive: Callable[P, R]) -> None:
        self.derive = derive
        self._last: tuple[tuple[object, ...], R] | None = None
        update_wrapper(self, derive)

    def __call__(self, *question: P.args, **named: P.kwargs) -> R:
        assert not named, "a view takes its arguments by position"
        last = self._last
        if last is not None and last[0] == question:
            return last[1]
        answer = self.derive(*question, **named)
        if last is not None and answer == last[1]:
            answer = last[1]
        self._last = question, answer
        return answer
