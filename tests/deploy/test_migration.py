"""The page for who comes from NVIDIA's chart names each of its values, and says what is true of it here."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from gpuplane.node.core.config.flags import FLAG_BY_NAME

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "deploy/migration.md").read_text()
TABLE = PAGE.partition("## Every value of NVIDIA's chart")[2].partition("\n## ")[0]
ROWS = dict(re.findall(r"^\| `([\w.*]+)` \| (.+) \|$", TABLE, re.M))
VALUES = [
    line for line in Path(__file__).with_name("chart_values.txt").read_text().splitlines() if not line.startswith("#")
]


@pytest.mark.parametrize("value", VALUES)
def test_each_value_of_the_chart_has_a_row(value: str) -> None:
    """By its name, or with all that lie below one name."""
    assert [row for row in ROWS if fnmatch(value, row)]


def test_each_row_is_of_a_value_of_the_chart() -> None:
    """None is mistyped, and none stands twice."""
    assert all(any(fnmatch(value, row) for value in VALUES) for row in ROWS)
    assert len(ROWS) == len(re.findall(r"^\| `", TABLE, re.M))


OURS = {"NVIDIA_DRIVER_CAPABILITIES"}  # NVIDIA's container runtime reads it


def test_the_variables_are_the_agents() -> None:
    """Each one that the table names."""
    named = set(re.findall(r"`([A-Z][A-Z_]+)(?:=\w+)?`", TABLE))

    assert len(named) > 12
    assert named - OURS <= set(FLAG_BY_NAME)


def test_the_fields_that_are_as_in_the_chart_are() -> None:
    """What the table says of the DaemonSet in deploy/base."""
    daemonset = yaml.safe_load((ROOT / "deploy/base/daemonset.yaml").read_text())["spec"]
    pod = daemonset["template"]["spec"]

    assert daemonset["updateStrategy"]["rollingUpdate"]["maxSurge"] == "10%"
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
    assert (
        len(pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]) == 3
    )


def test_the_check_comes_before_the_switch() -> None:
    """In the order of the steps."""
    assert 0 < PAGE.index("gpuplane config check") < PAGE.index("kubectl apply -k deploy/overlays/nvidia-runtime")
