"""Explains what a container gets with some CDI devices: each edit, its purpose, and which device it comes from."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from gpuplane.base.value import Value
from gpuplane.node.core.containers.cdi.effectiveedits import concatenate_edits, drop_overridden_edits
from gpuplane.node.core.containers.cdi.hookactions import HookAction, hook_actions
from gpuplane.node.core.containers.cdi.registry import (
    Registry,
    describe_unresolvable_device,
    list_edits_by_device_or_kind,
)
from gpuplane.node.core.containers.cdi.version import lowest_version, version_features
from gpuplane.node.model.cdi import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount

EditKind = Literal["node", "env", "mount", "hook", "interface", "group", "rdt"]
EditsByDeviceOrKind = Sequence[tuple[str, ContainerEdits]]


class DeviceResolution(Value):
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


class EditExplanation(Value):
    """One edit of a container.

    `devices_or_kinds`: the names of the devices that it comes from, or a kind if any device of that kind has it.
    `notes`: its purpose, and edits with the same name that have no effect.
    """

    kind: EditKind
    edit_text: str  # "/dev/nvidia0"
    edit_options_text: str = ""  # "c 195:0"
    devices_or_kinds: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    hook_actions: tuple[HookAction, ...] = ()  # of a hook


class Explanation(Value):
    """The devices, and the edits of those that can be resolved. With an unresolvable one no container is created."""

    devices: tuple[DeviceResolution, ...]
    edit_explanations: tuple[EditExplanation, ...]
    edits: ContainerEdits


def explain_devices(registry: Registry, names: Sequence[str]) -> Explanation:
    """Explains the devices with these qualified names, and their edits together."""
    requested = list(dict.fromkeys(names))
    given = list(list_edits_by_device_or_kind(registry, [name for name in requested if name in registry.devices]))
    edits = drop_overridden_edits(concatenate_edits(edits for _, edits in given))
    return Explanation(
        tuple(_explain_device(registry, name) for name in requested), tuple(_explain_edits(edits, given)), edits
    )


def _explain_device(registry: Registry, name: str) -> DeviceResolution:
    if name not in registry.devices:
        return DeviceResolution(name, problem=describe_unresolvable_device(registry, name))
    file, over = registry.devices[name].file, registry.devices[name].overridden_files
    assert file.spec is not None  # it defines the device
    least = lowest_version(file.spec)
    why = tuple(feature for version, feature in version_features(file.spec) if version == least)
    return DeviceResolution(name, file.path, file.spec.cdi_version, why, over)


def _explain_edits(edits: ContainerEdits, edits_by_origin: EditsByDeviceOrKind) -> Iterator[EditExplanation]:
    for sort in EDIT_FIELDS:
        yield from (_explain_edit(sort, thing, edits_by_origin) for thing in sort.items_of(edits))


def _explain_edit(field: "EditField", item: Any, edits_by_origin: EditsByDeviceOrKind) -> EditExplanation:
    what, detail = field.text_of(item), field.options_of(item)
    purposes = [purpose for pattern, purpose in PURPOSE_BY_PATTERN if re.fullmatch(pattern, what)]
    overridden = [
        f"{origin} gives {' '.join(filter(None, (field.text_of(other), field.options_of(other))))}, which has no effect"
        for origin, edits in edits_by_origin
        for other in field.items_of(edits)
        if field.identity_of(other) == field.identity_of(item) and other != item
    ]
    return EditExplanation(
        field.kind,
        what,
        detail,
        devices_or_kinds=tuple(
            dict.fromkeys(origin for origin, edits in edits_by_origin if item in field.items_of(edits))
        ),
        notes=(*purposes, *dict.fromkeys(overridden)),
        hook_actions=hook_actions(item) if isinstance(item, Hook) else (),
    )


def _describe_node(node: DeviceNode) -> str:
    numbers = (
        f"{node.type} {node.major}:{node.minor or 0}"
        if node.major is not None
        else "major and minor number of the device node on the host"
    )
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
    identity_of: Callable[[Any], object]
    text_of: Callable[[Any], str]
    options_of: Callable[[Any], str] = lambda thing: ""


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

PURPOSE_BY_PATTERN = (
    (r"/dev/nvidia\d+", "the GPU"),
    (r"/dev/nvidiactl", "the control device of the driver"),
    (r"/dev/nvidia-uvm", "unified memory, which CUDA needs"),
    (r"/dev/nvidia-uvm-tools", "events of unified memory, for profilers"),
    (r"/dev/nvidia-modeset", "displays"),
    (r"/dev/nvidia-caps/nvidia-cap\d+", "a MIG capability: access to a MIG instance, or to MIG management"),
    (r"/dev/nvidia-caps-imex-channels/channel\d+", "an IMEX channel: memory shared between nodes"),
    (r"/dev/nvidia-fs\d*", "GPUDirect Storage"),
    (r"/dev/nvidia-nvswitch.*", "an NVSwitch"),
    (r"/dev/gdrdrv", "GDRCopy"),
    (r"/dev/infiniband/.*", "RDMA, for example GPUDirect over Mellanox"),
    (r"/dev/dri/card\d+", "the GPU's display node"),
    (r"/dev/dri/renderD\d+", "the GPU's render node, for graphics"),
    (r"NVIDIA_VISIBLE_DEVICES=void", "prevents NVIDIA's runtime from adding the GPUs a second time"),
    (r"NVIDIA_CTK_LIBCUDA_DIR=.*", "tells NVIDIA's hooks the directory of libcuda"),
)
"""(pattern of a node or variable, its purpose)."""
