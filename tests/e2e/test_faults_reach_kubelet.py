"""A fault in a machine file that is edited under a running agent: what kubelet is told, its code, and how it ends."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import metrics
from tests.e2e.golden import becomes, differences, read, same
from tests.e2e.kubelet import Kubelet
from tests.e2e.machines import GPU, MachineFile, fault, gpu, incident, mig, mig_uuid, replace, uuid
from tests.e2e.programs import Agent

QUICK = "version: v1\nhealth: {probePeriod: 50ms}\n"
NEVER = "version: v1\nhealth: {probePeriod: 1h}\n"
"""No probe comes, so that everything stays as a fault left it."""
PATIENT = ("driver-hang", "driver-failed", "driver-start", "driver-denied")
AT_ONCE = f"version: v1\nhealth: {{faults: {{{', '.join(f'{code}: {{gracePeriod: 0}}' for code in PATIENT)}}}}}\n"
MIXED = "version: v1\nflags: {migStrategy: mixed}\n"
WELL, ILL = "Healthy", "Unhealthy"


class Node:
    """A kubelet and an agent on a machine of some GPUs."""

    def __init__(self, here: Path, kubelet: Kubelet) -> None:
        self.here, self.kubelet = here, kubelet
        self.config = here / "config.yaml"

    def start(self, config: str, gpus: Any, **machine: Any) -> Agent:
        """The agent to start."""
        replace(self.config, config)
        self.machine = MachineFile(self.here / "machine.yaml", gpus, **machine)
        self.agent = Agent(self.here, self.machine, "--config", self.config)
        return self.agent

    def until(self, *healths: str, resource: str = GPU) -> None:
        """Until kubelet has a list with these healths, in the order of ids."""
        self.agent.until(
            lambda: [each for _, each in sorted(self.kubelet.health(resource).items())] == list(healths),
            f"{resource}: {healths}",
        )

    def until_code(self, index: str, code: str, state: str | None = None) -> None:
        """Until a device has this fault, and this state."""

        def fits() -> bool:
            device = self.agent.device(index)
            return bool(device["code"] == code and state in (None, device["state"]))

        self.agent.until(fits, f"{index}: {code} {state}")

    def until_node(self, code: str) -> None:
        """Until the node has this fault."""
        series = {"device": "node", "code": code}
        self.agent.until(lambda: metrics.value(self.agent.page("/metrics")[1], "gpuplane_fault", **series), code)


@pytest.fixture
def node(here: Path) -> Iterator[Node]:
    """With its kubelet."""
    with Kubelet(here / "k") as kubelet:
        yield Node(here, kubelet)


def failing(agent: Agent) -> set[str]:
    """The names of the parts that are failing."""
    return {each["name"] for each in agent.inspect()["parts"] if each["state"] == "failing"}


def judged(node: Node, codes: dict[int, str]) -> dict[str, Any]:
    """What is made of the fault that each GPU has."""
    health, page = node.kubelet.health(), node.agent.page("/metrics")[1]
    severities = {
        (each[1]["device"], each[1]["code"]): each[1]["severity"]
        for each in metrics.samples(page)
        if each[0] == "gpuplane_fault"
    }
    return {
        codes[int(each["index"])]: {
            "kubelet": health[each["uuid"]],
            "state": each["state"],
            "code": each["code"],
            "severity": severities.get((each["uuid"], codes[int(each["index"])]), ""),
            "kinds": [reason["kind"] for reason in each["reasons"]],
            "fault_counts": each["fault_counts"],
        }
        for each in node.agent.inspect()["devices"]
    }


def test_each_fault_of_a_gpu_is_judged_as_before(node: Node) -> None:
    codes = read("codes")
    looks, events = codes["looks"], codes["events"]
    gpus = [gpu(n, pci=f"{n:04x}:10:00.0", faults=fault(code)) for n, code in enumerate(looks)]
    gpus += [gpu(n, pci=f"{n:04x}:10:00.0") for n, _ in enumerate(events, len(gpus))]
    incidents = [incident(n, code) for n, code in enumerate(events, len(looks))]
    with node.start(NEVER, gpus) as agent:
        agent.until_ready()
        node.machine.set(incidents=incidents)
        becomes("faults/gpu", lambda: judged(node, dict(enumerate([*looks, *events]))), differences)


def test_each_fault_of_the_driver_is_every_gpus(node: Node) -> None:
    found = {}
    with node.start(AT_ONCE, 2) as agent:
        agent.until_ready()
        for code in read("codes")["node"]:
            node.machine.set(faults=fault(code))
            node.until_node(code)
            said = agent.inspect()
            found[code] = {
                "node": {key: said["node"][key] for key in ("state", "code")},
                "devices": [
                    {**{key: each[key] for key in ("state", "code")}, "kinds": [why["kind"] for why in each["reasons"]]}
                    for each in said["devices"]
                ],
                "ready": agent.page("/readyz")[0],
            }
            node.until(*[WELL if said["node"]["state"] == "degraded" else ILL] * 2)
        node.machine.set(faults=[])
        node.until(WELL, WELL)

    same("faults/node", found)


def test_a_gpu_that_was_lost_is_probed_and_given_out_again(node: Node) -> None:
    with node.start(QUICK, 2) as agent:
        node.until(WELL, WELL)
        node.machine.set_gpu(0, faults=fault("gpu-lost"))
        node.until(ILL, WELL)
        node.until_code("0", "gpu-lost", "unhealthy")
        assert node.kubelet.allocate(GPU, [uuid(0)]) == "INVALID_ARGUMENT"
        assert node.kubelet.allocate(GPU, [uuid(1)]) == {"envs": {"NVIDIA_VISIBLE_DEVICES": uuid(1)}}
        agent.until_ready()

        node.machine.set_gpu(0, faults=None)
        node.until(WELL, WELL)
        node.until_code("0", "", "healthy")


def test_an_incident_outlives_its_line_until_the_gpu_is_restored(node: Node) -> None:
    with node.start(QUICK, 2) as agent:
        node.until(WELL, WELL)
        node.machine.set(incidents=[incident(1, "xid-79")])
        node.until(WELL, ILL)
        node.machine.set(incidents=[])
        node.machine.set_gpu(0, faults=fault("gpu-lost"))
        node.until(ILL, ILL)
        node.until_code("1", "xid-79", "unhealthy")

        done = agent.command("health", "restore", "1", "--json")
        said = done.json()
        assert (done.status, said["recovered"], said["device"], said["index"], said["state"]) == (
            0, True, uuid(1), "1", "healthy",
        )  # fmt: skip
        node.until(ILL, WELL)
        assert agent.device("1")["fault_counts"] == {"xid-79": 1}

        done = agent.command("health", "restore", "0", "--json")
        assert (done.status, done.json()["recovered"], done.json()["state"]) == (1, False, "unhealthy")


def test_a_reset_ends_what_waits_for_one(node: Node) -> None:
    with node.start(QUICK, 2):
        node.until(WELL, WELL)
        node.machine.set(incidents=[incident(1, "xid-79")])
        node.until(WELL, ILL)
        node.machine.set(incidents=[], gpus=[gpu(0)])
        node.until(WELL)
        node.machine.set(gpus=[gpu(0), gpu(1)])
        node.until(WELL, WELL)


def test_a_fault_of_a_process_ends_with_it(node: Node) -> None:
    with node.start(QUICK, 2):
        node.until(WELL, WELL)
        node.machine.set(
            incidents=[incident(1, "xid-94", pids=[4711])],
            processes=[{"gpu": 1, "pid": 4711}, {"gpu": 0, "pid": 4712}],
        )
        node.until(WELL, ILL)
        node.until_code("1", "xid-94", "probing")
        node.machine.set(processes=[{"gpu": 0, "pid": 4712}])
        node.until(WELL, WELL)


def test_a_fault_in_a_mig_instance_spares_its_siblings(node: Node) -> None:
    resource = "nvidia.com/mig-1g.5gb"
    with node.start(MIXED, [mig(0, 7, 8), gpu(1)]):
        node.until(WELL, WELL, resource=resource)
        node.machine.set(incidents=[incident(0, "xid-94", gpu_instance=7, pids=[1])], processes=[{"gpu": 0, "pid": 1}])
        node.until(ILL, WELL, resource=resource)
        node.until_code("0:0", "xid-94")
        node.machine.set_gpu(0, faults=fault("gpu-lost"))
        node.until(ILL, ILL, resource=resource)
        node.until(WELL)
        node.until_code("0:1", "gpu-lost", "unhealthy")


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        ({"effect": "hang", "nvml_function": "nvmlDeviceGetMemoryInfo"}, "gpu-hang"),
        ({"effect": "crash", "nvml_function": "nvmlDeviceGetMemoryInfo"}, "gpu-crash"),
        ({"effect": "error", "nvml_function": "*", "error": "GPU_IS_LOST"}, "gpu-lost"),
    ],
    ids=["hang", "crash", "error"],
)
def test_a_driver_that_fails_at_one_gpu_costs_that_gpu(node: Node, failure: dict[str, Any], code: str) -> None:
    with node.start(QUICK, 2) as agent:
        node.until(WELL, WELL)
        node.machine.set(failures=[{**failure, "gpu": 0}])
        node.until(ILL, WELL)
        node.until_code("0", code)
        agent.until_ready()
        node.machine.set(failures=[])
        node.until(WELL, WELL)


def test_a_driver_that_hangs_is_a_fault_of_the_node_in_time(node: Node) -> None:
    with node.start(AT_ONCE, 2) as agent:
        node.until(WELL, WELL)
        node.machine.set(failures=[{"effect": "hang", "nvml_function": "nvmlInit"}])
        node.until(ILL, ILL)
        agent.until(lambda: agent.inspect()["node"]["code"] == "driver-hang", "the node's fault")
        assert agent.page("/healthz")[0] == 200
        node.machine.set(failures=[])
        node.until(WELL, WELL)


def test_devices_come_and_go(node: Node) -> None:
    resource = "nvidia.com/mig-1g.5gb"
    with node.start(MIXED, [gpu(0), mig(1, 7, 8)]) as agent:
        node.until(WELL)
        node.until(WELL, WELL, resource=resource)
        node.machine.set(gpus=[gpu(0), mig(1, 8), gpu(2)])
        node.until(WELL, WELL)
        node.until(WELL, resource=resource)
        assert node.kubelet.health(resource) == {mig_uuid(1, 8): WELL}
        node.machine.set(gpus=[gpu(2)])
        agent.until(lambda: node.kubelet.health() == {uuid(2): WELL}, "one GPU is left")
        agent.until(lambda: metrics.value(agent.page("/metrics")[1], "gpuplane_gpus") == 1, "one is counted")


def test_a_bad_edit_of_the_machine_or_of_the_configuration_costs_nothing(node: Node) -> None:
    with node.start(QUICK, 2) as agent:
        node.until(WELL, WELL)
        good = node.machine.path.read_text()
        replace(node.machine.path, "gpus: [{indx: 0}]\n")
        replace(node.config, "version: v1\nflags: {migStratgy: none}\n")
        agent.until(lambda: failing(agent) >= {"machine file", "config"}, "both parts are failing")
        assert node.kubelet.health() == {uuid(0): WELL, uuid(1): WELL}

        replace(node.machine.path, good)
        replace(node.config, MIXED)
        agent.until(lambda: {each["state"] for each in agent.inspect()["parts"]} == {"ok"}, "all parts are ok")
        assert node.kubelet.health() == {uuid(0): WELL, uuid(1): WELL}


def test_a_fault_means_what_the_configuration_says(node: Node) -> None:
    with node.start(QUICK, 2):
        node.until(WELL, WELL)
        node.machine.set(incidents=[incident(0, "xid-79"), incident(1, "xid-31")])
        node.until(ILL, WELL)
        replace(
            node.config, "version: v1\nhealth: {faults: {xid-79: {severity: note}, xid-31: {severity: unhealthy}}}\n"
        )
        node.until(WELL, WELL)  # what has happened and was a note is over
        node.machine.set(incidents=[*node.machine.document["incidents"], incident(1, "xid-31")])
        node.until(WELL, ILL)


@pytest.mark.parametrize(
    ("variables", "healths"),
    [({"DP_DISABLE_HEALTHCHECKS": "79"}, (WELL, ILL)), ({"DP_ENABLE_HEALTHCHECKS": "31"}, (ILL, ILL))],
    ids=["disable", "enable"],
)
def test_nvidias_variables_decide_which_xids_count(
    node: Node, variables: dict[str, str], healths: tuple[str, str]
) -> None:
    agent = node.start(NEVER, 3, incidents=[incident(0, "xid-79"), incident(1, "xid-48"), incident(2, "xid-31")])
    agent.env = variables
    with agent:
        node.until(*healths, ILL if "31" in variables.values() else WELL)
