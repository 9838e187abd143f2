"""The DRA manager: claims, plugins and checkpoint together (pkg/kubelet/cm/dra/manager.go).

Claims are fetched and checked before anything is entered, so a pod that cannot be prepared can still be deleted. From
then on the books have the claim with its pod: whatever becomes of Prepare, Unprepare follows when the pod ends. Between
two calls nothing is locked: the calls for several pods are under way at once.
"""

import asyncio
import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from gpuplane.node.kubelet.protocols import drahealth_pb2 as health_pb
from gpuplane.sandbox.changes import Changes
from gpuplane.sandbox.kubelet.devices import KubeletError, shuffled
from gpuplane.sandbox.kubelet.dra import checkpoint
from gpuplane.sandbox.kubelet.dra.claims import ClaimBooks, ClaimInfo, check_claim
from gpuplane.sandbox.kubelet.dra.health import HealthCache
from gpuplane.sandbox.kubelet.dra.plugin import DraPlugin, PluginEvents
from gpuplane.sandbox.kubelet.dra.plugins import DraPlugins
from gpuplane.sandbox.kubelet.dra.registration import PluginWatcher
from gpuplane.sandbox.kubelet.dra.source import ClaimSource, GivenClaims
from gpuplane.sandbox.kubelet.dra.times import KUBELET_TIMES, DraTimes
from gpuplane.sandbox.kubelet.endpoint import Call
from gpuplane.sandbox.kubelet.pods import Pod

Batch = TypeVar("Batch")


class DraOptions(msgspec.Struct, frozen=True):
    """What of a DRA manager can be set. `seed` decides every order that kubelet leaves open."""

    source: ClaimSource = msgspec.field(default_factory=GivenClaims)
    times: DraTimes = KUBELET_TIMES
    seed: int = 0
    now: Callable[[], float] = time.monotonic


