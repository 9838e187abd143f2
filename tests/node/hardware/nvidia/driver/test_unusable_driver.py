"""A driver that cannot be used, or is another one now: noticed, told with the reason, and recovered from."""

import os
import platform
import shutil
import struct
from pathlib import Path

import pytest

from gpuplane.node.core.labels.featurelabels import feature_labels
from gpuplane.node.hardware.nvidia.driver.callpage import CallPage
from gpuplane.node.hardware.nvidia.driver.channel import DriverOptions
from gpuplane.node.hardware.nvidia.driver.driverpaths import LIBRARY_FOLDERS
from gpuplane.node.hardware.nvidia.driver.driverroot import NVML_SONAME, describe_search, find_library
from gpuplane.node.hardware.nvidia.driver.kernelfiles import KernelFiles
from gpuplane.node.hardware.nvidia.driver.library import ELF_MACHINES, DriverUnusable, load_library
from gpuplane.node.hardware.nvidia.driver.nvml import Nvml
from gpuplane.node.model.config import Config, Settings
from gpuplane.node.model.machine import Driver, InjectedFailure, MachineFile
from tests.node.hardware.nvidia.driver.standin import StandIn
from tests.node.hardware.nvidia.driver.watched import Watched, watched
from tests.texts import as_shown

OTHER = 0x3E if platform.machine() == "aarch64" else 0xB7  # the machine that this is not


def whole(watch: Watched) -> bool:
    """Whether every GPU is seen, without a fault."""
    machine = watch.node.snapshot.machine
    return machine is not None and machine.gpus is not None and not machine.faults and not any(watch.codes())


def fault(watch: Watched) -> str:
    """The fault of the driver as a whole."""
    machine = watch.node.snapshot.machine
    return ", ".join(fault.code for fault in machine.faults) if machine else ""


def message(watch: Watched) -> str:
    """What is said of it."""
    machine = watch.node.snapshot.machine
    return ", ".join(as_shown(fault.message) for fault in machine.faults) if machine else ""


async def test_a_library_that_comes_later_is_found(standin: StandIn, rich: MachineFile) -> None:
    """Until then it is said what is missing."""
    aside = standin.library.rename(standin.library.with_name("aside"))
    async with watched(standin, rest=(0.05, 30.0)) as watch:
        await watch.until(lambda watch: fault(watch) == "driver-missing" and watch.driver()[0] == "failing")
        assert str(standin.library) in message(watch)
        assert watch.gpus() is None

        aside.rename(standin.library)
        await watch.until(whole)
        assert watch.gpus() == rich.gpus


async def test_a_driver_that_goes_and_comes_keeps_its_gpus_known(standin: StandIn, rich: MachineFile) -> None:
    """GPUs that were seen stay, with the reason why they cannot be used."""
    async with watched(standin, rest=(0.05, 30.0)) as watch:
        await watch.until(whole)
        standin.unload()
        await watch.until(lambda watch: fault(watch) == "driver-not-loaded")
        assert watch.gpus() == rich.gpus

        standin.load("580.95.05")
        await watch.until(whole)


async def test_labels_stay_while_the_driver_is_gone(standin: StandIn, rich: MachineFile) -> None:
    """What the kernel's files tell is told without the library too, so that nothing is forgotten of it."""

    def labels(watch: Watched) -> object:
        return feature_labels(watch.node.snapshot.but(config=Config(settings=Settings(mig_strategy="mixed"))))

    async with watched(standin, rest=(0.05, 30.0)) as watch:
        await watch.until(whole)
        before = labels(watch)
        standin.unload()
        await watch.until(lambda watch: fault(watch) == "driver-not-loaded")
        assert before is not None
        assert labels(watch) == before


async def test_an_upgraded_driver_is_taken_up(standin: StandIn, rich: MachineFile) -> None:
    """A new kernel driver with a new library needs a new process, and no restart of the agent."""
    async with watched(standin, rest=(0.05, 30.0)) as watch:
        await watch.until(whole)
        standin.describe(rich.but(driver=Driver(version="590.44.01", cuda="13.1")))
        await watch.until(lambda watch: watch.driver() == ("ok", "driver 590.44.01, CUDA 13.1") and whole(watch))
        looked = watch.node.wait_until(
            lambda s: bool(s.machine and s.machine.driver and s.machine.driver.version == "590.44.01"), 10
        )
        assert await looked


