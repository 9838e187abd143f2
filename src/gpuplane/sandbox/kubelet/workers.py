"""What becomes of pods: admission, the creation of their containers, and their end (pkg/kubelet, pod workers)."""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuplane.base.pauses import Backoff
from gpuplane.node.model.cdi import ContainerEdits
from gpuplane.sandbox.changes import Changes
from gpuplane.sandbox.kubelet.devices import KubeletError
from gpuplane.sandbox.kubelet.dra.manager import DraManager
from gpuplane.sandbox.kubelet.dra.podclaims import PodClaims
from gpuplane.sandbox.kubelet.manager import DeviceManager
from gpuplane.sandbox.kubelet.pods import (
    Container,
    Event,
    Pod,
    PodRejected,
    RunningPod,
    WaitingReason,
    requested_resources,
)
from gpuplane.sandbox.kubelet.runtime import CreateContainerFailed, create_container

FIRST_MOUNT_PAUSE, LONGEST_MOUNT_PAUSE = 0.5, 122.0
"""Seconds between two tries to set up volumes: they double (util/goroutinemap/exponentialbackoff)."""


class Runtime:
    """What is done for a pod beside devices and claims. Here: nothing."""

    async def set_up_volumes(self, running: RunningPod) -> None:
        """Make the volumes of a pod. Raises KubeletError."""

    def pull_image(self, running: RunningPod, container: Container) -> None:
        """Have a container's image, before it is created."""

    async def start_container(self, running: RunningPod, container: Container, edits: ContainerEdits) -> None:
        """Start what runs in a container that was created. Of an init container this waits for the end: the next one
        comes then. Raises KubeletError and CreateContainerFailed."""


