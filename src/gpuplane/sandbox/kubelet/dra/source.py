"""Where kubelet has claims from, and whom it tells to delete slices: an API server, or whoever runs the kubelet."""

from collections.abc import Mapping
from typing import Any, Protocol

from gpuplane.sandbox.kubelet.devices import KubeletError


class ClaimSource(Protocol):
    """What the DRA manager needs of an API server."""

    async def get_claim(self, namespace: str, name: str) -> Mapping[str, Any]:
        """The claim, as resource.k8s.io/v1 has it. Raises KubeletError."""

    async def delete_slices(self, driver: str) -> None:
        """Delete this node's ResourceSlices of a driver; "": of all drivers. Raises KubeletError."""


class GivenClaims:
    """Claims that somebody gives, without an API server. `deleted_slices`: the drivers whose slices were to go."""

    def __init__(self) -> None:
        self.claims: dict[tuple[str, str], Mapping[str, Any]] = {}
        self.deleted_slices: list[str] = []

    def give(self, claim: Mapping[str, Any]) -> None:
        """Give a claim, as the API server would show it now: with its allocation and its reservations."""
        self.claims[claim["metadata"]["namespace"], claim["metadata"]["name"]] = claim

    async def get_claim(self, namespace: str, name: str) -> Mapping[str, Any]:
        if found := self.claims.get((namespace, name)):
            return found
        raise KubeletError(f'resourceclaims.resource.k8s.io "{name}" not found')

    async def delete_slices(self, driver: str) -> None:
        self.deleted_slices.append(driver)
