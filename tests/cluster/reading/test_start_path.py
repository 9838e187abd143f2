"""Reading a cluster takes no NumPy: a command that only looks at nodes and pods needs no extra."""

import json
import subprocess
import sys

import pytest

from tests.cluster.reading.small import objects

READ = """
import pkgutil, sys
from importlib import import_module
import gpuplane.cluster.reading
for each in pkgutil.iter_modules(gpuplane.cluster.reading.__path__):
    import_module(f"gpuplane.cluster.reading.{each.name}")
from gpuplane.cluster.reading.listing import read_saved
found = read_saved(sys.stdin.buffer.read(), "c.json")
assert len(found.nodes) == 6 and len(found.pods) == 12, found
assert {each.code for each in found.notes} == {"held-assumed"}, found.notes
print(*sorted(sys.modules))
"""


def loaded(script: str, text: str = "") -> set[str]:
    found = subprocess.run([sys.executable, "-c", script], input=text, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    return set(found.stdout.split())


def test_a_cluster_is_read_without_numpy() -> None:
    modules = loaded(READ, json.dumps({"items": objects()}))

    assert "gpuplane.cluster.reading.held" in modules
    assert "numpy" not in modules


@pytest.mark.parametrize("module", ["policies", "configuration", "workload"])
def test_a_configuration_is_checked_without_numpy(module: str) -> None:
    assert "numpy" not in loaded(f"import sys, gpuplane.cluster.engine.{module}; print(*sys.modules)")
