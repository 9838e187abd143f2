"""The page of metrics, read as Prometheus reads it."""

import re
from collections.abc import Iterator
from typing import Any

Sample = list[Any]
"""Name, labels, value."""
SAMPLE = re.compile(r"([a-z_:]+)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


def kinds(page: str) -> dict[str, str]:
    """Metric → its type."""
    return {words[2]: words[3] for line in page.splitlines() if (words := line.split())[:2] == ["#", "TYPE"]}


def samples(page: str) -> list[Sample]:
    """All series but the count of changes. Of a label that is a sentence is left that it is there."""
    series = (match for line in page.splitlines() if (match := SAMPLE.fullmatch(line)))
    found = [
        [match[1], dict(sorted(_labels(match[2] or ""))), float(match[3])]
        for match in series
        if match[1] != "gpuplane_generation"
    ]
    return sorted(found, key=str)


def _labels(text: str) -> Iterator[tuple[str, str]]:
    for name, value in LABEL.findall(text):
        if name == "reason" and " " in value:
            yield name, "…"
        elif name != "code" or value:  # what has no code today may have one tomorrow
            yield name, value


def value(page: str, name: str, **labels: str) -> float | None:
    """Of the only series with these labels; None where there is none."""
    fitting = [each[2] for each in samples(page) if each[0] == name and labels.items() <= each[1].items()]
    assert len(fitting) < 2, f"{name} {labels}: {fitting}"
    return fitting[0] if fitting else None


def page(text: str) -> dict[str, Any]:
    """A page as golden files have it."""
    return {"kinds": kinds(text), "samples": samples(text)}


def lost(golden: dict[str, Any], found: dict[str, Any]) -> list[Any]:
    """What a golden page has and another one has not, and series of its metrics that only the other has.

    New metrics and more labels are no difference.
    """
    old, new = golden["samples"], [each for each in found["samples"] if each[0] in golden["kinds"]]
    return [
        *([name, kind] for name, kind in golden["kinds"].items() if found["kinds"].get(name) != kind),
        *(["missing", *each] for each in old if not any(_is(each, other) for other in new)),
        *(["added", *each] for each in new if not any(_is(other, each) for other in old)),
    ]


def _is(golden: Sample, found: Sample) -> bool:
    return bool(golden[0] == found[0] and golden[2] == found[2] and golden[1].items() <= found[1].items())
