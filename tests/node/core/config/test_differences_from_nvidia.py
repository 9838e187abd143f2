"""Keys that NVIDIA's device plugin reads and discards: both names are said, of what a node offers here and there."""

import pytest

from gpuplane.base.strict import InvalidInput
from gpuplane.node.core.config.nvidia import differences_from_nvidia
from gpuplane.node.core.config.resolve import resolve_settings

SHIPPED = {
    "the chart's values of its page": """
version: v1
flags: {migStrategy: none, failOnInitError: true, nvidiaDriverRoot: /,
  plugin: {passDeviceSpecs: false, deviceListStrategy: [envvar], deviceIDStrategy: uuid}}
""",
    "time slices": """
version: v1
sharing: {timeSlicing: {renameByDefault: false, failRequestsGreaterThanOne: false,
  resources: [{name: nvidia.com/gpu, replicas: 10}]}}
""",
    "MPS": "version: v1\nsharing: {mps: {renameByDefault: false, resources: [{name: nvidia.com/gpu, replicas: 10}]}}\n",
    "the operator's, for MIG": """
version: v1
flags: {migStrategy: mixed}
sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 8},
  {name: nvidia.com/mig-1g.5gb, replicas: 2}, {name: nvidia.com/mig-2g.10gb, replicas: 2}]}}
""",
}
"""What NVIDIA's documents and charts have as configurations: facts, in our own layout."""


@pytest.mark.parametrize("text", SHIPPED.values(), ids=SHIPPED)
def test_what_nvidia_ships_is_good_and_means_the_same(text: str) -> None:
    resolve_settings(text.encode(), "config.yaml")

    assert differences_from_nvidia(text.encode(), "config.yaml") == ()


@pytest.mark.parametrize(
    ("text", "line", "names"),
    [
        (
            "resources:\n  mig:\n  - {pattern: 1g.10gb, name: small}\n",
            3,
            ("nvidia.com/small", "nvidia.com/mig-1g.10gb"),
        ),
        ("resources:\n  gpus:\n  - {pattern: '*', name: big}\n", 3, ("nvidia.com/big", "nvidia.com/gpu")),
        (
            "sharing:\n  timeSlicing:\n    resources:\n    - {name: gpu, replicas: 2, rename: half}\n",
            4,
            ("nvidia.com/half", "nvidia.com/gpu"),
        ),
        (
            "sharing:\n  timeSlicing:\n    renameByDefault: true\n    resources:\n"
            "    - {name: gpu, replicas: 2, rename: half}\n",
            5,
            ("nvidia.com/half", "nvidia.com/gpu.shared"),
        ),
        (
            "sharing:\n  mps:\n    resources:\n    - {name: gpu, replicas: 2, rename: half, devices: [0]}\n",
            4,
            ("only these",),
        ),
    ],
)
def test_both_names_are_said(text: str, line: int, names: tuple[str, ...]) -> None:
    """With the line of the key."""
    told = "\n".join(differences_from_nvidia(text.encode(), "config.yaml"))

    assert f"config.yaml:{line}: " in told
    assert all(name in told for name in names)


@pytest.mark.parametrize("text", ["resources: {gpus: [{pattern: '*', name: gpu}]}", "version: v1", ""])
def test_what_means_the_same_is_not_named(text: str) -> None:
    assert differences_from_nvidia(text.encode(), "config.yaml") == ()


def test_a_config_map_is_called_one() -> None:
    """With the key that has the file; and not by its keys, which no configuration has."""
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  any: |\n    version: v1\n"
    with pytest.raises(InvalidInput) as caught:
        resolve_settings(text.encode(), "config.yaml")

    assert len(caught.value.errors) == 1
    assert caught.value.errors[0].startswith("config.yaml:1: ")
    assert "ConfigMap" in caught.value.errors[0]
    assert "'any'" in caught.value.errors[0]
