"""Metrics as values: pure rooms derive them, and `service/exposition.py` writes them."""

from functools import cached_property
from typing import Literal

from gpuplane.base.text import Text
from gpuplane.base.value import Value


class Labels(dict[str, str]):
    """The labels of one series. Who keeps them, keeps their text too. Nobody changes them."""

    @cached_property
    def text(self) -> str:
        """As the formats of Prometheus write them: `{gpu="0",pod="train"}`; "" for none."""
        return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in self.items()) + "}" if self else ""


def _escape(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value


class Metric(Value):
    """One metric: its series are (labels, value). A counter only grows, until the agent's memory of a boot ends."""

    name: str
    kind: Literal["gauge", "counter", "untyped"]
    help: Text
    series: tuple[tuple[Labels, float], ...] = ()
