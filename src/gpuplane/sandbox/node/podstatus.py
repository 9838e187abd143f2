"""The status of a pod, as kubelet 1.36 writes it (pkg/kubelet/kubelet_pods.go, status/generate.go). Pure."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from gpuplane.sandbox.kubelet.pods import PodRejected, ResourceHealth, WaitingReason
from gpuplane.sandbox.node.objects import Json, PodObject, is_sidecar

UNKNOWN_EXIT_CODE = 137
"""Of a container that is gone, and nobody knows how it ended."""
UNKNOWN_END: Json = {
    "exitCode": UNKNOWN_EXIT_CODE,
    "reason": "ContainerStatusUnknown",
    "message": "The container could not be located when the pod was terminated",
}


class EndedContainer(msgspec.Struct, frozen=True):
    """How a container has ended, and when, as the API spells times."""

    exit_code: int
    started_at: str
    finished_at: str
    id: str

    @property
    def reason(self) -> str:
        """As a runtime says it (containerd, container_status.go)."""
        return "Error" if self.exit_code else "Completed"


class ContainerRecord(msgspec.Struct):
    """A container so far: it runs, has ended, or waits. `last`: how it ended before it was started again."""

    id: str = ""
    started_at: str = ""
    is_ready: bool = False
    ended: EndedContainer | None = None
    last: EndedContainer | None = None
    restarts: int = 0
    waits: WaitingReason | None = None

    @property
    def is_running(self) -> bool:
        """Whether something runs in it."""
        return bool(self.started_at) and self.ended is None


class PodFacts(msgspec.Struct):
    """What a node knows of one of its pods. `devices`, `claims`: container → what its status says of their health.

    `waiting`: container → why it does not start. `rejected`: why it was not admitted. `is_over`: it was asked to end,
    and all its containers have. `before`: the status that was written last.
    """

    pod: PodObject
    host_address: str
    address: str = ""
    started_at: str = ""
    has_sandbox: bool = False
    containers: dict[str, ContainerRecord] = {}
    waiting: Mapping[str, WaitingReason] = {}
    devices: Mapping[str, Mapping[str, Sequence[tuple[str, str]]]] = {}
    claims: Mapping[str, Mapping[str, Sequence[ResourceHealth]]] = {}
    rejected: PodRejected | None = None
    is_over: bool = False
    before: Json = {}


def pod_status(facts: PodFacts, now: str) -> Json:
    """The status now. Conditions that are as they were keep their times."""
    pod = facts.pod
    generation = {"observedGeneration": pod.metadata.generation} if pod.metadata.generation else {}
    common: Json = {**generation, "qosClass": pod.status.get("qosClass") or "BestEffort", "startTime": facts.started_at}
    if facts.rejected is not None:
        common |= {"reason": facts.rejected.reason, "message": facts.rejected.message}
        if not facts.containers:
            return {**common, "phase": "Failed"}
    inits = pod.spec.get("initContainers") or ()
    init_statuses = [_container_status(facts, each, bool(inits)) for each in inits]
    statuses = [_container_status(facts, each, bool(inits)) for each in pod.spec["containers"]]
    if facts.is_over:
        _end_what_never_ran(facts, init_statuses, statuses)
    phase = _phase(facts, init_statuses, statuses)
    addresses = {"podIP": facts.address, "podIPs": [{"ip": facts.address}]} if facts.address else {}
    return {
        **common,
        "phase": phase,
        "conditions": _conditions(facts, phase, init_statuses, statuses, now),
        "hostIP": facts.host_address,
        "hostIPs": [{"ip": facts.host_address}],
        **addresses,
        **({"initContainerStatuses": init_statuses} if init_statuses else {}),
        "containerStatuses": statuses,
    }


# containers


def _container_status(facts: PodFacts, container: Json, has_init: bool) -> Json:
    record = facts.containers.get(container["name"]) or ContainerRecord()
    last = record.ended if container["name"] in facts.waiting and record.ended else record.last
    status: Json = {
        "name": container["name"],
        "state": _state(facts, container, record, has_init),
        "lastState": _terminated(last) if last else {},
        "ready": _is_ready(container, record, container in (facts.pod.spec.get("initContainers") or ())),
        "restartCount": record.restarts,
        "image": full_image_name(container["image"]) if record.id else container["image"],
        "imageID": image_id(container["image"]) if record.id else "",
        "started": record.is_running,
    }
    if record.id:
        status |= {"containerID": f"containerd://{record.id}", **_resources(container), **_mounts_and_user(container)}
    if health := _health(facts, container["name"]):
        status["allocatedResourcesStatus"] = health
    return status


def _state(facts: PodFacts, container: Json, record: ContainerRecord, has_init: bool) -> Json:
    if record.waits is not None:
        return {"waiting": _waiting(record.waits)}
    if record.ended is not None and container["name"] not in facts.waiting:
        return _terminated(record.ended)
    if record.is_running:
        return {"running": {"startedAt": record.started_at}}
    waits = facts.waiting.get(container["name"])
    if waits is None or waits.reason == "ContainerCreating":  # no status says why it is still being created
        waits = WaitingReason("PodInitializing" if has_init else "ContainerCreating")
    return {"waiting": _waiting(waits)}


def _end_what_never_ran(facts: PodFacts, inits: Sequence[Json], statuses: Sequence[Json]) -> None:
    """Of a pod that was ended, nobody knows how these would have ended (status_manager.go, TerminatePod)."""
    attempted = [at for at, each in enumerate(inits) if "waiting" not in each["state"] or each["lastState"]]
    started = any(each["lastState"] or "running" in each["state"] for each in statuses)
    lost = list(inits[: attempted[-1] + 1 if attempted else 1])
    if started or not _incomplete(facts, inits):
        lost += statuses
    for each in lost:
        if "terminated" not in each["state"]:
            each["state"] = {"terminated": {**UNKNOWN_END, "startedAt": None, "finishedAt": None}}


def _waiting(waits: WaitingReason) -> Json:
    return {"reason": waits.reason, **({"message": waits.message} if waits.message else {})}


def _terminated(ended: EndedContainer) -> Json:
    return {
        "terminated": {
            "exitCode": ended.exit_code,
            "reason": ended.reason,
            "startedAt": ended.started_at,
            "finishedAt": ended.finished_at,
            "containerID": f"containerd://{ended.id}",
        }
    }


def _is_ready(container: Json, record: ContainerRecord, is_init: bool) -> bool:
    """An init container that ends is ready once it has done its work."""
    if is_init and not is_sidecar(container):
        return record.ended is not None and record.ended.exit_code == 0
    return record.is_running and record.is_ready


def _resources(container: Json) -> Json:
    wanted = container.get("resources") or {}
    found = {name: dict(wanted[name]) for name in ("limits", "requests") if wanted.get(name)}
    return {**({"allocatedResources": found["requests"]} if "requests" in found else {}), "resources": found}


def _mounts_and_user(container: Json) -> Json:
    mounts = [_mount(each) for each in container.get("volumeMounts") or ()]
    rights = container.get("securityContext") or {}
    uid, gid = rights.get("runAsUser") or 0, rights.get("runAsGroup") or 0
    user = {"linux": {"uid": uid, "gid": gid, "supplementalGroups": [gid]}}
    return {**({"volumeMounts": mounts} if mounts else {}), "user": user}


def _mount(mount: Json) -> Json:
    read_only = {"readOnly": True, "recursiveReadOnly": "Disabled"} if mount.get("readOnly") else {}
    return {"name": mount["name"], "mountPath": mount["mountPath"], **read_only}


def _health(facts: PodFacts, container: str) -> list[Json]:
    devices: list[Json] = [
        {"name": resource, "resources": [{"resourceID": id, "health": health} for id, health in found]}
        for resource, found in facts.devices.get(container, {}).items()
    ]
    for name, found in facts.claims.get(container, {}).items():
        devices.append({"name": name, "resources": [_claim_health(each) for each in found]})
    return devices


def _claim_health(found: ResourceHealth) -> Json:
    message = {"message": found.message} if found.message else {}
    return {"resourceID": found.resource_id, "health": found.health, **message}


def full_image_name(image: str) -> str:
    """An image's name with its registry and tag, as containerd has it (distribution/reference, normalize.go)."""
    first, slash, _ = image.partition("/")
    if not slash:
        image = f"docker.io/library/{image}"
    elif not ("." in first or ":" in first or first == "localhost"):
        image = f"docker.io/{image}"
    has_tag = ":" in image.rpartition("/")[2] or "@" in image
    return image if has_tag else f"{image}:latest"


