"""`gpuplane mig` beside a running agent: it is asked, and goes on where it has to wait."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from gpuplane.node.agent.control import answer
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.reports.inspection.report import build_inspection
from gpuplane.node.model.config import NodeObjectRequests, PartitionSettings, Settings
from gpuplane.node.model.control import AgentInfo, NodeState, RequestLayouts
from gpuplane.node.model.facts import ConfigLoaded, NodeRequestsChanged
from gpuplane.node.model.inspection import RequestedLayouts
from gpuplane.node.model.partitions import GpuLayout, LayoutRequest
from gpuplane.sandbox.apiserver.objects import parse_path
from gpuplane.sandbox.apiserver.server import ApiServer, InjectedFailure
from tests.cli.commands.mig.node import Agent, CardGpu, Driver, an_agent, layouts_file
from tests.node.core.partitions.tables import FOUR, SEVEN

CONFIGS = {
    "too-much": "devices: [0], mig-enabled: true, mig-devices: {3g.40gb: 3}",
    "halves": "devices: [0], mig-enabled: true, mig-devices: {3g.40gb: 2}",
    "mixed": "devices: all, device-filter: '0x20B210DE', mig-enabled: true, mig-devices: {3g.40gb: 1, 1g.10gb: 4}",
    "whole": "devices: all, device-filter: '0x20B210DE', mig-enabled: true, mig-devices: {7g.80gb: 1};"
    "devices: [1], mig-enabled: true, mig-devices: {1g.6gb: 4}",
}
HALF = "nvidia.com/mig-3g.40gb", "MIG-0-9-4-0"
"""What a pod holds: the instance of three slices at memory slice 4."""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return layouts_file(tmp_path, **CONFIGS)


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    """Of a card of seven slices with two instances, and one of four outside MIG mode."""
    driver = Driver(CardGpu(0, SEVEN, [(9, 0), (9, 4)], enabled=True), CardGpu(1, FOUR))
    (tmp_path / "s").mkdir(mode=0o700)
    async with an_agent(driver, tmp_path / "s") as agent:
        yield agent


async def test_the_agent_does_it_around_what_is_held(agent: Agent, config: Path) -> None:
    """The request is on disk, the held instance stays, and the machine is exported as the agent sees it."""
    agent.hold(train=HALF)
    done = await agent.mig("apply", "-f", config, "-c", "mixed")
    assert done.exit_code == 0, done.output
    assert agent.driver.layouts == {0: {"3g.40gb": 1, "1g.10gb": 4}}
    assert (9, 4) in agent.driver.gpus[0].card.there
    assert json.loads((agent.directory / "layout-request.json").read_bytes())["value"]["name"] == "mixed"
    assert (await agent.mig("assert", "-f", config, "-c", "mixed")).exit_code == 0
    assert "1g.10gb: 4" in (await agent.mig("export")).stdout


async def test_a_pod_in_the_way_is_named_and_the_agent_goes_on(agent: Agent, config: Path) -> None:
    """The command does not wait; what can be done is done; the rest follows when the pod has ended."""
    agent.hold(train=HALF)
    plan = json.loads((await agent.mig("plan", "-f", config, "-c", "whole", "--json")).stdout)
    assert [gpu["waits_for"] for gpu in plan["gpus"]] == [["n/train"], []]
    assert [each.split()[0] for each in plan["gpus"][0]["changes_after_wait"]][-3:] == ["destroy", "create", "create"]
    assert plan["gpus"][1]["changes_after_wait"] == []
    done = await agent.mig("apply", "-f", config, "-c", "whole", "--json")
    document = json.loads(done.stdout)
    assert (done.exit_code, document["done"], document["agent_continues"]) == (1, False, True)
    assert [(gpu["state"], gpu["holders"]) for gpu in document["gpus"]] == [("waiting", ["n/train"]), ("done", [])]
    assert agent.driver.layouts == {0: {"3g.40gb": 1}, 1: {"1g.6gb": 4}}
    agent.hold()
    async with asyncio.timeout(60):
        while agent.driver.layouts[0] != {"7g.80gb": 1}:
            await asyncio.sleep(0.01)


async def test_it_is_waited_for_as_long_as_is_said(agent: Agent, config: Path) -> None:
    """The pod ends meanwhile."""
    agent.hold(train=HALF)
    asyncio.get_running_loop().call_later(1.0, agent.hold)
    done = await agent.mig("apply", "-f", config, "-c", "whole", "--wait", "60s")
    assert done.exit_code == 0, done.output
    assert agent.driver.layouts[0] == {"7g.80gb": 1}


async def test_a_request_is_withdrawn(agent: Agent, config: Path) -> None:
    """What it made stays, and what it waited for is not done."""
    agent.hold(train=HALF)
    await agent.mig("apply", "-f", config, "-c", "whole")
    assert json.loads((await agent.mig("withdraw", "--json")).stdout) == {"config": "whole"}
    assert not (agent.directory / "layout-request.json").exists()
    agent.hold()
    await asyncio.sleep(0.1)
    assert agent.driver.layouts == {0: {"3g.40gb": 1}, 1: {"1g.6gb": 4}}
    assert json.loads((await agent.mig("withdraw", "--json")).stdout) == {"config": ""}


async def test_a_pod_is_evicted_with_the_callers_credentials(agent: Agent, config: Path, tmp_path: Path) -> None:
    """It is named first. Without credentials nothing is evicted."""
    agent.hold(train=HALF)
    async with ApiServer() as server:
        path = parse_path("/api/v1/namespaces/n/pods/train")
        server.objects.put(path, {"metadata": {"name": "train", "namespace": "n"}})
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(server.kubeconfig())

        async def end_pod() -> None:
            await server.until(lambda: not server.objects.has(path))
            agent.hold()

        ending = asyncio.create_task(end_pod())
        words = "apply", "-f", config, "-c", "whole", "--evict"
        no_rights = await agent.mig(*words, "--kubeconfig", tmp_path / "none")
        assert (no_rights.exit_code, server.objects.has(path)) == (1, True)
        done = await agent.mig(*words, "--kubeconfig", kubeconfig)
        await ending
    assert done.exit_code == 0, done.output
    assert "evicting n/train" in done.stderr
    assert "POST /api/v1/namespaces/n/pods/train/eviction" in server.requests


async def test_a_protected_pod_is_asked_for_again(
    agent: Agent, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disruption budget refuses the eviction at first. One that the server refuses for good ends the command."""
    monkeypatch.setattr("gpuplane.cli.commands.mig.evict.RETRY_SECONDS", 0.1)
    agent.hold(train=HALF)
    async with ApiServer() as server:
        path = parse_path("/api/v1/namespaces/n/pods/train")
        server.objects.put(path, {"metadata": {"name": "train", "namespace": "n"}})
        (tmp_path / "kubeconfig").write_text(server.kubeconfig())
        words = "apply", "-f", config, "-c", "whole", "--evict", "--kubeconfig", tmp_path / "kubeconfig"
        server.failures.append(InjectedFailure(request="POST *", code=403, message="no"))
        assert (await agent.mig(*words)).exit_code == 1
        assert agent.driver.layouts[0] == {"3g.40gb": 1}
        server.failures[:] = [InjectedFailure(request="POST *", code=429, message="its budget", times=2)]

        async def end_pod() -> None:
            await server.until(lambda: not server.objects.has(path))
            agent.hold()

        ending = asyncio.create_task(end_pod())
        done = await agent.mig(*words)
        await ending
    assert done.exit_code == 0, done.output
    assert sum("eviction" in each for each in server.requests) == 4


