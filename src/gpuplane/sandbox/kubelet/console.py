"""A person at the embedded kubelet: words in, and out what happens, as it happens.

What is said (`said`) comes from looking at the kubelet after each change, not from calls inside it.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping

import msgspec

from gpuplane.core.strict import closest_match
from gpuplane.core.text import clip
from gpuplane.model.cdi import ContainerEdits
from gpuplane.sandbox.kubelet import said
from gpuplane.sandbox.kubelet.pods import Container, Pod, Rejected
from gpuplane.sandbox.kubelet.said import Said
from gpuplane.sandbox.kubelet.server import Kubelet

PATIENCE = 5.0
"""Seconds that `run` waits for a plugin's answers; then the next words are read, and the outcome is said later."""

GPU = "nvidia.com/gpu"
COUNT = re.compile("0*[1-9][0-9]{0,8}")
"""How many devices a pod may ask for: far more than there are, and a number still."""

WORDS = {
    "run": ("NAME [RESOURCE=COUNT…]", f"admit a pod; without resources it asks for one {GPU}"),
    "crash": ("NAME", "a pod's containers end, and are created anew"),
    "end": ("NAME", "a pod ends"),
    "show": ("NAME", "all that a pod's containers are made with"),
    "pods": ("", "which pods run or were rejected, and what they hold"),
    "status": ("", "what the node shows"),
    "restart": ("", "restart this kubelet"),
    "help": ("", "this list"),
    "quit": ("", "end this kubelet"),
}


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
                self.say(said.called(call))
            for news in now.since(before):
                self.say(news)
            seen, before = len(self.kubelet.trace), now
            await self.kubelet.changes.next()

    async def obey(self, line: str) -> bool:
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
            self.say(said.runs(await self.kubelet.run(pod), self.kubelet))
        except Rejected as rejected:
            self.say(said.rejected(pod.key, rejected))
        except ValueError as error:
            self.say(Said("error", {"message": str(error)}, (f"error: {error}",)))

    async def _crash(self, words: list[str]) -> None:
        key = self._running(words, "crash")
        for container in self.kubelet.pods[key].pod.containers:
            self.kubelet.crash(key, container.name)
        self.say(Said("crashed", {"pod": key}, (f"pod {key} crashed: its containers are created anew",)))

    def _running(self, words: list[str], verb: str) -> str:
        """The pod that one word names. Raises Wrong."""
        key = _key(_only(words, verb))
        if key not in self.kubelet.pods:
            raise Wrong(f"no pod {key} runs here: {', '.join(self.kubelet.pods) or 'none does'}")
        return key

    async def _end(self, words: list[str]) -> None:
        key = self._running(words, "end")
        await self.kubelet.end(key)
        self.say(Said("ended", {"pod": key}, (f"pod {key} ended",)))

    async def _show(self, words: list[str]) -> None:
        self.say(said.shown(self.kubelet.pods[self._running(words, "show")]))

    async def _pods(self, words: list[str]) -> None:
        _none(words, "pods")
        for running in self.kubelet.pods.values():
            self.say(said.holds(running, self.kubelet))
        for key, rejected in self.kubelet.failed.items():
            self.say(said.rejected(key, rejected))
        if not self.kubelet.pods and not self.kubelet.failed:
            self.say(Said("pods", {}, ("no pods",)))

    async def _status(self, words: list[str]) -> None:
        _none(words, "status")
        for resource, figures in self.kubelet.node().items():
            self.say(said.figures(resource, figures, len(self.kubelet.devices.used(resource))))
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
    made: dict[tuple[str, str], ContainerEdits] = {}  # where CDI devices are resolved

    @classmethod
    def of(cls, kubelet: Kubelet) -> "_Sight":
        waiting = {(key, name): why for key, pod in kubelet.pods.items() for name, why in pod.waiting.items()}
        made = {(key, name): edits for key, pod in kubelet.pods.items() for name, edits in pod.made.items()}
        return cls(kubelet.view(), kubelet.node(), waiting, made if kubelet.workers.cdi is not None else {})

    def since(self, before: "_Sight") -> Iterator[Said]:
        """What has changed."""
        for resource in {**before.devices, **self.devices}:
            old, new = before.devices.get(resource, {}), self.devices.get(resource, {})
            if old != new:
                yield said.changed(resource, old, new)
        for resource, figures in self.node.items():
            if before.node.get(resource) != figures:
                yield said.figures(resource, figures)
        for (pod, container), why in self.waiting.items():
            if before.waiting.get((pod, container)) != why:
                data = {"pod": pod, "container": container, "reason": why}
                yield Said("waiting", data, (f"pod {pod}: {container} waits: {why}",))
        for (pod, container), edits in self.made.items():
            if before.made.get((pod, container)) is not edits:
                yield said.created(pod, container, edits)


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
        if not (sign and COUNT.fullmatch(count)):
            raise Wrong(f'"{clip(word)}" is no request: write RESOURCE=COUNT with a count of 1 or more, like {GPU}=2')
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
    close = closest_match(verb, WORDS)
    return f"did you mean {close}? Or " if close else ""
