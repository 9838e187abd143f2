"""ResourceClaims of the API server: each fetched by its name when it has to be prepared or checked; none are watched.

One client stays open while claims are asked for, so that a Prepare does not wait for a new connection.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from gpuplane.base.text import Text
from gpuplane.kubernetes.claims import ApiClaim, DeviceAllocation
from gpuplane.kubernetes.client import connect
from gpuplane.kubernetes.client.errors import ApiServerError
from gpuplane.node.core.dra.names import DNS_LABEL
from gpuplane.node.model.claims import AllocatedClaim, AllocatedDevice, ClaimName, ClaimUnavailable, OpaqueConfig
from gpuplane.node.model.reasons import Reason, ReasonCode

if TYPE_CHECKING:
    from gpuplane.kubernetes.client.api import ApiClient

POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
"""The annotation with which the claim of a template says how its pod names it."""

NOT_FOUND = 404
FORBIDDEN = 403
RIGHTS_ADVICE = "; the component dra has the rights"


def claim_path(namespace: str, name: str) -> str:
    """The path of a claim. Both names come from kubelet, or from a claim: they stay one part of the path each."""
    return f"/apis/resource.k8s.io/v1/namespaces/{quote(namespace, safe='')}/resourceclaims/{quote(name, safe='')}"


class ClaimReader:
    """Fetches claims."""

    def __init__(self, kubeconfig: Path | None) -> None:
        self._kubeconfig = kubeconfig
        self._open: AsyncExitStack | None = None
        self._client: ApiClient | None = None
        self._lock = asyncio.Lock()

    async def fetch(self, claim: ClaimName, driver: str) -> AllocatedClaim:
        """The claim of this name and, unless that is "", of this UID. Raises ClaimUnavailable."""
        found = await self.read(claim)
        if claim.uid and found.metadata.uid != claim.uid:
            text = f"claim {claim} has the UID {found.metadata.uid} now, and not {claim.uid}: it was created again"
            raise _unavailable("claim-not-found", text)
        return of_driver(found, ClaimName(claim.namespace, claim.name, found.metadata.uid), driver)

    async def read(self, claim: ClaimName) -> ApiClaim:
        """The claim as the API server has it, whatever its UID. Raises ClaimUnavailable."""
        try:
            return await (await self.client()).get(claim_path(claim.namespace, claim.name), ApiClaim)
        except ApiServerError as error:
            if not error.code:
                await self.close()
            if error.code == NOT_FOUND:
                raise _unavailable("claim-not-found", f"claim {claim} does not exist") from None
            rights = RIGHTS_ADVICE if error.code == FORBIDDEN else ""
            raise _unavailable("claim-not-fetched", f"claim {claim}: {error}{rights}") from None

    async def client(self) -> "ApiClient":
        """The open client: a new one costs 30 ms, for the certificates. Raises ApiServerError."""
        async with self._lock:
            if self._client is None:
                stack = AsyncExitStack()
                self._client = await stack.enter_async_context(connect(self._kubeconfig))
                self._open = stack
            return self._client

    async def close(self) -> None:
        """Close the client; the next request opens another."""
        async with self._lock:
            stack, self._open, self._client = self._open, None, None
        if stack is not None:
            await stack.aclose()


def _unavailable(code: ReasonCode, text: Text) -> ClaimUnavailable:
    return ClaimUnavailable(Reason(kind="problem", text=text, code=code))


def of_driver(claim: ApiClaim, name: ClaimName, driver: str) -> AllocatedClaim:
    """What of a claim concerns a driver."""
    status, annotations = claim.status, claim.metadata.annotations or {}
    name_in_pod = annotations.get(POD_CLAIM_NAME, "")  # whoever may write the claim may write anything there
    devices = status.allocation.devices if status.allocation is not None else DeviceAllocation()
    return AllocatedClaim(
        name,
        tuple(_results(devices, driver)),
        tuple(_configs(devices, driver)),
        pods={each.name: each.uid for each in status.reserved_for or () if each.resource == "pods"},
        pod_claim_name=name_in_pod if DNS_LABEL.fullmatch(name_in_pod) else "",
        generation=claim.metadata.generation,
        is_allocated=status.allocation is not None,
    )


def _results(devices: DeviceAllocation, driver: str) -> Iterator[AllocatedDevice]:
    for each in devices.results or ():
        if each.driver == driver:
            yield AllocatedDevice(
                each.request, each.pool, each.device, is_admin=bool(each.admin_access), share_id=each.share_id or ""
            )


def _configs(devices: DeviceAllocation, driver: str) -> Iterator[OpaqueConfig]:
    for each in devices.config or ():
        if each.opaque is not None and each.opaque.driver == driver:
            text = bytes(each.opaque.parameters).decode(errors="replace")  # the API server keeps any bytes
            yield OpaqueConfig(text, each.requests or (), is_from_class=each.source == "FromClass")
