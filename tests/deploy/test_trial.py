"""A trial of one node: one label decides which of the two plugins a node has, and nothing else leaves the node.

The selectors are those of NVIDIA's manifests (chart nvidia-device-plugin 0.20, operands of gpu-operator 26.7), which a
real DaemonSet controller has followed as these tests say.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from gpuplane.node.apiserver.node import parse_requests

DEPLOY = Path(__file__).parents[2] / "deploy"
PAGE = (DEPLOY / "migration.md").read_text()
LABEL = "nvidia.com/gpu.deploy.device-plugin"
OPERATOR = {
    name: f"nvidia.com/gpu.deploy.{name}"
    for name in ("driver", "container-toolkit", "device-plugin", "operator-validator", "dcgm-exporter", "mig-manager")
}
"""A DaemonSet of the operator → the label that it selects, with the value "true"."""
CHART = (
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/cpu-model.vendor_id",
    "nvidia.com/gpu.present",
)
"""The keys of the three terms of the chart's affinity."""
GPU_NODE = {CHART[0]: "true", CHART[2]: "true"}
OPERATED = {**GPU_NODE, **dict.fromkeys(OPERATOR.values(), "true")}


def patched_chart() -> list[list[dict[str, object]]]:
    """The chart's terms after the patch of the page."""
    terms: list[list[dict[str, object]]] = [
        [{"key": key, "operator": "In", "values": ["true", "NVIDIA"]}] for key in CHART
    ]
    for change in json.loads((DEPLOY / "trial/nvidia-chart.json").read_text()):
        found = re.fullmatch(
            r"/spec/template/spec/affinity/nodeAffinity/\w+/nodeSelectorTerms/(\d)/matchExpressions/-", change["path"]
        )
        assert found, change
        terms[int(found[1])].append(change["value"])
    return terms


def matches(labels: Mapping[str, str], term: list[dict[str, object]]) -> bool:
    """As Kubernetes matches a term: NotIn also where there is no such label."""
    return all((labels.get(str(each["key"])) in each["values"]) == (each["operator"] == "In") for each in term)  # type: ignore[operator]


def plugins(labels: Mapping[str, str], *, chart: bool) -> set[str]:
    """Which plugins a node has."""
    trial = yaml.safe_load((DEPLOY / "components/trial/daemonset.yaml").read_text())["spec"]["template"]["spec"]
    ours = trial["nodeSelector"].items() <= labels.items()
    theirs = any(matches(labels, term) for term in patched_chart()) if chart else labels.get(LABEL) == "true"
    return {name for name, there in (("gpuplane", ours), ("nvidia", theirs)) if there}


@pytest.mark.parametrize(("chart", "before"), [(True, GPU_NODE), (False, OPERATED)])
def test_the_label_is_the_switch_there_and_back(chart: bool, before: dict[str, str]) -> None:
    """Each node has one of the two, and each of the operator's other pods stays."""
    assert plugins(before, chart=chart) == {"nvidia"}
    assert plugins({**before, LABEL: "gpuplane"}, chart=chart) == {"gpuplane"}
    assert plugins({**before, LABEL: "true"}, chart=chart) == {"nvidia"}
    if not chart:
        gone = {name for name, label in OPERATOR.items() if {**before, LABEL: "gpuplane"}[label] != "true"}
        assert gone == {"device-plugin"}


def test_the_agent_serves_under_the_label_and_lets_go_while_the_driver_manager_works() -> None:
    """As NVIDIA's driver manager writes it: the value that it found, and a suffix."""
    assert parse_requests({LABEL: "gpuplane"}, {}).driver_release_reason == ""
    assert parse_requests({LABEL: "gpuplane_paused-for-driver-upgrade"}, {}).driver_release_reason
    assert plugins({**OPERATED, LABEL: "gpuplane_paused-for-driver-upgrade"}, chart=False) == set()


def test_no_step_takes_a_driver_away() -> None:
    """No command of the page sets a label of the operator but those of the plugin and of the MIG manager."""
    commands = re.findall(r"kubectl label [^`\n]*", PAGE)

    assert commands
    for label in re.findall(r"nvidia\.com/gpu\.deploy\.([\w-]+)=", "\n".join(commands)):
        assert label in {"device-plugin", "mig-manager"}
    assert PAGE.count("deploy.operands=false") == 1
    assert "Never set `nvidia.com/gpu.deploy.operands=false`" in PAGE
