"""The manifests of the sandbox's agents are those of deploy/, and stand in the package as they are built."""

import sys
from pathlib import Path

import yaml

from tests.deploy.kustomize import build

SOURCE = Path(__file__).parents[2] / "src/gpuplane/sandbox/manifests"
HEAD = "# Written by `make manifests` from kustomization.yaml beside it.\n"


def rendered() -> str:
    """What the file should have."""
    return HEAD + yaml.safe_dump_all(build(SOURCE), sort_keys=False, width=10_000)


def test_the_file_is_what_deploy_has_today() -> None:
    assert (SOURCE / "agents.yaml").read_text() == rendered(), "run `make manifests`"


if __name__ == "__main__":
    sys.stdout.write(rendered())
