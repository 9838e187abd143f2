"""The hooks of a specification: tasks at a container's start, as arguments of the program that does them.

All hooks run before the container's root is changed (createContainer), by a program of the host. Ours does all tasks in
one process, for all GPUs of the container. So it is one hook, among the common edits, and it creates a link to a DRM
node only if the container has that node. NVIDIA's program is one hook for each task, in this order
(nvidia-container-toolkit 1.20, internal/discover/hooks.go), and creates links to DRM nodes for each device.

A hook always has an environment: without one some runtimes run it with that of the image. NVIDIA's older releases fail
at --host-cuda-version, so they get the driver's version alone, as NVIDIA does for GPUs. They ignore a hook whose name
they do not know.
"""

from collections.abc import Collection, Iterable, Iterator, Set

from gpuplane.base.value import Value
from gpuplane.node.core.containers.cdi import links
from gpuplane.node.core.containers.cdi.devices import SpecDevice
from gpuplane.node.core.containers.cdi.links import Link, base_name, directory_of
from gpuplane.node.core.containers.cdi.specrequest import ALL_NAME, HookProgram, SpecOptions
from gpuplane.node.model.cdi import Hook
from gpuplane.node.model.machine import Driver, DriverFiles

CREATE_SYMLINKS, ENABLE_CUDA_COMPAT, UPDATE_LDCACHE = "create-symlinks", "enable-cuda-compat", "update-ldcache"
DISABLE_NODE_MODIFICATION, UPDATE_APPLICATION_PROFILE = "disable-device-node-modification", "update-application-profile"
CUDA_COMPAT_DIRECTORY = "/usr/local/cuda/compat"
ALL_HOOKS = (CREATE_SYMLINKS, ENABLE_CUDA_COMPAT, UPDATE_LDCACHE, DISABLE_NODE_MODIFICATION, UPDATE_APPLICATION_PROFILE)
HOOK_TIMEOUT_S = 30  # of our hook


class ContainerStartTasks(Value):
    """The tasks at a container's start. Paths are those in the container."""

    links: tuple[Link, ...] = ()
    drm_links: tuple[Link, ...] = ()  # created only if the container has the target
    library_directories: tuple[str, ...] = ()  # for the loader's cache
    driver_version: str = ""
    cuda_version: str = ""  # the newest that the driver supports


def container_start_tasks(driver: Driver | None, spec_devices: Iterable[SpecDevice]) -> ContainerStartTasks:
    """The tasks at the start of any container that can get these devices."""
    by_path = links.unique_links(link for part in spec_devices for link in part.links)
    if driver is None or driver.files is None:
        return ContainerStartTasks(drm_links=by_path)
    return ContainerStartTasks(
        links=links.unique_links(_driver_links(driver.files)),
        drm_links=by_path,
        library_directories=tuple(sorted({directory_of(each.path) for each in driver.files.libraries})),
        driver_version=driver.version,
        cuda_version=driver.cuda,
    )


def _driver_links(files: DriverFiles) -> Iterator[Link]:
    """The links to the driver's libraries, and to its modules of Xorg."""
    for library in files.libraries:
        yield from links.library_links(library)
    for file in files.files:
        yield from links.library_links(file)


def disabled_hooks(request: SpecOptions) -> Set[str]:
    """NVIDIA's names of the hooks that the specification does not have.

    A management container may create device nodes, unless the request says otherwise (nvidia-container-toolkit 1.20,
    pkg/nvcdi/options.go), and has no use for an application profile (only common-nvml.go has that hook).
    """
    disabled = ALL_HOOKS if ALL_NAME in request.disabled_hooks else request.disabled_hooks
    if request.mode != "management":
        return {*disabled} - {*request.enabled_hooks}
    return ({*disabled, DISABLE_NODE_MODIFICATION} - {*request.enabled_hooks}) | {UPDATE_APPLICATION_PROFILE}


def gpuplane_hooks(program: HookProgram, tasks: ContainerStartTasks, disabled: Collection[str]) -> tuple[Hook, ...]:
    """Our single hook; () if there is no task."""
    arguments = [
        argument for name, made in _arguments_by_hook(tasks) if _is_hook_enabled(name, disabled) for argument in made
    ]
    if not arguments:
        return ()
    return (
        Hook(
            hook_name="createContainer",
            path=program.path,
            args=(base_name(program.path), "create-container", *arguments),
            env=("GPUPLANE_HOOK=1",),
            timeout=HOOK_TIMEOUT_S,
        ),
    )


def _arguments_by_hook(tasks: ContainerStartTasks) -> Iterator[tuple[str, list[str]]]:
    """(NVIDIA's name of the hook, our arguments for the same task)."""
    yield CREATE_SYMLINKS, [f"--link={link.target}::{link.path}" for link in tasks.links]
    yield CREATE_SYMLINKS, [f"--link-if={link.target}::{link.path}" for link in tasks.drm_links]
    yield UPDATE_LDCACHE, [f"--folder={each}" for each in tasks.library_directories]
    if tasks.driver_version:
        yield (
            ENABLE_CUDA_COMPAT,
            [
                f"--compat={CUDA_COMPAT_DIRECTORY}",
                f"--driver={tasks.driver_version}",
                *([f"--cuda={tasks.cuda_version}"] if tasks.cuda_version else []),
            ],
        )
    yield DISABLE_NODE_MODIFICATION, ["--params"]


def nvidia_hooks(program: HookProgram, tasks: ContainerStartTasks, disabled: Collection[str]) -> tuple[Hook, ...]:
    """NVIDIA's hooks for every container."""
    folders = [argument for each in tasks.library_directories for argument in ("--folder", each)]
    entries: list[tuple[str, list[str]]] = []
    if tasks.driver_version:
        entries.append((ENABLE_CUDA_COMPAT, [f"--host-driver-version={tasks.driver_version}"]))
    if folders:
        entries.append((UPDATE_LDCACHE, folders))
    entries += ((DISABLE_NODE_MODIFICATION, []), (UPDATE_APPLICATION_PROFILE, []))
    made = (_nvidia_hook(program, name, arguments) for name, arguments in entries if _is_hook_enabled(name, disabled))
    return (*nvidia_symlink_hooks(program, tasks.links, disabled), *made)


def nvidia_symlink_hooks(program: HookProgram, symlinks: Iterable[Link], disabled: Collection[str]) -> tuple[Hook, ...]:
    """NVIDIA's hook that creates links; () if there are none to create."""
    arguments = [argument for link in symlinks for argument in ("--link", f"{link.target}::{link.path}")]
    return (
        (_nvidia_hook(program, CREATE_SYMLINKS, arguments),)
        if arguments and _is_hook_enabled(CREATE_SYMLINKS, disabled)
        else ()
    )


def _nvidia_hook(program: HookProgram, name: str, arguments: Iterable[str]) -> Hook:
    own = base_name(program.path)
    command = (own, "hook") if own == "nvidia-ctk" else (own,)
    return Hook(
        hook_name="createContainer",
        path=program.path,
        args=(*command, name, *arguments),
        env=("NVIDIA_CTK_DEBUG=false",),
    )


def _is_hook_enabled(name: str, disabled: Collection[str]) -> bool:
    """Whether a hook, by NVIDIA's name, is not disabled."""
    return name not in disabled
