"""The pods that are bound to a node: admitted, run, told of, and ended, as kubelet does it (pkg/kubelet, pod workers).

One task for each pod, from its binding to its end. What becomes of a pod is entered in its facts; its status at the API
server is a function of these (`podstatus.py`), and whoever writes it looks at all facts again after each change.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuplane.base.text import clip
from gpuplane.kubernetes.client.api import ApiClient
from gpuplane.kubernetes.client.api import Event as ApiEvent
from gpuplane.kubernetes.client.errors import ApiServerError
from gpuplane.kubernetes.client.retry import RequestPauses
from gpuplane.node.model.cdi import ContainerEdits
from gpuplane.sandbox.controlplane.network import Network
from gpuplane.sandbox.kubelet.pods import Container, Event, PodRejected, RunningPod
from gpuplane.sandbox.kubelet.server import Kubelet
from gpuplane.sandbox.kubelet.workers import Runtime
from gpuplane.sandbox.node.api import NodeApi
from gpuplane.sandbox.node.containers import CRASH_BACKOFF, Containers, PodRun, StartProgram
from gpuplane.sandbox.node.events import EventBook
from gpuplane.sandbox.node.objects import Json, PodObject
from gpuplane.sandbox.node.podstatus import UNKNOWN_EXIT_CODE, ContainerRecord, EndedContainer, PodFacts, pod_status

SECONDS_BETWEEN_WRITES = 0.05
"""What changes within this time is written at once."""
REFUSED_CODES = (400, 403, 422)
log = logging.getLogger("gpuplane")

SetUpVolumes = Callable[[PodRun], Coroutine[Any, Any, None]]
"""Makes the volumes of a pod. Raises KubeletError."""
Admit = Callable[[PodObject, list[PodObject]], PodRejected | None]
"""(pod, the others of the node) → why it is rejected; None where it is not."""


class Pods(Runtime):
    """A `Follower` of the pods of one node. `runs`: by UID."""

    def __init__(
        self, name: str, address: str, kubelet: Kubelet, api: NodeApi, network: Network, log_root: Path,
        start_program: StartProgram, set_up_volumes: SetUpVolumes, forget: Callable[[PodRun], None], admit: Admit,
        now: Callable[[], str], crash_backoff: tuple[float, float] = CRASH_BACKOFF,
    ) -> None:  # fmt: skip
        self.name, self.address, self.kubelet, self.api, self.network = name, address, kubelet, api, network
        self.log_root, self.now, self._admit = log_root, now, admit
        self._set_up_volumes, self._forget = set_up_volumes, forget
        self.runs: dict[str, PodRun] = {}
        self.serving = asyncio.Event()  # kubelet runs; it can be stopped and started again
        self.serving.set()
        self.containers = Containers(start_program, self._start_again, self._changed, now, crash_backoff)
        self._writing = set[str]()
        self._tasks = set[asyncio.Task[None]]()
        kubelet.workers.runtime = self

    # what the API server tells

    async def on_list(self, client: ApiClient, objects: list[PodObject]) -> None:
        """Pods that are not among these are gone."""
        for uid in self.runs.keys() - {each.metadata.uid for each in objects}:
            self._gone(uid)
        for each in objects:
            self._observe(each)

    def on_watch_started(self, client: ApiClient) -> None:
        """Nothing is to be done."""

    async def on_change(self, client: ApiClient, event: ApiEvent[PodObject]) -> None:
        """A pod was bound, changed, or removed."""
        if event.type == "DELETED":
            self._gone(event.object.metadata.uid)
        else:
            self._observe(event.object)

    def on_failure(self, error: ApiServerError) -> float:
        """Pods run on. Who started the API server says that it has ended."""
        log.debug("node %s: %s", self.name, error)
        return 0.0

    def _observe(self, pod: PodObject) -> None:
        run = self.runs.get(pod.metadata.uid)
        if run is None:
            facts = PodFacts(pod, self.address, before=pod.status, containers=earlier_containers(pod, self.now()))
            run = self.runs[pod.metadata.uid] = PodRun(facts, self._log_directory(pod))
            self._spawn(self._live(run))
        elif int(pod.metadata.resource_version) > int(run.pod.metadata.resource_version):
            run.facts.pod = pod
        if pod.is_deleted:
            self._ask_to_end(run)

    def _gone(self, uid: str) -> None:
        """The API server has forgotten it: kubelet ends it all the same."""
        if run := self.runs.get(uid):
            run.is_gone = True
            self._ask_to_end(run)

    def _ask_to_end(self, run: PodRun) -> None:
        run.ending.set()
        self.kubelet.changes.notify()

    # the life of a pod

    async def _live(self, run: PodRun) -> None:
        try:
            if not run.pod.has_ended:
                await self._run(run)
            await run.ending.wait()
            await self._end(run)
        finally:
            self.runs.pop(run.pod.metadata.uid, None)
            if run.facts.address and not run.pod.spec.get("hostNetwork"):
                self.network.release(run.facts.address)
            self._forget(run)

    async def _run(self, run: PodRun) -> None:
        """Admit a pod, and wait until it has ended or somebody asks for its end."""
        facts, key = run.facts, run.pod.key
        facts.started_at = run.pod.status.get("startTime") or self.now()
        await self.serving.wait()
        await self.kubelet.until(lambda: key not in self.kubelet.pods or run.ending.is_set(), deadline=1e9)
        if run.ending.is_set():
            return
        others = [each.pod for each in self.runs.values() if each.is_admitted and not each.has_ended]
        run.is_admitted = True  # until it is rejected: those that come meanwhile find less room
        facts.address = self.address if run.pod.spec.get("hostNetwork") else self.network.allocate()
        try:
            if refused := self._admit(run.pod, others):
                raise refused
            run.running = await self.kubelet.run(run.pod.as_pod())
        except PodRejected as rejected:
            self._reject(run, rejected)
            return
        await self.kubelet.until(lambda: run.has_ended or run.ending.is_set() or bool(facts.rejected), deadline=1e9)
        if not run.ending.is_set():
            await self.containers.stop(run, run.grace_seconds)  # sidecars
            await self._free(run)

    def _reject(self, run: PodRun, rejected: PodRejected) -> None:
        run.facts.rejected, run.is_admitted = rejected, False
        run.events.append(Event(rejected.reason, rejected.message.removeprefix("Pod was rejected: ")))
        self.kubelet.changes.notify()

    async def _end(self, run: PodRun) -> None:
        """End what runs in a pod, free what it holds, and let the API server forget it."""
        run.is_ending = True
        await self.containers.stop(run, 0 if run.is_gone else run.grace_seconds)
        await self._free(run)
        for task in list(run.tasks):
            task.cancel()
        if not run.is_gone:
            await self._write_until_done(run)
            await self._persistently(lambda: self.api.delete(run.pod))

    async def _free(self, run: PodRun) -> None:
        """Kubelet takes back what a pod holds, and has its claims unprepared."""
        key, uid = run.pod.key, run.pod.metadata.uid

        def holds() -> bool:
            return key in self.kubelet.pods and self.kubelet.pods[key].pod.uid == uid

        while holds():
            await self.serving.wait()
            with suppress(KeyError):
                await self.kubelet.end(key, force=run.is_gone)
            with suppress(TimeoutError):
                await self.kubelet.until(lambda: not holds(), deadline=self.kubelet.dra.options.times.end_retry)

    # containers

    def _changed(self, run: PodRun) -> None:
        """Kubelet syncs a pod whose containers have changed (pkg/kubelet/pleg)."""
        if run.running is not None:
            self.kubelet.workers.claims.sync_status(run.running)
        self.kubelet.changes.notify()

    async def set_up_volumes(self, running: RunningPod) -> None:
        """Called by kubelet before anything else. A pod is shown as being created before anything is. Raises
        KubeletError."""
        run = self.runs[running.pod.uid]
        run.running = running
        await self.kubelet.until(lambda: "containerStatuses" in run.facts.before or run.ending.is_set(), deadline=1e9)
        await self._set_up_volumes(run)

    def pull_image(self, running: RunningPod, container: Container) -> None:
        """Called by kubelet before each try to create a container."""
        self.containers.pull(self.runs[running.pod.uid], container.name)

    async def start_container(self, running: RunningPod, container: Container, edits: ContainerEdits) -> None:
        """Called by kubelet for each container that was created. Raises KubeletError."""
        run = self.runs[running.pod.uid]
        run.running = running
        await self.containers.start(run, container.name, edits)

    async def _start_again(self, run: PodRun, name: str) -> None:
        await self.serving.wait()
        if run.pod.key in self.kubelet.pods:
            self.kubelet.crash(run.pod.key, name)

    # what is written

    async def write(self) -> None:
        """Write the status of each pod, and its Events, whenever they change, for ever."""
        while True:
            for run in list(self.runs.values()):
                if run.pod.metadata.uid not in self._writing and (self._wanted(run) or run.events):
                    self._spawn(self._write_until_done(run))
            await self.kubelet.changes.next_change()
            await asyncio.sleep(SECONDS_BETWEEN_WRITES)

    def _take_over(self, run: PodRun) -> None:
        """What kubelet has to say of a pod."""
        facts, running = run.facts, run.running
        if running is None:
            return
        run.events += running.events
        running.events.clear()
        facts.has_sandbox, facts.waiting = running.has_sandbox, dict(running.waiting_reasons)
        facts.claims = dict(running.claim_health)
        if self.kubelet.pods.get(run.pod.key) is running:
            facts.devices = self.kubelet.pod_health(run.pod.key)
        elif run.is_ending and not run.programs:
            facts.is_over = True

    def _wanted(self, run: PodRun) -> Json | None:
        """The status that the pod should have now, if it has another one."""
        self._take_over(run)
        if run.is_gone or (run.pod.has_ended and run.running is None and run.facts.rejected is None):
            return None
        if not run.facts.started_at:
            return None
        status = pod_status(run.facts, self.now())
        return None if _without_nulls(status) == run.facts.before else status

    async def _write_until_done(self, run: PodRun) -> None:
        uid = run.pod.metadata.uid
        while uid in self._writing:
            await self.kubelet.changes.next_change()
        self._writing.add(uid)
        try:
            await self._persistently(lambda: self._write(run))
        finally:
            self._writing.discard(uid)
            self.kubelet.changes.notify()

    async def _write(self, run: PodRun) -> None:
        """Raises ApiServerError."""
        self._take_over(run)
        while run.events:
            event = run.book.enter(run.pod, run.events.pop(0), self.name, self.now(), time.monotonic())
            if event is not None:
                with suppress(ApiServerError):  # an Event is not worth more than one try
                    await self.api.write_event(event)
        while (status := self._wanted(run)) is not None:
            try:
                written = await self.api.write_status(run.pod, status, run.is_played)
            except ApiServerError as error:
                if error.code in REFUSED_CODES:  # it would be refused again
                    run.facts.before = _without_nulls(status)
                raise
            if written is None:
                self._gone(run.pod.metadata.uid)
                return
            run.facts.before = _without_nulls(status)
            self._observe(written)

    async def _persistently(self, request: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Until it succeeds: the API server may be away. What it refuses for good is said."""
        pauses = RequestPauses()
        while True:
            try:
                await request()
                return
            except ApiServerError as error:
                if error.code in REFUSED_CODES:
                    log.warning("node %s: %s", self.name, clip(str(error)))
                    return
                await asyncio.sleep(pauses.after_failure(error.code))

    def _log_directory(self, pod: PodObject) -> Path:
        metadata = pod.metadata
        return self.log_root / f"{metadata.namespace}_{metadata.name}_{metadata.uid}"

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("node %s: a pod is not served any more", self.name, exc_info=error)

    def kubelet_restarted(self) -> None:
        """Kubelet has admitted every pod again, or rejected it. It counts Events anew."""
        for run in self.runs.values():
            run.book = EventBook()
            rejected = self.kubelet.rejected_pods.get(run.pod.key)
            if run.running is not None and not run.is_ending and rejected and run.pod.key not in self.kubelet.pods:
                self._reject(run, rejected)
        self.serving.set()

    async def close(self) -> None:
        """The node goes down: all that runs ends, and nobody is told."""
        for run in self.runs.values():
            run.is_ending = True
        await asyncio.gather(*(self.containers.stop(each, 5.0) for each in self.runs.values()))
        tasks = [*self._tasks, *(task for run in self.runs.values() for task in run.tasks)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def earlier_containers(pod: PodObject, now: str) -> dict[str, ContainerRecord]:
    """What a pod's status says of containers that ran before this node was started: nobody knows how they ended."""
    found: dict[str, ContainerRecord] = {}
    status = pod.status
    for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        if id := each.get("containerID", "").removeprefix("containerd://"):
            started_at = (each["state"].get("running") or {}).get("startedAt", now)
            ended = EndedContainer(UNKNOWN_EXIT_CODE, started_at, now, id)
            found[each["name"]] = ContainerRecord(last=ended, restarts=each["restartCount"] + 1)
    return found


def _without_nulls(status: Json) -> Json:
    """Nulls remove what is there, and are nothing that stays."""
    conditions = [
        {key: value for key, value in each.items() if value is not None} for each in status.get("conditions") or ()
    ]
    return {**status, "conditions": conditions}
