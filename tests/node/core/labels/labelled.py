"""Labels of described machines, and tables of labels as text."""

from collections.abc import Mapping

from gpuplane.node.core.config.resolve import resolve_with_sources
from gpuplane.node.core.labels.featurelabels import feature_labels
from gpuplane.node.hardware.described import machinefile
from gpuplane.node.hardware.described.profiles import find_machine_file
from gpuplane.node.model.config import Config, Settings
from gpuplane.node.model.machine import Machine
from gpuplane.node.model.snapshot import Snapshot

NVIDIA, OWN = "nvidia.com/", "gpuplane.io/"


def profile(name: str) -> Machine:
    """The machine of a profile, as a look at it shows it."""
    file = machinefile.read_machine(find_machine_file(name).read_bytes(), name)
    return Machine(**{field: getattr(file, field) for field in Machine.__struct_fields__})


def settings(text: str) -> Settings:
    """What a configuration file says."""
    found = resolve_with_sources(text.encode(), "config.yaml", {}, {}).settings
    assert found is not None
    return found


def labels(machine: Machine | None, config: str = "") -> dict[str, str]:
    """Key → value."""
    found = feature_labels(Snapshot(machine=machine, config=Config(settings=settings(config))))
    assert found is not None
    return {key: label.value for key, label in found.items()}


def table(text: str) -> dict[str, str]:
    """Lines "key=value" of NVIDIA's labels; a key with a / has its prefix."""
    rows = dict(line.strip().split("=", 1) for line in text.splitlines() if line.strip())
    return {key if "/" in key else NVIDIA + key: value for key, value in rows.items()}


def with_differences(theirs: Mapping[str, str], ours: Mapping[str, Mapping[str, str | None]]) -> dict[str, str]:
    """A table with what is said otherwise here: the difference → key → value, None where there is no such label."""
    expected: dict[str, str] = dict(theirs)
    for otherwise in ours.values():
        for name, value in otherwise.items():
            key = name if "/" in name else NVIDIA + name
            assert theirs.get(key) != value, f"{key} is the same"
            expected.pop(key, None)
            if value is not None:
                expected[key] = value
    return expected
