"""What a container runtime does with what kubelet tells it of a container: containerd 2 (internal/cri/opts, pkg/cdi).

CDI devices are resolved when a container is created, each time anew, from the specification files that lie there then.
Their names come from the CRI field and, behind those, from annotations of the prefix `cdi.k8s.io/`; a name that comes
again is passed over. What they give is applied over what kubelet passes by itself. One name that cannot be resolved, or
one device node that lacks its numbers and is not on the host, and the container is not created.

What only starting a container would show is not looked at: whether there is a mount's file, what a hook does.
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpuplane.base import files
from gpuplane.node.core.containers.cdi.effectiveedits import concatenate_edits, drop_overridden_edits
from gpuplane.node.core.containers.cdi.registry import (
    SPEC_FILE_SUFFIXES,
    Registry,
    UnresolvableDevices,
    build_registry,
    parse_spec_file,
    resolve_devices,
)
from gpuplane.node.core.containers.cdi.rules import is_qualified_name
from gpuplane.node.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.node.model.cdi import ContainerEdits, DeviceNode, Mount

ANNOTATION_PREFIX = "cdi.k8s.io/"
NODE_TYPES = {stat.S_IFBLK: "b", stat.S_IFCHR: "c", stat.S_IFIFO: "p"}
CREATE_FAILED_TEXT = "failed to create containerd container: "
INJECTION_FAILED_TEXT = f"{CREATE_FAILED_TEXT}CDI device injection failed: "


class CreateContainerFailed(Exception):
    """A container was not created; the runtime's words."""


def create_container(
    response: pb.ContainerAllocateResponse, cdi_dirs: Sequence[Path] | None, claimed: Sequence[str] = ()
) -> ContainerEdits:
    """What a container is made with: nodes with numbers, mounts, environment, hooks. Raises CreateContainerFailed.

    `cdi_dirs`: the one with priority last; None for a runtime that does nothing with CDI. `claimed`: the CDI devices of
    its claims, which kubelet passes before those of device plugins.
    """
    given = ContainerEdits(
        env=tuple(f"{name}={value}" for name, value in sorted(response.envs.items())),
        device_nodes=tuple(
            DeviceNode(each.container_path, each.host_path, permissions=each.permissions) for each in response.devices
        ),
        mounts=tuple(Mount(each.host_path, each.container_path, _mount_options(each)) for each in response.mounts),
    )
    try:
        names = [] if cdi_dirs is None else list(dict.fromkeys([*claimed, *_cdi_device_names(response)]))
        edits = resolve_devices(read_registry(cdi_dirs or ()), names)
        numbered = edits.but(device_nodes=tuple(map(_with_device_numbers, edits.device_nodes)))
    except UnresolvableDevices as error:
        raise CreateContainerFailed(
            f"{INJECTION_FAILED_TEXT}unresolvable CDI devices {', '.join(error.reasons)}"
        ) from None
    return drop_overridden_edits(concatenate_edits((given, numbered)))


def _mount_options(mount: pb.Mount) -> tuple[str, ...]:
    return ("rbind", "rprivate", "ro" if mount.read_only else "rw")


def _cdi_device_names(response: pb.ContainerAllocateResponse) -> Iterator[str]:
    """The names of a container's CDI devices, each once. Raises CreateContainerFailed."""
    yield from dict.fromkeys([*(each.name for each in response.cdi_devices), *_annotated_names(response.annotations)])


def _annotated_names(annotations: Mapping[str, str]) -> Iterator[str]:
    for key, value in sorted(annotations.items()):
        for name in value.split(",") if key.startswith(ANNOTATION_PREFIX) else ():
            if not is_qualified_name(name):
                problem = f'failed to parse CDI device annotations: invalid CDI device name "{name}"'
                raise CreateContainerFailed(f"{CREATE_FAILED_TEXT}{problem}")
            yield name


def read_registry(directories: Sequence[Path]) -> Registry:
    """What the files of these directories define now."""
    return build_registry(
        parse_spec_file(os.fspath(path), _read_content(path), priority)
        for priority, directory in enumerate(directories)
        for path in directory.glob("*")
        if path.name.endswith(SPEC_FILE_SUFFIXES) and not path.is_dir()
    )


def _read_content(path: Path) -> bytes | OSError:
    try:
        return files.read(path)
    except OSError as error:
        return error


def _with_device_numbers(node: DeviceNode) -> DeviceNode:
    """Type and major number are the host's where they are left out (container-edits_unix.go). Raises
    CreateContainerFailed."""
    if node.type and (node.major or node.type == "p"):
        return node
    path = node.host_path or node.path
    try:
        found = Path(path).lstat()
    except OSError as error:
        raise _injection_error(f'failed to stat CDI host device "{path}": {(error.strerror or "").lower()}') from None
    kind = NODE_TYPES.get(stat.S_IFMT(found.st_mode))
    if kind is None:
        raise _injection_error(f'failed to stat CDI host device "{path}": not a device node')
    if node.type and node.type != kind:
        raise _injection_error(f'CDI device ("{node.path}", "{path}"), host type mismatch ({node.type}, {kind})')
    if node.major or kind == "p":
        return node.but(type=kind)
    return node.but(type=kind, major=os.major(found.st_rdev), minor=os.minor(found.st_rdev))


def _injection_error(problem: str) -> CreateContainerFailed:
    return CreateContainerFailed(f"{INJECTION_FAILED_TEXT}failed to inject devices: {problem}")
