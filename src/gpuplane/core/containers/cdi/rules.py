"""What the container runtimes' own library refuses (CNCF container-device-interface 1.1.0: pkg/cdi, pkg/parser,
internal/validation): of a file with one such mistake nothing counts."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from gpuplane.core.containers.cdi.version import VERSIONS, needs, older
from gpuplane.core.strict import DocumentPath
from gpuplane.model.cdi import CdiDevice, ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec

Wrong = Iterator[tuple[DocumentPath, str]]
"""(where, what is wrong)."""

HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
TYPES = ("b", "c", "u", "p")
NO_PERMISSIONS = "none"
NAME = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DOMAIN = re.compile(rf"{LABEL}(\.{LABEL})*")
KEY = re.compile(r"[a-z0-9]([-a-z0-9_.]*[a-z0-9])?")
LONGEST_DOMAIN, LONGEST_NAME = 253, 63  # characters, as Kubernetes has them
ANNOTATIONS = 256 << 10  # bytes of the annotations of one thing, all together
UINT32, INT64 = 1 << 32, 1 << 63


def qualifies(name: str) -> bool:
    """Whether a text is a qualified device name, vendor/class=name."""
    kind, _, device = name.partition("=")
    vendor, _, rest = kind.partition("/")
    return all(NAME.fullmatch(each) for each in (vendor, rest)) and DEVICE.fullmatch(device) is not None


def broken(spec: Spec) -> Wrong:
    """Which rules a document breaks."""
    yield from _version(spec)
    yield from _kind(spec.kind)
    yield from _annotations(spec.annotations)
    yield from under(("containerEdits",), _edits(spec.container_edits))
    if not spec.devices:
        yield ("devices",), "there is no device: a specification needs one at least"
    names: dict[str, int] = {}
    for i, device in enumerate(spec.devices):
        yield from under(("devices", i), _device(device))
        if names.setdefault(device.name, i) != i:
            yield ("devices", i, "name"), f"{shown(device.name)} is devices[{names[device.name]}] too"


def _version(spec: Spec) -> Wrong:
    version = spec.cdi_version.removeprefix("v")
    if version not in VERSIONS:
        yield ("cdiVersion",), f"{shown(spec.cdi_version)} is no version of CDI; there are {', '.join(VERSIONS)}"
        return
    for least, feature in needs(spec):
        if older(version, least):
            yield ("cdiVersion",), f"{feature} needs {least} at least, not {version}"
            return


def _kind(kind: str) -> Wrong:
    vendor, slash, name = kind.partition("/")
    if not (slash and vendor and name):
        yield ("kind",), f"{shown(kind)} must be vendor/class, like nvidia.com/gpu"
        return
    for what, text in (("vendor", vendor), ("class", name)):
        if not NAME.fullmatch(text):
            rule = "letters, digits and _ . - between them, a letter first, a letter or digit last"
            yield ("kind",), f"{shown(text)} is no {what}: {rule}"
        elif len(text) == 1:
            yield ("kind",), f"a {what} of one letter, {shown(text)}, crashes container runtimes: use two at least"


def _device(device: CdiDevice) -> Wrong:
    if not DEVICE.fullmatch(device.name):
        rule = "letters, digits and _ . : - between them, a letter or digit first and last"
        yield ("name",), f"{shown(device.name)} is no name of a device: {rule}"
    yield from _annotations(device.annotations)
    if device.container_edits == ContainerEdits():
        yield ("containerEdits",), "a device must give something: these edits are empty"
    yield from under(("containerEdits",), _edits(device.container_edits))


def _annotations(annotations: Mapping[str, str]) -> Wrong:
    """As Kubernetes has them, with letters of either case."""
    for key in annotations:
        domain, slash, name = key.lower().rpartition("/")
        named = KEY.fullmatch(name) and len(name) <= LONGEST_NAME
        if not named or (slash and (not DOMAIN.fullmatch(domain) or len(domain) > LONGEST_DOMAIN)):
            yield ("annotations", key), f"{shown(key)} is no key of an annotation, like example.com/name"
    if sum(len(each.encode(errors="replace")) for pair in annotations.items() for each in pair) > ANNOTATIONS:
        yield ("annotations",), f"larger than {ANNOTATIONS >> 10} KiB"


def _edits(edits: ContainerEdits) -> Wrong:
    yield from _env(edits.env)
    yield from listed("deviceNodes", edits.device_nodes, _node)
    yield from listed("hooks", edits.hooks, _hook)
    yield from listed("mounts", edits.mounts, _mount)
    yield from _net_devices(edits.net_devices)
    if edits.intel_rdt is not None:
        yield from under(("intelRdt",), _rdt(edits.intel_rdt))
    for i, gid in enumerate(edits.additional_gids):
        yield from _number(("additionalGids", i), gid, 0, UINT32)


def _env(env: Sequence[str]) -> Wrong:
    for i, each in enumerate(env):
        if each.find("=") <= 0:
            yield ("env", i), f"{shown(each)} must be NAME=VALUE"


def _node(node: DeviceNode) -> Wrong:
    if not node.path:
        yield ("path",), "must not be empty"
    if node.type and node.type not in TYPES:
        yield ("type",), f"{shown(node.type)} is no type of a device node; there are {', '.join(TYPES)}"
    if node.permissions != NO_PERMISSIONS and node.permissions.strip("rwm"):
        yield ("permissions",), f"{shown(node.permissions)} must be made of r, w and m, or be {NO_PERMISSIONS}"
    yield from _number(("major",), node.major, -INT64, INT64)
    yield from _number(("minor",), node.minor, -INT64, INT64)
    for key, value in (("fileMode", node.file_mode), ("uid", node.uid), ("gid", node.gid)):
        yield from _number((key,), value, 0, UINT32)


def _hook(hook: Hook) -> Wrong:
    if hook.hook_name not in HOOKS:
        yield ("hookName",), f"{shown(hook.hook_name)} is no hook; there are {', '.join(HOOKS)}"
    if not hook.path:
        yield ("path",), "must not be empty"
    yield from _env(hook.env)
    yield from _number(("timeout",), hook.timeout, -INT64, INT64)


def _mount(mount: Mount) -> Wrong:
    for key, value in (("hostPath", mount.host_path), ("containerPath", mount.container_path)):
        if not value:
            yield (key,), "must not be empty"


def _net_devices(devices: Sequence[NetDevice]) -> Wrong:
    hosts, names = [device.host_interface_name for device in devices], [device.name for device in devices]
    for key, values in (("hostInterfaceName", hosts), ("name", names)):
        for i, value in enumerate(values):
            if not value:
                yield ("netDevices", i, key), "must not be empty"
            elif (first := values.index(value)) != i:
                yield ("netDevices", i, key), f"{shown(value)} is that of netDevices[{first}] too"


def _rdt(rdt: IntelRdt) -> Wrong:
    """A class of service is a directory's name; "/" is the root's."""
    name = rdt.clos_id
    if name != "/" and (name in (".", "..") or set(name) & {"/", "\n"} or len(name.encode(errors="replace")) >= 4096):
        yield ("closID",), f"{shown(name)} is no name of a class of service: it has to be a file's name, or /"


def _number(path: DocumentPath, number: int | None, least: int, beyond: int) -> Wrong:
    if number is not None and not least <= number < beyond:
        yield path, f"{number} must be {least} to {beyond - 1}"


# also for `pitfalls`


def listed(key: str, values: Sequence[msgspec.Struct], wrong: Callable[..., Wrong]) -> Wrong:
    """The mistakes of each thing of a list."""
    for i, value in enumerate(values):
        yield from under((key, i), wrong(value))


def under(path: DocumentPath, wrong: Wrong) -> Wrong:
    """The same mistakes, seen from above."""
    return (((*path, *below), text) for below, text in wrong)


def shown(text: str) -> str:
    """A text from a file, in quotes, for a message."""
    return repr(text if len(text) <= 80 else f"{text[:79]}…")
