"""Field selectors: which objects a client wants. Nobody asks this server by labels."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from gpuplane.sandbox.apiserver.objects import Json, StatusError

TERM_PATTERN = re.compile(r"([\w./-]+)(!=|==?)([^=!,]*)", re.ASCII)


class Term(NamedTuple):
    """What one field has to be, or must not be."""

    field: str
    is_wanted: bool
    value: str


@lru_cache(64)
def parse_selector(selector: str) -> tuple[Term, ...]:
    """The terms of a field selector. Raises StatusError."""
    terms = []
    for text in selector.split(",") if selector else ():
        if (found := TERM_PATTERN.fullmatch(text)) is None:
            raise StatusError(400, "BadRequest", f"invalid selector: '{selector}'; can't understand '{text}'")
        terms.append(Term(found[1], found[2] != "!=", found[3]))
    return tuple(terms)


def matches(found: Json | None, selector: str) -> bool:
    """Whether an object is there and is what the selector wants. Raises StatusError."""
    return found is not None and all(
        (str(_value_at(found, each.field) or "") == each.value) is each.is_wanted for each in parse_selector(selector)
    )


def _value_at(found: Mapping[str, Any], path: str) -> Any:
    value: Any = found
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
