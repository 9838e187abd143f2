"""The containers of one pod: what starts in them, how they end, and whether they start again.

Sources: pkg/kubelet/kuberuntime/kuberuntime_manager.go (when a container is started again, doBackOff),
pkg/kubelet/events/event.go, kubernetes 1.36.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpuplane.base.pauses import Backoff
from gpuplane.node.model.cdi import ContainerEdits
from gpuplane.sandbox.kubelet.devices import KubeletError
from gpuplane.sandbox.kubelet.pods import Event, RunningPod, WaitingReason
from gpuplane.sandbox.node.environment import Variable
from gpuplane.sandbox.node.events import EventBook
from gpuplane.sandbox.node.objects import Json, PodObject, is_sidecar
from gpuplane.sandbox.node.podstatus import ContainerRecord, EndedContainer, PodFacts
from gpuplane.sandbox.node.probes import Outcome, Probing
from gpuplane.sandbox.node.programs import Program

DEFAULT_GRACE_SECONDS = 30
SECONDS_BETWEEN_LOOKS = 0.5
PLAYED_EVENT = Event("Played", "No program runs in this pod: the sandbox plays its containers", type="Normal")
CRASH_BACKOFF = (10.0, 300.0)
"""Seconds: the first pause of a container that ends again and again, and the longest."""


class Started(NamedTuple):
    """What was started in a container. `address`: where it listens; "" where no program runs."""

    program: Program
    address: str = ""


StartProgram = Callable[["PodRun", Json, ContainerEdits, Path], Awaitable[Started]]
"""(pod, container, edits, log file) → what was started. Raises KubeletError."""


class PodRun:
    """One pod of a node, from its binding to its end. `events`: what is to be told of it."""

    def __init__(self, facts: PodFacts, log_directory: Path) -> None:
        self.facts, self.log_directory = facts, log_directory
        self.running: RunningPod | None = None
        self.programs: dict[str, Program] = {}
        self.backoffs: dict[str, Backoff] = {}
        self.started_at: dict[str, float] = {}  # container → the loop's time
        self.tended = set[str]()  # containers whose end is waited for
        self.tasks = set[asyncio.Task[None]]()
        self.events: list[Event] = []
        self.book = EventBook()
        self.is_admitted = self.is_played = self.is_ending = self.is_gone = False
        self.ending = asyncio.Event()

    @property
    def pod(self) -> PodObject:
        """As the API server showed it last."""
        return self.facts.pod

    @property
    def policy(self) -> str:
        """When its containers are started again."""
        return str(self.pod.spec.get("restartPolicy") or "Always")

    @property
    def grace_seconds(self) -> float:
        """How long its containers may take to end."""
        asked = self.pod.metadata.deletion_grace_period_seconds
        return float(
            self.pod.spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS) if asked is None else asked
        )

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something meanwhile, until it is done or the pod has ended."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def container(self, name: str) -> Json:
        """One of its containers."""
        return next(each for each in self.pod.containers() if each["name"] == name)

    def is_init(self, name: str) -> bool:
        """Whether a container has to end before those after it start."""
        inits = self.pod.spec.get("initContainers") or ()
        return any(each["name"] == name and not is_sidecar(each) for each in inits)

    def record(self, name: str) -> ContainerRecord:
        """How a container stands."""
        return self.facts.containers.setdefault(name, ContainerRecord())

    def log_file(self, name: str, previous: bool = False, next: bool = False) -> Path:
        """Where a container's output is, or that of the run before, or of the next one."""
        return self.log_directory / name / f"{self.record(name).restarts - previous + next}.log"

    def starts_again(self, name: str, status: int) -> bool:
        """Whether a container that has ended is started again."""
        inits = self.pod.spec.get("initContainers") or ()
        policy = "Always" if any(each["name"] == name and is_sidecar(each) for each in inits) else self.policy
        if self.is_init(name):
            return policy != "Never" and status != 0
        return policy == "Always" or (policy == "OnFailure" and status != 0)

    def runs_on(self, name: str) -> bool:
        """Whether a container's program is expected to have no end."""
        return not self.is_init(name) and self.starts_again(name, 0)

    @property
    def has_ended(self) -> bool:
        """Whether no container of it will run again."""
        names = [each["name"] for each in self.pod.spec["containers"]]
        inits = [each["name"] for each in self.pod.spec.get("initContainers") or () if self.is_init(each["name"])]
        failed = [each for each in inits if (ended := self.record(each).ended) and ended.exit_code]
        if failed and self.policy == "Never":
            return True
        return all((ended := self.record(each).ended) and not self.starts_again(each, ended.exit_code)
                   for each in names)  # fmt: skip


