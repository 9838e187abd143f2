"""Names of pools, devices, CDI devices and files of our DRA driver.

A pool and its device are named after the GPU's UUID: a reboot may give the GPU another index and minor number, and a
replaced card is another device. CDI kinds and file names are those of NVIDIA's driver (dra-driver-nvidia-gpu,
cmd/gpu-kubelet-plugin/cdi.go).
"""

import hashlib
import re

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""A name of a device (RFC 1123; pkg/apis/resource/validation/validation.go)."""

DNS_SUBDOMAIN = re.compile(rf"{DNS_LABEL.pattern}(\.{DNS_LABEL.pattern})*")
"""A name of a claim."""

KUBERNETES_UID = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?")
"""A UID that may be part of a file name. API servers make UUIDs."""

POD_UID = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}")
"""A pod's UID, which is part of the names of our sockets: a UUID, of static pods without hyphens."""

MAX_POOL_NAME = 253
"""Characters."""

DIGEST_LENGTH = 10
"""Characters that tell apart names that are too long."""


def device_name(uuid: str) -> str:
    """A GPU's name in its pool: "gpu-8d0e…"; "" where its UUID makes no name."""
    name = uuid.lower()
    return name if name.startswith("gpu-") and DNS_LABEL.fullmatch(name) else ""


def pool_name(node: str, uuid: str) -> str:
    """A GPU's pool: "node-1/gpu-8d0e…"."""
    pool = f"{node}/{device_name(uuid)}"
    if len(pool) <= MAX_POOL_NAME:
        return pool
    room = MAX_POOL_NAME - len(device_name(uuid)) - DIGEST_LENGTH - 2
    return f"{node[:room].rstrip('.-')}-{_digest(node)}/{device_name(uuid)}"


def claim_cdi_kind(driver: str) -> str:
    """The CDI kind of what claims get: "k8s.gpu.nvidia.com/claim"."""
    return f"k8s.{driver}/claim"


def claim_cdi_name(uid: str, device: str) -> str:
    """The name of a claim's device within its kind. No other claim has it, for runtimes remember files."""
    return f"{uid}-{device}"


def claim_file_name(driver: str, uid: str) -> str:
    """The CDI file of a claim: "k8s.gpu.nvidia.com-claim_UID.json"."""
    return f"{claim_cdi_kind(driver).replace('/', '-')}_{uid}.json"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]
