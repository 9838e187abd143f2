"""The rules of the container runtimes' own library (CNCF container-device-interface 1.1.0: pkg/cdi, pkg/parser,
internal/validation). It refuses a whole file for one mistake."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from gpuplane.base.strict import DocumentPath
from gpuplane.node.core.containers.cdi.version import CDI_VERSIONS, is_older, version_features
from gpuplane.node.model.cdi import CdiDevice, ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec

ProblemsByPath = Iterator[tuple[DocumentPath, str]]
"""(path in the document, what is wrong)."""

HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
DEVICE_NODE_TYPES = ("b", "c", "u", "p")
NO_PERMISSIONS_VALUE = "none"
VENDOR_OR_CLASS_PATTERN = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
DEVICE_NAME_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
DOMAIN_LABEL_PATTERN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DOMAIN_PATTERN = re.compile(rf"{DOMAIN_LABEL_PATTERN}(\.{DOMAIN_LABEL_PATTERN})*")
ANNOTATION_KEY_PATTERN = re.compile(r"[a-z0-9]([-a-z0-9_.]*[a-z0-9])?")
MAX_DOMAIN_LENGTH, MAX_NAME_LENGTH = 253, 63  # characters; Kubernetes' limits
MAX_ANNOTATION_BYTES = 256 << 10  # of all annotations of one object together
UINT32_END, INT64_END = 1 << 32, 1 << 63


def is_qualified_name(name: str) -> bool:
    """Whether a text is a qualified device name, vendor/class=name."""
    kind, _, device = name.partition("=")
    vendor, _, rest = kind.partition("/")
    return (
        all(VENDOR_OR_CLASS_PATTERN.fullmatch(each) for each in (vendor, rest))
        and DEVICE_NAME_PATTERN.fullmatch(device) is not None
    )


def cdi_library_rule_problems(spec: Spec) -> ProblemsByPath:
    """The rules that a specification violates."""
    yield from _version_problems(spec)
    yield from _kind_problems(spec.kind)
    yield from _annotation_problems(spec.annotations)
    yield from prepend_path(("containerEdits",), _edit_problems(spec.container_edits))
    if not spec.devices:
        yield ("devices",), "there is no device: a specification needs at least one"
    names: dict[str, int] = {}
    for i, device in enumerate(spec.devices):
        yield from prepend_path(("devices", i), _device_problems(device))
        if names.setdefault(device.name, i) != i:
            yield ("devices", i, "name"), f"{quote(device.name)} is also the name of devices[{names[device.name]}]"


def _version_problems(spec: Spec) -> ProblemsByPath:
    version = spec.cdi_version.removeprefix("v")
    if version not in CDI_VERSIONS:
        yield (
            ("cdiVersion",),
            f"{quote(spec.cdi_version)} is not a version of CDI; the versions are {', '.join(CDI_VERSIONS)}",
        )
        return
    for least, feature in version_features(spec):
        if is_older(version, least):
            yield ("cdiVersion",), f"{feature} needs at least version {least}, but the file declares {version}"
            return


def _kind_problems(kind: str) -> ProblemsByPath:
    vendor, slash, name = kind.partition("/")
    if not (slash and vendor and name):
        yield ("kind",), f"{quote(kind)} must be vendor/class, like nvidia.com/gpu"
        return
    for what, text in (("vendor", vendor), ("class", name)):
        if not VENDOR_OR_CLASS_PATTERN.fullmatch(text):
            rule = "use letters, digits, _, . and -; begin with a letter; end with a letter or digit"
            yield ("kind",), f"{quote(text)} is not a {what}: {rule}"
        elif len(text) == 1:
            yield ("kind",), f"a {what} of one letter, {quote(text)}, crashes container runtimes: use at least two"


def _device_problems(device: CdiDevice) -> ProblemsByPath:
    if not DEVICE_NAME_PATTERN.fullmatch(device.name):
        rule = "use letters, digits, _, ., : and -; begin and end with a letter or digit"
        yield ("name",), f"{quote(device.name)} is not a device name: {rule}"
    yield from _annotation_problems(device.annotations)
    if device.container_edits == ContainerEdits():
        yield ("containerEdits",), "must not be empty: a device needs at least one edit"
    yield from prepend_path(("containerEdits",), _edit_problems(device.container_edits))


def _annotation_problems(annotations: Mapping[str, str]) -> ProblemsByPath:
    """Kubernetes' rules for annotations, except that upper case is allowed."""
    for key in annotations:
        domain, slash, name = key.lower().rpartition("/")
        named = ANNOTATION_KEY_PATTERN.fullmatch(name) and len(name) <= MAX_NAME_LENGTH
        if not named or (slash and (not DOMAIN_PATTERN.fullmatch(domain) or len(domain) > MAX_DOMAIN_LENGTH)):
            yield ("annotations", key), f"{quote(key)} is not a key of an annotation, like example.com/name"
    if sum(len(each.encode(errors="replace")) for pair in annotations.items() for each in pair) > MAX_ANNOTATION_BYTES:
        yield ("annotations",), f"larger than {MAX_ANNOTATION_BYTES >> 10} KiB"


