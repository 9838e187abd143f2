"""Is a CDI specification good? Two answers, because they are asked for two reasons.

`refused` is what the container runtimes' own library refuses (CNCF container-device-interface 1.1.0: pkg/cdi,
pkg/parser, internal/validation): a file with such a mistake counts for nothing, all of it. `check` adds what the
library lets pass and a runtime, or an older library, then stumbles over: the texts of CDI (SPEC.md) and of the OCI
runtime specification ask for more than the library looks at. Whoever writes a specification wants to pass `check`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from gpuplane.core import strict
from gpuplane.core.containers.cdi.asread import as_read
from gpuplane.core.containers.cdi.version import VERSIONS, needs, older
from gpuplane.core.strict import Path, spot
from gpuplane.core.text import clip
from gpuplane.model.cdi import CdiDevice, ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec

Wrong = Iterator[tuple[Path, str]]
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


def read(data: bytes, file: str, rules: Callable[[Spec], Iterable[tuple[Path, str]]] | None = None) -> Spec:
    """The specification in a file's bytes, YAML or JSON. Raises strict.Invalid: every mistake with file and line.

    `rules` are those of `refused` where nothing else is said. It is read as the library reads it, see `asread`, but for
    keys: they have to be written as they are.
    """
    return strict.read(data, Spec, file, rules or refused, lambda root: as_read(root, Spec))[0]


def refused(spec: Spec) -> Wrong:
    """What container runtimes refuse."""
    yield from _told(_document(spec))


def check(spec: Spec) -> Wrong:
    """All that is wrong."""
    yield from refused(spec)
    yield from _told(_careless(spec))


def qualifies(name: str) -> bool:
    """Whether a text is a qualified device name, vendor/class=name."""
    kind, _, device = name.partition("=")
    vendor, _, rest = kind.partition("/")
    return all(NAME.fullmatch(each) for each in (vendor, rest)) and DEVICE.fullmatch(device) is not None


def _told(wrong: Wrong) -> Wrong:
    for path, text in wrong:
        yield path, f"{clip(spot(path))}: {text}"


def _under(path: Path, wrong: Wrong) -> Wrong:
    return (((*path, *below), text) for below, text in wrong)


# what the library refuses


def _document(spec: Spec) -> Wrong:
    yield from _version(spec)
    yield from _kind(spec.kind)
    yield from _annotations(spec.annotations)
    yield from _under(("containerEdits",), _edits(spec.container_edits))
    if not spec.devices:
        yield ("devices",), "there is no device: a specification needs one at least"
    names: dict[str, int] = {}
    for i, device in enumerate(spec.devices):
        yield from _under(("devices", i), _device(device))
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
    yield from _under(("containerEdits",), _edits(device.container_edits))


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
    yield from _each("deviceNodes", edits.device_nodes, _node)
    yield from _each("hooks", edits.hooks, _hook)
    yield from _each("mounts", edits.mounts, _mount)
    yield from _net_devices(edits.net_devices)
    if edits.intel_rdt is not None:
        yield from _under(("intelRdt",), _rdt(edits.intel_rdt))
    for i, gid in enumerate(edits.additional_gids):
        yield from _number(("additionalGids", i), gid, 0, UINT32)


def _each(key: str, values: Sequence[msgspec.Struct], wrong: Callable[..., Wrong]) -> Wrong:
    for i, value in enumerate(values):
        yield from _under((key, i), wrong(value))


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
    for key in ("host_interface_name", "name"):
        wire = {"host_interface_name": "hostInterfaceName", "name": "name"}[key]
        seen: dict[str, int] = {}
        for i, device in enumerate(devices):
            value = getattr(device, key)
            if not value:
                yield ("netDevices", i, wire), "must not be empty"
            elif seen.setdefault(value, i) != i:
                yield ("netDevices", i, wire), f"{shown(value)} is that of netDevices[{seen[value]}] too"


def _rdt(rdt: IntelRdt) -> Wrong:
    """A class of service is a directory's name; "/" is the root's."""
    name = rdt.clos_id
    if name != "/" and (name in (".", "..") or set(name) & {"/", "\n"} or len(name.encode(errors="replace")) >= 4096):
        yield ("closID",), f"{shown(name)} is no name of a class of service: it has to be a file's name, or /"


def shown(text: str) -> str:
    """A text from a file, in quotes, for a message."""
    return repr(text if len(text) <= 80 else f"{text[:79]}…")


def _number(path: Path, number: int | None, least: int, beyond: int) -> Wrong:
    if number is not None and not least <= number < beyond:
        yield path, f"{number} must be {least} to {beyond - 1}"


# what it lets pass


def _careless(spec: Spec) -> Wrong:
    """What runtimes, kernels and older libraries stumble over."""
    vendor, _, name = spec.kind.partition("/")
    if spec.cdi_version.startswith("v"):
        yield ("cdiVersion",), f"{shown(spec.cdi_version)}: older runtimes know it without the v only"
    if len(vendor) > LONGEST_DOMAIN or not DOMAIN.fullmatch(vendor.lower()):
        yield ("kind",), f"the vendor {shown(vendor)} must be a domain, like nvidia.com (SPEC.md)"
    if len(name) > LONGEST_NAME:
        yield ("kind",), f"the class has {len(name)} characters: {LONGEST_NAME} at most (SPEC.md)"
    yield from _under(("containerEdits",), _careless_edits(spec.container_edits))
    for i, device in enumerate(spec.devices):
        yield from _under(("devices", i, "containerEdits"), _careless_edits(device.container_edits))


def _careless_edits(edits: ContainerEdits) -> Wrong:
    for i, each in enumerate(edits.env):
        if "\0" in each:
            yield ("env", i), "has a NUL in it"
    yield from _each("deviceNodes", edits.device_nodes, _careless_node)
    yield from _each("hooks", edits.hooks, _careless_hook)
    yield from _each("mounts", edits.mounts, _careless_mount)


def _careless_node(node: DeviceNode) -> Wrong:
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


def _careless_hook(hook: Hook) -> Wrong:
    yield from _absolute("path", hook.path)
    for i, each in enumerate(hook.args):
        if "\0" in each:
            yield ("args", i), "has a NUL in it"
    if hook.timeout is not None and hook.timeout <= 0:
        yield ("timeout",), f"{hook.timeout} must be more than 0 seconds (OCI runtime specification, hooks)"


def _careless_mount(mount: Mount) -> Wrong:
    yield from _absolute("containerPath", mount.container_path)
    if mount.type in ("", "bind"):
        yield from _absolute("hostPath", mount.host_path)
    if not mount.type and not {"bind", "rbind"} & set(mount.options):
        yield ("options",), "neither bind nor rbind is among them, and there is no type: runc mounts nothing then"


def _absolute(key: str, path: str) -> Wrong:
    if path and (not path.startswith("/") or "\0" in path):
        yield (key,), f"{shown(path)} must be an absolute path"
