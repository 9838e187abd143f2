"""The agent as its users run it: a process with a command line, on real sockets, through bad input and bad days."""

import asyncio
import json
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuplane.node.core.reports.news import READY_TO_TAKE_OVER_TEXT
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.apiserver.server import ApiServer
from gpuplane.sandbox.kubelet import Container, Kubelet, Pod, PodRejected, pod
from gpuplane.sandbox.kubelet.devices import KubeletError
from tests.cli.terminals import run_command
from tests.removal import remove

GPU = "nvidia.com/gpu"
WAITS = "kubelet lock: waiting"
"""What the log of an agent that stands by begins with: a part and how it stands."""
CONFIG = "nvidia.com/device-plugin.config"
MACHINE = "gpus:\n" + "".join(f"- {{index: {i}, uuid: GPU-{i}, model: NVIDIA A100}}\n" for i in range(4))


class Place:
    """A directory with a machine file and a configuration, and the command line that uses them."""

    def __init__(self, root: Path) -> None:
        self.root, self.machine, self.config = root, root / "machine.yaml", root / "config.yaml"
        self.kubelet, self.state = root / "k", root / "s"
        self.machine.write_text(MACHINE)
        self.config.write_text("version: v1\n")

    def agent(self, *more: object, **environment: str) -> Agent:
        """An agent here."""
        return Agent(
            "--machine", self.machine, "--config", self.config, "--kubelet-root", self.kubelet,
            "--state-dir", self.state, *more, environment=environment,
        )  # fmt: skip

    def edit(self, path: Path, text: str) -> None:
        """Replace a file as a ConfigMap or an editor does."""
        aside = path.with_suffix(".new")
        aside.write_text(text)
        aside.replace(path)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def gpuplane(*arguments: object) -> tuple[int, str]:
    """(exit status, output) of a command."""
    done = await asyncio.to_thread(run_command, *arguments, apart=False)
    return done.status, done.out


async def answers(state: Path) -> None:
    """Wait until the agent of a state directory answers commands, which is after its first words in the log."""
    async with asyncio.timeout(60):
        while (await gpuplane("inspect", "--json", "--state-dir", state))[0] != 0:
            await asyncio.sleep(0.1)


async def test_a_start_with_a_wrong_configuration_names_each_line_once(place: Place) -> None:
    """In the log; readiness and `inspect` say it as long as it is so, and a good edit ends it."""
    place.edit(place.config, "version: v1\nflags: {migStrategie: none}\nflagz: {}\n")
    async with Kubelet(place.kubelet) as kubelet, place.agent() as agent:
        await agent.until_says("flagz")
        async with asyncio.timeout(60):
            while "config.yaml:2" not in (await gpuplane("inspect", "--state-dir", place.state))[1]:
                await asyncio.sleep(0.1)
        place.edit(place.config, "version: v1\n")
        await kubelet.until_capacity(GPU, 4, 4)

        assert [sum(f"config.yaml:{line}" in each for each in agent.log) for line in (2, 3)] == [1, 1]


async def test_a_bad_edit_leaves_the_last_good_configuration_in_force(place: Place) -> None:
    """The mistake is said with file and line, nothing else changes, and a good edit is taken up live."""
    async with Kubelet(place.kubelet) as kubelet, place.agent() as agent:
        await kubelet.until_capacity(GPU, 4, 4)
        place.edit(place.config, "version: v1\nflags: {migStrategie: none}\n")
        assert "config.yaml:2" in await agent.until_says("migStrategie")
        assert kubelet.capacity(GPU) == (4, 4)

        place.edit(place.config, 'resources: {gpus: [{pattern: "*A100", name: a100}]}\n')
        await kubelet.until_capacity("nvidia.com/a100", 4, 4)
        await kubelet.until_capacity(GPU, 0, 0)


async def test_a_bad_machine_file_leaves_the_last_look_in_force(place: Place) -> None:
    """Two GPUs with one UUID are refused with the line; what was seen before stays offered."""
    async with Kubelet(place.kubelet) as kubelet, place.agent() as agent:
        await kubelet.until_capacity(GPU, 4, 4)
        place.edit(place.machine, MACHINE.replace("GPU-3", "GPU-2"))
        assert "machine.yaml:5" in await agent.until_says("GPU-2")
        assert kubelet.capacity(GPU) == (4, 4)


