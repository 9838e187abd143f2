"""components/mps: a pod of its own for the daemons, and one more directory for the agent."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuplane.cli.commands.mps import command
from gpuplane.node.model.config import Settings
from tests.deploy.kustomize import DEPLOY, Json, apply, build
from tests.deploy.test_overlays import HOST_PATHS, LOCKED_DOWN, _container, _host_paths, _pod, _pruned, _rows, _typed

ROOT = Settings().mps_root


@pytest.fixture
def objects() -> list[Json]:
    """The overlay with the component."""
    return apply(DEPLOY / "components/mps", build(DEPLOY / "overlays/nvidia-runtime"))


def _named(objects: list[Json], name: str) -> list[Json]:
    return [each for each in objects if each["kind"] == "DaemonSet" and each["metadata"]["name"] == name]


def test_the_agent_sees_where_it_meets_the_supervisor_and_no_more(objects: list[Json]) -> None:
    """No privilege comes to it."""
    agent = _named(objects, "gpuplane-agent")
    pod, container = _pod(agent), _container(agent)

    assert container["securityContext"] == LOCKED_DOWN
    assert dict(_host_paths(pod, container)) == HOST_PATHS | {f"{ROOT}/gpuplane": (f"{ROOT}/gpuplane", "rw")}
    assert all(_typed(each) == _pruned(each) for each in objects)


def test_an_upgrade_of_the_agent_leaves_the_daemons(objects: list[Json]) -> None:
    """Their pod is another, and is replaced only where somebody deletes it; nothing else ends its container."""
    [daemons] = _named(objects, "gpuplane-mps")
    container = _container([daemons])

    assert daemons["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert not {"livenessProbe", "startupProbe"} & set(container)
    assert "limits" not in container["resources"]


def test_what_the_supervisor_may(objects: list[Json]) -> None:
    """The root directory of the node's MPS, its processes, no network, no token, no account."""
    daemons = _named(objects, "gpuplane-mps")
    pod, container = _pod(daemons), _container(daemons)

    assert dict(_host_paths(pod, container)) == {ROOT: (ROOT, "rw")}
    assert pod["hostPID"]
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostIPC", "serviceAccountName"} & set(pod)
    rows = {cells[0]: cells[1:] for cells in _rows((DEPLOY / "README.md").read_text())}
    own = [f"`{each}`, in the pod of `components/mps`" for each in ("privileged", "hostPID")]
    for what in (f"`{ROOT}`", f"`{ROOT}/gpuplane`", *own):
        assert len(rows[what][-1]) > 30, what


def test_the_supervisor_knows_its_flags(objects: list[Json]) -> None:
    """Those of its command line are those that the help shows."""
    line = _container(_named(objects, "gpuplane-mps"))["command"][-1]

    assert f"gpuplane mps --root={ROOT}" in line
    assert set(re.findall(r"--[a-z-]+", line)) <= set(
        re.findall(r"--[a-z-]+", CliRunner().invoke(command, ["--help"]).output)
    )


def test_the_unit_of_the_documentation_keeps_daemons_over_a_restart() -> None:
    """systemd ends the supervisor alone."""
    assert "KillMode=process" in (Path(DEPLOY).parent / "docs/mps.md").read_text()
