"""The Grafana dashboard: panels that every Grafana has, and a ConfigMap that its sidecar finds."""

import re

from tests.deploy.kustomize import DEPLOY, apply
from tests.deploy.prometheus.dashboard import ALL, DASHBOARD, PATH, queries

STANDARD = {"row", "timeseries", "stat", "table", "gauge", "bargauge", "state-timeline"}
ROWS = ["Cluster", "Nodes", "GPUs", "MIG", "Pods", "Faults", "Held but idle", "Agents"]


def test_its_panels_are_standard() -> None:
    """No plugin has to be installed, and each panel asks the Prometheus that a reader chooses."""
    panels = DASHBOARD["panels"]

    assert {each["type"] for each in panels} == STANDARD
    assert [each["title"] for each in panels if each["type"] == "row"] == ROWS
    assert len({each["id"] for each in panels}) == len(panels)
    sources = [
        each["datasource"] for panel in panels for each in (panel, *panel.get("targets", ())) if panel["type"] != "row"
    ]
    assert all(each == {"type": "prometheus", "uid": "${datasource}"} for each in sources)


def test_no_panel_covers_another() -> None:
    taken = set[tuple[int, int]]()
    for each in (panel["gridPos"] for panel in DASHBOARD["panels"]):
        cells = {
            (x, y) for x in range(each["x"], each["x"] + each["w"]) for y in range(each["y"], each["y"] + each["h"])
        }
        assert each["x"] + each["w"] <= 24
        assert not taken & cells
        taken |= cells


def test_its_variables_choose() -> None:
    """Each is used; and each query is about the chosen cluster, so that clusters do not mix."""
    named = {name for each in queries() for name in re.findall(r"\$(\w+)", each.expression)}

    assert {*ALL} == {"cluster", "node", "gpu", "namespace", "pod"}
    assert {*ALL} <= named
    for each in queries():
        assert 'cluster=~"$cluster"' in each.expression, each


def test_the_config_map_is_found_by_grafanas_sidecar() -> None:
    [found] = apply(DEPLOY / "components/grafana-dashboard", [])

    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["data"] == {"gpuplane.json": PATH.read_text()}
    assert len(found["data"]["gpuplane.json"]) < 200_000, "kubectl apply keeps a copy in an annotation of 256 KiB"
