"""Names of pools, devices, CDI devices and files of our DRA driver.

A pool is named after its device, and a device after its unit, as its kind says (`kinds/dra.py`). CDI kinds and file
names are those of NVIDIA's driver (dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/cdi.go).
"""

import hashlib
import re

from gpuplane.node.core.kinds.dra import DNS_LABEL as DNS_LABEL
from gpuplane.node.core.kinds.table import kind_of

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


def device_name(unit: str) -> str:
    """The name of a unit in its pool, by its id: "gpu-8d0e…"; "" for none."""
    kind = kind_of(unit)
    return kind.dra.device_name(unit) if kind is not None else ""


def pool_name(node: str, device: str) -> str:
    """The pool of a device, by its name: "node-1/gpu-8d0e…"."""
    pool = f"{node}/{device}"
    if len(pool) <= MAX_POOL_NAME:
        return pool
    room = MAX_POOL_NAME - len(device) - DIGEST_LENGTH - 2
    return f"{node[:room].rstrip('.-')}-{_digest(node)}/{device}"


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