def image_id(image: str) -> str:
    """The id of an image that nobody has pulled: it depends on its name alone."""
    return f"sha256:{hashlib.sha256(full_image_name(image).encode()).hexdigest()}"


# the pod

Phase = Literal["Pending", "Running", "Succeeded", "Failed"]


def _phase(facts: PodFacts, inits: Sequence[Json], statuses: Sequence[Json]) -> Phase:
    """By what its containers do (kubelet_pods.go, getPhase). A pod that was ended has failed where one of them has."""
    ended = [_exit_code(each) for each in statuses]
    if facts.rejected is not None:
        return "Failed"
    if facts.is_over:
        return "Succeeded" if all(code == 0 for code in ended) else "Failed"
    policy = facts.pod.spec.get("restartPolicy", "Always")
    once = [each for each, found in _with_specs(facts, inits) if not is_sidecar(found)]
    if policy == "Never" and any(_exit_code(each) not in (None, 0) for each in once):
        return "Failed"
    if _incomplete(facts, inits):
        return "Pending"
    states = [each["state"] for each in statuses]
    if any("waiting" in state and not each["lastState"] for state, each in zip(states, statuses, strict=True)):
        return "Pending"
    if any("running" in state for state in states) or policy == "Always":
        return "Running"
    if all(code == 0 for code in ended):
        return "Succeeded"
    return "Failed" if policy == "Never" else "Running"


