"""A file of a ConfigMap's author: what is over its bounds is an error of one line, and nothing takes long."""

import difflib
from unittest.mock import Mock

import pytest

from gpuplane.base.strict import LONGEST_ERROR, MAX_CHECKED, MAX_ERRORS, InvalidInput
from gpuplane.node.core.config.resolve import resolve_with_sources

PATTERNS = ",".join(f'{{pattern: "p{n}*", name: n{n}}}' for n in range(1001))
UNKNOWN = (f"{{name: gpux{n}, replicas: 2}}" for n in range(20_000))
REFUSED = {
    "a pattern that is too long": 'resources: {gpus: [{pattern: "%s", name: x}]}' % ("*a" * 200),
    "a model that is too long": 'sharing: {memory: {resources: [{name: nvidia.com/gpu, model: "%s"}]}}' % ("*a" * 200),
    "a label's pattern that is too long": 'metrics: {podLabels: ["%s"]}' % ("a*" * 200),
    "too many patterns": f"resources: {{gpus: [{PATTERNS}]}}",
    "too many labels": f"metrics: {{podLabels: {[f'a{n}' for n in range(101)]}}}",
    "a duration of 200,000 digits": 'flags: {gfd: {sleepInterval: "%s"}}' % ("1" * 200_000),
    "a probe's period of 200,000 digits": 'health: {probePeriod: "%s"}' % ("1" * 200_000),
    "a list of 60,000 numbers": "x-mine: [%s]" % ("1," * 60_000),
    "20,000 unknown keys": "\n".join(f"key{n}: 1" for n in range(20_000)),
    "20,000 unknown faults": f"health: {{faults: {{{', '.join(f'memory-{n}: ' for n in range(20_000))}}}}}",
    "20,000 unknown resources": f"sharing: {{timeSlicing: {{resources: [{', '.join(UNKNOWN)}]}}}}",
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_over_its_bounds_is_refused(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its line, and as many characters as a person reads. What was meant is not looked up for thousands."""
    looked_up = Mock(side_effect=difflib.get_close_matches)
    monkeypatch.setattr(difflib, "get_close_matches", looked_up)
    with pytest.raises(InvalidInput) as caught:
        resolve_with_sources(f"version: v1\n{REFUSED[case]}\n".encode(), "file", {}, {})

    assert caught.value.errors[0].startswith("file:2: ")
    assert all(len(error) < LONGEST_ERROR + 20 for error in caught.value.errors)
    assert len(caught.value.errors) <= MAX_ERRORS + 1
    assert looked_up.call_count <= MAX_CHECKED + MAX_ERRORS


def test_a_pattern_of_many_asterisks_is_matched_at_once() -> None:
    """Each of them would be a way to go for a regular expression."""
    text = f'version: v1\nresources: {{gpus: [{{pattern: "{"*" * 100}b", name: x}}]}}\n'

    assert resolve_with_sources(text.encode(), "file", {}, {}).settings
