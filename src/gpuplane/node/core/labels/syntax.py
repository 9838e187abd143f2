"""Legal keys and values of labels (Kubernetes: Labels and Selectors, "Syntax and character set").

NVIDIA's GPU Feature Discovery drops what no value may contain, and joins words by "-" (k8s-device-plugin 0.20,
internal/lm/resource.go). It neither cuts a long value nor trims its ends, so that the API server refuses some of them,
and all others with them. Here every value is legal.
"""

import hashlib
import re
from collections.abc import Sequence

MAX_LENGTH = 63
"""Characters of a value, and of a key behind its prefix."""

_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9\-_. ]")
_HASH_LENGTH = 6


def label_value(text: str, suffixes: Sequence[str] = ()) -> str:
    """The text as a label value, with suffixes that are never cut: "NVIDIA-H100-80GB-HBM3-SHARED"; "" for no text."""
    ends = [end for each in suffixes if (end := _legal_characters(each))]
    room = MAX_LENGTH - sum(len(end) + 1 for end in ends)
    return _trim("-".join(filter(None, (_trim(_legal_characters(text)[: max(0, room)]), *ends)))[:MAX_LENGTH])


def key_part(text: str, max_length: int) -> str:
    """The text as a part of a key, of at most so many characters; "" for no text.

    A longer one is cut, and a hash keeps it from being taken for another one that begins alike.
    """
    part = _trim(_legal_characters(text))
    if len(part) <= max_length:
        return part
    digest = hashlib.sha256(part.encode()).hexdigest()[:_HASH_LENGTH]
    return f"{_trim(part[: max_length - _HASH_LENGTH - 1])}-{digest}"


def _legal_characters(text: str) -> str:
    """As NVIDIA's sanitise()."""
    return "-".join(_NOT_ALLOWED.sub("", text).split())


def _trim(text: str) -> str:
    """Without what no value may begin or end with."""
    return text.strip("-_.")
