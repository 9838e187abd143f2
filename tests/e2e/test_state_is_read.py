"""A state directory that another agent wrote: an agent that starts on a copy remembers all of it.

`state/` has the files as they were written, but for the boot's id; `clocks` beside them says when that was.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.golden import becomes, differences
from tests.e2e.kubelet import Kubelet
from tests.e2e.machines import GPU, Fields, MachineFile, gpu, mig, mig_uuid, replace, uuid
from tests.e2e.programs import Agent
from tests.e2e.waiting import boot_time

STATE = Path(__file__).parent / "state"
TIMES = {
    "since",
    "last_seen",
    "until",
    "requested_at",
    "not_before",
    "last_reset_at",
    "declared_repaired_at",
    "last_recovered_at",
}
"""Keys whose numbers count from the boot; those of `until_wall_clock` count from 1970."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NOTES = {"xid-13", "xid-31"}
HALF, SMALL = "nvidia.com/gpu-half", "nvidia.com/mig-1g.5gb"
SHARED = """
version: v1
flags: {migStrategy: mixed}
sharing:
  timeSlicing: {resources: [{name: gpu, replicas: 2, devices: [3], rename: gpu-half, timeSlice: short}]}
"""
"""The configuration that the node's label named; the API server that said so is away."""
OTHERWISE = """
version: v1
flags: {migStrategy: mixed}
sharing: {memory: {unit: GiB, shareSize: 10, resources: [{name: gpu, devices: [3]}]}}
"""
NOBODY = "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}], \
clusters: [{name: a, cluster: {server: 'http://127.0.0.1:9'}}], users: [{name: a, user: {token: a}}]}"
"""A kubeconfig for an API server that never answers."""


def remembered(name: str, folder: Path, this_boot: bool = True) -> None:
    """Copy the files of `state/NAME` into a state directory, as if an agent had written them a minute ago."""
    clocks = json.loads((STATE / name / "clocks").read_text())
    later = boot_time() - 60 - clocks["boot"]
    boot_id = BOOT_ID.read_text().strip() if this_boot else "00000000-0000-4000-8000-000000000000"

    def moved(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: moved(each, name) for name, each in value.items()}
        if isinstance(value, list):
            return [moved(each) for each in value]
        if isinstance(value, float) and key in TIMES:
            return value + later
        return value + WALL_LATER if isinstance(value, float) and key == "until_wall_clock" else value

    folder.mkdir(mode=0o700)
    for path in (STATE / name).glob("*.json"):
        document = moved(json.loads(path.read_text())) | {"boot_id": boot_id}
        folder.joinpath(path.name).write_text(json.dumps(document))


WALL_LATER = 10.0 * 365 * 86400
"""Seconds: what was to end by the clock on the wall has not ended for some years."""


def machine() -> Fields:
    """On which they were written."""
    gpus = [mig(4, 7, 8) if index == 4 else gpu(index) for index in range(8)]
    return {"driver_file_layout": "debian", "gpus": gpus, "processes": [{"gpu": 6, "pid": 4711}]}


class Node:
    """With a kubelet whose pods hold a share of GPU 3 and a MIG device of GPU 4."""

    def __init__(self, here: Path, kubelet: Kubelet) -> None:
        self.here, self.kubelet = here, kubelet
        kubelet.pods = {
            ("default", "slices"): {HALF: [f"{uuid(3)}::0"]},
            ("default", "instance"): {SMALL: [mig_uuid(4, 7)]},
        }
        (here / "configs").mkdir()
        (here / "configs/shared").write_text(SHARED)
        (here / "configs/plain").write_text("version: v1\n")
        (here / "kubeconfig").write_text(NOBODY)
        self.machine = MachineFile(here / "machine.yaml", **machine())

    def agent(self) -> Agent:
        """That asks an API server which is away."""
        flags = ("--config-file", self.here / "configs", "--node-name", "n1", "--kubeconfig", self.here / "kubeconfig")
        return Agent(self.here, self.machine, *flags)

    def seen(self, agent: Agent) -> Fields:
        """What it makes of what it remembers."""
        said = agent.inspect()
        return {
            "kubelet": {name: dict(sorted(self.kubelet.health(name).items())) for name in (GPU, HALF, SMALL)},
            "strategies": said["device_list_strategy"] and said["device_list_strategy"]["strategies"],
            "release": said["release"] and {"until": said["release"]["until"] is not None},
            "node": {key: said["node"][key] for key in ("state", "code", "fault_counts")},
            "devices": [
                {
                    **{key: each[key] for key in ("index", "uuid", "state", "code", "fault_counts", "resource")},
                    "until": each["until"] is not None,
                    "kinds": [reason["kind"] for reason in each["reasons"]],
                    "holders": [
                        [holder["pod"], holder["resource"], *holder["ids"]] for holder in each["holders"] or ()
                    ],
                }
                for each in said["devices"]
            ],
        }


@pytest.fixture
def node(here: Path) -> Iterator[Node]:
    """With its kubelet."""
    with Kubelet(here / "k") as kubelet:
        yield Node(here, kubelet)


def test_drains_verdicts_and_configuration_are_remembered(node: Node) -> None:
    remembered("busy", node.here / "s")
    with node.agent() as agent:
        becomes("state/busy", lambda: node.seen(agent), differences)


def test_drains_outlive_a_reboot_and_verdicts_do_not(node: Node) -> None:
    remembered("busy", node.here / "s", this_boot=False)
    with node.agent() as agent:
        becomes("state/rebooted", lambda: node.seen(agent), differences)