async def test_a_change_of_name_waits_for_the_pod(place: Place) -> None:
    """A GPU that a pod holds is withheld under its new name, with the pod as the reason, until the pod ends."""
    async with Kubelet(place.kubelet) as kubelet, place.agent() as agent:
        await kubelet.until_capacity(GPU, 4, 4)
        await kubelet.run(pod("old", gpu=3))
        place.edit(place.config, 'resources: {gpus: [{pattern: "*", name: a100}]}\n')
        await kubelet.until_capacity("nvidia.com/a100", 4, 1)
        await agent.until_says(" default/old")
        with pytest.raises(PodRejected):
            await kubelet.run(Pod("new", (Container("main", {"nvidia.com/a100": 2}),)))
        await kubelet.end("default/old")
        await kubelet.until_capacity("nvidia.com/a100", 4, 4)


async def test_requests_that_cannot_be_are_refused_with_the_reason(place: Place) -> None:
    """Unknown ids, no ids and ill devices: an error that names the device, and the next request is served."""
    async with Kubelet(place.kubelet) as kubelet, place.agent():
        await kubelet.until_capacity(GPU, 4, 4)
        endpoint = kubelet.manager.endpoints[GPU]
        for ids in (["GPU-9"], [], ["../x"]):
            with pytest.raises(KubeletError) as refused:
                await endpoint.allocate(ids)
            assert all(id in str(refused.value) for id in ids)
        assert (await endpoint.allocate(["GPU-1"])).envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"


async def test_the_log_is_for_machines_where_it_is_asked_for(place: Place) -> None:
    """Every line is a JSON document with time, level, logger and message, and with what it is about."""
    async with Kubelet(place.kubelet) as kubelet, place.agent("--log-format", "json") as agent:
        await kubelet.until_capacity(GPU, 4, 4)
        await agent.until_says(f"{GPU}: 4 ")
        lines = [json.loads(line) for line in agent.log]

    assert all(line.keys() >= {"time", "level", "logger", "message"} for line in lines)
    about = {(line.get("part"), line.get("resource")) for line in lines}
    assert about >= {(None, GPU), ("driver", None)}
    assert lines[0]["time"].endswith("Z")


async def test_a_second_agent_waits_and_takes_over(place: Place) -> None:
    """It says who serves the kubelet, once; when that one ends, it serves."""
    async with Kubelet(place.kubelet) as kubelet, place.agent() as first:
        await kubelet.until_capacity(GPU, 4, 4)
        async with place.agent() as second:
            assert f" {first.process.pid} " in await second.until_says(WAITS)
            await second.until_says(READY_TO_TAKE_OVER_TEXT)
            assert await first.stop() == 0
            await kubelet.until(lambda: len(kubelet.manager.gaps) == 1)
            await kubelet.until_capacity(GPU, 4, 4)
            assert sum(WAITS in line for line in second.log) == 1


async def test_a_second_agent_on_the_same_state_directory_waits_too(place: Place) -> None:
    """With a kubelet of its own: it says who has the directory; when that one ends, it serves."""
    other = Kubelet(place.root / "o")  # a longer name makes the path of a socket too long
    async with Kubelet(place.kubelet) as kubelet, other, place.agent() as first:
        await kubelet.until_capacity(GPU, 4, 4)
        async with place.agent("--kubelet-root", other.root) as second:
            await second.until_says("state: waiting", str(first.process.pid))
            assert other.node_capacities() == {}
            assert await first.stop() == 0
            await other.until_capacity(GPU, 4, 4)


