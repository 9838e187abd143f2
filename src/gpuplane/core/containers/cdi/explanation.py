"""Explains what a container gets with some CDI devices: each edit, its purpose, and which device it comes from."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from gpuplane.core.containers.cdi.effectiveedits import concatenate_edits, effective_edits
from gpuplane.core.containers.cdi.hookactions import HookAction, hook_actions
from gpuplane.core.containers.cdi.registry import Registry, describe_unresolvable, edits_with_origin
from gpuplane.core.containers.cdi.version import lowest_version, version_features
from gpuplane.model.cdi import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount
from gpuplane.model.value import Value

EditKind = Literal["node", "env", "mount", "hook", "interface", "group", "rdt"]
EditsWithOrigin = Sequence[tuple[str, ContainerEdits]]


class DeviceExplanation(Value, rename={"version_features": "needs", "overridden_files": "over"}):
    """A device: the file that defines it, and the files that this overrides; or why it cannot be resolved.

    `version`: of CDI, declared by the file; older runtimes do not read it. `version_features`: the features of the file
    that need the lowest possible version.
    """

    name: str
    file: str = ""
    version: str = ""
    version_features: tuple[str, ...] = ()
    overridden_files: tuple[str, ...] = ()
    problem: str = ""


class EditExplanation(Value, rename={"hook_actions": "steps"}):
    """One edit of a container.

    `origin`: the names of the devices that it comes from, or a kind if any device of that kind has it. `notes`: its
    purpose, and edits with the same name that have no effect.
    """

    kind: EditKind
    what: str  # "/dev/nvidia0"
    detail: str = ""  # "c 195:0"
    origin: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    hook_actions: tuple[HookAction, ...] = ()  # of a hook


class Explanation(Value):
    """The devices, and the edits of those that can be resolved. With an unresolvable one no container is created."""

    devices: tuple[DeviceExplanation, ...]
    edit_explanations: tuple[EditExplanation, ...]
    edits: ContainerEdits


def explain_devices(known: Registry, names: Sequence[str]) -> Explanation:
    """Explains the devices with these qualified names, and their edits together."""
    requested = list(dict.fromkeys(names))
    given = list(edits_with_origin(known, [name for name in requested if name in known.devices]))
    edits = effective_edits(concatenate_edits(edits for _, edits in given))
    return Explanation(
        tuple(_explain_device(known, name) for name in requested), tuple(_explain_edits(edits, given)), edits
    )


def _explain_device(known: Registry, name: str) -> DeviceExplanation:
    if name not in known.devices:
        return DeviceExplanation(name, problem=describe_unresolvable(known, name))
    file, over = known.devices[name].file, known.devices[name].overridden_files
    assert file.spec is not None  # it defines the device
    least = lowest_version(file.spec)
    why = tuple(feature for version, feature in version_features(file.spec) if version == least)
    return DeviceExplanation(name, file.path, file.spec.cdi_version, why, over)


def _explain_edits(edits: ContainerEdits, given: EditsWithOrigin) -> Iterator[EditExplanation]:
    for sort in EDIT_FIELDS:
        yield from (_explain_edit(sort, thing, given) for thing in sort.items_of(edits))


def _explain_edit(sort: "EditField", thing: Any, given: EditsWithOrigin) -> EditExplanation:
    what, detail = sort.what(thing), sort.detail(thing)
    purposes = [purpose for pattern, purpose in PURPOSES if re.fullmatch(pattern, what)]
    overridden = [
        f"{origin} gives {' '.join(filter(None, (sort.what(other), sort.detail(other))))}, which has no effect"
        for origin, edits in given
        for other in sort.items_of(edits)
        if sort.key(other) == sort.key(thing) and other != thing
    ]
    return EditExplanation(
        sort.kind,
        what,
        detail,
        origin=tuple(dict.fromkeys(origin for origin, edits in given if thing in sort.items_of(edits))),
        notes=(*purposes, *dict.fromkeys(overridden)),
        hook_actions=hook_actions(thing) if isinstance(thing, Hook) else (),
    )


def _describe_node(node: DeviceNode) -> str:
    numbers = f"{node.type} {node.major}:{node.minor or 0}" if node.major is not None else "numbers of the host's node"
    there = f", on the host {node.host_path}" if node.host_path not in ("", node.path) else ""
    return f"{numbers}{there}, {node.permissions or 'rwm'}"


def _describe_mount(mount: Mount) -> str:
    options = f" ({','.join(mount.options)})" if mount.options else ""
    return ("" if mount.host_path == mount.container_path else f"from {mount.host_path}") + options


def _describe_hook(hook: Hook) -> str:
    return hook.hook_name + (f", for at most {hook.timeout} s" if hook.timeout else "")


def _describe_rdt(rdt: IntelRdt) -> str:
    return ", ".join(filter(None, (rdt.l3_cache_schema, rdt.mem_bw_schema, *rdt.schemata)))


class EditField(NamedTuple):
    """A field of container edits: how to get its items, the key by which one replaces another, and their texts."""

    kind: EditKind
    items_of: Callable[[ContainerEdits], Sequence[Any]]
    key: Callable[[Any], object]
    what: Callable[[Any], str]
    detail: Callable[[Any], str] = lambda thing: ""


EDIT_FIELDS = (
    EditField("node", lambda edits: edits.device_nodes, lambda node: node.path, lambda node: node.path, _describe_node),
    EditField("env", lambda edits: edits.env, lambda each: each.partition("=")[0], str),
    EditField(
        "mount",
        lambda edits: edits.mounts,
        lambda mount: mount.container_path,
        lambda m: m.container_path,
        _describe_mount,
    ),
    EditField("hook", lambda edits: edits.hooks, lambda hook: hook, lambda hook: hook.path, _describe_hook),
    EditField(
        "interface",
        lambda edits: edits.net_devices,
        lambda device: device.host_interface_name,
        lambda device: device.host_interface_name,
        lambda device: f"as {device.name}",
    ),
    EditField("group", lambda edits: edits.additional_gids, lambda gid: gid, str),
    EditField(
        "rdt", lambda edits: (edits.intel_rdt,) if edits.intel_rdt else (), type, lambda rdt: rdt.clos_id, _describe_rdt
    ),
)

PURPOSES = (
    (r"/dev/nvidia\d+", "the GPU"),
    (r"/dev/nvidiactl", "the driver's control"),
    (r"/dev/nvidia-uvm", "unified memory, which CUDA needs"),
    (r"/dev/nvidia-uvm-tools", "events of unified memory, for profilers"),
    (r"/dev/nvidia-modeset", "displays"),
    (r"/dev/nvidia-caps/nvidia-cap\d+", "a capability: an instance of a GPU in MIG mode, or MIG's management"),
    (r"/dev/nvidia-caps-imex-channels/channel\d+", "an IMEX channel: memory shared between nodes"),
    (r"/dev/nvidia-fs\d*", "GPUDirect Storage"),
    (r"/dev/nvidia-nvswitch.*", "an NVSwitch"),
    (r"/dev/gdrdrv", "GDRCopy"),
    (r"/dev/infiniband/.*", "RDMA, as for GPUDirect over Mellanox"),
    (r"/dev/dri/card\d+", "the GPU's display node"),
    (r"/dev/dri/renderD\d+", "the GPU's render node, for graphics"),
    (r"NVIDIA_VISIBLE_DEVICES=void", "keeps NVIDIA's runtime from giving GPUs a second time"),
    (r"NVIDIA_CTK_LIBCUDA_DIR=.*", "where libcuda is, for NVIDIA's hooks"),
)
"""(pattern of a node or variable, its purpose)."""