def _exit_code(status: Json) -> int | None:
    found = status["state"].get("terminated")
    return None if found is None else int(found["exitCode"])


def _with_specs(facts: PodFacts, inits: Sequence[Json]) -> Iterable[tuple[Json, Json]]:
    """The status of each init container, and its specification."""
    return zip(inits, facts.pod.spec.get("initContainers") or (), strict=True)


def _incomplete(facts: PodFacts, inits: Sequence[Json]) -> list[str]:
    """Init containers that have not done their work, and sidecars that have not started."""
    return [each["name"] for each, found in _with_specs(facts, inits)
            if not each["started" if is_sidecar(found) else "ready"]]  # fmt: skip


def _conditions(facts: PodFacts, phase: Phase, inits: Sequence[Json], statuses: Sequence[Json], now: str) -> list[Json]:
    """In the order in which kubelet has them; those of others stay."""
    sidecars = [each for each, found in _with_specs(facts, inits) if is_sidecar(found)]
    unready = [each["name"] for each in (*sidecars, *statuses) if not each["ready"]]
    terminal = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase)
    ready = _condition(terminal or ("ContainersNotReady" if unready else ""), "containers with unready status", unready)
    if phase == "Succeeded":
        initialized: Json = {"status": "True", "reason": "PodCompleted"}
    else:
        started = any(each["started"] or each["lastState"] or "terminated" in each["state"] for each in statuses)
        left = [] if started else _incomplete(facts, inits)
        initialized = _condition("ContainersNotInitialized" if left else "", "containers with incomplete status", left)
    if terminal:
        ready.pop("message", None)
    found = {
        "PodReadyToStartContainers": {"status": "True" if facts.has_sandbox and not terminal else "False"},
        "Initialized": initialized,
        "Ready": ready,
        "ContainersReady": ready,
        "PodScheduled": {"status": "True"},
    }
    return [_with_times(facts, type, condition, now) for type, condition in found.items()]


def _condition(reason: str, what: str, names: Iterable[str]) -> Json:
    if not reason:
        return {"status": "True"}
    return {"status": "False", "reason": reason, "message": f"{what}: [{' '.join(names)}]"}


def _with_times(facts: PodFacts, type: str, condition: Mapping[str, Any], now: str) -> Json:
    pod, known = facts.pod, facts.before.get("conditions") or ()
    before: Json = next((each for each in known if each["type"] == type), {})
    since = before.get("lastTransitionTime") if before.get("status") == condition["status"] else None
    generation = {"observedGeneration": pod.metadata.generation} if pod.metadata.generation else {}
    cleared: Json = {key: None for key in ("reason", "message") if key in before and key not in condition}
    times = {"lastProbeTime": None, "lastTransitionTime": since or now}
    return {"type": type, **generation, **times, **condition, **cleared}