class PodWorkers:
    """`pods` are those that run, by "namespace/name"; `rejected_pods` those that were rejected, which stay so for ever.

    `use_managers` has to be called before the first pod. `runtime`: what runs pods. `retry_interval`: seconds between
    two tries to create a container. `cdi_dirs`: the directories in which the container runtime looks for CDI's
    specifications, if it does.
    """

    def __init__(self, changes: Changes, retry_interval: float, cdi_dirs: Sequence[Path] | None = None) -> None:
        self.pods, self.rejected_pods = dict[str, RunningPod](), dict[str, PodRejected]()
        self.changes, self.retry_interval, self.cdi_dirs = changes, retry_interval, cdi_dirs
        self._admitting, self._pending = asyncio.Lock(), list[Pod]()
        self._tasks: set[asyncio.Task[None]] = set()
        self._starts: dict[str, asyncio.Task[None]] = {}  # UID of a pod that is not there yet → what makes it
        self.runtime = Runtime()

    def use_managers(self, manager: DeviceManager, dra: DraManager) -> None:
        """Give out devices by this device manager, and claims by this DRA manager."""
        self.manager, self.dra, self.claims = manager, dra, PodClaims(dra, self.pods.values)

    def active_pods(self) -> list[Pod]:
        """The pods that may hold devices: those that run, and the one that is being admitted."""
        return [*(running.pod for running in self.pods.values()), *self._pending]

    async def run(self, pod: Pod) -> RunningPod:
        """Admit a pod and start its containers. Raises PodRejected, as kubelet would say it, and ValueError for a pod
        that is there."""
        async with self._admitting:
            if pod.key in self.pods:
                raise ValueError(f"pod {pod.key} already exists: end it first, or use another name")
            self._pending = [pod]
            try:
                running = await self._admit(pod)
            except PodRejected as rejected:
                self.rejected_pods[pod.key] = rejected
                raise
            finally:
                self._pending = []
                self.changes.notify()
            self.rejected_pods.pop(pod.key, None)
            self.pods[pod.key] = running
        self._start_pod(running)
        await asyncio.sleep(0)  # what needs nobody's answer is created now
        return running

    async def _admit(self, pod: Pod) -> RunningPod:
        """Devices for each container in turn, then a look whether the rest is there (lifecycle/predicate.go)."""
        running, reusable = RunningPod(pod), dict[str, set[str]]()
        try:
            for container in pod.all_containers():
                running.responses[container.name] = await self.manager.allocate(pod.uid, container, reusable)
                for resource, ids in self.manager.devices.held_by(pod.uid, container.name).items():
                    left = reusable.setdefault(resource, set())
                    left.update(ids) if container in pod.short_lived_containers() else left.difference_update(ids)
        except KubeletError as refusal:
            raise _unexpected_admission_error(str(refusal)) from None
        for resource, count in requested_resources(pod).items():
            if not self.manager.devices.is_plugin_resource(resource):
                numbers = f"requested: {count}, used: 0, capacity: 0"
                message = f"Pod was rejected: Node didn't have enough resource: {resource}, {numbers}"
                raise PodRejected(f"OutOf{resource}", message)
        return running

    async def end(self, key: str, force: bool = False) -> None:
        """A pod ends: at once, or once its claims are unprepared; this waits for the first try of that. What it holds
        of device plugins stays in the books until the next allocation needs it. `force`: the API server forgets it now.
        """
        running = self.pods[key]
        has_claims = self.dra.has_claims(running.pod)
        if force or not has_claims:
            del self.pods[key]
        self.changes.notify()
        if not has_claims or running.is_terminating:
            return
        running.is_terminating = True
        if start := self._starts.pop(running.pod.uid, None):
            start.cancel()
        ended = self._spawn(self._terminate(running))
        with suppress(TimeoutError):
            await self.changes.until(lambda: ended.done() or running.unprepare_error)

    async def _terminate(self, running: RunningPod, pause: float = 0.0) -> None:
        await asyncio.sleep(pause)
        await self.claims.end(running)
        if self.pods.get(running.pod.key) is running:
            del self.pods[running.pod.key]
        self.changes.notify()

    def crash(self, key: str, container: str) -> None:
        """A container ends and is created anew, with the devices that it has."""
        running = self.pods[key]
        (found,) = (each for each in running.pod.all_containers() if each.name == container)
        if not running.has_sandbox:
            return  # there is none yet
        running.started.discard(container)
        running.created.pop(container, None)
        self._spawn(self._create_until_started(running, found))

    # kubelet ends, and starts

    async def cancel_tasks(self) -> None:
        """Kubelet ends; the pods run on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._starts.clear()

    def readmit_all(self) -> None:
        """Kubelet has started and admits every pod again. A container that runs passes; one that is still to be created
        does not, since no device is healthy before its plugin registers (manager.go, devicesToAllocate)."""
        for key, rejected in self.rejected_pods.items():
            self.rejected_pods[key] = PodRejected("ContainerStatusUnknown", rejected.message)
        first_sync = self.dra.options.times.first_sync
        for running in self.claims.ending.values():
            self._spawn(self._terminate(running, first_sync))
        for key, running in list(self.pods.items()):
            if running.is_terminating:
                continue
            if resource := next(self._pending_resources(running), None):
                del self.pods[key]
                problem = f"no healthy devices present; cannot allocate unhealthy devices {resource}"
                self.rejected_pods[key] = _unexpected_admission_error(problem)
            else:
                self._start_pod(running, 0.0 if running.has_sandbox else first_sync)
        self._spawn(self.claims.sync_forever())

    def _pending_resources(self, running: RunningPod) -> Iterator[str]:
        for container in running.pod.all_containers():
            if container.name not in running.started:
                yield from (
                    name
                    for name, count in container.requests.items()
                    if count and self.manager.devices.is_plugin_resource(name)
                )

    # containers

    def _start_pod(self, running: RunningPod, pause: float = 0.0) -> None:
        self._starts[running.pod.uid] = task = self._spawn(self._create_containers(running, pause))
        task.add_done_callback(lambda _: self._starts.pop(running.pod.uid, None))

    async def _create_containers(self, running: RunningPod, pause: float) -> None:
        if pause:
            await asyncio.sleep(pause)
        if not running.has_sandbox:
            self.claims.sync_status(running)
            await self._set_up_volumes(running)
        await self.claims.prepare(running)
        for container in running.pod.all_containers():
            await self._create_until_started(running, container)

    async def _set_up_volumes(self, running: RunningPod) -> None:
        """Again and again until that works (pkg/kubelet/volumemanager)."""
        backoff = Backoff(FIRST_MOUNT_PAUSE, LONGEST_MOUNT_PAUSE)
        while True:
            try:
                await self.runtime.set_up_volumes(running)
            except KubeletError as error:
                running.tell(Event("FailedMount", str(error)))
                self.changes.notify()
                await asyncio.sleep(backoff.seconds)
                backoff.after(well=False)
            else:
                return

    async def _create_until_started(self, running: RunningPod, container: Container) -> None:
        """Create a container. One that cannot be waits; it is tried again at once, and then with pauses."""
        pause = 0.0
        while self._is_running(running) and container.name not in running.started:
            self.runtime.pull_image(running, container)
            try:
                edits = running.created[container.name] = await self._create_container(running.pod, container)
                await self.runtime.start_container(running, container, edits)
            except (KubeletError, CreateContainerFailed) as error:
                reason = "CreateContainerConfigError" if isinstance(error, KubeletError) else "CreateContainerError"
                running.tell(Event("Failed", f"Error: {error}", container.name))
                running.waiting_reasons[container.name] = WaitingReason(reason, str(error))
                self.claims.sync_status(running)
                self.changes.notify()
                await asyncio.sleep(pause)
                pause = self.retry_interval
            else:
                running.waiting_reasons.pop(container.name, None)
                running.started.add(container.name)
                self.claims.sync_status(running)
                self.changes.notify()

    def _is_running(self, running: RunningPod) -> bool:
        return self.pods.get(running.pod.key) is running and not running.is_terminating

    async def _create_container(self, pod: Pod, container: Container) -> ContainerEdits:
        """What a container is made with now, by what the books have for it. Raises KubeletError and
        CreateContainerFailed."""
        claimed = self.dra.books.cdi_ids(pod, container)
        await self.manager.pre_start(pod.uid, container)
        return create_container(self.manager.response_for(pod.uid, container.name), self.cdi_dirs, claimed)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _unexpected_admission_error(problem: str) -> PodRejected:
    message = f"Pod was rejected: Allocate failed due to {problem}, which is unexpected"
    return PodRejected("UnexpectedAdmissionError", message)
