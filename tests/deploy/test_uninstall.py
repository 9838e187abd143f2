"""What an agent leaves on a node, and in its Node, goes as deploy/README.md says."""

import asyncio
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuplane.sandbox.kubelet import Kubelet, pod
from tests.conformance.podman.node import Node, install
from tests.deploy.kustomize import DEPLOY, apply, build
from tests.deploy.test_overlays import LOCKED_DOWN, _container, _host_paths, _pod, _pruned, _typed

README = (DEPLOY / "README.md").read_text()
OURS = ("/var/run/cdi", "/opt/gpuplane", "/var/lib/gpuplane")


@pytest.fixture
def spec() -> Any:
    """The pod that does it."""
    found = yaml.safe_load((DEPLOY / "uninstall.yaml").read_text())
    assert _typed(found) == _pruned(found)
    return found["spec"]


def test_what_the_pod_may(spec: Any) -> None:
    """Write where the agent and its hook have written, and see who holds devices; without a capability or a token."""
    [container] = spec["containers"]
    assert container["securityContext"] == LOCKED_DOWN
    assert not {"hostPID", "hostNetwork", "hostIPC", "serviceAccountName"} & set(spec)
    assert spec["automountServiceAccountToken"] is False
    paths = dict(_host_paths(spec, container))
    assert paths.pop("/var/lib/kubelet/pod-resources") == ("/var/lib/kubelet/pod-resources", "ro")
    assert paths == {each: (each, "rw") for each in OURS}


def test_everything_that_is_written_is_taken_away(spec: Any) -> None:
    """Every directory of the node that a container of ours may write to, but for kubelet's and those of a boot."""
    objects = build(DEPLOY / "overlays/nvidia-runtime")
    for each in ("cdi", "hook", "mps"):
        objects = apply(DEPLOY / "components" / each, objects)
    agent = [each for each in objects if each["metadata"]["name"] == "gpuplane-agent"]
    [hook] = _pod(agent)["initContainers"]
    volumes = {"volumes": [each for each in _pod(agent)["volumes"] if each["name"] == "hook"]}
    written = dict(_host_paths(_pod(agent), _container(agent))) | dict(_host_paths(volumes, hook))

    for path, (_, access) in written.items():
        if access == "rw" and not path.startswith(("/var/lib/kubelet/", "/run/")):
            assert any(f"{path}/".startswith(f"{each}/") for each in OURS), path


def without() -> str:
    """What is missing to give a process directories of its own; "" if nothing."""
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, timeout=60)
    return "root, and the right to make mount namespaces" if done.returncode else ""


def called(command: list[str], places: dict[Path, str]) -> subprocess.CompletedProcess[str]:
    """A program of root's without a capability, that sees directories of the test at the places of a node's."""
    script = "for each in /opt /run /var/lib; do mount -t tmpfs none $each; done\n"
    for path, place in places.items():
        path.mkdir(parents=True, exist_ok=True)
        script += f"mkdir -p {place}; mount --bind {shlex.quote(str(path))} {place}\n"
    script += 'exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"'
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", script, "sh", *command]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)


async def test_files_go_once_no_container_holds_a_device(spec: Any, tmp_path: Path) -> None:
    """While one does, the pod names it and leaves everything; then nothing of ours is left."""
    if what := without():
        pytest.skip(f"needs {what}")
    [container] = spec["containers"]
    node = Node(tmp_path, install(tmp_path / "driver"))
    hook, others = tmp_path / "opt/bin/gpuplane-hook", node.cdi / "another.json"
    own = (node.cdi, tmp_path / "opt", tmp_path / "s", tmp_path / "k")
    places = dict(zip(own, (*OURS, "/var/lib/kubelet"), strict=True))
    others.write_text("{}")
    hook.parent.mkdir(parents=True)
    hook.touch()
    async with Kubelet(node.root / "k") as kubelet:
        async with node.agent("--machine", node.machine):
            await kubelet.until_capacity("nvidia.com/gpu", 2, 2)
            await kubelet.run(pod("train", gpu=1))
        left = {path: sorted(each.name for each in path.iterdir()) for path in places}

        refused = await asyncio.to_thread(called, container["command"], places)
        assert refused.returncode == 1
        assert "train" in refused.stderr
        assert {path: sorted(each.name for each in path.iterdir()) for path in places} == left
        assert "k8s.device-plugin.nvidia.com-gpu.json" in left[node.cdi]

        await kubelet.end("default/train")
        done = await asyncio.to_thread(called, container["command"], places)
        assert done.returncode == 0, done.stderr
        assert [*node.cdi.iterdir()] == [others]
        assert not [*(tmp_path / "opt").iterdir(), *(tmp_path / "s").iterdir()]
