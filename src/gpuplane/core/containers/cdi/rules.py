"""What the container runtimes' own library refuses (CNCF container-device-interface 1.1.0: pkg/cdi, pkg/parser,
internal/validation): of a file with one such mistake nothing counts."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from gpuplane.core.containers.cdi.version import VERSIONS, is_older, version_features
from gpuplane.core.strict import DocumentPath
from gpuplane.model.cdi import CdiDevice, ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec

Problems = Iterator[tuple[DocumentPath, str]]
"""(where, what is wrong)."""

HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
DEVICE_NODE_TYPES = ("b", "c", "u", "p")
NO_PERMISSIONS = "none"
VENDOR_OR_CLASS = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
DEVICE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
DOMAIN_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DOMAIN = re.compile(rf"{DOMAIN_LABEL}(\.{DOMAIN_LABEL})*")
ANNOTATION_KEY = re.compile(r"[a-z0-9]([-a-z0-9_.]*[a-z0-9])?")
MAX_DOMAIN_LENGTH, MAX_NAME_LENGTH = 253, 63  # characters, as Kubernetes has them
MAX_ANNOTATION_BYTES = 256 << 10  # bytes of the annotations of one thing, all together
UINT32, INT64 = 1 << 32, 1 << 63


def is_qualified_name(name: str) -> bool:
    """Whether a text is a qualified device name, vendor/class=name."""
    kind, _, device = name.partition("=")
    vendor, _, rest = kind.partition("/")
    return all(VENDOR_OR_CLASS.fullmatch(each) for each in (vendor, rest)) and DEVICE_NAME.fullmatch(device) is not None


def rule_problems(spec: Spec) -> Problems:
    """Which rules a document breaks."""
    yield from _version_problems(spec)
    yield from _kind_problems(spec.kind)
    yield from _annotation_problems(spec.annotations)
    yield from prefix_paths(("containerEdits",), _edit_problems(spec.container_edits))
    if not spec.devices:
        yield ("devices",), "there is no device: a specification needs one at least"
    names: dict[str, int] = {}
    for i, device in enumerate(spec.devices):
        yield from prefix_paths(("devices", i), _device_problems(device))
        if names.setdefault(device.name, i) != i:
            yield ("devices", i, "name"), f"{quote(device.name)} is devices[{names[device.name]}] too"


def _version_problems(spec: Spec) -> Problems:
    version = spec.cdi_version.removeprefix("v")
    if version not in VERSIONS:
        yield ("cdiVersion",), f"{quote(spec.cdi_version)} is no version of CDI; there are {', '.join(VERSIONS)}"
        return
    for least, feature in version_features(spec):
        if is_older(version, least):
            yield ("cdiVersion",), f"{feature} needs {least} at least, not {version}"
            return


def _kind_problems(kind: str) -> Problems:
    vendor, slash, name = kind.partition("/")
    if not (slash and vendor and name):
        yield ("kind",), f"{quote(kind)} must be vendor/class, like nvidia.com/gpu"
        return
    for what, text in (("vendor", vendor), ("class", name)):
        if not VENDOR_OR_CLASS.fullmatch(text):
            rule = "letters, digits and _ . - between them, a letter first, a letter or digit last"
            yield ("kind",), f"{quote(text)} is no {what}: {rule}"
        elif len(text) == 1:
            yield ("kind",), f"a {what} of one letter, {quote(text)}, crashes container runtimes: use two at least"


def _device_problems(device: CdiDevice) -> Problems:
    if not DEVICE_NAME.fullmatch(device.name):
        rule = "letters, digits and _ . : - between them, a letter or digit first and last"
        yield ("name",), f"{quote(device.name)} is no name of a device: {rule}"
    yield from _annotation_problems(device.annotations)
    if device.container_edits == ContainerEdits():
        yield ("containerEdits",), "a device must give something: these edits are empty"
    yield from prefix_paths(("containerEdits",), _edit_problems(device.container_edits))


def _annotation_problems(annotations: Mapping[str, str]) -> Problems:
    """As Kubernetes has them, with letters of either case."""
    for key in annotations:
        domain, slash, name = key.lower().rpartition("/")
        named = ANNOTATION_KEY.fullmatch(name) and len(name) <= MAX_NAME_LENGTH
        if not named or (slash and (not DOMAIN.fullmatch(domain) or len(domain) > MAX_DOMAIN_LENGTH)):
            yield ("annotations", key), f"{quote(key)} is no key of an annotation, like example.com/name"
    if sum(len(each.encode(errors="replace")) for pair in annotations.items() for each in pair) > MAX_ANNOTATION_BYTES:
        yield ("annotations",), f"larger than {MAX_ANNOTATION_BYTES >> 10} KiB"


def _edit_problems(edits: ContainerEdits) -> Problems:
    yield from _env_problems(edits.env)
    yield from list_problems("deviceNodes", edits.device_nodes, _node_problems)
    yield from list_problems("hooks", edits.hooks, _hook_problems)
    yield from list_problems("mounts", edits.mounts, _mount_problems)
    yield from _net_device_problems(edits.net_devices)
    if edits.intel_rdt is not None:
        yield from prefix_paths(("intelRdt",), _rdt_problems(edits.intel_rdt))
    for i, gid in enumerate(edits.additional_gids):
        yield from _number_problems(("additionalGids", i), gid, 0, UINT32)


def _env_problems(env: Sequence[str]) -> Problems:
    for i, each in enumerate(env):
        if each.find("=") <= 0:
            yield ("env", i), f"{quote(each)} must be NAME=VALUE"


def _node_problems(node: DeviceNode) -> Problems:
    if not node.path:
        yield ("path",), "must not be empty"
    if node.type and node.type not in DEVICE_NODE_TYPES:
        yield ("type",), f"{quote(node.type)} is no type of a device node; there are {', '.join(DEVICE_NODE_TYPES)}"
    if node.permissions != NO_PERMISSIONS and node.permissions.strip("rwm"):
        yield ("permissions",), f"{quote(node.permissions)} must be made of r, w and m, or be {NO_PERMISSIONS}"
    yield from _number_problems(("major",), node.major, -INT64, INT64)
    yield from _number_problems(("minor",), node.minor, -INT64, INT64)
    for key, value in (("fileMode", node.file_mode), ("uid", node.uid), ("gid", node.gid)):
        yield from _number_problems((key,), value, 0, UINT32)


def _hook_problems(hook: Hook) -> Problems:
    if hook.hook_name not in HOOK_NAMES:
        yield ("hookName",), f"{quote(hook.hook_name)} is no hook; there are {', '.join(HOOK_NAMES)}"
    if not hook.path:
        yield ("path",), "must not be empty"
    yield from _env_problems(hook.env)
    yield from _number_problems(("timeout",), hook.timeout, -INT64, INT64)


def _mount_problems(mount: Mount) -> Problems:
    for key, value in (("hostPath", mount.host_path), ("containerPath", mount.container_path)):
        if not value:
            yield (key,), "must not be empty"


def _net_device_problems(devices: Sequence[NetDevice]) -> Problems:
    hosts, names = [device.host_interface_name for device in devices], [device.name for device in devices]
    for key, values in (("hostInterfaceName", hosts), ("name", names)):
        for i, value in enumerate(values):
            if not value:
                yield ("netDevices", i, key), "must not be empty"
            elif (first := values.index(value)) != i:
                yield ("netDevices", i, key), f"{quote(value)} is that of netDevices[{first}] too"


def _rdt_problems(rdt: IntelRdt) -> Problems:
    """A class of service is a directory's name; "/" is the root's."""
    name = rdt.clos_id
    if name != "/" and (name in (".", "..") or set(name) & {"/", "\n"} or len(name.encode(errors="replace")) >= 4096):
        yield ("closID",), f"{quote(name)} is no name of a class of service: it has to be a file's name, or /"


def _number_problems(path: DocumentPath, number: int | None, least: int, beyond: int) -> Problems:
    if number is not None and not least <= number < beyond:
        yield path, f"{number} must be {least} to {beyond - 1}"


# also for `pitfalls`


def list_problems(key: str, values: Sequence[msgspec.Struct], wrong: Callable[..., Problems]) -> Problems:
    """The mistakes of each thing of a list."""
    for i, value in enumerate(values):
        yield from prefix_paths((key, i), wrong(value))


def prefix_paths(path: DocumentPath, wrong: Problems) -> Problems:
    """The same mistakes, seen from above."""
    return (((*path, *below), text) for below, text in wrong)


def quote(text: str) -> str:
    """A text from a file, in quotes, for a message."""
    return repr(text if len(text) <= 80 else f"{text[:79]}…")
