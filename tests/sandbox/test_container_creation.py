"""Containers are made as a container runtime makes them: CDI devices are resolved from files at each creation."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpuplane.node.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.node.model.cdi import ContainerEdits, DeviceNode, Hook, Mount
from gpuplane.sandbox.changes import Changes
from gpuplane.sandbox.kubelet import Container, Kubelet, RunningPod
from gpuplane.sandbox.kubelet.console import Console
from gpuplane.sandbox.kubelet.devices import KubeletError
from gpuplane.sandbox.kubelet.messages import Message
from gpuplane.sandbox.kubelet.runtime import CreateContainerFailed, create_container
from gpuplane.sandbox.kubelet.workers import Runtime
from tests.golden import Golden

from .plugin import DEADLINE, DEV, SIX, Plugin, node, wants

KIND = "lab.io/dev"
FAILED = "failed to create containerd container: "
INJECTION = f"{FAILED}CDI device injection failed: "


def write(directory: Path, name: str = "lab.json", common: Any = None, **devices: Any) -> None:
    """A specification, in the place of what is there."""
    directory.mkdir(exist_ok=True)
    made = [{"name": name, "containerEdits": edits} for name, edits in devices.items()]
    document = {"cdiVersion": "0.5.0", "kind": KIND, "devices": made, "containerEdits": common or {}}
    (directory / "aside").write_text(json.dumps(document))
    (directory / "aside").replace(directory / name)


def got(*names: str, **annotations: str) -> pb.ContainerAllocateResponse:
    """What kubelet passes that has these CDI names, and annotations "cdi.k8s.io/KEY"."""
    return pb.ContainerAllocateResponse(
        cdi_devices=[pb.CDIDevice(name=f"{KIND}={name}") for name in names],
        annotations={f"cdi.k8s.io/{key}": value for key, value in annotations.items()},
    )


def env(*names: str) -> dict[str, Any]:
    return {"env": [f"{name}={name.lower()}" for name in names]}


# what is resolved


def test_names_come_from_the_field_and_then_from_annotations(tmp_path: Path) -> None:
    """Each once; an annotation may name several, and one of another prefix names none."""
    write(tmp_path, a=env("A"), b=env("B"), c=env("C"), d=env("D"))
    asked = got("b", "a", "b", z=f"{KIND}=c,{KIND}=a", y=f"{KIND}=d")
    asked.annotations["example.com/x"] = "not a name"

    assert create_container(asked, [tmp_path]).env == ("B=b", "A=a", "D=d", "C=c")


def test_it_is_applied_over_what_kubelet_passes(tmp_path: Path) -> None:
    """Of a variable, a node and a mount that both give, CDI's holds; mounts by their depth."""
    common = {"hooks": [{"hookName": "createContainer", "path": "/bin/hook"}], "env": ["SAME=cdi"]}
    device = {
        "deviceNodes": [{"path": "/dev/x", "type": "c", "major": 1, "minor": 3}],
        "mounts": [{"hostPath": "/cdi", "containerPath": "/m"}],
    }
    write(tmp_path, common=common, a=device)
    asked = pb.ContainerAllocateResponse(
        envs={"SAME": "kubelet", "OWN": "1"},
        mounts=[pb.Mount(container_path="/a/b", host_path="/h", read_only=True), pb.Mount(container_path="/m")],
        devices=[
            pb.DeviceSpec(container_path="/dev/x", host_path="/dev/x", permissions="rw"),
            pb.DeviceSpec(container_path="/dev/y", host_path="/root/dev/y", permissions="rw"),
        ],
    )
    asked.MergeFrom(got("a"))

    assert create_container(asked, [tmp_path]) == ContainerEdits(
        env=("OWN=1", "SAME=cdi"),
        device_nodes=(
            DeviceNode("/dev/y", "/root/dev/y", permissions="rw"),
            DeviceNode("/dev/x", type="c", major=1, minor=3),
        ),
        hooks=(Hook("createContainer", "/bin/hook"),),
        mounts=(Mount("/cdi", "/m"), Mount("/h", "/a/b", ("rbind", "rprivate", "ro"))),
    )


def test_a_runtime_without_cdi_resolves_nothing(tmp_path: Path) -> None:
    """It passes over names that mean nothing to it."""
    asked = got("a", z="rubbish")
    asked.envs["OWN"] = "1"

    assert create_container(asked, None) == ContainerEdits(env=("OWN=1",))


