"""From a machine to a CDI document: which devices it defines, what each gives, and what all of them give.

A pure function, and a stable one: the same machine gives the same document, in whatever order it was looked at, and a
change of one device leaves what the others give as it was. Neighbours have the parts: `devices` the GPUs, `features`
what is not a GPU, `nodes` and `driver` what a container gets of each, `links` and `hooks` what is done at its start,
`tidy` how all that is put together.

A device that no container could use is left, with the reason. Without libcuda that is every GPU: a container would
start, and find no GPU; nobody would learn why. It has to be somebody's who can do something about it, on the node.
"""

from collections.abc import Iterable, Iterator, Mapping

from gpuplane.core.containers.cdi import devices, driver, features, hooks, nodes, tidy
from gpuplane.core.containers.cdi.devices import Part
from gpuplane.core.containers.cdi.request import ALL, NONE, Mode, Naming, Program, Request
from gpuplane.core.containers.cdi.version import lowest
from gpuplane.model.cdi import CdiDevice, ContainerEdits, Spec
from gpuplane.model.machine import DriverFiles, Machine
from gpuplane.model.text import Text
from gpuplane.model.value import Value

__all__ = ("Document", "Mode", "Naming", "Program", "Request", "document")

VOID = ContainerEdits(env=("NVIDIA_VISIBLE_DEVICES=void",))
"""NVIDIA's runtime, where there is one, then gives nothing of its own."""

EMPTY = ContainerEdits(env=("NVCT_EMPTY_DEVICE=",))
"""A device must give something: that of `none`."""

NEEDED = ("/dev/nvidiactl", "/dev/nvidia-uvm")
"""Without these CUDA does not start."""

ABSENT = "no such node exists"

IDLE = {
    "enable-explicit-driver-libraries": "libraries of GLVND and OpenCL are the image's",
    "enable-coherent-annotations": "GPUs with coherent memory have no kinds of their own",
    "disable-multiple-csv-devices": "it is of Tegra systems",
}
"""NVIDIA's feature flags that change something there and nothing here, and why."""


class Document(Value):
    """A document, and the devices that are not in it, each with the reason. `spec` is None where it would have none."""

    spec: Spec | None
    left: Mapping[str, Text] = {}  # by UUID, or by a node's path
    notes: tuple[Text, ...] = ()  # what of the driver was not found, though a container may need it


class Contents(Value):
    """What a mode puts into a document: edits by device's name, and those of every container."""

    given: Mapping[str, ContainerEdits]
    common: ContainerEdits = ContainerEdits()
    left: Mapping[str, Text] = {}
    notes: tuple[Text, ...] = ()


def document(machine: Machine, request: Request) -> Document:
    """The document that a machine and a request make. Raises ValueError where the request asks for no such device."""
    found = _contents(machine, request)
    common = tidy.joined((found.common, VOID))
    given = {name: tidy.without(tidy.joined((edits,)), common) for name, edits in found.given.items()}
    empty = {name: "it would give a container nothing" for name, edits in given.items() if edits == ContainerEdits()}
    given = {name: given[name] for name in sorted(given.keys() - empty.keys())}
    if request.everything and given and NONE not in given:
        given.setdefault(ALL, tidy.joined(given.values()))
    left = {**found.left, **empty}
    left = {name: left[name] for name in sorted(left)}
    notes = (*found.notes, *_idle(request))
    if not given:
        return Document(spec=None, left=left, notes=notes)
    made = tuple(CdiDevice(name=name, container_edits=edits) for name, edits in given.items())
    spec = Spec(cdi_version="", kind=request.kind, devices=made, container_edits=common)
    return Document(spec=spec.but(cdi_version=lowest(spec)), left=left, notes=notes)


def _idle(request: Request) -> Iterator[str]:
    for flag, why in IDLE.items():
        if flag in request.features:
            yield f"the feature flag {flag} changes nothing: {why}"


def _contents(machine: Machine, request: Request) -> Contents:
    match request.mode:
        case "gpu":
            return _gpus(machine, request)
        case "imex":
            return _channels(machine, request)
        case _:
            return _feature(machine, request)


