"""A person at the embedded kubelet: words in, and out what happens, as it happens.

What is said comes from looking at the kubelet after each change, not from calls inside it. Everything is said twice
over: as lines for people, and as an event with data for machines.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import msgspec
from google.protobuf.json_format import MessageToDict

from gpuplane.core.strict import close_to
from gpuplane.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.sandbox.kubelet.endpoint import Call
from gpuplane.sandbox.kubelet.pods import Container, Pod, Rejected, Running
from gpuplane.sandbox.kubelet.server import Kubelet

PATIENCE = 5.0
"""Seconds that `run` waits for a plugin's answers; then the next words are read, and the outcome is said later."""

MANY = 4
"""So many devices are named one by one in a line."""

GPU = "nvidia.com/gpu"

WORDS = {
    "run": ("NAME [RESOURCE=COUNT…]", f"admit a pod; without resources it asks for one {GPU}"),
    "end": ("NAME", "a pod ends"),
    "pods": ("", "which pods run or were rejected, and what they hold"),
    "status": ("", "what the node shows"),
    "restart": ("", "restart this kubelet"),
    "help": ("", "this list"),
    "quit": ("", "end this kubelet"),
}


class Said(msgspec.Struct, frozen=True):
    """One thing that happened: an event with its data, and lines for people."""

    event: str
    data: Mapping[str, Any]
    lines: tuple[str, ...]


class Wrong(Exception):
    """What was typed means nothing, and what would."""


class Console:
    """`say` is told everything. `follow` runs beside `obey`, which takes one typed line at a time."""

    def __init__(self, kubelet: Kubelet, say: Callable[[Said], None]) -> None:
        self.kubelet, self.say = kubelet, say
        self._admissions: set[asyncio.Task[None]] = set()

    async def follow(self) -> None:
        """Say what plugins and kubelet do, for ever."""
        seen, before = 0, _Sight()
        while True:
            now = _Sight.of(self.kubelet)
            for call in self.kubelet.trace[seen:]:
                self.say(_called(call))
            for said in now.since(before):
                self.say(said)
            seen, before = len(self.kubelet.trace), now
            await self.kubelet.changes.next()

    async def obey(self, line: str) -> bool:
        """Do what a line says; False where it says to quit."""
        verb, *words = line.split() or [""]
        verbs: Mapping[str, Callable[..., Awaitable[None]]] = {
            "run": self._run, "end": self._end, "pods": self._pods, "status": self._status, "restart": self._restart,
            "help": self._help,
        }  # fmt: skip
        try:
            if verb in verbs:
                await verbs[verb](words)
            elif verb not in ("", "quit"):
                raise Wrong(f'"{verb}" is not known here: {_meant(verb)}type help for what is')
        except (Wrong, OSError) as wrong:
            self.say(Said("error", {"message": str(wrong)}, (f"error: {wrong}",)))
        return verb != "quit"

    async def leave(self) -> None:
        """Wait for no admission any longer."""
        for admission in self._admissions:
            admission.cancel()
        await asyncio.gather(*self._admissions, return_exceptions=True)

    async def _run(self, words: list[str]) -> None:
        pod = asked(words)
        admission = asyncio.create_task(self._admit(pod))
        self._admissions.add(admission)
        admission.add_done_callback(self._admissions.discard)
        if not (await asyncio.wait({admission}, timeout=PATIENCE))[0]:
            why = "its plugin has not answered yet, and kubelet waits for ever"
            self.say(Said("waiting", {"pod": pod.key}, (f"pod {pod.key} waits: {why}",)))

    async def _admit(self, pod: Pod) -> None:
        try:
            self.say(_runs(await self.kubelet.run(pod), self.kubelet))
        except Rejected as rejected:
            self.say(_rejected(pod.key, rejected))
        except ValueError as error:
            self.say(Said("error", {"message": str(error)}, (f"error: {error}",)))

    async def _end(self, words: list[str]) -> None:
        key = _key(_only(words, "end"))
        if key not in self.kubelet.pods:
            raise Wrong(f"no pod {key} runs here: {', '.join(self.kubelet.pods) or 'none does'}")
        await self.kubelet.end(key)
        self.say(Said("ended", {"pod": key}, (f"pod {key} ended",)))

    async def _pods(self, words: list[str]) -> None:
        _none(words, "pods")
        for running in self.kubelet.pods.values():
            self.say(_holds(running, self.kubelet))
        for key, rejected in self.kubelet.failed.items():
            self.say(_rejected(key, rejected))
        if not self.kubelet.pods and not self.kubelet.failed:
            self.say(Said("pods", {}, ("no pods",)))

    async def _status(self, words: list[str]) -> None:
        _none(words, "status")
        for resource, figures in self.kubelet.node().items():
            self.say(_figures(resource, figures, len(self.kubelet.devices.used(resource))))
        if not self.kubelet.node():
            self.say(Said("node", {}, ("no plugin has registered yet",)))

    async def _restart(self, words: list[str]) -> None:
        _none(words, "restart")
        await self.kubelet.restart()
        self.say(Said("restarted", {}, ("kubelet has restarted: plugins have to register again",)))

    async def _help(self, words: list[str]) -> None:
        lines = (f"  {f'{verb} {arguments}':<30} {meaning}" for verb, (arguments, meaning) in WORDS.items())
        self.say(Said("help", {verb: meaning for verb, (_, meaning) in WORDS.items()}, tuple(lines)))


