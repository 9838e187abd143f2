"""Selectors of fields and labels: which objects a client wants.

Sources: apimachinery, pkg/fields/selector.go and pkg/labels/selector.go. Left out: `in` and `notin` of labels (400).
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from gpuplane.sandbox.apiserver.fielderrors import LABEL_VALUE_PATTERN, QUALIFIED_NAME_PATTERN
from gpuplane.sandbox.apiserver.objects import Json, StatusError

FIELD_TERMS = re.compile(r"(?:[^\\,]|\\.?)+", re.DOTALL)
FIELD_TERM = re.compile(r"([^=!]*)(!=|==?)((?:[^\\,=]|\\[\\,=])*)", re.DOTALL)
LABEL_TERM = re.compile(
    rf"\s*(?P<absent>!)?\s*(?P<key>(?:[a-z0-9.-]+/)?{QUALIFIED_NAME_PATTERN})\s*(?:(?P<sign>!=|==?)\s*(?P<value>{LABEL_VALUE_PATTERN})\s*)?",
    re.ASCII,
)
MAX_TERM_LENGTH = 1000
"""Characters of a term of labels: a key has at most 317, a value 63."""


class Term(NamedTuple):
    """What one field or label has to be, or must not be. `value`: None for any."""

    key: str
    wanted: bool
    value: str | None


@lru_cache(64)
def parse_fields(selector: str) -> tuple[Term, ...]:
    """The terms of a field selector. Raises StatusError."""
    terms = []
    for text in FIELD_TERMS.findall(selector):
        if (found := FIELD_TERM.fullmatch(text)) is None:
            raise StatusError(400, "BadRequest", f"invalid selector: '{selector}'; can't understand '{text}'")
        terms.append(Term(found[1], found[2] != "!=", re.sub(r"\\(.)", r"\1", found[3])))
    return tuple(terms)


@lru_cache(64)
def parse_labels(selector: str) -> tuple[Term, ...]:
    """The terms of a label selector. Raises StatusError."""
    terms = []
    for text in selector.split(",") if selector.strip() else ():
        found = LABEL_TERM.fullmatch(text) if len(text) <= MAX_TERM_LENGTH else None
        if found is None or (found["absent"] and found["sign"]):
            raise StatusError(400, "BadRequest", f"unable to parse requirement: '{text}'")
        terms.append(Term(found["key"], not found["absent"] and found["sign"] != "!=", found["value"]))
    return tuple(terms)


def matches(found: Json | None, fields: str, labels: str) -> bool:
    """Whether an object is there and is what both selectors want. Raises StatusError."""
    if found is None:
        return False
    own = found["metadata"].get("labels") or {}
    return all(_term_matches(each, lambda key: _field_at(found, key)) for each in parse_fields(fields)) and all(
        _term_matches(each, own.get) for each in parse_labels(labels)
    )


def _term_matches(term: Term, value_of: Callable[[str], Any]) -> bool:
    value = value_of(term.key)
    return (value is not None if term.value is None else str(value or "") == term.value) is term.wanted


def _field_at(found: Mapping[str, Any], path: str) -> Any:
    value: Any = found
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
