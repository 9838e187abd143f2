"""One leader among candidates, by a Lease (coordination.k8s.io/v1), as client-go's leaderelection elects it.

Clocks of two machines are never compared; the times in a Lease are for people. A candidate counts from when it saw the
record change, by its own clock, and takes a Lease that has not changed for the `leaseDurationSeconds` in it. The leader
counts from before it sent the last renewal that succeeded, and stops after `renew_deadline`, which is shorter: it stops
before anybody takes over, whatever became of the answers. The clock goes on while a machine is suspended.

Each write names the resourceVersion that it changes, so of two candidates one gets a conflict. A Lease that somebody
deletes is taken by a candidate who has seen its leader only when that leader's time is over.
"""

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from gpuplane.base.tasks import run_until
from gpuplane.kubernetes.client import ApiServerError
from gpuplane.kubernetes.objects import ObjectMetadata
from gpuplane.kubernetes.times import format_micro_time

if TYPE_CHECKING:
    from gpuplane.kubernetes.client.api import ApiClient

RELEASE_TIMEOUT = 2.0
"""Seconds that a leader which ends waits for the API server to release its Lease."""
RETRY_JITTER = 0.2
"""The part of the time between two tries by which it varies, so that candidates do not try all at once."""

log = logging.getLogger("gpuplane")


class LeaseSpec(msgspec.Struct, rename="camel"):
    """Who leads. Kubernetes' own names."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct):
    """A Lease."""

    metadata: ObjectMetadata
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


class ElectionTimes(NamedTuple):
    """Seconds. The defaults are those of kube-controller-manager and kube-scheduler."""

    lease_duration: int = 15
    renew_deadline: float = 10.0
    retry_period: float = 2.0


def boot_time() -> float:
    """Seconds since the machine's boot, also those in which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def unique_identity(name: str) -> str:
    """What tells a candidate from all others, also from one of the same name before it."""
    return f"{name}_{uuid.uuid4()}"


class Candidate:
    """Who wants to lead. `identity` is that of one process alone."""

    def __init__(
        self,
        client: "ApiClient",
        namespace: str,
        name: str,
        identity: str,
        times: ElectionTimes = ElectionTimes(),  # noqa: B008 (immutable)
        now: Callable[[], float] = boot_time,
    ) -> None:
        """`namespace`, `name`: of the Lease. Raises ValueError for times by which two could lead."""
        if not times.lease_duration > times.renew_deadline > times.retry_period * (1 + RETRY_JITTER):
            raise ValueError("a lease must last longer than its renewal may take, and that longer than a retry")
        self._client, self._name, self._identity, self._times, self._now = client, name, identity, times, now
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._seen: LeaseSpec | None = None
        self._seen_at = 0.0
        self._held_until = float("-inf")

    def is_leader(self) -> bool:
        """Whether it leads at this moment. To be asked before each act that only the leader may do."""
        return self._now() < self._held_until

    async def lead(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait until it leads, and do some work until that is done or the leadership is lost; then release the Lease.

        The work is cancelled where the leadership is lost, and has ended before the Lease is released.
        """
        while not await self._tried(self._take()):
            await self._pause()
        log.info("%s leads: it holds the lease %s", self._identity, self._name)
        try:
            await run_until(self._keep(), work())
        finally:
            await self._release()

    async def _keep(self) -> None:
        """Renew until the leadership is lost."""
        while self.is_leader():
            await self._pause()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._held_until - self._now())):
                    await self._tried(self._take())
        log.error("%s leads no more: it could not renew the lease %s", self._identity, self._name)

    async def _pause(self) -> None:
        await asyncio.sleep(self._times.retry_period * random.uniform(1, 1 + RETRY_JITTER))  # noqa: S311 (spreads load)

    async def _tried(self, take: Awaitable[bool]) -> bool:
        """Whether it leads now. What the API server refuses is tried again."""
        try:
            return await take
        except ApiServerError as error:
            level = logging.DEBUG if error.code == HTTPStatus.CONFLICT else logging.WARNING
            log.log(level, "lease %s: %s", self._name, error)
            return False

    async def _take(self) -> bool:
        """Acquire or renew the Lease, if it is free or ours; whether that is done. Raises ApiServerError."""
        began = self._now()
        lease = await self._read()
        if lease is not None and lease.spec != self._seen:
            self._seen, self._seen_at = lease.spec, self._now()
        if self._is_anothers():
            self._held_until = float("-inf")
            return False
        await self._write(lease, self._identity, self._times.lease_duration)
        self._held_until = began + self._times.renew_deadline
        return True

    def _is_anothers(self) -> bool:
        """Whether another candidate leads, as far as we have seen it."""
        seen = self._seen
        if seen is None or not seen.holder_identity or seen.holder_identity == self._identity:
            return False
        duration = seen.lease_duration_seconds or self._times.lease_duration
        return self._now() < self._seen_at + duration

    async def _read(self) -> Lease | None:
        try:
            return await self._client.get(f"{self._collection}/{self._name}", Lease)
        except ApiServerError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
            return None

    async def _write(self, lease: Lease | None, holder: str, duration: int) -> None:
        """Create the Lease, or change it as it was read. Raises ApiServerError, also for a conflict."""
        before = LeaseSpec() if lease is None else lease.spec
        now = format_micro_time(datetime.now(UTC))
        is_renewal = before.holder_identity == holder
        spec = LeaseSpec(
            holder_identity=holder,
            lease_duration_seconds=duration,
            acquire_time=before.acquire_time if is_renewal else now,
            renew_time=now,
            lease_transitions=(before.lease_transitions or 0) + (lease is not None and not is_renewal and holder != ""),
        )
        metadata = {"name": self._name}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        if lease is None:
            await self._client.send("POST", self._collection, body)
        else:
            metadata["resourceVersion"] = lease.metadata.resource_version
            await self._client.send("PATCH", f"{self._collection}/{self._name}", body)

    async def _release(self) -> None:
        """Leave the Lease to another, who then need not wait."""
        self._held_until = float("-inf")
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT):
                lease = await self._read()
                if lease is not None and lease.spec.holder_identity == self._identity:
                    await self._write(lease, "", 1)
        except (ApiServerError, TimeoutError) as error:
            log.warning("the lease %s cannot be released: %s", self._name, error or "no answer in time")
