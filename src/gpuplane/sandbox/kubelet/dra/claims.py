"""What the DRA manager knows of claims, without any I/O (cm/dra/claiminfo.go).

Rules that surprise, and stay put because kubelet has them:
- A claim is known by its name. Another one of the same name waits until the first is unprepared.
- What a plugin answers is appended to what is known: a claim that is prepared again has its devices twice.
- Whether a claim is prepared is forgotten at kubelet's end; its devices are not.
- A device without request names belongs to every request, one with other names to none.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from gpuplane.sandbox.kubelet.devices import KubeletError
from gpuplane.sandbox.kubelet.pods import Container, Pod, PodClaim


class PreparedDevice(msgspec.Struct, frozen=True):
    """A device as a plugin answered it. `share_id`: None of a device that is not shared."""

    pool: str
    device: str
    share_id: str | None = None
    request_names: tuple[str, ...] = ()
    cdi_ids: tuple[str, ...] = ()

    def is_for(self, request: str) -> bool:
        """Whether a container that names this request gets the device; "": one that names none."""
        return not request or not self.request_names or request in self.request_names


class ClaimInfo(msgspec.Struct):
    """A claim, the pods on this node that use it, and the devices of each driver."""

    uid: str
    name: str
    namespace: str
    pod_uids: dict[str, None] = {}
    drivers: dict[str, list[PreparedDevice]] = {}
    is_prepared: bool = False

    def devices(self, request: str = "") -> Iterator[tuple[str, PreparedDevice]]:
        """(driver, device) of what a container gets that names this request."""
        for driver, devices in self.drivers.items():
            yield from ((driver, each) for each in devices if each.is_for(request))


class ClaimBooks(msgspec.Struct):
    """The claims that are prepared here, or shall be, by namespace and name."""

    claims: dict[tuple[str, str], ClaimInfo] = {}

    def of_pod(self, uid: str) -> list[ClaimInfo]:
        """The claims that a pod uses."""
        return [claim for claim in self.claims.values() if uid in claim.pod_uids]

    def of_container(self, pod: Pod, container: Container) -> list[ClaimInfo]:
        """The claims that a container names, in the pod's order. Raises KubeletError for one that is not known."""
        return [
            self.find(pod.namespace, each.claim)
            for each in pod.claims
            if any(wanted.name == each.name for wanted in container.claims)
        ]

    def cdi_ids(self, pod: Pod, container: Container) -> list[str]:
        """The CDI devices that a container gets for its claims. Raises KubeletError for a claim that is not known."""
        by_name = {each.name: each.claim for each in pod.claims}
        return [
            id
            for wanted in container.claims
            for _, device in self.find(pod.namespace, by_name[wanted.name]).devices(wanted.request)
            for id in device.cdi_ids
        ]

    def find(self, namespace: str, name: str) -> ClaimInfo:
        """A claim by its name. Raises KubeletError."""
        if claim := self.claims.get((namespace, name)):
            return claim
        problem = f"unable to get claim info for ResourceClaim {name} in namespace {namespace}"
        raise KubeletError(f"internal error: {problem}")

    def record_use(self, claim: ClaimInfo, pod_uid: str) -> ClaimInfo:
        """Enter that a pod uses a claim; the claim as it was known before. Raises KubeletError."""
        known = self.claims.setdefault((claim.namespace, claim.name), claim)
        if known.uid != claim.uid:
            problem = f"old ResourceClaim with same name {claim.name} and different UID {known.uid} still exists"
            raise KubeletError(f"{problem} (previous pod force-deleted?!)")
        known.pod_uids[pod_uid] = None
        return known


def check_claim(found: Mapping[str, Any], pod: Pod, wanted: PodClaim) -> ClaimInfo:
    """A claim object of the API that this pod may use. Raises KubeletError (cm/dra/manager.go, resourceclaim/claim.go).

    A claim that was made for a pod has to belong to it; every claim has to be reserved for it, and be allocated.
    """
    metadata, status = found["metadata"], found.get("status") or {}
    owners = [each for each in metadata.get("ownerReferences") or () if each.get("controller")]
    if wanted.is_from_template and not any(each["uid"] == pod.uid for each in owners):
        problem = f"was not created for Pod {pod.key} (Pod is not owner)"
        raise KubeletError(f"ResourceClaim {pod.namespace}/{wanted.claim} {problem}")
    if not any(each.get("uid") == pod.uid for each in status.get("reservedFor") or ()):
        problem = f"is not allowed to use ResourceClaim {wanted.claim} ({metadata['uid']})"
        raise KubeletError(f"pod {pod.name} ({pod.uid}) {problem}")
    allocation = status.get("allocation")
    if allocation is None:
        raise KubeletError(f"ResourceClaim {wanted.claim}: not allocated")
    results = (allocation.get("devices") or {}).get("results") or ()
    return ClaimInfo(metadata["uid"], wanted.claim, pod.namespace, drivers={result["driver"]: [] for result in results})