def test_a_drain_can_be_ended_that_an_older_agent_wrote(node: Node) -> None:
    remembered("busy", node.here / "s")
    with node.agent() as agent:
        agent.until(lambda: node.kubelet.health().get(uuid(0)) == "Unhealthy", "the drain")
        for index in ("0", "1", "2"):
            assert agent.command("health", "restore", index).status == 0
        assert [agent.device(index)["state"] for index in ("0", "1", "2")] == ["healthy"] * 3


def test_a_release_is_remembered(node: Node) -> None:
    remembered("released", node.here / "s")
    with node.agent() as agent:
        becomes("state/released", lambda: node.seen(agent), differences)
        assert agent.command("driver", "resume").status == 0
        agent.until(lambda: node.kubelet.health().get(uuid(0)) == "Healthy", "devices are given out again")


def test_a_release_ends_with_its_boot(node: Node) -> None:
    remembered("released", node.here / "s", this_boot=False)
    with node.agent() as agent:
        agent.until(lambda: node.kubelet.health().get(uuid(0)) == "Healthy", "devices are given out")
        assert agent.inspect()["release"] is None


def test_a_share_that_a_pod_holds_is_known_by_what_it_was(node: Node) -> None:
    remembered("busy", node.here / "s")
    replace(node.here / "configs/shared", OTHERWISE)
    with node.agent() as agent:
        agent.until(lambda: agent.page("/healthz")[0] and node.kubelet.plugins.keys() >= {GPU, SMALL}, "resources")
        becomes("state/shared-otherwise", lambda: node.seen(agent), differences)
        node.kubelet.pods.clear()
        agent.until(
            lambda: set(node.kubelet.health(f"{GPU}.mem").values()) == {"Healthy"}, "GPU 3 is given out by memory"
        )


def test_a_mig_device_that_is_gone_withholds_its_gpu_while_a_pod_holds_it(node: Node) -> None:
    remembered("busy", node.here / "s")
    node.machine.set(gpus=[gpu(index) for index in range(8)])
    with node.agent() as agent:
        becomes("state/mig-gone", lambda: node.seen(agent), differences)
        node.kubelet.pods.clear()
        agent.until(lambda: node.kubelet.health().get(uuid(4)) == "Healthy", "GPU 4 is given out")


def test_time_slices_that_were_set_are_set_back_when_nobody_wants_them(node: Node) -> None:
    remembered("busy", node.here / "s")
    node.kubelet.pods.clear()
    replace(node.here / "configs/shared", "version: v1\nflags: {migStrategy: mixed}\n")
    kept = node.here / "s/time-slices.json"
    with node.agent() as agent:
        agent.until(lambda: length(kept) in (None, "default"), "the length is set back")


def length(path: Path) -> str | None:
    """The length of GPU 3's time slices that a state directory remembers."""
    try:
        kept = json.loads(path.read_text())["value"]
    except FileNotFoundError:  # the agent removes it when it remembers nothing
        return None
    return str(kept[uuid(3)].get("last_set_length")) if uuid(3) in kept else None


def test_a_file_that_makes_no_sense_costs_itself_alone(node: Node) -> None:
    remembered("busy", node.here / "s")
    (node.here / "s/mig-parents.json").write_text("{")
    with node.agent() as agent:
        agent.until(lambda: node.kubelet.health().get(uuid(0)) == "Unhealthy", "the drain")
        agent.until(lambda: agent.device("1")["code"] == "xid-79", "the verdict")
        agent.until((node.here / "s/mig-parents.unreadable").exists, "it is set aside")


def test_what_is_written_again_is_what_was_read(node: Node) -> None:
    """The files are a format: another agent reads them, and a rollback does."""
    remembered("busy", node.here / "s")
    with node.agent() as agent:
        agent.until(lambda: node.kubelet.health().get(uuid(0)) == "Unhealthy", "the drain")
        assert agent.command("health", "drain", "7", "--why", "its riser").status == 0
        assert agent.stop() == 0

    for path in sorted((STATE / "busy").glob("*.json")):
        old, new = json.loads(path.read_text()), json.loads((node.here / "s" / path.name).read_text())
        assert (new["version"], new["boot_id"]) == (2, BOOT_ID.read_text().strip())
        assert [each for each in differences(timeless(old), timeless(new), added=True) if "boot_id" not in each] == []
    new = json.loads((node.here / "s/health.json").read_text())["value"]["devices"][uuid(7)]
    assert new["drain"]["reason"] == "its riser"


def timeless(value: Any) -> Any:
    """A value without its times, and without the notes, which are over when nobody holds the GPU."""
    if isinstance(value, dict):
        kept = {
            name: timeless(each) for name, each in value.items() if name not in {*TIMES, "until_wall_clock", "probe"}
        }
        return {name: each for name, each in kept.items() if each != []}
    if isinstance(value, list):
        return [timeless(each) for each in value if not (isinstance(each, dict) and each.get("code") in NOTES)]
    return value


def test_specifications_that_an_older_agent_wrote_are_replaced(node: Node) -> None:
    remembered("busy", node.here / "s")
    shutil.copytree(STATE / "cdi", node.here / "c")
    node.machine.set(driver={"version": "590.10.01", "cuda": "13.1"}, gpus=[gpu(0), gpu(1), mig(4, 8)], processes=[])
    (path,) = (node.here / "c").iterdir()
    old = json.loads(path.read_text())
    with node.agent() as agent:
        agent.until(lambda: json.loads(path.read_text()) != old, "the file is another one")
        agent.until(
            lambda: set(names(path)) == {mig_uuid(4, 7), mig_uuid(4, 8), uuid(0), uuid(1), uuid(3)},
            "what is there and what is held",
        )
    assert "590.10.01" in path.read_text()
    assert "all" not in names(path)


def names(path: Path) -> list[str]:
    """The devices that a CDI document defines."""
    return [each["name"] for each in json.loads(path.read_text())["devices"]]
