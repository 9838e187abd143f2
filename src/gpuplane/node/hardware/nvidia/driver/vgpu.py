"""Whether NVIDIA's PCI functions are virtual GPUs, as the vendor's capability in their configuration says.

Its layout is that which NVIDIA's GPU Feature Discovery reads (k8s-device-plugin 0.20, internal/vgpu). The kernel gives
the first 64 bytes of a configuration to everybody, and the rest to CAP_SYS_ADMIN alone. The 64 bytes say whether there
are capabilities, and not what they are. So an agent without that right mostly cannot tell, and does not ask for it.
"""

from collections.abc import Iterable

from gpuplane.node.model.machine import Vgpu

HEADER, WHOLE = 64, 256
"""Bytes of a configuration: what everybody may read, and where the capabilities end."""

STATUS, HAS_CAPABILITIES, FIRST = 0x06, 0x10, 0x34
VENDOR_SPECIFIC, BROKEN = 0x09, 0xFF
SIGNATURE, RECORDS = b"VF", 5  # behind id, next and length; then records: id, length, data
HOST_DRIVER, VERSION, BRANCH = 0, 10, 10  # id of the record, and the bytes of its two texts


def merge(configurations: Iterable[bytes]) -> Vgpu | None:
    """What the configurations of all NVIDIA functions say; None where they do not tell, or there is none."""
    found = [parse(each) for each in configurations]
    present = next((each for each in found if each is not None and each.present), None)
    if present is not None or not found or None in found:
        return present
    return Vgpu(present=False)


def parse(configuration: bytes) -> Vgpu | None:
    """What one function's configuration says; None where too little of it may be read."""
    if len(configuration) < HEADER:
        return None
    if not configuration[STATUS] & HAS_CAPABILITIES:
        return Vgpu(present=False)
    if len(configuration) < WHOLE:
        return None
    at, seen = configuration[FIRST], set[int]()
    while HEADER <= at <= WHOLE - 3 and at not in seen and configuration[at] != BROKEN:
        seen.add(at)
        capability = configuration[at : min(at + configuration[at + 2], WHOLE)]
        if configuration[at] == VENDOR_SPECIFIC and capability[3:RECORDS] == SIGNATURE:
            return _host_driver(capability)
        at = configuration[at + 1]
    return Vgpu(present=False)


def _host_driver(capability: bytes) -> Vgpu:
    at = RECORDS
    while at + 1 < len(capability) and capability[at] != HOST_DRIVER and capability[at + 1]:
        at += capability[at + 1]
    texts = capability[at + 2 : at + 2 + VERSION + BRANCH]
    if at >= len(capability) or capability[at] != HOST_DRIVER or len(texts) < VERSION + BRANCH:
        return Vgpu(present=True)
    return Vgpu(present=True, host_driver_version=_text(texts[:VERSION]), host_driver_branch=_text(texts[VERSION:]))


def _text(data: bytes) -> str:
    return "".join(each for each in data.decode("ascii", errors="ignore") if each.isprintable())
