"""What the container runtimes' library lets pass, and what a runtime, or an older library, then stumbles over.

The texts of CDI (SPEC.md) and of the OCI runtime specification ask for more than the library looks at; where neither
says anything, runc 1.1 and podman 4 do.
"""

from gpuplane.core.containers.cdi.rules import (
    DOMAIN,
    LONGEST_DOMAIN,
    LONGEST_NAME,
    NO_PERMISSIONS,
    UINT32,
    Wrong,
    listed,
    shown,
    under,
)
from gpuplane.model.cdi import ContainerEdits, DeviceNode, Hook, Mount, Spec


def pitfalls(spec: Spec) -> Wrong:
    """What may go wrong with a document that nobody refuses."""
    vendor, _, name = spec.kind.partition("/")
    if spec.cdi_version.startswith("v"):
        yield ("cdiVersion",), f"{shown(spec.cdi_version)}: older runtimes know it without the v only"
    if len(vendor) > LONGEST_DOMAIN or not DOMAIN.fullmatch(vendor.lower()):
        yield ("kind",), f"the vendor {shown(vendor)} must be a domain, like nvidia.com (SPEC.md)"
    if len(name) > LONGEST_NAME:
        yield ("kind",), f"the class has {len(name)} characters: {LONGEST_NAME} at most (SPEC.md)"
    yield from under(("containerEdits",), _edits(spec.container_edits))
    for i, device in enumerate(spec.devices):
        yield from under(("devices", i, "containerEdits"), _edits(device.container_edits))


def _edits(edits: ContainerEdits) -> Wrong:
    for i, text in enumerate(edits.env):
        if "\0" in text:
            yield ("env", i), "has a NUL in it"
    yield from listed("deviceNodes", edits.device_nodes, _node)
    yield from listed("hooks", edits.hooks, _hook)
    yield from listed("mounts", edits.mounts, _mount)


def _node(node: DeviceNode) -> Wrong:
    yield from _absolute("path", node.path)
    yield from _absolute("hostPath", node.host_path)
    for key, number in (("major", node.major), ("minor", node.minor)):
        if number is not None and number < 0:
            yield (key,), f"{number} is no number of a device"
    if node.minor is not None and node.major is None:
        yield ("minor",), "without a major number runtimes look at the host's node, and this one counts for nothing"
    if node.permissions == NO_PERMISSIONS:
        yield ("permissions",), f"older runtimes refuse a whole file for {shown(NO_PERMISSIONS)}"
    if node.file_mode is not None and 0o7777 < node.file_mode < UINT32:
        yield ("fileMode",), f"{node.file_mode} has more than permission bits; in JSON 0666 is 438"


def _hook(hook: Hook) -> Wrong:
    yield from _absolute("path", hook.path)
    for i, text in enumerate(hook.args):
        if "\0" in text:
            yield ("args", i), "has a NUL in it"
    if hook.timeout is not None and hook.timeout <= 0:
        yield ("timeout",), f"{hook.timeout} must be more than 0 seconds (OCI runtime specification, hooks)"


def _mount(mount: Mount) -> Wrong:
    yield from _absolute("containerPath", mount.container_path)
    if mount.type in ("", "bind"):
        yield from _absolute("hostPath", mount.host_path)
    if not mount.type and not {"bind", "rbind"} & set(mount.options):
        yield ("options",), "neither bind nor rbind is among them, and there is no type: runc mounts nothing then"


def _absolute(key: str, path: str) -> Wrong:
    if path and (not path.startswith("/") or "\0" in path):
        yield (key,), f"{shown(path)} must be an absolute path"
