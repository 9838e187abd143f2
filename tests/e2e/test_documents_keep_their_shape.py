"""`inspect --json`, `inspect health --json`, /metrics, /readyz and /healthz in situations that an agent is in."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import golden, metrics
from tests.e2e.coded import shape
from tests.e2e.golden import becomes, lost, same
from tests.e2e.kubelet import Kubelet
from tests.e2e.machines import GPU, MachineFile, fault, gpu, incident, mig, uuid
from tests.e2e.programs import Agent

CONFIG = """
version: v1
flags: {migStrategy: mixed}
sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: [3], rename: gpu-half}]}}
health: {probePeriod: 100ms}
"""
MPS = "version: v1\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}\n"


class Situation:
    """What a situation starts is ended with it."""

    def __init__(self, here: Path, stack: ExitStack) -> None:
        self.here, self.stack = here, stack

    def kubelet(self, **pods: list[str]) -> Kubelet:
        """A kubelet in whose pods containers hold these GPUs."""
        kubelet = self.stack.enter_context(Kubelet(self.here / "k"))
        kubelet.pods = {("ml", name): {GPU: ids} for name, ids in pods.items()}
        return kubelet

    def agent(self, *flags: str, config: str = "", state: str = "s", **machine: Any) -> Agent:
        """An agent on a machine with these keys."""
        described = MachineFile(self.here / "machine.yaml", **({"gpus": 2} | machine))
        if config:
            (self.here / "config.yaml").write_text(config)
            flags += ("--config", str(self.here / "config.yaml"))
        return self.stack.enter_context(Agent(self.here, described, *flags, state=state))


def busy(at: Situation) -> Agent:
    """Of everything one: held, shared, failed, degraded, drained, counted, partitioned, not offered."""
    at.kubelet(train=[uuid(0)])
    agent = at.agent(
        config=CONFIG,
        gpus=[
            gpu(0), gpu(1), gpu(2, faults=fault("pcie-degraded")), gpu(3), gpu(4), mig(5, 7, 8), mig(6),
            {"index": 7, "model": "NVIDIA A100-SXM4-40GB"},
        ],
        incidents=[incident(1, "xid-79"), incident(0, "xid-13"), incident(5, "xid-94", gpu_instance=7, pids=[4711])],
        processes=[{"gpu": 5, "pid": 4711}],
    )  # fmt: skip
    agent.until_ready()
    assert agent.command("health", "drain", "4", "--why", "its fan").status == 0
    return agent


def driver_missing(at: Situation) -> Agent:
    """The node has a fault, and every GPU with it."""
    at.kubelet()
    return at.agent(faults=fault("driver-missing")).until_answers()


def released(at: Situation) -> Agent:
    """A person wants the driver released."""
    at.kubelet()
    agent = at.agent()
    agent.until_ready()
    assert agent.command("driver", "release", "--for", "1h", "--why", "firmware").status == 0
    return agent


def standby(at: Situation) -> Agent:
    """Another agent serves this kubelet."""
    at.kubelet()
    at.agent(state="first").until_ready()
    (at.here / "s").mkdir(0o700)  # else there is no place for its control socket
    return at.agent().until_answers()


def alone(at: Situation) -> Agent:
    """There is no kubelet."""
    return at.agent().until_answers()


def misconfigured(at: Situation) -> Agent:
    """There never was a good configuration."""
    at.kubelet()
    return at.agent(config="version: v1\nflags: {migStratgy: none}\n").until_answers()


def unsupervised(at: Situation) -> Agent:
    """Shared by MPS, and no supervisor runs."""
    at.kubelet()
    return at.agent(config=MPS).until_answers()


SITUATIONS: tuple[Callable[[Situation], Agent], ...] = (
    busy, driver_missing, released, standby, alone, misconfigured, unsupervised
)  # fmt: skip


@pytest.fixture
def at(here: Path) -> Iterator[Situation]:
    """Where a situation is."""
    with ExitStack() as stack:
        yield Situation(here, stack)


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.__name__)
def test_documents_keep_their_shape(at: Situation, situation: Callable[[Situation], Agent]) -> None:
    name, agent = situation.__name__, situation(at)

    def health(golden: Any, found: Any) -> list[str]:
        return lost({key: golden[key] for key in ("version", "time", "node", "waiting_reason", "devices")}, found)

    becomes(f"inspect/{name}", lambda: shape(agent.inspect()), lost)
    if not golden.WRITES:
        becomes(f"inspect/{name}", lambda: shape(agent.command("inspect", "health", "--json").json()), health)
    becomes(f"metrics/{name}", lambda: metrics.page(agent.page("/metrics")[1]), metrics.lost)
    same(f"statuses/{name}", {path: agent.page(path)[0] for path in ("/readyz", "/healthz", "/metrics", "/other")})
    assert agent.command("inspect", "--snapshot").json()