async def test_a_hook_that_does_not_end_is_ended(
    agent: Agent, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its time, and the command fails."""
    monkeypatch.setattr("gpuplane.cli.commands.mig.hooks.HOOK_SECONDS", 0.2)
    hooks = tmp_path / "hooks.yaml"
    hooks.write_text("version: v1\nhooks: {apply-start: [{command: /bin/sleep, args: ['600']}]}\n")
    done = await agent.mig("apply", "-f", config, "-c", "mixed", "-k", hooks)
    assert (done.exit_code, agent.driver.changes) == (1, [])
    hooks.write_text("version: v1\nhooks: {apply-start: [{command: /no/such/program}]}\n")
    assert (await agent.mig("apply", "-f", config, "-c", "mixed", "-k", hooks)).exit_code == 1


@pytest.mark.parametrize("by", ["label", "manager"])
async def test_a_request_is_refused_beside_another_master(agent: Agent, config: Path, by: str) -> None:
    """The label of the Node, where it is followed, or NVIDIA's MIG manager. The GPUs are not touched."""
    settings = Settings(mig_strategy="mixed", partitions=PartitionSettings(follow_label=True))
    asked = NodeObjectRequests(mig_config="theirs") if by == "label" else NodeObjectRequests(has_mig_manager=True)
    agent.hold(train=HALF)
    agent.node.apply(ConfigLoaded(settings))
    agent.node.apply(NodeRequestsChanged(asked))
    done = await agent.mig("apply", "-f", config, "-c", "mixed")
    assert (done.exit_code, agent.driver.changes) == (1, [])
    assert ("theirs" if by == "label" else "mig-manager") in done.stderr


async def test_a_later_request_ends_the_wait_for_the_first(agent: Agent, config: Path) -> None:
    """Two commands, one of which waits: it says that the other one's request is in force."""
    agent.hold(train=HALF)
    first = asyncio.create_task(agent.mig("apply", "-f", config, "-c", "whole", "--wait", "60s"))
    async with asyncio.timeout(60):
        while agent.node.snapshot.ledger.layout_request is None:
            await asyncio.sleep(0.01)
    second = await agent.mig("apply", "-f", config, "-c", "mixed")
    assert (second.exit_code, (await first).exit_code) == (0, 1)


async def test_a_machine_cannot_be_given_beside_an_agent(agent: Agent, config: Path) -> None:
    """Two programs would change the same GPUs."""
    done = await agent.mig("apply", "-f", config, "-c", "mixed", "--machine", "nvml")
    assert (done.exit_code, agent.driver.changes) == (1, [])


async def test_hooks_run_around_the_changes(agent: Agent, config: Path, tmp_path: Path) -> None:
    """In their order, with nothing in their environment but their own and the command's; the last one always."""
    log, hooks = tmp_path / "log", tmp_path / "hooks.yaml"

    def write(*names: str, exit: int = 0) -> None:
        hook = (
            'command: /bin/sh, workdir: {}, envs: {{MINE: x}}, args: ["-c", "env >> log; echo {} $PWD >> log; exit {}"]'
        )
        each = "".join(
            f"  {name}:\n  - {{{hook.format(tmp_path, name, exit if name == names[-1] else 0)}}}\n" for name in names
        )
        hooks.write_text(f"version: v1\nhooks:\n{each}")

    def ran() -> list[str]:
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        assert all("HOME" not in line for line in lines)
        assert all("MINE=x" in lines for line in lines[:1])
        return [line.split()[0] for line in lines if line.endswith(f" {tmp_path}")]

    words = "apply", "-f", config, "-k", hooks
    write("apply-exit", "pre-apply-config", "pre-apply-mode", "apply-start")
    assert (await agent.mig(*words, "-c", "mixed")).exit_code == 0
    text = log.read_text()
    assert ran() == ["apply-start", "pre-apply-config", "apply-exit"]
    for each in ("CONFIG_FILE", "SELECTED_CONFIG=mixed", "HOOKS_FILE", "SKIP_RESET=false", "MODE_CHANGE_ONLY=false"):
        assert f"MIG_PARTED_{each}" in text
    assert (await agent.mig(*words, "-c", "mixed")).exit_code == 0
    assert ran() == ["apply-start", "apply-exit"]
    assert (await agent.mig(*words, "-c", "whole")).exit_code == 0
    assert ran() == ["apply-start", "pre-apply-mode", "pre-apply-config", "apply-exit"]
    made = len(agent.driver.changes)
    write("apply-exit", "apply-start", "pre-apply-config", exit=3)
    done = await agent.mig(*words, "-c", "mixed")
    assert (done.exit_code, ran(), len(agent.driver.changes)) == (
        1, ["apply-start", "pre-apply-config", "apply-exit"], made,
    )  # fmt: skip
    assert "exit status 3" in done.stderr
    write("apply-exit", "apply-start", exit=1)
    assert (await agent.mig(*words, "-c", "mixed")).exit_code == 1
    assert ran() == ["apply-start"]


@pytest.mark.parametrize(
    "text",
    ["version: v2", "version: v1\nhooks: {apply-strat: []}", "version: v1\nhooks: {apply-start: [{args: []}]}", "["],
)
async def test_a_malformed_file_of_hooks_is_refused(agent: Agent, config: Path, tmp_path: Path, text: str) -> None:
    """With its line, before anything is done."""
    (tmp_path / "hooks.yaml").write_text(text)
    done = await agent.mig("apply", "-f", config, "-c", "mixed", "--hooks", tmp_path / "hooks.yaml")
    assert (done.exit_code, agent.driver.changes) == (1, [])
    assert "hooks.yaml:" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file somebody else's")
async def test_hooks_that_others_could_change_are_refused(agent: Agent, config: Path, tmp_path: Path) -> None:
    """They would run with the caller's rights."""
    hooks = tmp_path / "hooks.yaml"
    hooks.write_text("version: v1\n")
    hooks.chmod(0o666)
    assert (await agent.mig("apply", "-f", config, "-c", "mixed", "-k", hooks)).exit_code == 1
    hooks.chmod(0o644)
    assert (await agent.mig("apply", "-f", config, "-c", "mixed", "-k", hooks)).exit_code == 0


async def test_a_request_for_a_gpu_that_is_not_there_is_refused(agent: Agent) -> None:
    """And one whose maker has given up."""
    now, layout = agent.node.now(), GpuLayout(mig_enabled=False)
    for at, uuid in ((now, "GPU-9"), (now - 60, "GPU-0")):
        request = RequestLayouts(requested_at=at, request=LayoutRequest(name="x", layouts={uuid: layout}))
        assert (await answer(agent.node, msgspec.json.encode(request))).error
    assert agent.node.snapshot.ledger.layout_request is None


async def test_a_request_that_no_wait_makes_possible_is_refused(agent: Agent, config: Path) -> None:
    """`plan` refuses it as well. An earlier request stays, also where a pod holds what is asked for."""
    agent.hold(train=HALF)
    await agent.mig("apply", "-f", config, "-c", "whole")
    done = await agent.mig("apply", "-f", config, "-c", "too-much")
    assert done.exit_code == 1
    assert "GPU 0" in done.stderr
    assert "goes on" not in done.stderr
    request = agent.node.snapshot.ledger.layout_request
    assert request is not None
    assert request.name == "whole"


async def test_a_standing_request_is_shown_until_it_is_withdrawn(agent: Agent, config: Path) -> None:
    """With what is in its way, and what ends it."""
    agent.hold(train=HALF)
    await agent.mig("apply", "-f", config, "-c", "whole")

    def shown() -> RequestedLayouts | None:
        snapshot = agent.node.snapshot
        state = NodeState(snapshot=snapshot, offer=offer(snapshot), now=agent.node.now())
        return build_inspection(state, AgentInfo(), 0.0).layouts

    found = shown()
    assert found is not None
    assert (found.config, found.requested_by, found.state) == ("whole", "command", "pending")
    assert "n/train" in str(found.reason)
    assert found.withdraw == "gpuplane mig withdraw"
    await agent.mig("withdraw")
    assert shown() is None