async def test_files_that_come_and_go_are_told(standin: StandIn, rich: MachineFile) -> None:
    """Without a restart; where they are gone, why there are none, by the path of the root."""
    assert rich.driver is not None
    assert rich.driver.files is not None
    without = rich.but(driver=rich.driver.but(files=rich.driver.files.but(sockets=(), gds_paths=())))

    def told(watch: Watched) -> Driver | None:
        machine = watch.node.snapshot.machine
        return None if machine is None else machine.driver

    async with watched(standin) as watch:
        for machine in (rich, without, rich):
            standin.describe(machine)
            await watch.until(lambda watch, driver=machine.driver: told(watch) == driver)  # type: ignore[misc]

        shutil.rmtree(standin.installed)
        gone = rich.driver.but(files=None, files_error=f"{standin.installed}: there is no such directory")
        await watch.until(lambda watch: told(watch) == gone)
        assert whole(watch)


async def test_the_numbers_of_nodes_stay_known_without_a_driver(standin: StandIn, rich: MachineFile) -> None:
    """As the GPUs do: what was written of them for containers need not change."""
    async with watched(standin, rest=(0.05, 30.0)) as watch:
        await watch.until(whole)
        assert watch.node.snapshot.machine is not None
        numbers = watch.node.snapshot.machine.device_node_stats
        standin.unload()
        await watch.until(lambda watch: fault(watch) == "driver-not-loaded")
        assert watch.node.snapshot.machine.device_node_stats == numbers


async def test_a_library_of_another_version_than_the_kernel_driver_is_said(standin: StandIn) -> None:
    """Both versions are named; it is over when they agree again."""
    standin.load("590.44.01")
    async with watched(standin, rest=(0.05, 30.0)) as watch:
        await watch.until(lambda watch: fault(watch) == "driver-mismatch")
        assert "590.44.01" in message(watch)

        standin.load("580.95.05")
        await watch.until(whole)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"not a library", "shared library"),
        (b"", "shared library"),
        (b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 3, OTHER), ELF_MACHINES[OTHER]),
        (b"\x7fELF\x01\x01\x01" + bytes(9) + struct.pack("<HH", 3, 0x03), "x86 (32 bits)"),
        (None, "truncated"),
    ],
    ids=["text", "empty", "another machine", "32 bits", "truncated"],
)
async def test_a_file_that_is_no_library_for_this_machine_is_said(
    standin: StandIn, content: bytes | None, said: str
) -> None:
    """What it is, rather than that there is no such file; a good one is taken up."""
    good = standin.library.read_bytes()
    standin.library.write_bytes(good[:200] if content is None else content)
    async with watched(standin, rest=(0.05, 30.0)) as watch:
        await watch.until(lambda watch: fault(watch) == "driver-unusable")
        assert str(standin.library) in message(watch)
        assert content is None or said in message(watch)

        fresh = standin.library.with_suffix(".new")
        fresh.write_bytes(good)
        fresh.replace(standin.library)
        await watch.until(whole)


async def test_a_driver_without_permission_is_tried_again(standin: StandIn, rich: MachineFile) -> None:
    """Nothing shows that a permission has come, so it is tried after a rest."""
    standin.describe(
        rich.but(failures=(InjectedFailure(effect="error", nvml_function="nvmlInit*", error="NO_PERMISSION"),))
    )
    async with watched(standin, rest=(0.05, 0.2)) as watch:
        await watch.until(lambda watch: fault(watch) == "driver-denied")
        standin.describe(rich)
        await watch.until(whole)


async def test_gpus_that_cannot_be_counted_stay_known(standin: StandIn, rich: MachineFile) -> None:
    """A driver that answers to no look is said to be unusable, by name of the call."""
    async with watched(standin, rest=(0.05, 0.2)) as watch:
        await watch.until(whole)
        standin.describe(
            rich.but(failures=(InjectedFailure(effect="error", nvml_function="nvmlDeviceGetCount", error="UNKNOWN"),))
        )
        await watch.until(lambda watch: fault(watch) == "driver-failed")
        assert "nvmlDeviceGetCount" in message(watch)
        assert watch.gpus() == rich.gpus

        standin.describe(rich)
        await watch.until(whole)


