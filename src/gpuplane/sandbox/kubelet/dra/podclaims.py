"""Claims in the life of a pod (pkg/kubelet, pod workers and status manager).

Claims are prepared before a pod's sandbox is made, and never again for that pod: not for containers that are created
anew, and not after kubelet's restart. A pod whose claims are not prepared waits, and is tried again when kubelet syncs
it: after a minute or more, or when the health of one of its devices changes. A pod that ends stays until its claims are
unprepared. What its status shows is as old as its last sync.
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress

from gpuplane.sandbox.kubelet.devices import KubeletError
from gpuplane.sandbox.kubelet.dra.manager import DraManager
from gpuplane.sandbox.kubelet.pods import Container, Event, Pod, ResourceHealth, RunningPod, WaitingReason


class PodClaims:
    """`ending`: the pods that end, by UID; the API server may have forgotten them. `pods` tells those that run."""

    def __init__(self, manager: DraManager, pods: Callable[[], Collection[RunningPod]]) -> None:
        self.manager, self.times, self.changes, self._pods = manager, manager.options.times, manager.changes, pods
        self.ending: dict[str, RunningPod] = {}
        self._syncs: dict[str, asyncio.Event] = {}  # UID → set when kubelet is to sync the pod before its time
        manager.on_health = self._health_changed

    async def prepare(self, running: RunningPod) -> None:
        """Prepare a pod's claims, again and again until that works; then it has its sandbox."""
        while not running.has_sandbox:
            self.sync_status(running)
            try:
                if running.pod.claims:
                    await self.manager.prepare(running.pod)
            except KubeletError as error:
                event = Event("FailedPrepareDynamicResources", f"Failed to prepare dynamic resources: {error}")
                running.tell(event)
                for container in running.pod.all_containers():
                    running.waiting_reasons[container.name] = WaitingReason("ContainerCreating", event.message)
                self.changes.notify()
                await self._until_sync(running, self.times.pod_sync)
            else:
                running.has_sandbox = True
                running.waiting_reasons.clear()

    async def end(self, running: RunningPod) -> None:
        """The containers of a pod end, then Unprepare until it works."""
        self.ending[running.pod.uid] = running
        self.sync_status(running)
        await asyncio.sleep(self.times.stop_containers)
        running.started.clear()
        running.waiting_reasons.clear()
        while running.pod.uid in self.ending:
            try:
                await self.manager.unprepare(running.pod)
            except KubeletError as error:
                running.unprepare_error = str(error)
                self.sync_status(running)
                await self._until_sync(running, self.times.end_retry)
            else:
                running.unprepare_error = ""
                del self.ending[running.pod.uid]
                self.sync_status(running)

    async def sync_forever(self) -> None:
        """Sync every pod's status from time to time."""
        while True:
            for running in self._pods():
                self.sync_status(running)
            await asyncio.sleep(self.times.pod_sync)

    def sync_status(self, running: RunningPod) -> None:
        """The pod's status at the API server is what it is now. Init containers have no health."""
        if running.pod.claims:
            running.claim_health = {each.name: self._health(running.pod, each) for each in running.pod.containers}
            self.changes.notify()

    def _health(self, pod: Pod, container: Container) -> dict[str, tuple[ResourceHealth, ...]]:
        """allocatedResourcesStatus of a container: "claim:NAME" or "claim:NAME/REQUEST" → its devices' health."""
        by_name, now = {each.name: each.claim for each in pod.claims}, self.manager.options.now()
        status: dict[str, tuple[ResourceHealth, ...]] = {}
        for wanted in container.claims:
            claim = self.manager.books.claims.get((pod.namespace, by_name[wanted.name]))
            found: dict[str, ResourceHealth] = {}
            for driver, device in claim.devices(wanted.request.partition("/")[0]) if claim else ():
                said = self.manager.health.find(driver, device.pool, device.device, now)
                id = device.cdi_ids[0] if device.cdi_ids else f"{driver}/{device.pool}/{device.device}"
                found.setdefault(id, ResourceHealth(id, said.state, said.message))
            if found:
                status[f"claim:{wanted.name}" + (f"/{wanted.request}" if wanted.request else "")] = tuple(
                    found.values()
                )
        return status

    def _health_changed(self, uids: Collection[str]) -> None:
        """The health of what these pods hold has changed: kubelet syncs them."""
        for running in [*self._pods(), *self.ending.values()]:
            if running.pod.uid in uids:
                self.sync_status(running)
                if running.pod.uid in self._syncs:
                    self._syncs[running.pod.uid].set()

    async def _until_sync(self, running: RunningPod, seconds: float) -> None:
        waiting = self._syncs[running.pod.uid] = asyncio.Event()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await waiting.wait()
        finally:
            self._syncs.pop(running.pod.uid, None)
