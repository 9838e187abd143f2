"""Metrics as text: Prometheus's own format and OpenMetrics, which differ in little.

Sources: Prometheus, "Exposition formats" (text format 0.0.4), and OpenMetrics 1.0.0. In OpenMetrics each sample of a
counter ends with `_total`. DCGM's counters do not, and dashboards are written with their names, so OpenMetrics calls
them `unknown`: Prometheus then keeps the name, and `rate` works as ever.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

from gpuplane.base.metrics import Metric

Format = Literal["text", "openmetrics"]

CONTENT_TYPES: dict[Format, str] = {
    "text": "text/plain; version=0.0.4; charset=utf-8",
    "openmetrics": "application/openmetrics-text; version=1.0.0; charset=utf-8",
}
MEDIA_TYPES = {"application/openmetrics-text": "openmetrics", "text/plain": "text", "text/*": "text", "*/*": "text"}
COUNTER_SUFFIX = "_total"


def render(metrics: Iterable[Metric], format: Format) -> bytes:
    """A page of these metrics. One without series is there by its name, so that people see what there is."""
    lines: list[str] = []
    for metric in metrics:
        lines += _header(metric, format)
        name = metric.name
        lines += [f"{name}{labels.text} {float(value)!r}\n" for labels, value in metric.series]
    if format == "openmetrics":
        lines.append("# EOF\n")
    return _with_infinities("".join(lines)).encode()


def _header(metric: Metric, format: Format) -> Iterator[str]:
    name, kind = metric.name, f"{metric.kind}"
    help_text = f"{metric.help}".replace("\\", "\\\\").replace("\n", "\\n")
    if format == "openmetrics":
        help_text = help_text.replace('"', '\\"')
        if kind == "untyped":
            kind = "unknown"
        elif kind == "counter":
            name, kind = (
                (name.removesuffix(COUNTER_SUFFIX), kind) if name.endswith(COUNTER_SUFFIX) else (name, "unknown")
            )
    yield f"# HELP {name} {help_text}\n"
    yield f"# TYPE {name} {kind}\n"


def _with_infinities(text: str) -> str:
    """Python writes `inf` and `nan` where the formats have `+Inf` and `NaN`."""
    if "inf\n" in text or "nan\n" in text:
        return text.replace(" inf\n", " +Inf\n").replace(" -inf\n", " -Inf\n").replace(" nan\n", " NaN\n")
    return text


def negotiate_format(accept: str) -> Format:
    """The format for a request with this `Accept` header: the one of the highest weight, text where they are equal."""
    weights: dict[Format, float] = {"text": 0.0, "openmetrics": 0.0}
    for entry in accept.split(","):
        media_type, *parameters = (part.strip().lower() for part in entry.split(";"))
        format = MEDIA_TYPES.get(media_type)
        if format == "openmetrics":
            version = next((each[8:] for each in parameters if each.startswith("version=")), "1.0.0")
            if version not in ("1.0.0", "0.0.1"):
                continue
            weights["openmetrics"] = max(weights["openmetrics"], _weight(parameters))
        elif format == "text":
            weights["text"] = max(weights["text"], _weight(parameters))
    return "openmetrics" if weights["openmetrics"] > weights["text"] else "text"


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether a client with this `Accept-Encoding` header takes a body that is compressed by gzip."""
    for entry in accept_encoding.split(","):
        encoding, *parameters = (part.strip().lower() for part in entry.split(";"))
        if encoding == "gzip":
            return _weight(parameters) > 0
    return False


def _weight(parameters: Iterable[str]) -> float:
    """The weight `q` of an entry, from 0 to 1; 1 where it has none, 0 where it cannot be read."""
    for each in parameters:
        if each.startswith("q="):
            try:
                return max(0.0, min(1.0, float(each[2:])))
            except ValueError:
                return 0.0
    return 1.0
