"""deploy/components/grafana-dashboard, as Grafana reads it."""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.deploy.kustomize import DEPLOY

PATH = DEPLOY / "components/grafana-dashboard/gpuplane.json"
DASHBOARD: dict[str, Any] = json.loads(PATH.read_text())
ALL = {each["name"]: each["allValue"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"}
"""Variable → what stands for it while it is All."""
TIMES = {"__rate_interval": "1m", "__range": "1h"}


class Query(NamedTuple):
    """A query of a panel."""

    panel: str
    ref: str
    expression: str


def queries() -> list[Query]:
    """Those of all panels."""
    return [
        Query(panel["title"], target["refId"], target["expr"])
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
    ]


def filled_in(expression: str, values: Mapping[str, str]) -> str:
    """With values for all variables. KeyError: there is no such variable."""
    known = {**ALL, **TIMES, **values}
    return re.sub(r"\$\{?(\w+)\}?", lambda match: known[match[1]], expression)
