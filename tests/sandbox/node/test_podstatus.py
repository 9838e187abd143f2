"""Statuses of pods: those that kubelet 1.36.2 wrote, and the phases and conditions of its source."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpuplane.sandbox.kubelet.pods import PodRejected, WaitingReason
from gpuplane.sandbox.node.podstatus import (
    ContainerRecord,
    EndedContainer,
    PodFacts,
    full_image_name,
    pod_status,
)
from tests.sandbox.node.objects import bound_pod

Json = dict[str, Any]
NOW, BEFORE = "2026-11-26T06:00:00Z", "2026-11-26T05:00:00Z"
RECORDED = json.loads((Path(__file__).parents[1] / "testdata/kubernetes-1.36/pod-statuses.json").read_text())
STATUSES = [(when, name) for when, pods in RECORDED.items() for name in pods]


def ended(state: Json) -> EndedContainer | None:
    if (found := state.get("terminated")) is None:
        return None
    id = found["containerID"].removeprefix("containerd://")
    return EndedContainer(found["exitCode"], found["startedAt"], found["finishedAt"], id)


def record(status: Json) -> ContainerRecord:
    """A container as the recorded status shows it."""
    state = status["state"]
    started_at = (state.get("running") or state.get("terminated"))["startedAt"]
    id = status["containerID"].removeprefix("containerd://")
    return ContainerRecord(
        id, started_at, status["ready"], ended(state), ended(status["lastState"]), status["restartCount"]
    )


def facts_of(recorded: Json) -> PodFacts:
    """A pod as it was when its status was recorded; the recorded specification leaves out what its status repeats."""
    spec, status = recorded["spec"], recorded["status"]
    statuses = [*(status["initContainerStatuses"] or ()), *status["containerStatuses"]]
    by_name = {each["name"]: each for each in statuses}
    for container in (*spec["initContainers"], *spec["containers"]):
        known = by_name[container["name"]]
        container |= {"image": known["image"], "volumeMounts": known.get("volumeMounts")}
    pod = bound_pod(status={"qosClass": status["qosClass"]}, **spec)
    devices = {
        each["name"]: {
            one["name"]: [(device["resourceID"], device["health"]) for device in one["resources"]]
            for one in each.get("allocatedResourcesStatus") or ()
        }
        for each in statuses
    }
    rejected = PodRejected("UnexpectedAdmissionError", "") if status["phase"] == "Failed" else None
    records = {each["name"]: record(each) for each in statuses}
    return PodFacts(pod, "10.2.1.1", containers=records, has_sandbox=True, devices=devices, rejected=rejected)


@pytest.mark.parametrize(("when", "name"), STATUSES)
def test_it_is_what_kubelet_wrote(when: str, name: str) -> None:
    recorded = RECORDED[when][name]
    status = pod_status(facts_of(recorded), NOW)
    for key in ("phase", "qosClass"):
        assert status[key] == recorded["status"][key]
    for key in ("initContainerStatuses", "containerStatuses"):
        ours = [{**each, "imageID": ""} for each in status.get(key) or ()]
        theirs = [{**each, "imageID": ""} for each in recorded["status"][key] or ()]
        assert ours == theirs


def running(**more: Any) -> ContainerRecord:
    return ContainerRecord("id", BEFORE, is_ready=True, **more)


def over(status: int, **more: Any) -> ContainerRecord:
    return ContainerRecord("id", BEFORE, ended=EndedContainer(status, BEFORE, NOW, "id"), **more)


CRASHED = ContainerRecord("id", waits=WaitingReason("CrashLoopBackOff", "later"), last=over(1).ended, restarts=1)


@pytest.mark.parametrize(
    ("policy", "records", "phase"),
    [
        ("Always", {}, "Pending"),
        ("Always", {"a": running()}, "Pending"),
        ("Always", {"a": running(), "b": running()}, "Running"),
        ("Always", {"a": over(0), "b": over(0)}, "Running"),
        ("Always", {"a": CRASHED, "b": running()}, "Running"),
        ("OnFailure", {"a": over(0), "b": running()}, "Running"),
        ("OnFailure", {"a": over(0), "b": over(0)}, "Succeeded"),
        ("OnFailure", {"a": over(0), "b": over(1)}, "Running"),
        ("Never", {"a": over(0), "b": over(1)}, "Failed"),
        ("Never", {"a": over(0), "b": over(0)}, "Succeeded"),
    ],
)
def test_the_phase_follows_the_containers(policy: str, records: dict[str, ContainerRecord], phase: str) -> None:
    containers = [{"name": name, "image": "busybox"} for name in "ab"]
    pod = bound_pod(containers=containers, restartPolicy=policy)
    assert pod_status(PodFacts(pod, "10.2.1.1", containers=records), NOW)["phase"] == phase


@pytest.mark.parametrize(("policy", "phase"), [("Never", "Failed"), ("Always", "Pending")])
def test_an_init_container_that_fails_fails_the_pod_only_if_nothing_starts_again(policy: str, phase: str) -> None:
    pod = bound_pod(initContainers=[{"name": "i", "image": "busybox"}], restartPolicy=policy)
    assert pod_status(PodFacts(pod, "10.2.1.1", containers={"i": over(1)}), NOW)["phase"] == phase


def conditions(facts: PodFacts) -> dict[str, tuple[str, str, str]]:
    """Type → (status, reason, message)."""
    found = pod_status(facts, NOW)["conditions"]
    return {each["type"]: (each["status"], each.get("reason", ""), each.get("message", "")) for each in found}


def test_conditions_say_what_is_not_ready() -> None:
    pod = bound_pod(initContainers=[{"name": "i", "image": "busybox"}])
    facts = PodFacts(pod, "10.2.1.1", has_sandbox=True, containers={"i": running()})
    not_ready = ("False", "ContainersNotReady", "containers with unready status: [main]")
    assert conditions(facts) == {
        "PodReadyToStartContainers": ("True", "", ""),
        "Initialized": ("False", "ContainersNotInitialized", "containers with incomplete status: [i]"),
        "Ready": not_ready,
        "ContainersReady": not_ready,
        "PodScheduled": ("True", "", ""),
    }
    facts.containers = {"i": over(0), "main": running()}
    assert {status for status, _, _ in conditions(facts).values()} == {"True"}
    facts.pod = bound_pod(restartPolicy="Never", initContainers=[{"name": "i", "image": "busybox"}])
    facts.containers = {"i": over(0), "main": over(0)}
    assert conditions(facts)["Ready"] == ("False", "PodCompleted", "")
    assert conditions(facts)["Initialized"] == ("True", "PodCompleted", "")


def test_a_condition_that_stays_keeps_its_time_and_loses_its_reason() -> None:
    facts = PodFacts(bound_pod(), "10.2.1.1", has_sandbox=True)
    facts.before = pod_status(facts, BEFORE)
    facts.containers = {"main": running()}
    ready, scheduled = (next(each for each in pod_status(facts, NOW)["conditions"] if each["type"] == type)
                        for type in ("Ready", "PodScheduled"))  # fmt: skip
    assert (ready["lastTransitionTime"], ready["reason"], ready["message"]) == (NOW, None, None)
    assert scheduled["lastTransitionTime"] == BEFORE


def test_a_pod_that_was_rejected_has_a_reason_and_no_containers() -> None:
    facts = PodFacts(
        bound_pod(), "10.2.1.1", started_at=BEFORE, rejected=PodRejected("OutOfcpu", "Pod was rejected: no")
    )
    assert pod_status(facts, NOW) == {
        "observedGeneration": 1,
        "phase": "Failed",
        "qosClass": "BestEffort",
        "reason": "OutOfcpu",
        "message": "Pod was rejected: no",
        "startTime": BEFORE,
    }


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("nvidia/cuda:12.4", "docker.io/nvidia/cuda:12.4"),
        ("nvcr.io/nvidia/k8s-device-plugin:v1", "nvcr.io/nvidia/k8s-device-plugin:v1"),
        ("localhost:5000/a", "localhost:5000/a:latest"),
        ("a@sha256:00", "docker.io/library/a@sha256:00"),
    ],
)
def test_an_image_has_its_full_name(name: str, full: str) -> None:
    assert full_image_name(name) == full


UNKNOWN = {
    "exitCode": 137,
    "reason": "ContainerStatusUnknown",
    "message": "The container could not be located when the pod was terminated",
    "startedAt": None,
    "finishedAt": None,
}


def test_what_never_ran_of_a_pod_that_was_ended_is_unknown() -> None:
    """Of init containers those that were tried, the first one always (status_manager.go, TerminatePod)."""
    facts = PodFacts(bound_pod(), "10.2.1.1", waiting={"main": WaitingReason("CreateContainerError")}, is_over=True)
    status = pod_status(facts, NOW)
    assert status["phase"] == "Failed"
    assert status["containerStatuses"][0]["state"] == {"terminated": UNKNOWN}
    inits = [{"name": name, "image": "busybox"} for name in "ij"]
    status = pod_status(PodFacts(bound_pod(initContainers=inits), "10.2.1.1", is_over=True), NOW)
    assert [each["state"] for each in status["initContainerStatuses"]] == [
        {"terminated": UNKNOWN},
        {"waiting": {"reason": "PodInitializing"}},
    ]
    assert status["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}


def test_a_container_that_cannot_be_created_again_waits() -> None:
    facts = PodFacts(bound_pod(), "10.2.1.1", containers={"main": over(1)}, has_sandbox=True)
    facts.waiting = {"main": WaitingReason("CreateContainerError", "no")}
    [status] = pod_status(facts, NOW)["containerStatuses"]
    assert status["state"] == {"waiting": {"reason": "CreateContainerError", "message": "no"}}
    assert status["lastState"]["terminated"]["exitCode"] == 1
