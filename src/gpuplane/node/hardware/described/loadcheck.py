"""What is wrong with the load that a machine file describes: names, places and ranges."""

import math
from collections.abc import Iterator

from gpuplane.base import strict
from gpuplane.node.hardware.nvidia.driver.counters import (
    MIG_FIELDS,
    PERCENT_FIELDS,
    RATIO_FIELDS,
    UNCORRECTED_ERRORS_FIELD,
    link_sources,
)
from gpuplane.node.model.telemetry import LINK_FIELDS, SAMPLED_FIELDS, Curve, DescribedLoad

Problems = Iterator[tuple[strict.DocumentPath, str]]


def check_load(load: DescribedLoad) -> Problems:
    """The problems of one entry of `load`: (path in it, what is wrong)."""
    if load.gpu < 0:
        yield ("gpu",), f"{load.gpu} is not the index of a GPU: they count from 0"
    if load.mig and load.nvlink is not None:
        yield ("nvlink",), "an NVLink belongs to a GPU, not to a MIG device: remove mig or nvlink"
    if load.mig and not load.mig.startswith("MIG-"):
        yield ("mig",), f"{load.mig!r} is not a UUID of a MIG device: they begin with MIG-"
    if load.nvlink is not None and load.nvlink < 0:
        yield ("nvlink",), f"{load.nvlink} is not an NVLink: they count from 0"
    for name, reading in load.readings.items():
        yield from ((("readings", name), text) for text in (*_misplaced(name, load), *_wrong(name, reading)))
    for name in load.texts:
        if _is_text(name) is False:
            yield ("texts", name), f"{name} is a number: write it under readings"
        elif _is_text(name) is None:
            yield ("texts", name), _unknown(name, texts=True)


def _misplaced(name: str, load: DescribedLoad) -> Iterator[str]:
    if _is_text(name):
        yield f"{name} is a text: write it under texts"
    elif _is_text(name) is None:
        yield _unknown(name, texts=False)
    elif load.nvlink is not None and name not in LINK_FIELDS:
        yield f"an NVLink does not tell {name}; it tells {', '.join(sorted(LINK_FIELDS))}"
    elif load.nvlink is not None and load.nvlink >= 0 and not link_sources(name, load.nvlink):
        yield f"NVML does not tell {name} of NVLink {load.nvlink}: remove it"
    elif name == UNCORRECTED_ERRORS_FIELD:
        yield f"{name} counts what the GPU has as uncorrected: write it there"
    elif load.mig and name not in MIG_FIELDS:
        yield f"a MIG device does not tell {name}; it tells {', '.join(sorted(MIG_FIELDS))}"


def _wrong(name: str, reading: float | Curve) -> Iterator[str]:
    """What is wrong with a number, or with a curve's."""
    if isinstance(reading, Curve) and not (reading.period > 0 and math.isfinite(reading.period)):
        yield f"a period of {reading.period:g} seconds is not possible: write more than 0"
    counts = isinstance(reading, Curve) and reading.curve == "counter"
    most = (
        100.0 if name in PERCENT_FIELDS else 1.0 if name in RATIO_FIELDS or name.endswith("_USED_PERCENT") else math.inf
    )
    if counts and most < math.inf:
        yield f"{name} has a largest value of {most:g}, and a counter has none: use another curve"
    for value in (reading.low, reading.high) if isinstance(reading, Curve) else (reading,):
        if not 0 <= value <= most or not math.isfinite(value):
            yield (
                f"{value:g} is out of range: write 0 to {most:g}"
                if most < math.inf
                else f"{value:g} is out of range: write 0 or more"
            )


def _is_text(name: str) -> bool | None:
    """Whether a field is a text; None for a field that is not known."""
    return SAMPLED_FIELDS[name].kind == "label" if name in SAMPLED_FIELDS else None


def _unknown(name: str, *, texts: bool) -> str:
    close = strict.closest_match(name, (each for each in SAMPLED_FIELDS if _is_text(each) == texts))
    perhaps = f"did you mean {close!r}?" if close else "write one such as 'DCGM_FI_DEV_GPU_UTIL'"
    return f"{name!r} is not a DCGM field that can be described; {perhaps}"
