"""Files in containers that describe the devices of their claims (KEP-5304), where `dra.deviceMetadata` wants them.

A file for each request of a claim, which kubelet's helper library would write in the same way: the content is a
`DeviceMetadata` of metadata.resource.k8s.io/v1alpha1, at the path in the container that programs know. A container
that uses one request of a claim sees the file of that request alone.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from gpuplane.node.core.containers.cdi.driverfiles import READ_ONLY_MOUNT_OPTIONS
from gpuplane.node.core.dra.devices import DraDevices, dra_devices
from gpuplane.node.core.view import part_view, view
from gpuplane.node.model.cdi import Mount
from gpuplane.node.model.claims import PreparedClaim, PreparedDevice
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import CLAIM_FILES_PART

API_VERSION, KIND = "metadata.resource.k8s.io/v1alpha1", "DeviceMetadata"

IN_CONTAINER = "/var/run/kubernetes.io/dra-device-attributes"

Files = Mapping[str, Mapping[str, Any]]
"""Path below the root → content."""


def metadata_root(snapshot: Snapshot) -> str:
    """The directory on the host below which the files are; "" where none are wanted, or can be written."""
    settings, status = snapshot.config.settings, snapshot.statuses.of(CLAIM_FILES_PART)
    return status.metadata_root if settings is not None and settings.dra.device_metadata and status is not None else ""


@view
def metadata_files(snapshot: Snapshot) -> Files:
    """The files of all prepared claims; {} where none are wanted, and before the machine is known."""
    if not metadata_root(snapshot) or snapshot.machine is None:
        return {}
    return _metadata_files.of(snapshot, snapshot.ledger.claims or {}, dra_devices(snapshot))


@part_view
def _metadata_files(claims: Mapping[str, PreparedClaim], devices: DraDevices) -> Files:
    return {
        metadata_path(claim, request): _document(claim, request, devices)
        for claim in claims.values()
        for request in {each.allocated.main_request: None for each in claim.devices}
    }


def metadata_path(claim: PreparedClaim, request: str) -> str:
    """The path of a request's file below the root. Both parts are names of Kubernetes (`preparing`)."""
    return f"{claim.claim.uid}/{request}/metadata.json"


def metadata_mount(claim: PreparedClaim, device: PreparedDevice, root: str) -> Mount:
    """How the file of a device's request comes into a container."""
    request = device.allocated.main_request
    if claim.pod_claim_name:
        place = f"resourceclaimtemplates/{claim.pod_claim_name}"
    else:
        place = f"resourceclaims/{claim.claim.name}"
    return Mount(
        host_path=f"{root}/{metadata_path(claim, request)}",
        container_path=f"{IN_CONTAINER}/{place}/{request}/{claim.driver}-metadata.json",
        options=READ_ONLY_MOUNT_OPTIONS,
    )


def _document(claim: PreparedClaim, request: str, devices: DraDevices) -> Mapping[str, Any]:
    name = claim.claim
    given = [each for each in claim.devices if each.allocated.main_request == request]
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": name.name,
            "namespace": name.namespace,
            "uid": name.uid,
            "generation": claim.generation,
        },
        **({"podClaimName": claim.pod_claim_name} if claim.pod_claim_name else {}),
        "requests": [{"name": request, "devices": [_device(claim.driver, each, devices) for each in given]}],
    }


def _device(driver: str, device: PreparedDevice, devices: DraDevices) -> Mapping[str, Any]:
    found = devices.by_name.get(device.allocated.device)
    attributes = found.attributes if found is not None else {}
    return {
        "driver": driver,
        "pool": device.allocated.pool,
        "name": device.allocated.device,
        "attributes": msgspec.to_builtins(attributes),
    }