async def test_no_gpu_is_a_machine_too(standin: StandIn, rich: MachineFile) -> None:
    """Zero GPUs are counted, not missed; GPUs that the kernel driver gets later are seen without a restart."""
    standin.describe(rich.but(gpus=()))
    async with watched(standin) as watch:
        await watch.until(lambda watch: watch.gpus() == () and watch.driver()[0] == "ok")

        standin.describe(rich)
        await watch.until(lambda watch: watch.gpus() == rich.gpus)

        standin.describe(rich.but(gpus=(rich.gpus or ())[:4]))
        await watch.until(lambda watch: len(watch.gpus() or ()) == 4)


def refused(driver_root: Path) -> str:
    """Why the library below a driver root cannot be used."""
    options = DriverOptions(channel=-1, page=-1, driver_root=str(driver_root))
    memory = os.memfd_create("page")
    os.ftruncate(memory, 4096)
    with pytest.raises(DriverUnusable) as unusable:
        load_library(Nvml(CallPage(memory)), options, KernelFiles(str(driver_root)))
    os.close(memory)
    return as_shown(unusable.value.fault.message)


def test_a_library_that_somebody_else_could_change_is_not_loaded(standin: StandIn, tmp_path: Path) -> None:
    """It would run in our process; the reason names what they could change."""
    folder = tmp_path / "driver-root/usr/lib64"
    folder.mkdir(parents=True)
    shutil.copy2(standin.library, folder / NVML_SONAME)
    folder.parent.chmod(0o757)

    why = refused(tmp_path / "driver-root")
    assert why.startswith(f"{folder / NVML_SONAME} ")
    assert f" {folder.parent} " in why


def test_the_library_is_searched_for_under_the_driver_root(standin: StandIn, tmp_path: Path) -> None:
    """In the folders of NVIDIA's toolkit, in their order. A folder of its name is none, nor a link out of the root."""
    first, second = (tmp_path / f"driver-root{folder}" / NVML_SONAME for folder in LIBRARY_FOLDERS[1:3])
    for each in (first, second):
        each.parent.mkdir(parents=True)
    second.write_text("")
    assert refused(tmp_path / "driver-root").startswith(f"{second} ")
    first.mkdir()
    assert refused(tmp_path / "driver-root").startswith(f"{second} ")
    first.rmdir()
    first.symlink_to("/no/such/file")
    assert refused(tmp_path / "driver-root").startswith(f"{second} ")
    first.unlink()
    first.write_text("")
    assert refused(tmp_path / "driver-root").startswith(f"{first} ")


@pytest.mark.parametrize("folder", ["/usr/lib/nvidia", "/usr/local/glibc/usr/lib"])
def test_where_no_usual_folder_has_it_the_roots_own_loader_knows(tmp_path: Path, folder: str) -> None:
    """As on Bottlerocket: its ldconfig has written down where, or somebody says it."""
    root = tmp_path / "driver-root"
    file = root / folder.removeprefix("/") / NVML_SONAME
    file.parent.mkdir(parents=True)
    file.write_text("")
    assert find_library(str(root)) is None
    assert find_library(str(root), (folder,)) == str(file)
    (root / "etc").mkdir()
    (root / "etc/ld.so.cache").write_bytes(
        b"glibc-ld.so.cache1.1" + f"\0{NVML_SONAME}\0{folder}/{NVML_SONAME}\0".encode()
    )
    assert find_library(str(root)) == str(file)
    assert refused(root).startswith(f"{file} ")


def test_where_it_was_looked_for_is_said(tmp_path: Path) -> None:
    """All folders, for whoever has it in another one."""
    searched = describe_search(str(tmp_path), ("/given",))

    assert all(folder in searched for folder in ("/given", *LIBRARY_FOLDERS, "/etc/ld.so.cache", str(tmp_path)))


async def test_a_driver_root_is_used(standin: StandIn, tmp_path: Path, rich: MachineFile) -> None:
    """As where the agent's container has no NVIDIA runtime."""
    folder = tmp_path / f"driver-root{LIBRARY_FOLDERS[2]}"
    folder.parent.mkdir(parents=True)
    shutil.move(standin.folder, folder)
    async with watched(standin, library=None, driver_root=tmp_path / "driver-root") as watch:
        await watch.until(whole)
        assert watch.gpus() == rich.gpus