def _gpus(machine: Machine, request: Request) -> Contents:
    nobody = NONE in request.ids
    if nobody and len(set(request.ids)) > 1:
        raise ValueError(f"{NONE} is no device, and cannot be asked for beside others")
    chosen = () if nobody else devices.chosen(machine, request.ids)
    given, left = devices.named(chosen, request.names)
    notes = tuple(_lacking(machine, request))
    if driver.unusable(_files(machine)):
        why = f"no container could use it: {_unfound(machine, request)}"
        left = {**{part.uuid: why for part in given.values()}, **left}
        return Contents(given={}, left=left, notes=notes)
    edits = {name: _part(part, machine, request) for name, part in given.items()} | ({NONE: EMPTY} if nobody else {})
    common = _common(machine, request, _control(machine), given.values())
    return Contents(given=edits, common=common, left=left, notes=notes)


def _control(machine: Machine) -> list[str]:
    """The control nodes that exist; and those without which CUDA does not start where their numbers are known, for the
    runtime makes a container's nodes by their numbers."""
    made = {path for path in NEEDED if path in machine.numbers}
    return [path for path in nodes.CONTROL if path in machine.nodes or path in made]


def _part(part: Part, machine: Machine, request: Request) -> ContainerEdits:
    """What a GPU or MIG device gives. NVIDIA's program makes a link wherever it is told to: so it is told here."""
    edits = _nodes(part.nodes, machine, request)
    if request.hook is None or not request.hook.nvidia:
        return edits
    return edits.but(hooks=hooks.nvidia_links(request.hook, part.links, hooks.left_undone(request)))


def _common(machine: Machine, request: Request, control: Iterable[str], given: Iterable[Part]) -> ContainerEdits:
    """What every container gets: control nodes, the driver's files, and what is done at its start."""
    files, work = _files(machine) or DriverFiles(), hooks.work(machine.driver, given)
    sockets = "disable-ipc-discoverer" not in request.features
    edits = tidy.joined((_nodes(control, machine, request), driver.edits(files, request.driver_root, sockets=sockets)))
    if request.hook is None:
        aliases = ContainerEdits(mounts=tuple(driver.everywhere(files, request.driver_root)))
        return tidy.joined((edits, aliases))
    called = hooks.nvidia if request.hook.nvidia else hooks.ours
    return edits.but(hooks=called(request.hook, work, hooks.left_undone(request)))


def _nodes(paths: Iterable[str], machine: Machine, request: Request) -> ContainerEdits:
    groups = "no-additional-gids-for-device-nodes" not in request.features
    return nodes.edits(paths, machine.numbers, request.dev_root, groups=groups)


def _files(machine: Machine) -> DriverFiles | None:
    return machine.driver.files if machine.driver is not None else None


def _unfound(machine: Machine, request: Request) -> Text:
    """Why there is no libcuda."""
    if machine.driver is None:
        return "the machine has no driver"
    return machine.driver.missing or f"the driver has no {driver.CUDA}* below {request.driver_root}"


def _lacking(machine: Machine, request: Request) -> Iterator[Text]:
    """What a container with CUDA, or for management, may miss."""
    files = _files(machine)
    if files is None or driver.unusable(files):
        yield _unfound(machine, request)
    else:
        if machine.driver is not None and machine.driver.missing:
            yield machine.driver.missing
        yield from driver.left_out(machine.left_out)
    if files is not None:
        yield from driver.lacking(files)
    for path in NEEDED:
        if path not in machine.nodes and path not in machine.left_out:
            yield f"{path} does not exist"


def _channels(machine: Machine, request: Request) -> Contents:
    there, away = features.channels(machine, request.ids)
    given = {name: _nodes((path,), machine, request) for name, path in there.items()}
    return Contents(given=given, left=dict.fromkeys(away, ABSENT))


def _feature(machine: Machine, request: Request) -> Contents:
    """The one device of a mode that is not of GPUs."""
    if unknown := [id for id in request.ids if id != ALL]:
        raise ValueError(f"no such device: {', '.join(map(repr, unknown))}; of {request.mode} there is one, {ALL}")
    paths = features.nodes(machine, request.mode)
    if not paths:
        return Contents(given={}, left={features.NODES[request.mode][1]: ABSENT})
    edits = _nodes(paths, machine, request)
    if request.mode == "management":
        notes = tuple(_lacking(machine, request))
        return Contents(given={ALL: edits}, common=_common(machine, request, (), ()), notes=notes)
    files = _files(machine)
    if request.mode == "gds" and files is not None:
        edits = edits.but(mounts=tuple(driver.storage(files, request.driver_root)))
    return Contents(given={ALL: edits})
