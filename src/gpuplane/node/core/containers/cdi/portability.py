"""What the container runtimes' library accepts, but a runtime or an older version of the library fails on.

The specifications of CDI (SPEC.md) and of OCI runtimes demand more than the library checks. Where both are silent, runc
1.1 and podman 4 decide.
"""

from gpuplane.node.core.containers.cdi.rules import (
    DOMAIN_PATTERN,
    MAX_DOMAIN_LENGTH,
    MAX_NAME_LENGTH,
    NO_PERMISSIONS_VALUE,
    UINT32_END,
    ProblemsByPath,
    prepend_path,
    problems_of_list_items,
    quote,
)
from gpuplane.node.model.cdi import ContainerEdits, DeviceNode, Hook, Mount, Spec


def runtime_compatibility_problems(spec: Spec) -> ProblemsByPath:
    """The problems of a specification that the library accepts, but that may fail elsewhere."""
    vendor, _, name = spec.kind.partition("/")
    if spec.cdi_version.startswith("v"):
        yield ("cdiVersion",), f"{quote(spec.cdi_version)}: older runtimes accept it only without the v"
    if len(vendor) > MAX_DOMAIN_LENGTH or not DOMAIN_PATTERN.fullmatch(vendor.lower()):
        yield ("kind",), f"the vendor {quote(vendor)} must be a domain, like nvidia.com (SPEC.md)"
    if len(name) > MAX_NAME_LENGTH:
        yield ("kind",), f"the class has {len(name)} characters: at most {MAX_NAME_LENGTH} are allowed (SPEC.md)"
    yield from prepend_path(("containerEdits",), _edit_problems(spec.container_edits))
    for i, device in enumerate(spec.devices):
        yield from prepend_path(("devices", i, "containerEdits"), _edit_problems(device.container_edits))


def _edit_problems(edits: ContainerEdits) -> ProblemsByPath:
    for i, text in enumerate(edits.env):
        if "\0" in text:
            yield ("env", i), "contains a NUL"
    yield from problems_of_list_items("deviceNodes", edits.device_nodes, _node_problems)
    yield from problems_of_list_items("hooks", edits.hooks, _hook_problems)
    yield from problems_of_list_items("mounts", edits.mounts, _mount_problems)


def _node_problems(node: DeviceNode) -> ProblemsByPath:
    yield from _path_problems("path", node.path)
    yield from _path_problems("hostPath", node.host_path)
    for key, number in (("major", node.major), ("minor", node.minor)):
        if number is not None and number < 0:
            yield (key,), f"{number} is not a device number"
    if node.minor is not None and node.major is None:
        yield ("minor",), "has no effect without a major number: runtimes then use the numbers of the host's node"
    if node.permissions == NO_PERMISSIONS_VALUE:
        yield (
            ("permissions",),
            (f"older runtimes refuse the whole file because of the value {quote(NO_PERMISSIONS_VALUE)}"),
        )
    if node.file_mode is not None and 0o7777 < node.file_mode < UINT32_END:
        yield (
            ("fileMode",),
            (
                f"{node.file_mode} contains bits that are not permission bits; write a decimal "
                "number in JSON: 0666 is 438"
            ),
        )


def _hook_problems(hook: Hook) -> ProblemsByPath:
    yield from _path_problems("path", hook.path)
    for i, text in enumerate(hook.args):
        if "\0" in text:
            yield ("args", i), "contains a NUL"
    if hook.timeout is not None and hook.timeout <= 0:
        yield ("timeout",), f"{hook.timeout} must be more than 0 seconds (OCI runtime specification, hooks)"


def _mount_problems(mount: Mount) -> ProblemsByPath:
    yield from _path_problems("containerPath", mount.container_path)
    if mount.type in ("", "bind"):
        yield from _path_problems("hostPath", mount.host_path)
    if not mount.type and not {"bind", "rbind"} & set(mount.options):
        yield ("options",), "runc mounts nothing without the option bind or rbind, or a type; add one of them"


def _path_problems(key: str, path: str) -> ProblemsByPath:
    if path and (not path.startswith("/") or "\0" in path):
        yield (key,), f"{quote(path)} must be an absolute path"
