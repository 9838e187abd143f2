"""The pages against prometheus_client's own parsers."""

import math
from collections.abc import Iterable
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpuplane.base.metrics import Labels, Metric
from gpuplane.service.exposition import accepts_gzip, negotiate_format, render
from tests.lengths import length

NAMES = st.from_regex(r"\A[a-zA-Z_:][a-zA-Z0-9_:]{0,20}\Z")
LABEL_NAMES = st.from_regex(r"\A[a-zA-Z_][a-zA-Z0-9_]{0,12}\Z").filter(
    lambda name: name not in ("le", "quantile") and not name.startswith("__")  # these are Prometheus's own
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.one_of(st.floats(width=64), st.integers(min_value=0, max_value=1 << 60).map(float))
LABELS = st.dictionaries(LABEL_NAMES, TEXTS, max_size=4).map(Labels)
KINDS: tuple[tuple[Literal["gauge", "counter", "untyped"], str], ...] = (
    ("gauge", ""),
    ("counter", "_total"),
    ("counter", ""),
    ("untyped", ""),
)
"""Kinds of metrics, and how names of theirs end: DCGM's counters end as they like."""
SUFFIXES = ("_total", "_created", "_sum", "_count", "_bucket", "_info", "_gsum", "_gcount")


@st.composite
def metric_lists(draw: st.DrawFn) -> tuple[Metric, ...]:
    """Metrics of different names, as the agent has them."""
    metrics = []
    for name in draw(st.lists(NAMES.filter(lambda name: not name.endswith(SUFFIXES)), max_size=4, unique=True)):
        kind, ending = draw(st.sampled_from(KINDS))
        values = VALUES.map(abs).filter(math.isfinite) if kind == "counter" else VALUES
        series = draw(st.lists(st.tuples(LABELS, values), max_size=4, unique_by=lambda each: each[0].text))
        metrics.append(
            Metric(
                name=name + ending,
                kind=kind,
                help=draw(TEXTS),
                series=tuple(series),
            )
        )
    return tuple(metrics)


def openmetrics_families(metrics: tuple[Metric, ...]) -> list[Any]:
    """What the parser makes of the page in OpenMetrics."""
    return list(parse_openmetrics(render(metrics, "openmetrics").decode()))  # type: ignore[no-untyped-call]


def told(families: Iterable[object]) -> list[tuple[str, tuple[tuple[str, str], ...], str]]:
    """(name, labels, value) of each series of a page."""
    return sorted(
        (sample.name, tuple(sorted(sample.labels.items())), repr(float(sample.value)))
        for family in families
        for sample in family.samples  # type: ignore[attr-defined]
    )


@given(metric_lists())
@settings(max_examples=length(80, 1_500))
def test_both_formats_carry_every_series(metrics: tuple[Metric, ...]) -> None:
    """Names, labels with any text in them, and values come out as they went in."""
    expected = sorted(
        (metric.name, tuple(sorted(labels.items())), repr(float(value)))
        for metric in metrics
        for labels, value in metric.series
    )
    counters = {metric.name for metric in metrics if metric.kind == "counter" and not metric.name.endswith("_total")}
    as_text = told(parse_text(render(metrics, "text").decode()))

    # The parser of the older format, unlike Prometheus, calls every counter NAME_total.
    renamed = [
        (name.removesuffix("_total"), *rest) for name, *rest in as_text if name.removesuffix("_total") in counters
    ]
    assert sorted([*renamed, *(each for each in as_text if each[0].removesuffix("_total") not in counters)]) == expected
    assert told(openmetrics_families(metrics)) == expected


def test_kinds_and_helps_are_told() -> None:
    """A counter whose name does not say so has the kind `unknown` in OpenMetrics, and keeps its name."""
    metrics = (
        Metric(name="calls_total", kind="counter", help="Calls", series=((Labels(), 1.0),)),
        Metric(name="DCGM_ENERGY", kind="counter", help="A \\ and\na line", series=((Labels(gpu="0"), 2.0),)),
        Metric(name="DCGM_TEMP", kind="untyped", help="Temperature", series=((Labels(gpu="0"), 40.0),)),
        Metric(name="empty", kind="gauge", help="Nothing"),
    )
    text = {each.name: each for each in parse_text(render(metrics, "text").decode())}
    open_metrics = {each.name: each for each in openmetrics_families(metrics)}

    assert (text["calls"].type, text["DCGM_ENERGY"].type) == ("counter", "counter")
    assert (open_metrics["calls"].type, open_metrics["DCGM_ENERGY"].type) == ("counter", "unknown")
    assert (text["DCGM_TEMP"].type, open_metrics["DCGM_TEMP"].type) == ("unknown", "unknown")
    assert b"# TYPE DCGM_TEMP untyped\n" in render(metrics, "text")
    assert open_metrics["DCGM_ENERGY"].samples[0].name == "DCGM_ENERGY"
    assert text["DCGM_ENERGY"].documentation == open_metrics["DCGM_ENERGY"].documentation == "A \\ and\na line"
    assert text["empty"].samples == []


@pytest.mark.parametrize(
    ("accept", "format"),
    [
        ("", "text"),
        ("*/*", "text"),
        ("text/plain", "text"),
        ("application/openmetrics-text", "openmetrics"),
        # what Prometheus 2.45 and 3 send
        (
            "application/openmetrics-text;version=1.0.0;q=0.75,application/openmetrics-text;version=0.0.1;q=0.5,"
            "text/plain;version=0.0.4;q=0.25,*/*;q=0.1",
            "openmetrics",
        ),
        (
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,"
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=1.0.0;q=0.3",
            "openmetrics",
        ),
        ("application/openmetrics-text;q=0,text/plain", "text"),
        ("application/openmetrics-text;version=9.9.9,text/plain;q=0.1", "text"),
        ("text/plain;q=0.9,application/openmetrics-text;q=0.5", "text"),
        ("application/openmetrics-text;q=nonsense", "text"),
        (";;,,q=1", "text"),
    ],
)
def test_the_format_is_what_the_client_prefers(accept: str, format: str) -> None:
    assert negotiate_format(accept) == format


@pytest.mark.parametrize(
    ("encoding", "accepted"),
    [
        ("", False),
        ("gzip", True),
        ("deflate, gzip;q=0.5", True),
        ("gzip;q=0", False),
        ("identity", False),
        ("GZIP", True),
    ],
)
def test_compression_is_what_the_client_takes(encoding: str, accepted: bool) -> None:
    assert accepts_gzip(encoding) == accepted
