"""Whether NVIDIA's PCI functions are virtual GPUs, as the vendor's capability in their configuration says.

Its layout is that which NVIDIA's GPU Feature Discovery reads (k8s-device-plugin 0.20, internal/vgpu). The kernel gives
the first 64 bytes of a configuration to everybody, and the rest to CAP_SYS_ADMIN alone. The 64 bytes say whether there
are capabilities, and not what they are. So an agent without that right mostly cannot tell, and does not ask for it.
"""

from collections.abc import Iterable

from gpuplane.node.model.machine import Vgpu

HEADER_SIZE, CAPABILITIES_END = 64, 256
"""Bytes of a configuration: what everybody may read, and where the capabilities end."""

STATUS_OFFSET, HAS_CAPABILITIES_BIT, FIRST_CAPABILITY_OFFSET = 0x06, 0x10, 0x34
VENDOR_SPECIFIC_CAPABILITY, BROKEN_CAPABILITY = 0x09, 0xFF
VGPU_SIGNATURE, RECORDS_OFFSET = b"VF", 5  # behind id, next and length; then records: id, length, data
HOST_DRIVER_RECORD, VERSION_LENGTH, BRANCH_LENGTH = 0, 10, 10  # id of the record, and the bytes of its two texts


def merge_vgpu(configurations: Iterable[bytes]) -> Vgpu | None:
    """What the configurations of all NVIDIA functions say; None where they do not tell, or there is none."""
    found = [parse_vgpu(each) for each in configurations]
    present = next((each for each in found if each is not None and each.present), None)
    if present is not None or not found or None in found:
        return present
    return Vgpu(present=False)


def parse_vgpu(configuration: bytes) -> Vgpu | None:
    """What one function's configuration says; None where too little of it may be read."""
    if len(configuration) < HEADER_SIZE:
        return None
    if not configuration[STATUS_OFFSET] & HAS_CAPABILITIES_BIT:
        return Vgpu(present=False)
    if len(configuration) < CAPABILITIES_END:
        return None
    at, seen = configuration[FIRST_CAPABILITY_OFFSET], set[int]()
    while HEADER_SIZE <= at <= CAPABILITIES_END - 3 and at not in seen and configuration[at] != BROKEN_CAPABILITY:
        seen.add(at)
        capability = configuration[at : min(at + configuration[at + 2], CAPABILITIES_END)]
        if configuration[at] == VENDOR_SPECIFIC_CAPABILITY and capability[3:RECORDS_OFFSET] == VGPU_SIGNATURE:
            return _host_driver(capability)
        at = configuration[at + 1]
    return Vgpu(present=False)


def _host_driver(capability: bytes) -> Vgpu:
    at = RECORDS_OFFSET
    while at + 1 < len(capability) and capability[at] != HOST_DRIVER_RECORD and capability[at + 1]:
        at += capability[at + 1]
    texts = capability[at + 2 : at + 2 + VERSION_LENGTH + BRANCH_LENGTH]
    if at >= len(capability) or capability[at] != HOST_DRIVER_RECORD or len(texts) < VERSION_LENGTH + BRANCH_LENGTH:
        return Vgpu(present=True)
    return Vgpu(
        present=True,
        host_driver_version=_text(texts[:VERSION_LENGTH]),
        host_driver_branch=_text(texts[VERSION_LENGTH:]),
    )


def _text(data: bytes) -> str:
    return "".join(each for each in data.decode("ascii", errors="ignore") if each.isprintable())
