"""A person at the embedded kubelet: words in, and out what happens, as it happens.

What is said (`messages`) comes from looking at the kubelet after each change, not from calls inside it.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping

import msgspec

from gpuplane.base.strict import closest_match
from gpuplane.base.text import clip
from gpuplane.node.model.cdi import ContainerEdits
from gpuplane.sandbox.kubelet import messages
from gpuplane.sandbox.kubelet.messages import Message
from gpuplane.sandbox.kubelet.pods import Container, Pod, PodRejected, WaitingReason
from gpuplane.sandbox.kubelet.server import Kubelet

RUN_TIMEOUT = 5.0
"""Seconds that `run` waits for a plugin's answers; then the next words are read, and the outcome is said later."""

GPU_RESOURCE = "nvidia.com/gpu"
DEVICE_COUNT = re.compile("0*[1-9][0-9]{0,8}")
"""How many devices a pod may ask for: far more than there are, and a number still."""

COMMANDS = {
    "run": ("NAME [RESOURCE=COUNT…]", f"admit a pod; without resources it asks for one {GPU_RESOURCE}"),
    "crash": ("NAME", "end a pod's containers and create them again"),
    "end": ("NAME", "end a pod"),
    "show": ("NAME", "show everything that a pod's containers get"),
    "pods": ("", "show which pods run or were rejected, and which devices they hold"),
    "status": ("", "show the node's capacity and allocatable devices"),
    "restart": ("", "restart this kubelet"),
    "help": ("", "show this list"),
    "quit": ("", "end this kubelet"),
}


class CommandError(Exception):
    """What was typed means nothing, and what would."""


class Console:
    """`emit` is told everything. `follow` runs beside `execute`, which takes one typed line at a time."""

    def __init__(self, kubelet: Kubelet, emit: Callable[[Message], None]) -> None:
        self.kubelet, self.emit = kubelet, emit
        self._admissions: set[asyncio.Task[None]] = set()

    async def follow(self) -> None:
        """Say what plugins and kubelet do, for ever."""
        seen, before = 0, _KubeletView()
        while True:
            now = _KubeletView.observe(self.kubelet)
            for call in self.kubelet.trace[seen:]:
                self.emit(messages.call_message(call))
            for news in now.changes_since(before):
                self.emit(news)
            seen, before = len(self.kubelet.trace), now
            await self.kubelet.changes.next_change()

    async def execute(self, line: str) -> bool:
        """Do what a line says; False where it says to quit."""
        verb, *words = line.split() or [""]
        verbs: Mapping[str, Callable[..., Awaitable[None]]] = {
            "run": self._run, "crash": self._crash, "end": self._end, "show": self._show, "pods": self._pods,
            "status": self._status, "restart": self._restart, "help": self._help,
        }  # fmt: skip
        try:
            if verb in verbs:
                await verbs[verb](words)
            elif verb not in ("", "quit"):
                raise CommandError(f'unknown command "{verb}": {_suggestion(verb)}type help for a list of commands')
        except (CommandError, OSError) as wrong:
            self.emit(Message("error", {"message": str(wrong)}, (f"error: {wrong}",)))
        return verb != "quit"

    async def cancel_admissions(self) -> None:
        """Wait for no admission any longer."""
        for admission in self._admissions:
            admission.cancel()
        await asyncio.gather(*self._admissions, return_exceptions=True)

    async def _run(self, words: list[str]) -> None:
        pod = parse_pod(words)
        admission = asyncio.create_task(self._admit(pod))
        self._admissions.add(admission)
        admission.add_done_callback(self._admissions.discard)
        if not (await asyncio.wait({admission}, timeout=RUN_TIMEOUT))[0]:
            why = "the plugin has not answered yet; kubelet waits without a time limit"
            self.emit(Message("waiting", {"pod": pod.key}, (f"pod {pod.key} waits: {why}",)))

    async def _admit(self, pod: Pod) -> None:
        try:
            self.emit(messages.running_message(await self.kubelet.run(pod), self.kubelet))
        except PodRejected as rejected:
            self.emit(messages.rejected_message(pod.key, rejected))
        except ValueError as error:
            self.emit(Message("error", {"message": str(error)}, (f"error: {error}",)))

    async def _crash(self, words: list[str]) -> None:
        key = self._running_pod_key(words, "crash")
        for container in self.kubelet.pods[key].pod.containers:
            self.kubelet.crash(key, container.name)
        self.emit(Message("crashed", {"pod": key}, (f"pod {key} crashed: its containers are created again",)))

    def _running_pod_key(self, words: list[str], verb: str) -> str:
        """The pod that one word names. Raises CommandError."""
        key = _parse_key(_only_argument(words, verb))
        if key not in self.kubelet.pods:
            raise CommandError(f"pod {key} does not run here; pods that run: {', '.join(self.kubelet.pods) or 'none'}")
        return key

    async def _end(self, words: list[str]) -> None:
        key = self._running_pod_key(words, "end")
        await self.kubelet.end(key)
        self.emit(Message("ended", {"pod": key}, (f"pod {key} ended",)))

    async def _show(self, words: list[str]) -> None:
        self.emit(messages.shown_message(self.kubelet.pods[self._running_pod_key(words, "show")]))

    async def _pods(self, words: list[str]) -> None:
        _no_arguments(words, "pods")
        for running in self.kubelet.pods.values():
            self.emit(messages.pod_message(running, self.kubelet))
        for key, rejected in self.kubelet.rejected_pods.items():
            self.emit(messages.rejected_message(key, rejected))
        if not self.kubelet.pods and not self.kubelet.rejected_pods:
            self.emit(Message("pods", {}, ("no pods",)))

    async def _status(self, words: list[str]) -> None:
        _no_arguments(words, "status")
        for resource, figures in self.kubelet.node_capacities().items():
            self.emit(messages.node_message(resource, figures, len(self.kubelet.devices.held_ids(resource))))
        if not self.kubelet.node_capacities():
            self.emit(Message("node", {}, ("no plugin has registered yet",)))

    async def _restart(self, words: list[str]) -> None:
        _no_arguments(words, "restart")
        await self.kubelet.restart()
        self.emit(Message("restarted", {}, ("kubelet has restarted: plugins have to register again",)))

    async def _help(self, words: list[str]) -> None:
        lines = (f"  {f'{verb} {arguments}':<30} {meaning}" for verb, (arguments, meaning) in COMMANDS.items())
        self.emit(Message("help", {verb: meaning for verb, (_, meaning) in COMMANDS.items()}, tuple(lines)))