class Containers:
    """Starts what runs in the containers of a node's pods, and again after it has ended.

    `start_again`: has kubelet create a container anew. `changed` is told of each change of a pod.
    """

    def __init__(
        self,
        start_program: StartProgram,
        start_again: Callable[[PodRun, str], Awaitable[None]],
        changed: Callable[[PodRun], None],
        now: Callable[[], str],
        crash_backoff: tuple[float, float],
    ) -> None:
        self._start_program, self._start_again, self._changed = start_program, start_again, changed
        self._now, self._crash_backoff = now, crash_backoff

    async def start(self, run: PodRun, name: str, edits: ContainerEdits) -> None:
        """Start a container that was created. Of an init container this waits until it has done its work. Raises
        KubeletError."""
        record = run.record(name)
        if not record.is_running:
            if record.ended is not None and run.is_init(name) and record.ended.exit_code == 0:
                return
            await self._launch(run, name, edits)
        if not run.is_init(name):
            if name not in run.tended:
                run.tended.add(name)
                run.spawn(self._tend(run, name))
            return
        while (status := await self._until_ended(run, name)) != 0 and not run.is_ending:
            if not run.starts_again(name, status):
                await run.ending.wait()
                return
            await self._pause(run, name)
            self.pull(run, name)
            await self._launch(run, name, edits)

    def pull(self, run: PodRun, name: str) -> None:
        """Every image is there."""
        image = run.container(name)["image"]
        pulled = f'Container image "{image}" already present on machine and can be accessed by the pod'
        run.events.append(Event("Pulled", pulled, name, "Normal"))

    async def stop(self, run: PodRun, grace_seconds: float) -> None:
        """End all that runs in a pod."""
        for name in list(run.programs):
            run.events.append(Event("Killing", f"Stopping container {name}", name, "Normal"))
        self._changed(run)
        await asyncio.gather(*(each.stop(grace_seconds) for each in list(run.programs.values())))
        for _ in range(100):  # who waits for a program enters its end
            if not run.programs:
                break
            await asyncio.sleep(0.01)

    async def _launch(self, run: PodRun, name: str, edits: ContainerEdits) -> None:
        record, container = run.record(name), run.container(name)
        log = run.log_file(name, next=bool(record.id))
        log.parent.mkdir(parents=True, exist_ok=True)
        program, address = await self._start_program(run, container, edits, log)
        if run.is_ending:  # it was asked to end meanwhile, and what has ended has no process
            await program.stop(0.0)
            raise KubeletError("the pod is ending")
        run.events.append(Event("Created", "Container created", name, "Normal"))
        run.events.append(Event("Started", "Container started", name, "Normal"))
        if not address and not run.is_played:
            run.is_played = True
            run.events.append(PLAYED_EVENT)
        run.programs[name], run.started_at[name] = program, asyncio.get_running_loop().time()
        if record.id:  # it has run before
            record.restarts, record.last = record.restarts + 1, record.ended or record.last
        record.id, record.started_at, record.ended, record.waits = secrets.token_hex(32), self._now(), None, None
        record.is_ready = not address or "readinessProbe" not in container
        if address:
            run.spawn(self._probe(run, name, record.id, address))
        self._changed(run)

    async def _probe(self, run: PodRun, name: str, id: str, address: str) -> None:
        """While this run of a container lasts."""
        record, program = run.record(name), run.programs[name]

        def found(outcome: Outcome) -> None:
            if outcome.problem:
                told = f"{outcome.kind.capitalize()} probe failed: {outcome.problem}"
                run.events.append(Event("Unhealthy", told, name))
            if outcome.kind == "readiness":
                record.is_ready = not outcome.problem
            elif outcome.problem:
                told = f"Container {name} failed {outcome.kind} probe, will be restarted"
                run.events.append(Event("Killing", told, name, "Normal"))
                run.spawn(program.stop(run.grace_seconds))
            self._changed(run)

        probing = asyncio.create_task(Probing(run.container(name), address, found).run())
        try:
            while record.id == id and record.is_running and not probing.done():
                await asyncio.wait([probing], timeout=SECONDS_BETWEEN_LOOKS)
        finally:
            probing.cancel()

    async def _tend(self, run: PodRun, name: str) -> None:
        """Until a container ends; and have it created anew where it is to start again."""
        status = await self._until_ended(run, name)
        if run.is_ending or not run.starts_again(name, status):
            return
        await self._pause(run, name)
        if not run.is_ending:
            run.tended.discard(name)
            await self._start_again(run, name)

    async def _until_ended(self, run: PodRun, name: str) -> int:
        status, record = await run.programs[name].wait(), run.record(name)
        run.programs.pop(name, None)
        record.ended = EndedContainer(status, record.started_at, self._now(), record.id)
        record.is_ready = False
        self._changed(run)
        return status

    async def _pause(self, run: PodRun, name: str) -> None:
        """None after the first end; then they double, until it has run for twice the longest (client-go, Backoff)."""
        backoff, steady = run.backoffs.get(name), 2 * self._crash_backoff[1]
        if backoff is None or asyncio.get_running_loop().time() - run.started_at[name] > steady:
            run.backoffs[name] = Backoff(*self._crash_backoff)
            return
        record, seconds = run.record(name), backoff.seconds
        pod = f"{run.pod.metadata.name}_{run.pod.metadata.namespace}({run.pod.metadata.uid})"
        message = f"back-off {format_duration(seconds)} restarting failed container={name} pod={pod}"
        record.last, record.ended, record.started_at = record.ended, None, ""
        record.waits = WaitingReason("CrashLoopBackOff", message)
        told = f"Back-off restarting failed container {name} in pod {pod}"
        run.events.append(Event("BackOff", told, name))
        self._changed(run)
        try:
            async with asyncio.timeout(seconds):
                await run.ending.wait()
        except TimeoutError:
            backoff.after(well=False)


def format_duration(seconds: float) -> str:
    """As Go prints it: "10s", "2m40s"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def describe_container(
    run: PodRun, name: str, environment: Mapping[str, Variable], edits: ContainerEdits
) -> list[str]:  # fmt: skip
    """What a played container got, as lines of its log. What comes from a Secret is not shown."""
    container = run.container(name)
    shown = {key: "(from a Secret)" if each.is_secret else each.value for key, each in environment.items()}
    given = dict(each.partition("=")[::2] for each in edits.env)
    lines = ["played: no program runs in this container; it got"]
    lines += [f"env {key}={value}" for key, value in sorted({**shown, **given}.items())]
    lines += [f"device {each.path}" for each in edits.device_nodes]
    lines += [f"mount {each['name']} at {each['mountPath']}" for each in container.get("volumeMounts") or ()]
    lines += [f"mount {each.host_path} at {each.container_path}" for each in edits.mounts]
    return [*lines, *(f"hook {each.hook_name} {each.path}" for each in edits.hooks)]
