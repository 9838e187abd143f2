"""Selectors of fields and labels: which objects a client wants. Left out: `in` and `notin` of labels (400)."""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from gpuplane.sandbox.apiserver.objects import Json, StatusError

TERM_PATTERN = re.compile(r"(?P<absent>!?)(?P<key>[\w./-]+)(?:(?P<sign>!=|==?)(?P<value>[^=!,() ]*))?", re.ASCII)


class Term(NamedTuple):
    """What one field or label has to be, or must not be. `value`: None for any."""

    key: str
    wanted: bool
    value: str | None


@lru_cache(64)
def parse_selector(selector: str) -> tuple[Term, ...]:
    """The terms of a selector of fields or labels. Raises StatusError."""
    terms = []
    for text in selector.split(",") if selector.strip() else ():
        found = TERM_PATTERN.fullmatch(text.strip())
        if found is None or (found["absent"] and found["sign"]):
            raise StatusError(400, "BadRequest", f"unable to parse requirement: '{text}'")
        terms.append(Term(found["key"], not found["absent"] and found["sign"] != "!=", found["value"]))
    return tuple(terms)


def matches(found: Json | None, fields: str, labels: str) -> bool:
    """Whether an object is there and is what both selectors want. Raises StatusError."""
    if found is None:
        return False
    own = found["metadata"].get("labels") or {}
    return all(_term_matches(each, lambda key: _field_at(found, key)) for each in parse_selector(fields)) and all(
        _term_matches(each, own.get) for each in parse_selector(labels)
    )


def _term_matches(term: Term, value_of: Callable[[str], Any]) -> bool:
    value = value_of(term.key)
    return (value is not None if term.value is None else str(value or "") == term.value) is term.wanted


def _field_at(found: Mapping[str, Any], path: str) -> Any:
    value: Any = found
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