class _KubeletView(msgspec.Struct, frozen=True):
    """What one look at a kubelet shows."""

    devices: dict[str, dict[str, str]] = {}
    node_capacities: dict[str, tuple[int, int]] = {}
    waiting_reasons: dict[tuple[str, str], WaitingReason] = {}
    created: dict[tuple[str, str], ContainerEdits] = {}  # where CDI devices are resolved

    @classmethod
    def observe(cls, kubelet: Kubelet) -> "_KubeletView":
        waiting = {(key, name): why for key, pod in kubelet.pods.items() for name, why in pod.waiting_reasons.items()}
        made = {(key, name): edits for key, pod in kubelet.pods.items() for name, edits in pod.created.items()}
        return cls(
            kubelet.device_health(),
            kubelet.node_capacities(),
            waiting,
            made if kubelet.workers.cdi_dirs is not None else {},
        )

    def changes_since(self, before: "_KubeletView") -> Iterator[Message]:
        """What has changed."""
        for resource in {**before.devices, **self.devices}:
            old, new = before.devices.get(resource, {}), self.devices.get(resource, {})
            if old != new:
                yield messages.devices_message(resource, old, new)
        for resource, figures in self.node_capacities.items():
            if before.node_capacities.get(resource) != figures:
                yield messages.node_message(resource, figures)
        for (pod, container), why in self.waiting_reasons.items():
            if before.waiting_reasons.get((pod, container)) != why:
                data = {"pod": pod, "container": container, "reason": why}
                yield Message("waiting", data, (f"pod {pod}: {container} waits: {why}",))
        for (pod, container), edits in self.created.items():
            if before.created.get((pod, container)) is not edits:
                yield messages.created_message(pod, container, edits)


# what is typed


def parse_pod(words: list[str]) -> Pod:
    """The pod that `run NAME [RESOURCE=COUNT…]` means. Raises CommandError."""
    if not words:
        raise CommandError("run needs a pod name: run NAME [RESOURCE=COUNT…]")
    namespace, _, name = _parse_key(words[0]).partition("/")
    requests: dict[str, int] = {}
    for word in words[1:]:
        resource, sign, count = word.partition("=")
        resource = resource if "/" in resource else f"nvidia.com/{resource}"
        if not (sign and DEVICE_COUNT.fullmatch(count)):
            raise CommandError(
                f'"{clip(word)}" is not a resource request: write RESOURCE=COUNT with a count of 1 or more, '
                f"like {GPU_RESOURCE}=2"
            )
        if resource in requests:
            raise CommandError(f"{resource} is requested twice: request it once")
        requests[resource] = int(count)
    return Pod(name, (Container("main", requests or {GPU_RESOURCE: 1}),), namespace=namespace)


def _parse_key(word: str) -> str:
    namespace, _, name = word.rpartition("/")
    if not name or "/" in namespace or "=" in word:
        raise CommandError(f'"{word}" is not a pod name: write NAME, or NAMESPACE/NAME')
    return f"{namespace or 'default'}/{name}"


def _only_argument(words: list[str], verb: str) -> str:
    if len(words) != 1:
        raise CommandError(f"{verb} {COMMANDS[verb][0]}: write only one word after the command, not {len(words)}")
    return words[0]


def _no_arguments(words: list[str], verb: str) -> None:
    if words:
        raise CommandError(f"{verb} takes no arguments: remove {' '.join(words)}")


def _suggestion(verb: str) -> str:
    close = closest_match(verb, COMMANDS)
    return f"did you mean {close}? Or " if close else ""