async def test_a_state_directory_that_is_removed_is_there_again_and_its_agent_still_answers(place: Place) -> None:
    """With the socket and the promises. An agent that is started meanwhile stands by, and takes no promise."""
    drain = ("health", "drain", "0", "--why", "fan", "--state-dir", place.state)
    async with Kubelet(place.kubelet) as kubelet, place.agent() as first:
        await kubelet.until_capacity(GPU, 4, 4)
        assert (await gpuplane(*drain))[0] == 0
        remove(place.state)
        async with place.agent() as second:
            await second.until_says(WAITS)
            await first.until_says(" ERROR ", f"{place.state} ")
            async with asyncio.timeout(60):
                while "fan" not in (await gpuplane("inspect", "--state-dir", place.state))[1]:
                    await asyncio.sleep(0.1)
                # For a moment the agent that stands by may be the one that answers: it takes no promise.
                while (await gpuplane("health", "restore", "0", "--state-dir", place.state))[0]:
                    await asyncio.sleep(0.1)
            assert (await gpuplane(*drain))[0] == 0
            await kubelet.until_capacity(GPU, 4, 3)
            await first.kill()
            await kubelet.until_capacity(GPU, 4, 3)
            assert (await gpuplane("inspect", "--state-dir", place.state))[0] == 0


async def test_a_killed_agent_remembers_what_it_promised(place: Place) -> None:
    """A release survives SIGKILL: the next agent offers nothing for the same reason, until it is taken back."""
    async with Kubelet(place.kubelet) as kubelet:
        async with place.agent() as first:
            await kubelet.until_capacity(GPU, 4, 4)
            status, said = await gpuplane(
                "driver", "release", "--for", "10m", "--why", "firmware", "--state-dir", place.state
            )
            assert (status, "firmware" in said) == (0, True)
            await kubelet.until_capacity(GPU, 4, 0)
            await first.kill()
        async with place.agent() as second:
            await second.until_says("firmware")
            await answers(place.state)
            assert kubelet.capacity(GPU) == (4, 0)
            assert (await gpuplane("driver", "resume", "--state-dir", place.state))[0] == 0
            await kubelet.until_capacity(GPU, 4, 4)


async def test_a_state_directory_that_cannot_be_used_costs_only_the_memory(place: Place) -> None:
    """A file stands there: said, with what it means, and the GPUs are served."""
    place.state.write_text("not a directory")
    async with Kubelet(place.kubelet) as kubelet, place.agent() as agent:
        await agent.until_says("state: failing", str(place.state))
        await kubelet.until_capacity(GPU, 4, 4)


async def test_a_kubelet_socket_that_is_a_file_is_said_and_waited_for(place: Place) -> None:
    """Nothing ends: the path and what to do are named, and a kubelet that comes is found."""
    (place.kubelet / "device-plugins").mkdir(parents=True)
    (place.kubelet / "device-plugins/kubelet.sock").write_text("")
    async with place.agent() as agent:
        await agent.until_says(f"plugin/{GPU}: waiting", f"{place.kubelet}/device-plugins/kubelet.sock")
        async with Kubelet(place.kubelet) as kubelet:
            await kubelet.until_capacity(GPU, 4, 4)


async def test_inspect_shows_who_holds_what(place: Place) -> None:
    """For people and for machines; without an agent a clear error."""
    async with Kubelet(place.kubelet) as kubelet, place.agent() as agent:
        await kubelet.until_capacity(GPU, 4, 4)
        await kubelet.run(pod("train", gpu=2))
        status, text = await gpuplane("inspect", "--state-dir", place.state)
        assert (status, text.count("healthy")) == (0, 4), text
        _, document = await gpuplane("inspect", "--json", "--state-dir", place.state)
        assert [(r["name"], r["healthy"], r["held"]) for r in json.loads(document)["resources"]] == [(GPU, 4, 2)]
        _, snapshot = await gpuplane("inspect", "--snapshot", "--state-dir", place.state)
        assert json.loads(snapshot)["snapshot"]["machine"]["gpus"][0]["uuid"] == "GPU-0"
        assert stat.S_IMODE((place.state / "control.sock").stat().st_mode) == 0o600
        await agent.stop()
    status, text = await gpuplane("inspect", "--state-dir", place.state)
    assert (status, str(place.state / "control.sock") in text) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--machine", "dgx-a1000"), "dgx-a100"),
        (("--metrics-address", "9410"), "HOST:PORT"),
        (("-mig-stratgy", "single"), "mig-strategy"),
        (("--mig-strategy", "singel"), "'single'"),
    ],
)
async def test_a_command_line_that_cannot_be_is_refused_at_once(
    place: Place, arguments: tuple[str, ...], said: str
) -> None:
    """Exit status 2, and the error says what there is."""
    async with place.agent(*arguments) as agent:
        async with asyncio.timeout(60):
            assert await agent.process.wait() == 2
        await agent.until_says(said)