class DraManager:
    """`active` tells the pods that run or end, None while kubelet does not know them. `trace` is told every call,
    `on_health` the UIDs of pods whose devices' health has changed."""

    def __init__(
        self,
        root: Path,
        active: Callable[[], Collection[Pod] | None],
        changes: Changes,
        trace: Callable[[Call], None],
        options: DraOptions,
    ) -> None:
        self.root, self.changes, self.options, self._active = root, changes, options, active
        self.books, self.health = ClaimBooks(), HealthCache(options.times.health_age)
        self.on_health: Callable[[Collection[str]], None] = lambda uids: None
        events = PluginEvents(trace, self._connection_changed, self._health_received, self._health_ended)
        self.plugins = DraPlugins(options.source, options.times, events)
        self._trace, self._random = trace, random.Random(options.seed)  # noqa: S311
        self._tasks: list[asyncio.Task[None]] = []

    # its life

    def load_checkpoint(self) -> None:
        """Read the claims back. Raises OSError for a file with which kubelet does not start."""
        self.books = checkpoint.load(self.root / checkpoint.CHECKPOINT_FILE_NAME)

    def start(self) -> None:
        """Delete the node's slices, look for plugins, and for claims of pods that are gone."""
        registry = self.root / "plugins_registry"
        for directory in (registry, self.root / "plugins"):
            directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        watcher = PluginWatcher(registry, self.plugins, self.options.times, self._trace)
        self.plugins.delete_slices_of_all_drivers()
        self._tasks = [asyncio.create_task(watcher.run()), asyncio.create_task(self._reconcile_forever())]

    async def stop(self) -> None:
        """Kubelet ends; claims stay prepared."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.plugins.stop()

    # pods

    async def prepare(self, pod: Pod) -> None:
        """Prepare what a pod claims and is not prepared yet. Raises KubeletError; what was entered before stays so."""
        try:
            found = [await self._fetch_claim(pod, number) for number in range(len(pod.claims))]
            batches = self._enter_claims(pod, found)
            for plugin, claims in self._in_any_order(batches.values()):
                await self._prepare_batch(plugin, claims)
            for _, claims in batches.values():
                for claim in claims:
                    claim.is_prepared = True
            self._write_checkpoint()
        except KubeletError as error:
            raise KubeletError(f"prepare dynamic resources: {error}") from None

    async def unprepare(self, pod: Pod) -> None:
        """End what a pod claimed, where it was the last that did. Raises KubeletError; then it is to be tried again."""
        names = [claim.name for claim in self.books.of_pod(pod.uid)] or [each.claim for each in pod.claims]
        try:
            await self._unprepare(pod.uid, pod.namespace, names)
        except KubeletError as error:
            raise KubeletError(f"unprepare dynamic resources: {error}") from None

    def has_claims(self, pod: Pod) -> bool:
        """Whether something may have to be unprepared for a pod."""
        return bool(pod.claims or self.books.of_pod(pod.uid))

    async def reconcile(self) -> None:
        """Unprepare the claims of pods that are not active any longer, where nobody else did."""
        active = self._active()
        if active is None:
            return
        uids = {pod.uid for pod in active}
        gone: dict[tuple[str, str], list[str]] = {}
        for claim in self.books.claims.values():
            for uid in claim.pod_uids.keys() - uids:
                gone.setdefault((uid, claim.namespace), []).append(claim.name)
        for (uid, namespace), names in gone.items():
            try:
                await self._unprepare(uid, namespace, names)
            except KubeletError as error:
                self._trace(Call("reconcile failed", namespace, tuple(names), error=str(error)))

    # Prepare

    async def _fetch_claim(self, pod: Pod, number: int) -> tuple[ClaimInfo, dict[str, DraPlugin]]:
        """A claim as the API server has it, and the plugins for it: for a prepared claim, too."""
        wanted = pod.claims[number]
        if not wanted.claim:
            raise KubeletError(f'pod "{pod.key}": ResourceClaim not created yet')
        try:
            found = await self.options.source.get_claim(pod.namespace, wanted.claim)
        except KubeletError as error:
            raise KubeletError(f"fetch ResourceClaim {wanted.claim}: {error}") from None
        claim = check_claim(found, pod, wanted)
        return claim, {driver: self.plugins.get(driver) for driver in claim.drivers}

    def _enter_claims(
        self, pod: Pod, found: Iterable[tuple[ClaimInfo, dict[str, DraPlugin]]]
    ) -> dict[int, tuple[DraPlugin, list[ClaimInfo]]]:
        """Enter a pod's claims, on disk too; those that are not prepared, for each plugin."""
        batches: dict[int, tuple[DraPlugin, list[ClaimInfo]]] = {}
        for claim, plugins in found:
            known = self.books.record_use(claim, pod.uid)
            self._write_checkpoint()
            if not known.is_prepared:
                for driver in known.drivers:
                    plugin = plugins.get(driver) or self.plugins.get(driver)
                    batches.setdefault(id(plugin), (plugin, []))[1].append(known)
        return batches

    async def _prepare_batch(self, plugin: DraPlugin, claims: Sequence[ClaimInfo]) -> None:
        """Ask one plugin for all claims of a pod. What it answered before an error stays in memory."""
        by_uid = {claim.uid: claim for claim in claims}
        answers = {answer.uid: answer for answer in await plugin.prepare(claims)}
        for uid in shuffled(answers, self._random):
            if uid not in by_uid:
                raise KubeletError(f"NodePrepareResources returned result for unknown claim UID {uid}")
            if error := answers[uid].error:
                raise KubeletError(f"NodePrepareResources failed for ResourceClaim {by_uid[uid].name}: {error}")
            by_uid[uid].drivers.setdefault(plugin.driver, []).extend(answers[uid].devices)
            self.changes.notify()
        if missing := len(by_uid) - len(answers):
            raise KubeletError(f"NodePrepareResources skipped {missing} ResourceClaims")

    # Unprepare

    async def _unprepare(self, uid: str, namespace: str, names: Iterable[str]) -> None:
        """What is not known is passed over. A claim of one pod is unprepared whichever pod that is, as by kubelet."""
        ended, batches = list[ClaimInfo](), dict[str, list[ClaimInfo]]()
        for name in names:
            claim = self.books.claims.get((namespace, name))
            if claim is None:
                continue
            if len(claim.pod_uids) > 1:
                claim.pod_uids.pop(uid, None)
                continue
            ended.append(claim)
            for driver in claim.drivers:
                batches.setdefault(driver, []).append(claim)
        for driver, claims in self._in_any_order(batches.items()):
            by_uid = {claim.uid: claim.name for claim in claims}
            answers = await self.plugins.get(driver).unprepare(claims)
            for claim_uid, error in answers.items():
                if claim_uid not in by_uid:
                    raise KubeletError(f"NodeUnprepareResources returned result for unknown claim UID {claim_uid}")
                if error:
                    problem = f"NodeUnprepareResources failed for ResourceClaim {by_uid[claim_uid]}: {error}"
                    raise KubeletError(problem)
            if missing := len(by_uid) - len(answers):
                raise KubeletError(f"NodeUnprepareResources skipped {missing} ResourceClaims")
        for claim in ended:
            self.books.claims.pop((namespace, claim.name), None)
        self._write_checkpoint()
        self.changes.notify()

    async def _reconcile_forever(self) -> None:
        while True:
            await self.reconcile()
            await asyncio.sleep(self.options.times.reconcile_period)

    # plugins

    def _connection_changed(self, driver: str) -> None:
        self.plugins.connection_changed(driver)
        self.changes.notify()

    def _health_received(self, driver: str, told: health_pb.NodeWatchResourcesResponse) -> None:
        changed = self.health.update(driver, told.devices, self.options.now())
        if pods := {
            uid
            for claim in self.books.claims.values()
            if _has_any_device(claim, driver, changed)
            for uid in claim.pod_uids
        }:
            self.on_health(pods)
        self.changes.notify()

    def _health_ended(self, driver: str) -> None:
        """No pod is synced for that: its status shows it when something else happens."""
        self.health.forget(driver)
        self.changes.notify()

    def _in_any_order(self, batches: Iterable[Batch]) -> list[Batch]:
        """As Go goes through a map."""
        order = list(batches)
        self._random.shuffle(order)
        return order

    def _write_checkpoint(self) -> None:
        aside = self.root / f".{checkpoint.CHECKPOINT_FILE_NAME}"
        try:
            aside.write_bytes(checkpoint.encode(self.books))
            aside.replace(self.root / checkpoint.CHECKPOINT_FILE_NAME)
        except OSError as error:
            raise KubeletError(f"checkpoint ResourceClaim state: {error}") from None


def _has_any_device(claim: ClaimInfo, driver: str, devices: Collection[tuple[str, str]]) -> bool:
    return any((each.pool, each.device) in devices for each in claim.drivers.get(driver, ()))