def test_a_later_directory_has_priority_and_a_broken_file_costs_itself(tmp_path: Path) -> None:
    """As the registry has it."""
    write(tmp_path / "one", a=env("OLD"), b=env("B"))
    write(tmp_path / "two", a=env("NEW"))
    (tmp_path / "two/broken.json").write_text("{")
    (tmp_path / "two/deep.json").mkdir()
    (tmp_path / "two/gone.json").symlink_to("nowhere")

    assert create_container(got("a", "b"), [tmp_path / "one", tmp_path / "two", tmp_path / "none"]).env == (
        "NEW=new",
        "B=b",
    )


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (got("a", "x", "b", "y"), f"{INJECTION}unresolvable CDI devices {KIND}=x, {KIND}=b, {KIND}=y"),
        (got(z="a"), f'{FAILED}failed to parse CDI device annotations: invalid CDI device name "a"'),
        (got("a", z=f"{KIND}=a,"), f'{FAILED}failed to parse CDI device annotations: invalid CDI device name ""'),
    ],
)
def test_the_words_in_which_a_container_is_not_created(tmp_path: Path, asked: Any, words: str) -> None:
    """Containerd's; `b` is in two files of one directory."""
    write(tmp_path, "one.json", a=env("A"), b=env("B"))
    write(tmp_path, "two.yaml", b=env("B"))

    with pytest.raises(CreateContainerFailed) as uncreated:
        create_container(asked, [tmp_path])

    assert str(uncreated.value) == words


def test_a_node_without_numbers_has_those_of_the_hosts(tmp_path: Path) -> None:
    """By its path there. What has a type and a major number is not looked for on the host."""
    numbers = Path("/dev/null").stat().st_rdev
    null = {"type": "c", "major": os.major(numbers), "minor": os.minor(numbers)}
    os.mkfifo(tmp_path / "pipe")
    nodes = [
        {"path": "/dev/null"},
        {"path": "/dev/zero", "hostPath": "/dev/null"},
        {"path": "/dev/one", "hostPath": "/dev/null", "type": "c"},
        {"path": "/dev/gpu", "type": "c", "major": 195},
        {"path": "/dev/pipe", "type": "p"},
        {"path": "/dev/other", "hostPath": f"{tmp_path}/pipe"},
    ]
    write(tmp_path, a={"deviceNodes": nodes})

    made = create_container(got("a"), [tmp_path]).device_nodes

    assert [(node.path, node.type, node.major, node.minor) for node in made] == [
        ("/dev/null", *null.values()),
        ("/dev/zero", *null.values()),
        ("/dev/one", *null.values()),
        ("/dev/gpu", "c", 195, None),
        ("/dev/pipe", "p", None, None),
        ("/dev/other", "p", None, None),
    ]


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"path": "/dev/nvidia77"}, 'failed to stat CDI host device "/dev/nvidia77": no such file or directory'),
        ({"path": "/dev/x", "hostPath": "/etc"}, 'failed to stat CDI host device "/etc": not a device node'),
        ({"path": "/dev/null", "type": "b"}, 'CDI device ("/dev/null", "/dev/null"), host type mismatch (b, c)'),
    ],
)
def test_a_node_without_numbers_that_the_host_does_not_have(tmp_path: Path, node: Any, words: str) -> None:
    """No container is created with it; the words are the library's."""
    write(tmp_path, a={"deviceNodes": [node]})

    with pytest.raises(CreateContainerFailed) as uncreated:
        create_container(got("a"), [tmp_path])

    assert str(uncreated.value) == f"{INJECTION}failed to inject devices: {words}"


# the life of a container


async def made(kubelet: Kubelet, running: RunningPod) -> ContainerEdits:
    """What the pod's container is made with, once it is."""
    await kubelet.until(lambda: "main" in running.started)
    return running.created["main"]


def names(plugin: Plugin, *devices: str) -> None:
    """What the plugin answers to Allocate from now on."""
    plugin.gives = got(*devices)


async def test_a_container_waits_until_its_devices_can_be_resolved(root: Path) -> None:
    """CreateContainerError, and tried again and again; the plugin is asked once."""
    async with node(root, *SIX, cdi_dirs=root / "cdi", retry_interval=0.02) as (kubelet, plugin):
        names(plugin, "a")
        running = await kubelet.run(wants("pod"))
        assert running.waiting_reasons == {
            "main": ("CreateContainerError", f"{INJECTION}unresolvable CDI devices {KIND}=a")
        }
        assert (running.started, running.created) == (set(), {})

        write(root / "cdi", a=env("A"))
        assert (await made(kubelet, running)).env == ("A=a", f"DEVICES={running.response().envs['DEVICES']}")[::-1]
        assert running.waiting_reasons == {}
        assert len(plugin.asked("Allocate")) == 1


async def test_each_creation_resolves_anew(root: Path) -> None:
    """A container that crashes is made with what the files say then, or not at all; one that runs keeps what it has."""
    async with node(root, *SIX, cdi_dirs=root / "cdi", retry_interval=0.02) as (kubelet, plugin):
        write(root / "cdi", a=env("OLD"))
        names(plugin, "a")
        running = await kubelet.run(wants("pod"))
        assert "OLD=old" in (await made(kubelet, running)).env

        write(root / "cdi", a=env("NEW"))
        assert "OLD=old" in running.created["main"].env
        kubelet.crash(running.pod.key)
        assert "NEW=new" in (await made(kubelet, running)).env

        (root / "cdi/lab.json").unlink()
        kubelet.crash(running.pod.key)
        await kubelet.until(lambda: "main" in running.waiting_reasons)
        assert running.waiting_reasons["main"].message.startswith(f"{INJECTION}unresolvable")
        assert running.created == {}


