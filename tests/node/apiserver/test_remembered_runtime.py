"""What our Node said of its container runtime decides in the next agent too, before anybody is asked."""

from pathlib import Path

from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.apiserver.server import ApiServer
from gpuplane.sandbox.kubelet.server import Kubelet

NODE = "/api/v1/nodes/n1"
SAID = "device list strategy: "
PATIENT = """
from gpuplane import cli
from gpuplane.node.agent import firstlook
firstlook.REMEMBERED = firstlook.FIRST_EVER = 60.0
cli.main()
"""
"""An agent that waits for the API server's first word for as long as a busy machine needs, and not for two seconds."""


def told(agent: Agent) -> list[str]:
    """What the agent said of its decision."""
    return [line.partition(SAID)[2] for line in agent.log if SAID in line]


async def test_an_agent_that_starts_while_the_api_server_is_away_decides_as_the_one_before(tmp_path: Path) -> None:
    """It says so once, and never anything else: a container that is made by the other strategy has no GPU."""
    cdi = "cdi-cri: containerd://2.1.4 supports CDI devices"
    async with ApiServer() as server, Kubelet(tmp_path / "k") as kubelet:
        info = {"containerRuntimeVersion": "containerd://2.1.4"}
        server.put(NODE, {"metadata": {}, "status": {"nodeInfo": info}})
        (tmp_path / "kubeconfig").write_text(server.kubeconfig())
        words = (
            "--machine", "hgx-h100", "--kubelet-root", tmp_path / "k", "--state-dir", tmp_path / "s",
            "--cdi-dir", tmp_path / "cdi", "--node-name", "n1", "--kubeconfig", tmp_path / "kubeconfig",
        )  # fmt: skip
        async with Agent(*words, program=("-c", PATIENT)) as agent:
            await kubelet.until_capacity("nvidia.com/gpu", 8, 8)
            assert told(agent) == [cdi]
            await agent.until_says("apiserver: ok")
        await server.stop()
        async with Agent(*words) as agent:
            await agent.until_says("apiserver: failing")
            await kubelet.until_capacity("nvidia.com/gpu", 8, 8)
            assert told(agent) == [cdi]
        await server.start()
        server.put(NODE, {"metadata": {}, "status": {"nodeInfo": {"containerRuntimeVersion": "containerd://1.7.27"}}})
        async with Agent(*words, program=("-c", PATIENT)) as agent:
            await agent.until_says(f"{SAID}envvar: containerd://1.7.27")
            await kubelet.until_capacity("nvidia.com/gpu", 8, 8)
            assert len(told(agent)) == 1