class _Sight(msgspec.Struct, frozen=True):
    """What one look at a kubelet shows."""

    devices: dict[str, dict[str, str]] = {}
    node: dict[str, tuple[int, int]] = {}
    waiting: dict[tuple[str, str], str] = {}

    @classmethod
    def of(cls, kubelet: Kubelet) -> "_Sight":
        waiting = {(key, name): why for key, pod in kubelet.pods.items() for name, why in pod.waiting.items()}
        return cls(kubelet.view(), kubelet.node(), waiting)

    def since(self, before: "_Sight") -> Iterator[Said]:
        """What has changed."""
        for resource in {**before.devices, **self.devices}:
            old, new = before.devices.get(resource, {}), self.devices.get(resource, {})
            if old != new:
                yield _changed(resource, old, new)
        for resource, figures in self.node.items():
            if before.node.get(resource) != figures:
                yield _figures(resource, figures)
        for (pod, container), why in self.waiting.items():
            if before.waiting.get((pod, container)) != why:
                data = {"pod": pod, "container": container, "reason": why}
                yield Said("waiting", data, (f"pod {pod}: {container} waits: {why}",))


# what is typed


def asked(words: list[str]) -> Pod:
    """The pod that `run NAME [RESOURCE=COUNT…]` means. Raises Wrong."""
    if not words:
        raise Wrong("run what? run NAME [RESOURCE=COUNT…]")
    namespace, _, name = _key(words[0]).partition("/")
    requests: dict[str, int] = {}
    for word in words[1:]:
        resource, sign, count = word.partition("=")
        resource = resource if "/" in resource else f"nvidia.com/{resource}"
        if not (sign and count.isascii() and count.isdigit() and int(count)):
            raise Wrong(f'"{word}" is no request: write RESOURCE=COUNT with a count of 1 or more, like {GPU}=2')
        if resource in requests:
            raise Wrong(f"{resource} is asked for twice")
        requests[resource] = int(count)
    return Pod(name, (Container("main", requests or {GPU: 1}),), namespace=namespace)


def _key(word: str) -> str:
    namespace, _, name = word.rpartition("/")
    if not name or "/" in namespace or "=" in word:
        raise Wrong(f'"{word}" is no name of a pod: write NAME, or NAMESPACE/NAME')
    return f"{namespace or 'default'}/{name}"


def _only(words: list[str], verb: str) -> str:
    if len(words) != 1:
        raise Wrong(f"{verb} {WORDS[verb][0]}: write one word after it, not {len(words)}")
    return words[0]