async def test_without_its_plugin_a_container_restarts_by_the_checkpoint(root: Path) -> None:
    """Also after kubelet's restart: the names are those of the checkpoint, and nobody is asked."""
    async with node(root, *SIX, cdi_dirs=root / "cdi") as (kubelet, plugin):
        write(root / "cdi", a=env("A"))
        names(plugin, "a")
        running = await kubelet.run(wants("pod"))
        await made(kubelet, running)
        await plugin.stop()
        await kubelet.restart()

        running.responses.clear()
        write(root / "cdi", a=env("B"))
        kubelet.crash(running.pod.key)

        assert "B=b" in (await made(kubelet, running)).env
        assert len(plugin.asked("Allocate")) == 1


async def test_what_a_container_is_made_with_is_said(root: Path, golden: Golden) -> None:
    """Where CDI is resolved, at each creation: in a few short lines, however much it is; all of it by another word."""
    nodes = [{"path": f"/dev/gpu{n}", "type": "c", "major": 195, "minor": n} for n in range(12)]
    arguments = ["hook", *(f"--link=lib{n}.so.1::/usr/lib/x86_64-linux-gnu/lib{n}.so" for n in range(100))]
    common = {
        "hooks": [{"hookName": "createContainer", "path": "/bin/hook", "args": arguments}],
        "mounts": [{"hostPath": each, "containerPath": each, "options": ["ro", "rbind"]} for each in ("/a", "/b")],
    }
    async with node(root, "d1", cdi_dirs=root / "cdi") as (kubelet, plugin):
        write(root / "cdi", common=common, a={"deviceNodes": nodes})
        names(plugin, "a")
        said: list[Message] = []
        changes = Changes()

        def say(each: Message) -> None:
            said.append(each)
            changes.notify()

        console = Console(kubelet, say)
        following = asyncio.create_task(console.follow())
        await console.execute(f"run pod {DEV}=1")
        first = await changes.until(lambda: [each for each in said if each.event == "created"], DEADLINE)
        await console.execute("crash pod")
        await changes.until(lambda: len([each for each in said if each.event == "created"]) == 2, DEADLINE)
        await console.execute("show pod")
        shown = said[-1]
        await console.execute("crash other")
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    golden(first[0].lines, "created")
    assert list(first[0].data["with"]["deviceNodes"]) == nodes
    assert shown.event == "shown"
    assert shown.lines[-len(arguments) :] == tuple(f"    {each}" for each in arguments)
    golden(shown.lines[: -len(arguments)], "shown")
    assert shown.data == {"pod": "default/pod", "containers": {"main": first[0].data["with"]}}
    golden(said[-1].lines, "another pod")


async def test_a_container_that_is_not_made_yet_has_nothing_to_show(root: Path) -> None:
    """It says why it waits."""
    async with node(root, "d1", cdi_dirs=root / "cdi") as (kubelet, plugin):
        names(plugin, "a")
        said: list[Message] = []
        console = Console(kubelet, said.append)
        await console.execute(f"run pod {DEV}=1")
        await kubelet.until(lambda: "main" in kubelet.pods["default/pod"].waiting_reasons)
        await console.execute("show pod")

    (line,) = said[-1].lines
    assert "default/pod" in line and " CreateContainerError: " in line
    assert said[-1].data["containers"] == {}


# beside devices


class Late(Runtime):
    """Volumes that can be set up after some tries. `done`: what was done, in order."""

    def __init__(self, failures: int) -> None:
        self.failures, self.done = failures, list[str]()

    async def set_up_volumes(self, running: RunningPod) -> None:
        self.done.append("volumes")
        if self.failures:
            self.failures -= 1
            raise KubeletError('MountVolume.SetUp failed for volume "v" : configmap "c" not found')

    def pull_image(self, running: RunningPod, container: Container) -> None:
        self.done.append("image")

    async def start_container(self, running: RunningPod, container: Container, edits: ContainerEdits) -> None:
        self.done.append("start")


async def test_nothing_is_created_before_its_volumes_are_there(root: Path) -> None:
    """kubelet.go, SyncPod: WaitForAttachAndMount comes before the container runtime."""
    async with node(root, *SIX) as (kubelet, _):
        kubelet.workers.runtime = runtime = Late(failures=1)
        running = await kubelet.run(wants("a"))
        await kubelet.until(lambda: "main" in running.started)
        assert runtime.done == ["volumes", "volumes", "image", "start"]
        [event] = running.events
        assert (event.reason, event.container) == ("FailedMount", "")
        assert event.message == 'MountVolume.SetUp failed for volume "v" : configmap "c" not found'


async def test_each_try_to_create_a_container_is_told(root: Path) -> None:
    """As recorded, the first two come at once; the image is looked for before each."""
    async with node(root, *SIX, starts=True) as (kubelet, plugin):
        kubelet.workers.runtime = runtime = Late(failures=0)
        plugin.errors["PreStartContainer"] = "not yet"
        running = await kubelet.run(wants("a"))
        await kubelet.until(lambda: len(running.events) >= 2)
        assert {(each.reason, each.container) for each in running.events} == {("Failed", "main")}
        assert runtime.done[:3] == ["volumes", "image", "image"]