def _edit_problems(edits: ContainerEdits) -> ProblemsByPath:
    yield from _env_problems(edits.env)
    yield from problems_of_list_items("deviceNodes", edits.device_nodes, _node_problems)
    yield from problems_of_list_items("hooks", edits.hooks, _hook_problems)
    yield from problems_of_list_items("mounts", edits.mounts, _mount_problems)
    yield from _net_device_problems(edits.net_devices)
    if edits.intel_rdt is not None:
        yield from prepend_path(("intelRdt",), _rdt_problems(edits.intel_rdt))
    for i, gid in enumerate(edits.additional_gids):
        yield from _range_problems(("additionalGids", i), gid, 0, UINT32_END)


def _env_problems(env: Sequence[str]) -> ProblemsByPath:
    for i, each in enumerate(env):
        if each.find("=") <= 0:
            yield ("env", i), f"{quote(each)} must be NAME=VALUE"


def _node_problems(node: DeviceNode) -> ProblemsByPath:
    if not node.path:
        yield ("path",), "must not be empty"
    if node.type and node.type not in DEVICE_NODE_TYPES:
        yield (
            ("type",),
            f"{quote(node.type)} is not a type of device node; the types are {', '.join(DEVICE_NODE_TYPES)}",
        )
    if node.permissions != NO_PERMISSIONS_VALUE and node.permissions.strip("rwm"):
        yield ("permissions",), f"{quote(node.permissions)} must consist of r, w and m, or be {NO_PERMISSIONS_VALUE}"
    yield from _range_problems(("major",), node.major, -INT64_END, INT64_END)
    yield from _range_problems(("minor",), node.minor, -INT64_END, INT64_END)
    for key, value in (("fileMode", node.file_mode), ("uid", node.uid), ("gid", node.gid)):
        yield from _range_problems((key,), value, 0, UINT32_END)


def _hook_problems(hook: Hook) -> ProblemsByPath:
    if hook.hook_name not in HOOK_NAMES:
        yield ("hookName",), f"{quote(hook.hook_name)} is not a hook; the hooks are {', '.join(HOOK_NAMES)}"
    if not hook.path:
        yield ("path",), "must not be empty"
    yield from _env_problems(hook.env)
    yield from _range_problems(("timeout",), hook.timeout, -INT64_END, INT64_END)


def _mount_problems(mount: Mount) -> ProblemsByPath:
    for key, value in (("hostPath", mount.host_path), ("containerPath", mount.container_path)):
        if not value:
            yield (key,), "must not be empty"


def _net_device_problems(devices: Sequence[NetDevice]) -> ProblemsByPath:
    hosts, names = [device.host_interface_name for device in devices], [device.name for device in devices]
    for key, values in (("hostInterfaceName", hosts), ("name", names)):
        for i, value in enumerate(values):
            if not value:
                yield ("netDevices", i, key), "must not be empty"
            elif (first := values.index(value)) != i:
                yield ("netDevices", i, key), f"netDevices[{first}] already has the value {quote(value)}"


def _rdt_problems(rdt: IntelRdt) -> ProblemsByPath:
    """A class of service is the name of a directory; "/" is the root's."""
    name = rdt.clos_id
    if name != "/" and (name in (".", "..") or set(name) & {"/", "\n"} or len(name.encode(errors="replace")) >= 4096):
        yield ("closID",), f"{quote(name)} is not a class of service: it must be a file name, or /"


def _range_problems(path: DocumentPath, number: int | None, minimum: int, end: int) -> ProblemsByPath:
    if number is not None and not minimum <= number < end:
        yield path, f"{number} must be {minimum} to {end - 1}"


# also used by `portability`


def problems_of_list_items(
    key: str, values: Sequence[msgspec.Struct], problems_of_item: Callable[..., ProblemsByPath]
) -> ProblemsByPath:
    """The problems of each value of a list."""
    for i, value in enumerate(values):
        yield from prepend_path((key, i), problems_of_item(value))


def prepend_path(parent_path: DocumentPath, problems: ProblemsByPath) -> ProblemsByPath:
    """The same problems, with a longer path."""
    return (((*parent_path, *below), text) for below, text in problems)


def quote(text: str) -> str:
    """A text from a file, in quotes, for a message."""
    return repr(text if len(text) <= 80 else f"{text[:79]}…")