def _none(words: list[str], verb: str) -> None:
    if words:
        raise Wrong(f"{verb} stands alone: leave out {' '.join(words)}")


def _meant(verb: str) -> str:
    close = close_to(verb, WORDS)
    return f"did you mean {close}? Or " if close else ""


# what is said


def _called(call: Call) -> Said:
    data = {"call": call.method, "resource": call.resource, "ids": call.ids, "size": call.size, "error": call.error}
    details = call.error or ", ".join(call.ids)
    if call.method == "GetPreferredAllocation":
        details = f"{call.size} of {len(call.ids)}"
    line = f"{call.method} {call.resource}" + (f": {details}" if details else "")
    return Said("call", {name: value for name, value in data.items() if value}, (line,))


def _changed(resource: str, old: Mapping[str, str], new: Mapping[str, str]) -> Said:
    healthy = sum(health == "Healthy" for health in new.values())
    what = [f"{id} is {health.lower()}" for id, health in sorted(new.items()) if id in old and old[id] != health]
    what += [f"{id} is new" for id in sorted(new.keys() - old.keys()) if old]
    what += [f"{id} is gone" for id in sorted(old.keys() - new.keys())]
    named = f" ({', '.join(what)})" if 0 < len(what) <= MANY else ""
    line = f"devices {resource}: {len(new)}, healthy {healthy}{named}"
    return Said("devices", {"resource": resource, "devices": dict(sorted(new.items()))}, (line,))


def _figures(resource: str, figures: tuple[int, int], held: int | None = None) -> Said:
    data: dict[str, Any] = {"resource": resource, "capacity": figures[0], "allocatable": figures[1]}
    line = f"node {resource}: capacity {figures[0]}, allocatable {figures[1]}"
    if held is None:
        return Said("node", data, (line,))
    return Said("node", {**data, "held": held}, (f"{line}, held {held}",))


def _runs(running: Running, kubelet: Kubelet) -> Said:
    """An admitted pod, and what its container gets."""
    held, got = kubelet.devices.held(running.pod.uid, "main"), running.got()
    lines = [f"{resource}: {', '.join(sorted(ids))}" for resource, ids in held.items()]
    lines += [f"gets {each}" for each in _gets(got)]
    data = {"pod": running.pod.key, "devices": {name: sorted(ids) for name, ids in held.items()}, "gets": _plain(got)}
    return Said("running", data, (f"pod {running.pod.key} runs", *(f"  {line}" for line in lines)))


def _gets(got: pb.ContainerAllocateResponse) -> Iterator[str]:
    yield from (f"env {name}={value}" for name, value in sorted(got.envs.items()))
    for mount in got.mounts:
        yield f"mount {mount.host_path} at {mount.container_path}" + (", read-only" if mount.read_only else "")
    yield from (f"device {each.host_path} at {each.container_path}, {each.permissions}" for each in got.devices)
    yield from (f"annotation {name}={value}" for name, value in sorted(got.annotations.items()))
    yield from (f"CDI device {each.name}" for each in got.cdi_devices)


def _plain(got: pb.ContainerAllocateResponse) -> dict[str, Any]:
    return MessageToDict(got, preserving_proto_field_name=True)


def _holds(running: Running, kubelet: Kubelet) -> Said:
    key, health = running.pod.key, kubelet.health(running.pod.key)
    lines = [
        f"  {container} {resource}: {id}" + ("" if state == "Healthy" else f", {state.lower()}")
        for container, resources in health.items()
        for resource, ids in resources.items()
        for id, state in sorted(ids)
    ]
    waiting = [f"  {container} waits: {why}" for container, why in running.waiting.items()]
    data = {"pod": key, "containers": health, "waiting": running.waiting}
    return Said("pod", data, (f"pod {key} {'waits' if waiting else 'runs'}", *lines, *waiting))


def _rejected(key: str, rejected: Rejected) -> Said:
    data = {"pod": key, "reason": rejected.reason, "message": rejected.message}
    return Said("rejected", data, (f"pod {key} failed, {rejected.reason}: {rejected.message}",))
