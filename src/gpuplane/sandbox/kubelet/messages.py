"""What is said to whoever watches the embedded kubelet: twice over, as lines for people and as an event with data."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from google.protobuf.json_format import MessageToDict

from gpuplane.base.text import format_count, join_first_names
from gpuplane.node.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.node.model.cdi import ContainerEdits, DeviceNode
from gpuplane.sandbox.kubelet.endpoint import Call
from gpuplane.sandbox.kubelet.pods import PodRejected, RunningPod
from gpuplane.sandbox.kubelet.server import Kubelet

MAX_NAMED_DEVICES = 4
"""So many devices are named one by one in a line."""


class Message(msgspec.Struct, frozen=True):
    """One thing that happened: an event with its data, and lines for people."""

    event: str
    data: Mapping[str, Any]
    lines: tuple[str, ...]


def call_message(call: Call) -> Message:
    """A call between kubelet and a plugin."""
    data = {"call": call.method, "resource": call.resource, "ids": call.ids, "size": call.size, "error": call.error}
    details = call.error or ", ".join(call.ids)
    if call.method == "GetPreferredAllocation":
        details = f"{call.size} of {len(call.ids)}"
    line = f"{call.method} {call.resource}" + (f": {details}" if details else "")
    return Message("call", {name: value for name, value in data.items() if value}, (line,))


def devices_message(resource: str, old: Mapping[str, str], new: Mapping[str, str]) -> Message:
    """Another list of a resource: id → health."""
    healthy = sum(health == "Healthy" for health in new.values())
    what = [f"{id} is {health.lower()}" for id, health in sorted(new.items()) if id in old and old[id] != health]
    what += [f"{id} is new" for id in sorted(new.keys() - old.keys()) if old]
    what += [f"{id} is gone" for id in sorted(old.keys() - new.keys())]
    named = f" ({', '.join(what)})" if 0 < len(what) <= MAX_NAMED_DEVICES else ""
    line = f"devices {resource}: {len(new)}, healthy {healthy}{named}"
    return Message("devices", {"resource": resource, "devices": dict(sorted(new.items()))}, (line,))


def node_message(resource: str, capacity: tuple[int, int], held: int | None = None) -> Message:
    """What the node shows of a resource: its capacity, what of it is allocatable, and how many are held."""
    data: dict[str, Any] = {"resource": resource, "capacity": capacity[0], "allocatable": capacity[1]}
    line = f"node {resource}: capacity {capacity[0]}, allocatable {capacity[1]}"
    if held is None:
        return Message("node", data, (line,))
    return Message("node", {**data, "held": held}, (f"{line}, held {held}",))


def running_message(running: RunningPod, kubelet: Kubelet) -> Message:
    """An admitted pod, and what its container gets."""
    held, got = kubelet.devices.held_by(running.pod.uid, "main"), running.response()
    lines = [f"{resource}: {', '.join(sorted(ids))}" for resource, ids in held.items()]
    lines += [f"gets {each}" for each in _response_lines(got)]
    data = {
        "pod": running.pod.key,
        "devices": {name: sorted(ids) for name, ids in held.items()},
        "gets": _response_data(got),
    }
    return Message("running", data, (f"pod {running.pod.key} runs", *(f"  {line}" for line in lines)))


def _response_lines(got: pb.ContainerAllocateResponse) -> Iterator[str]:
    yield from (f"env {name}={value}" for name, value in sorted(got.envs.items()))
    for mount in got.mounts:
        yield f"mount {mount.host_path} at {mount.container_path}" + (", read-only" if mount.read_only else "")
    yield from (f"device {each.host_path} at {each.container_path}, {each.permissions}" for each in got.devices)
    yield from (f"annotation {name}={value}" for name, value in sorted(got.annotations.items()))
    yield from (f"CDI device {each.name}" for each in got.cdi_devices)


def created_message(pod: str, container: str, edits: ContainerEdits) -> Message:
    """What the runtime made a container with, in short."""
    data = {"pod": pod, "container": container, "with": msgspec.to_builtins(edits)}
    paths = [node.path for node in edits.device_nodes]
    counts = ((len(edits.mounts), "mount"), (len(edits.env), "variable"), (len(edits.hooks), "hook"))
    *most, last = (format_count(number, what) for number, what in counts)
    lines = [
        f"  with {format_count(len(paths), 'device')}"
        + (f": {join_first_names(paths, MAX_NAMED_DEVICES)}" if paths else ""),
        f"  with {', '.join(most)} and {last}: for all details, type show {pod.removeprefix('default/')}",
    ]
    return Message("created", data, (f"pod {pod}: {container} is created", *lines))


def shown_message(running: RunningPod) -> Message:
    """All that a pod's containers are made with."""
    key, made = running.pod.key, {name: running.created[name] for name in sorted(running.created)}
    lines = [line for name, edits in made.items() for line in (f"pod {key}: {name} gets", *_edits_lines(edits))]
    waiting = [f"pod {key}: {name} waits: {why}" for name, why in running.waiting_reasons.items()]
    return Message("shown", {"pod": key, "containers": msgspec.to_builtins(made)}, (*lines, *waiting))


def _edits_lines(edits: ContainerEdits) -> Iterator[str]:
    yield from (f"  device {node.path}, {_device_numbers(node)}".rstrip(", ") for node in edits.device_nodes)
    yield from (f"  variable {each}" for each in edits.env)
    for mount in edits.mounts:
        source = f" from {mount.host_path}" if mount.host_path != mount.container_path else ""
        yield f"  mount {mount.container_path}{source}, {','.join(mount.options)}".rstrip(", ")
    for hook in edits.hooks:
        yield f"  hook {hook.hook_name}: {hook.path}"
        yield from (f"    {each}" for each in hook.args)


def _device_numbers(node: DeviceNode) -> str:
    return f"{node.type} {node.major}:{node.minor or 0}" if node.major is not None else ""


def _response_data(got: pb.ContainerAllocateResponse) -> dict[str, Any]:
    return MessageToDict(got, preserving_proto_field_name=True)


def pod_message(running: RunningPod, kubelet: Kubelet) -> Message:
    """A pod, what it holds and what it waits for."""
    key, health = running.pod.key, kubelet.pod_health(running.pod.key)
    lines = [
        f"  {container} {resource}: {id}" + ("" if state == "Healthy" else f", {state.lower()}")
        for container, resources in health.items()
        for resource, ids in resources.items()
        for id, state in sorted(ids)
    ]
    waiting = [f"  {container} waits: {why}" for container, why in running.waiting_reasons.items()]
    data = {
        "pod": key,
        "containers": health,
        "waiting": {name: str(why) for name, why in running.waiting_reasons.items()},
    }
    return Message("pod", data, (f"pod {key} {'waits' if waiting else 'runs'}", *lines, *waiting))


def rejected_message(key: str, why: PodRejected) -> Message:
    """A pod that failed."""
    data = {"pod": key, "reason": why.reason, "message": why.message}
    return Message("rejected", data, (f"pod {key} failed, {why.reason}: {why.message}",))
