"""CDI: a specification file as runtimes read it (CNCF container-device-interface 1.1.0, specs-go/config.go).

Field for field and by its names on the wire. What is left out is not written. An unknown field is an error here, as it
is to the runtimes' own library.
"""

from collections.abc import Mapping

import msgspec

from gpuplane.base.value import Value


class DeviceNode(Value, rename="camel"):
    """A device node in the container."""

    path: str
    host_path: str = ""  # where it has another path on the host
    type: str = ""  # b, c, u or p
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str = ""  # of r, w, m: what the device cgroup allows
    uid: int | None = None
    gid: int | None = None


class NetDevice(Value, rename="camel"):
    """A network interface that is moved into the container."""

    host_interface_name: str
    name: str


class Mount(Value, rename="camel"):
    """A path of the host, seen in the container."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class Hook(Value, rename="camel"):
    """A program that the runtime calls. `args` begins with its name; `timeout` in seconds."""

    hook_name: str  # "createContainer"
    path: str  # on the host
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class IntelRdt(Value, rename="camel"):
    """Intel's Resource Director Technology. Never ours; it has to be read in files of others."""

    clos_id: str = msgspec.field(default="", name="closID")
    l3_cache_schema: str = msgspec.field(default="", name="l3CacheSchema")
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] = ()
    enable_monitoring: bool = False


class ContainerEdits(Value, rename="camel"):
    """What is done to a container."""

    env: tuple[str, ...] = ()  # NAME=VALUE
    device_nodes: tuple[DeviceNode, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = msgspec.field(default=(), name="additionalGids")


class CdiDevice(Value, rename="camel"):
    """One device: its name within the kind, and what a container gets that asks for it."""

    name: str
    annotations: Mapping[str, str] = {}
    container_edits: ContainerEdits = ContainerEdits()


class Spec(Value, rename="camel"):
    """One file: devices of one kind ("vendor/class"), and what a container gets that asks for any of them, once."""

    cdi_version: str
    kind: str
    annotations: Mapping[str, str] = {}
    devices: tuple[CdiDevice, ...] = ()
    container_edits: ContainerEdits = ContainerEdits()
