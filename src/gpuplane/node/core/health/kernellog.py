"""Reading the driver's lines in the kernel log: XIDs, SXids of NVSwitches, faults without either, its being loaded.

The log is read as /dev/kmsg gives it (Documentation/ABI/testing/dev-kmsg), a record a line, with further lines that
begin with a space:

    4,1234,98765432,-;NVRM: Xid (PCI:0000:3b:00 GPU-I:01 GPU-CI:00): 13, pid=4711, name=python3, Graphics Exception …

priority and facility, number, microseconds, flags; then the message. It tells more than NVML does: what happened while
no program listened, and which process an XID affected. The driver's wording: `krcReportXid` in kernel_rc.c of NVIDIA's
open kernel modules; old drivers leave out the `PCI:`, the name or the process.

An NVSwitch names itself and not the GPUs behind it (Fabric Manager User Guide, "Runtime NVSwitch and GPU Errors"):

    3,1235,98765432,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)

A GPU that the driver cannot start, or cannot reach while it takes up its devices, gets no XID: `LINES_WITHOUT_XID`.
(How many could not be taken up, "The NVIDIA probe routine failed for 1 device(s).", is not read: the kernel says before
that which they were.) A message of several lines is one record, in which the kernel writes a line's end as \\x0a.

Only the kernel's own records (facility 0) count: any user may have a log daemon repeat a line there.
"""

import re

from gpuplane.base.text import clip
from gpuplane.node.core.health.events import DRIVER_LOADED_CODE
from gpuplane.node.model.facts import FaultOccurred
from gpuplane.node.model.health import NONFATAL, XIDS_WITH_SEVERITY_IN_TEXT

KMSG_RECORD_PATTERN = re.compile(
    rb"(\d{1,4}),(\d{1,19}),(\d{1,19}),[^;]*;(?:(?:NVRM|nvidia-nvswitch\d{1,3}): |(?=nvidia))([^\n]*)"
)
XID_LINE_PATTERN = re.compile(
    rb"Xid \((?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?: GPU-I:(\d{1,5}))?(?: GPU-CI:(\d{1,5}))?\): "
    rb"([1-9]\d{0,4})(?:, *(.*))?"
)
SXID_LINE_PATTERN = re.compile(rb"SXid \(PCI:[0-9a-fA-F:.]{7,20}\): [1-9]\d{0,4}, (Fatal|Non-fatal), .*")
NONFATAL_PATTERN = re.compile(rb"\bNonfatal\b")
PID_FIELD_PATTERN = re.compile(rb"pid='?(\d{1,10})\b")
DRIVER_LOADING_MESSAGE_START = b"loading NVIDIA UNIX"
ADDRESS = rb"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})\.0"
LINES_WITHOUT_XID = (
    # NVIDIA's open kernel modules; the first comes with XID 79 and is the same. Old drivers wrote "GPU at ADDRESS has".
    ("xid-79", re.compile(rb"GPU (?:at )?" + ADDRESS + rb":? (?:GPU )?(has fallen off the bus.*)")),
    ("xid-79", re.compile(rb"The NVIDIA GPU " + ADDRESS + rb"\\x0aNVRM: (.*fallen off the bus.*)")),
    ("gpu-init-failed", re.compile(rb"GPU " + ADDRESS + rb": (RmInitAdapter failed!.*)")),
    # the kernel's drivers/base/dd.c: Linux up to 6.6, and after it
    ("gpu-bind-failed", re.compile(rb"nvidia: probe of " + ADDRESS + rb" (failed with error.*)")),
    ("gpu-bind-failed", re.compile(rb"nvidia " + ADDRESS + rb": (probe with driver nvidia failed with error.*)")),
)
"""Code → the line, with the address and the message."""
ESCAPED_BYTE_PATTERN = re.compile(rb"\\x([0-9a-f]{2})")


def parse_kmsg_record(record: bytes, clock_offset: float, now: float) -> FaultOccurred | None:
    """The fault that a record tells about; None where it is about no GPU.

    `clock_offset`: by how many seconds CLOCK_BOOTTIME, in which `now` is, is ahead of the log's clock.
    """
    found = KMSG_RECORD_PATTERN.match(record)
    if found is None or int(found[1]) >> 3:
        return None
    plain = FaultOccurred(
        code=DRIVER_LOADED_CODE,
        gpu="",
        message=_unescape_message(found[4]),
        at=min(now, int(found[3]) / 1e6 + clock_offset),
        kernel_log_number=int(found[2]),
    )
    if found[4].startswith(DRIVER_LOADING_MESSAGE_START):
        return plain
    if sxid := SXID_LINE_PATTERN.fullmatch(found[4]):
        return plain.but(code="nvswitch-fatal" if sxid[1] == b"Fatal" else "nvswitch-nonfatal")
    xid = XID_LINE_PATTERN.fullmatch(found[4])
    if xid is None:
        return _parse_line_without_xid(found[4], plain)
    pid, number = PID_FIELD_PATTERN.match(xid[5] or b""), int(xid[4])
    is_nonfatal = number in XIDS_WITH_SEVERITY_IN_TEXT and NONFATAL_PATTERN.search(xid[5] or b"")
    return plain.but(
        code=f"xid-{number}{NONFATAL if is_nonfatal else ''}",
        gpu=f"{xid[1].decode().lower()}.0",  # as sysfs writes it; a GPU is its device's first function
        message=_unescape_message(xid[5] or b""),
        gpu_instance=None if xid[2] is None else int(xid[2]),
        compute_instance=None if xid[3] is None else int(xid[3]),
        pids=(int(pid[1]),) if pid and int(pid[1]) else (),
    )


def _parse_line_without_xid(line: bytes, plain: FaultOccurred) -> FaultOccurred | None:
    """The fault of one of `LINES_WITHOUT_XID`; None for any other line."""
    for code, pattern in LINES_WITHOUT_XID:
        if (found := pattern.fullmatch(line)) is not None:
            message = _unescape_message(found[2]).replace(" NVRM: ", " ")
            return plain.but(code=code, gpu=f"{found[1].decode().lower()}.0", message=message)
    return None


def _unescape_message(text: bytes) -> str:
    r"""One line for people. The kernel writes as \x1b what it does not dare to print; nor do we."""
    plain = ESCAPED_BYTE_PATTERN.sub(lambda escaped: bytes([int(escaped[1], 16)]), text).decode(errors="replace")
    return clip("".join(each if each.isprintable() else " " for each in plain))
