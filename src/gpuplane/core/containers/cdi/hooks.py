"""What is done when a container starts, as arguments of the program that does it.

All runs before the container's root is changed (createContainer), by a program of the host. Ours does everything in one
process, for all GPUs of the container: so it has one entry, in the edits that are applied once, and a link to a DRM
node is made only where the container has that node. NVIDIA's has an entry for each thing to do, in this order
(nvidia-container-toolkit 1.20, internal/discover/hooks.go), and links to DRM nodes with each device.

An entry always has an environment: without one some runtimes run it with that of the image. NVIDIA's older releases
end with an error at --host-cuda-version, so they are told of the driver's version alone, as NVIDIA does for GPUs; an
entry whose name they do not know they pass over.
"""

from collections.abc import Collection, Iterable, Iterator, Set

from gpuplane.core.containers.cdi import links
from gpuplane.core.containers.cdi.devices import Part
from gpuplane.core.containers.cdi.links import Link, file_name, folder
from gpuplane.core.containers.cdi.request import ALL, Program, Request
from gpuplane.model.cdi import Hook
from gpuplane.model.machine import Driver, DriverFiles
from gpuplane.model.value import Value

LINKS, COMPAT, CACHE = "create-symlinks", "enable-cuda-compat", "update-ldcache"
PARAMS, PROFILES = "disable-device-node-modification", "update-application-profile"
COMPAT_FOLDER = "/usr/local/cuda/compat"
EVERY = (LINKS, COMPAT, CACHE, PARAMS, PROFILES)
LONGEST = 30  # seconds that ours may take


class Work(Value):
    """What has to be done. Paths are those of the container."""

    links: tuple[Link, ...] = ()
    links_if: tuple[Link, ...] = ()  # only where the container has the target
    folders: tuple[str, ...] = ()  # of libraries, for the loader's cache
    driver: str = ""  # its version
    cuda: str = ""  # the newest that the driver speaks


def work(driver: Driver | None, given: Iterable[Part]) -> Work:
    """What the start of any container needs that may be given these devices."""
    by_path = links.distinct(link for part in given for link in part.links)
    if driver is None or driver.files is None:
        return Work(links_if=by_path)
    return Work(
        links=links.distinct(_driver_links(driver.files)),
        links_if=by_path,
        folders=tuple(sorted({folder(each.path) for each in driver.files.libraries})),
        driver=driver.version,
        cuda=driver.cuda,
    )


def _driver_links(files: DriverFiles) -> Iterator[Link]:
    """The links to a driver's libraries, and to its modules of Xorg."""
    for library in files.libraries:
        yield from links.of(library)
    for file in files.files:
        yield from links.of(file)


def left_undone(request: Request) -> Set[str]:
    """NVIDIA's names of what is not done for any container of a document.

    A management container may make device nodes, unless the request says otherwise (nvidia-container-toolkit 1.20,
    pkg/nvcdi/options.go), and has no use for an application profile (common-nvml.go alone has it).
    """
    disabled = EVERY if ALL in request.disabled else request.disabled
    if request.mode != "management":
        return {*disabled} - {*request.enabled}
    return ({*disabled, PARAMS} - {*request.enabled}) | {PROFILES}


def ours(program: Program, work: Work, disabled: Collection[str]) -> tuple[Hook, ...]:
    """One entry, or none where there is nothing to do."""
    arguments = [argument for name, made in _arguments(work) if _wanted(name, disabled) for argument in made]
    if not arguments:
        return ()
    return (
        Hook(
            hook_name="createContainer",
            path=program.path,
            args=(file_name(program.path), "create-container", *arguments),
            env=("GPUPLANE_HOOK=1",),
            timeout=LONGEST,
        ),
    )


def _arguments(work: Work) -> Iterator[tuple[str, list[str]]]:
    """(NVIDIA's name of what is done, our arguments for it)."""
    yield LINKS, [f"--link={link.target}::{link.path}" for link in work.links]
    yield LINKS, [f"--link-if={link.target}::{link.path}" for link in work.links_if]
    yield CACHE, [f"--folder={each}" for each in work.folders]
    if work.driver:
        yield (
            COMPAT,
            [f"--compat={COMPAT_FOLDER}", f"--driver={work.driver}", *([f"--cuda={work.cuda}"] if work.cuda else [])],
        )
    yield PARAMS, ["--params"]


def nvidia(program: Program, work: Work, disabled: Collection[str]) -> tuple[Hook, ...]:
    """NVIDIA's entries for every container."""
    folders = [argument for each in work.folders for argument in ("--folder", each)]
    entries: list[tuple[str, list[str]]] = []
    if work.driver:
        entries.append((COMPAT, [f"--host-driver-version={work.driver}"]))
    if folders:
        entries.append((CACHE, folders))
    entries += ((PARAMS, []), (PROFILES, []))
    made = (_entry(program, name, arguments) for name, arguments in entries if _wanted(name, disabled))
    return (*nvidia_links(program, work.links, disabled), *made)


def nvidia_links(program: Program, made: Iterable[Link], disabled: Collection[str]) -> tuple[Hook, ...]:
    """NVIDIA's entry that makes links, or none where there are none to make."""
    arguments = [argument for link in made for argument in ("--link", f"{link.target}::{link.path}")]
    return (_entry(program, LINKS, arguments),) if arguments and _wanted(LINKS, disabled) else ()


def _entry(program: Program, name: str, arguments: Iterable[str]) -> Hook:
    own = file_name(program.path)
    command = (own, "hook") if own == "nvidia-ctk" else (own,)
    return Hook(
        hook_name="createContainer",
        path=program.path,
        args=(*command, name, *arguments),
        env=("NVIDIA_CTK_DEBUG=false",),
    )


def _wanted(name: str, disabled: Collection[str]) -> bool:
    """Whether something, by NVIDIA's name of it, shall be done."""
    return name not in disabled
