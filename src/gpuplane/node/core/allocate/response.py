"""The answer to Allocate: what a container that holds these devices gets.

It is byte for byte the answer of NVIDIA's plugin (k8s-device-plugin 0.20, internal/plugin/server.go and internal/cdi),
so that runtimes, hooks and policies that read it keep working. Four strategies pass the devices to the runtime; they
can be combined (`strategy` decides which of them `auto` means):

    envvar            NVIDIA_VISIBLE_DEVICES and NVIDIA_IMEX_CHANNELS name them
    volume-mounts     NVIDIA_VISIBLE_DEVICES names a directory, and a mount of /dev/null in it names each
    cdi-annotations   one annotation names them all as CDI devices
    cdi-cri           the CDI field of the answer names each

If only CDI strategies are configured, the CDI specification has the device nodes, and the answer has none. Three things
differ from NVIDIA's answer on purpose: a list of indices has the order of the request, theirs that of a Go map; the
annotation's key is derived from its devices, theirs is random; no device node is listed twice.

Ids come from a request, so they are only ever looked up. Paths and names are made from the unit's own values.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from gpuplane.node.core.advertising import offer, offered_devices_by_id
from gpuplane.node.core.allocate import shares
from gpuplane.node.core.allocate.cdiannotation import cdi_annotation
from gpuplane.node.core.allocate.plain import plain_response
from gpuplane.node.core.containers import mps
from gpuplane.node.core.containers.cdi.desiredspecs import missing_features
from gpuplane.node.core.containers.cdi.devicenodes import CONTROL_NODE_PATHS, IMEX_CHANNEL_PREFIX
from gpuplane.node.core.containers.cdi.names import VENDOR
from gpuplane.node.core.containers.cdi.standins import stand_in_mounts
from gpuplane.node.core.containers.strategy import effective_list_strategies
from gpuplane.node.core.kinds.table import KINDS
from gpuplane.node.core.view import view, without_allocations
from gpuplane.node.model.config import Settings
from gpuplane.node.model.machine import Machine
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.views import (
    ContainerAllocateResponse,
    DeviceSpec,
    Mount,
    OfferedDevice,
    RequestRefused,
    Resource,
    Unit,
)

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
MOUNT_LIST_ROOT = "/var/run/nvidia-container-devices"


def allocate(snapshot: Snapshot, resource: str, ids: Sequence[str]) -> ContainerAllocateResponse:
    """What a container that holds these ids of a resource gets. Raises RequestRefused, naming the device and the
    reason."""
    offered, devices = _requested_devices(snapshot, resource, ids)
    machine = snapshot.machine
    units = tuple({device.unit.id: device.unit for device in devices}.values())
    settings, lacking = _settings_in_force(without_allocations(snapshot))
    if KINDS[units[0].kind].container_edits is not None:
        return plain_response(units, settings, resource)
    assert machine is not None
    got = response_for_units(units, machine, settings, resource, lacking)
    if offered.share_mib:
        limits = shares.memory_share_variables(units[0], offered.share_mib * len(devices), settings.sharing.memory_unit)
        got = got.but(env={**got.env, **limits})
    if offered.uses_mps and any(device.is_share for device in devices):
        more = mps.mps_allocate_response(offered, devices, settings)
        got = got.but(env={**got.env, **more.env}, mounts=(*got.mounts, *more.mounts))
    return got


@view
def _settings_in_force(snapshot: Snapshot) -> tuple[Settings, frozenset[str]]:
    """(the settings with the strategies in force, the configured features without a CDI device): alike for each grant.

    `snapshot`: without what containers hold.
    """
    settings = snapshot.config.settings
    assert settings is not None  # something is offered
    return settings.but(device_list_strategy=effective_list_strategies(snapshot)), missing_features(snapshot)


def _requested_devices(snapshot: Snapshot, name: str, ids: Sequence[str]) -> tuple[Resource, list[OfferedDevice]]:
    """A resource, and its devices with these ids. Raises RequestRefused for the first that does not exist or is not
    available."""
    whole = offer(snapshot)
    resource = whole.resource(name)
    if resource is None:
        raise RequestRefused(
            f"{name} is not offered by this node: {whole.waiting_reason or 'no device has this resource name'}"
        )
    if not ids:
        raise RequestRefused(f"{name}: the request names no device")
    devices = offered_devices_by_id.of(snapshot, whole)[name]
    wanted = [_require_available(name, devices.get(id), id, len(devices)) for id in dict.fromkeys(ids)]
    if resource.one_share_only and len(wanted) > 1 and any(device.is_share for device in wanted):
        raise RequestRefused(
            f"{name}: {len(wanted)} shares requested, but failRequestsGreaterThanOne allows 1: request 1 share; "
            "with more shares a container does not get more of the device"
        )
    shares.refuse_forbidden_shares(snapshot, resource, wanted)
    return resource, wanted


def _require_available(resource: str, device: OfferedDevice | None, id: str, device_count: int) -> OfferedDevice:
    if device is None:
        raise RequestRefused(
            f"{resource}: unknown device {id[:64]!r}; this node has {device_count} devices of this resource"
        )
    if device.reasons:
        raise RequestRefused(f"{resource}: device {device.id} is not available: {device.unavailable_reason}")
    return device


def response_for_units(
    units: Sequence[Unit], machine: Machine, settings: Settings, resource: str, missing_features: Collection[str] = ()
) -> ContainerAllocateResponse:
    """What a container gets that holds these units of a resource, by the strategies of `settings`, without `auto`.

    `missing_features`: the configured features that have no CDI device. Raises RequestRefused if IMEX is required but
    missing.
    """
    strategies = settings.device_list_strategy
    names = [unit.index if settings.device_id_strategy == "index" else unit.id for unit in units]
    channels = _imex_channels(machine, settings)
    features = [name for name in ("gdrcopy", "gds", "mofed") if getattr(settings, name)]
    qualified = tuple(
        _qualified_cdi_names(names, channels, [name for name in features if name not in missing_features])
    )
    env = {f"NVIDIA_{feature.upper()}": "enabled" for feature in features}
    mounts: tuple[Mount, ...] = ()
    if "envvar" in strategies:
        env[VISIBLE_DEVICES] = ",".join(names)
        if channels:
            env["NVIDIA_IMEX_CHANNELS"] = ",".join(map(str, channels))
    if "volume-mounts" in strategies:
        env[VISIBLE_DEVICES] = MOUNT_LIST_ROOT
        mounts = tuple(_device_list_mounts(names, channels))
    nodes = tuple(_device_nodes(units, channels, machine, settings)) if _passes_device_nodes(settings) else ()
    if settings.stand_ins:
        listed = (each.container_path for each in mounts)  # of /dev/null, too
        mounts, nodes = stand_in_mounts((*listed, *(each.container_path for each in nodes))), ()
    return ContainerAllocateResponse(
        env=env,
        mounts=mounts,
        device_specs=nodes,
        annotations=cdi_annotation(qualified, settings, resource) if "cdi-annotations" in strategies else {},
        cdi_devices=qualified if "cdi-cri" in strategies else (),
    )


def _imex_channels(machine: Machine, settings: Settings) -> list[int]:
    """The configured IMEX channels that this node has."""
    missing = [
        channel for channel in settings.imex_channels if f"{IMEX_CHANNEL_PREFIX}{channel}" not in machine.shared_nodes
    ]
    if missing and settings.imex_required:
        nodes = ", ".join(f"{IMEX_CHANNEL_PREFIX}{channel}" for channel in missing)
        raise RequestRefused(
            f"IMEX channels are required, but this node has no {nodes}: "
            "start nvidia-imex and create the channels, or set imex.required to false"
        )
    return [channel for channel in settings.imex_channels if channel not in missing]


def _qualified_cdi_names(
    device_names: Iterable[str], channels: Iterable[int], features: Iterable[str]
) -> Iterator[str]:
    """The CDI names, in NVIDIA's order."""
    for name in device_names:
        yield f"{VENDOR}/gpu={name}"
    for channel in channels:
        yield f"{VENDOR}/imex-channel={channel}"
    for feature in features:
        yield f"{VENDOR}/{feature}=all"


def _device_list_mounts(device_names: Iterable[str], channels: Iterable[int]) -> Iterator[Mount]:
    for name in device_names:
        yield Mount(container_path=f"{MOUNT_LIST_ROOT}/{name}", host_path="/dev/null")
    for channel in channels:
        yield Mount(container_path=f"{MOUNT_LIST_ROOT}/imex/{channel}", host_path="/dev/null")


def _passes_device_nodes(settings: Settings) -> bool:
    wanted = settings.pass_device_specs or settings.stand_ins
    return wanted and any(not each.startswith("cdi-") for each in settings.device_list_strategy)


def _device_nodes(
    units: Sequence[Unit], channels: Iterable[int], machine: Machine, settings: Settings
) -> Iterator[DeviceSpec]:
    """The existing control nodes, the units' own nodes and the IMEX channels; MIG devices of one GPU share its node."""
    control = [path for path in CONTROL_NODE_PATHS if path in machine.shared_nodes]
    own = [path for unit in units for path in unit.device_nodes]
    root = settings.dev_root.rstrip("/")
    for path in dict.fromkeys([*control, *own, *(f"{IMEX_CHANNEL_PREFIX}{channel}" for channel in channels)]):
        yield DeviceSpec(container_path=path, host_path=root + path)