async def test_with_an_empty_kubelet_socket_nothing_is_registered(place: Place) -> None:
    """As with NVIDIA's plugin; here it is said, and the agent is ready all the same."""
    async with Kubelet(place.kubelet) as kubelet, place.agent(KUBELET_SOCKET="") as agent:
        await agent.until_says(f"plugin/{GPU}: ok: ", "--kubelet-socket")
        async with asyncio.timeout(60):
            while GPU not in (answer := await gpuplane("inspect", "--json", "--state-dir", place.state))[1]:
                await asyncio.sleep(0.1)
        status, document = answer

        assert (status, kubelet.trace) == (0, [])
        assert json.loads(document)["ready"]


@asynccontextmanager
async def cluster(place: Place, *labels: str) -> AsyncIterator[ApiServer]:
    """An API server with our Node, and two named configurations."""
    (place.root / "configs").mkdir()
    (place.root / "configs/whole").write_text("version: v1\n")
    (place.root / "configs/other").write_text('resources: {gpus: [{pattern: "*", name: other}]}\n')
    async with ApiServer() as server:
        (place.root / "kubeconfig").write_text(server.kubeconfig())
        label(server, *labels)
        yield server


def label(server: ApiServer, *names: str, **annotations: str) -> None:
    """Set our Node's configuration label, or take it away."""
    metadata = {"name": "n1", "labels": {CONFIG: names[0]} if names else {}, "annotations": annotations}
    server.put("/api/v1/nodes/n1", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})


async def test_the_label_picks_the_configuration(place: Place) -> None:
    """A first start waits for the API server's word; the label is followed live; an unknown name changes nothing."""
    place.config = place.root / "configs"
    async with cluster(place, "other") as server, Kubelet(place.kubelet) as kubelet:
        more = ("--node-name", "n1", "--kubeconfig", place.root / "kubeconfig", "--default-config", "whole")
        async with place.agent(*more) as agent:
            await kubelet.until_capacity("nvidia.com/other", 4, 4)
            label(server, "whole")
            await kubelet.until_capacity(GPU, 4, 4)
            label(server, "wole")
            await agent.until_says("'wole'")
            assert kubelet.capacity(GPU) == (4, 4)
        await server.stop()
        async with place.agent(*more):
            await kubelet.until_capacity(GPU, 4, 4)
    assert json.loads((place.state / "config-name.json").read_bytes())["value"] == "whole"


async def test_a_first_start_without_the_api_server_waits_and_says_the_way_out(place: Place) -> None:
    """It would rather advertise nothing than one thing and then another."""
    place.config = place.root / "configs"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        async with cluster(place) as server, Kubelet(place.kubelet) as kubelet:
            await server.stop()
            more = ("--node-name", "n1", "--kubeconfig", place.root / "kubeconfig")
            async with place.agent(*more) as agent:
                await agent.until_says("--config-name")
                assert kubelet.device_health() == {}
            async with place.agent(*more, "--config-name", "whole"):
                await kubelet.until_capacity(GPU, 4, 4)


async def test_a_nodes_annotation_releases_the_driver(place: Place) -> None:
    """All devices are withheld for the annotation's reason until it is taken away."""
    async with (
        cluster(place) as server,
        Kubelet(place.kubelet) as kubelet,
        place.agent("--node-name", "n1", "--kubeconfig", place.root / "kubeconfig") as agent,
    ):
        await kubelet.until_capacity(GPU, 4, 4)
        label(server, **{"gpuplane.io/driver-release": "new firmware"})
        await kubelet.until_capacity(GPU, 4, 0)
        await agent.until_says("new firmware")
        label(server)
        await kubelet.until_capacity(GPU, 4, 4)
