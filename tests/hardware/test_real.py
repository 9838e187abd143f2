"""The driver's process over a real driver. Nothing here changes a card."""

import asyncio
import csv
import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from gpuplane.node.core.kinds.nvidia.faults import CATALOGUE
from gpuplane.node.core.labels.featurelabels import feature_labels
from gpuplane.node.core.labels.syntax import key_part
from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.nvidia.driver.devicenodes import expected_node_stat, nodes_of_gpus, parse_major_numbers
from gpuplane.node.hardware.nvidia.settings import DriverLocation, Timing
from gpuplane.node.hardware.nvidia.source import Nvidia
from gpuplane.node.model.config import Config, Settings
from gpuplane.node.model.facts import ObserveMachine
from gpuplane.node.model.machine import Fault, Gpu
from gpuplane.node.model.snapshot import Snapshot
from tests.hardware.capture import anonymous, look, written
from tests.node.hardware.nvidia.driver.processes import family, opened
from tests.node.hardware.nvidia.driver.standin import StandIn, build
from tests.node.hardware.nvidia.driver.watched import Watched, watched
from tests.trees import may_make_nodes

UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def unhealthy(gpu: Gpu) -> list[Fault]:
    """What is so wrong with a GPU, or a MIG device of it, that it would not be given out."""
    inside = [fault for device in gpu.mig_devices for fault in device.faults]
    return [fault for fault in (*gpu.faults, *inside) if CATALOGUE[fault.code].severity == "unhealthy"]


async def test_every_gpu_is_described() -> None:
    """Who it is, what it can, and where it is; what stands in a fault is said in the failure of this test."""
    for gpu in (await look()).gpus or ():
        assert unhealthy(gpu) == []
        assert UUID.fullmatch(gpu.uuid)
        assert gpu.model
        assert re.fullmatch(r"\d+\.\d+", gpu.compute_capability)
        assert re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.0", gpu.pci)
        assert gpu.device_nodes == (f"/dev/nvidia{gpu.minor}",)


async def test_a_probe_of_each_gpu_comes_back_well() -> None:
    """It sees what a look sees, and disturbs nobody who looks; of a GPU that nobody has it says so."""
    watch = Watched(Nvidia(DriverLocation()))
    task = asyncio.create_task(watch.watch())
    try:
        await watch.until(lambda watch: bool(watch.gpus()))
        seen = watch.gpus() or ()
        for asked, gpu in enumerate(seen):
            probed = await watch.probe(gpu.uuid, asked=float(asked))
            assert unhealthy(probed.gpu) == []
            assert probed.gpu.but(faults=()) == gpu.but(faults=(), distances={})
        absent = await watch.probe("GPU-00000000-0000-4000-8000-000000000000", asked=-1.0)
        assert [fault.code for fault in absent.gpu.faults] == ["gpu-missing"]
        assert watch.driver()[0] == "ok"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await watch.hardware.release()


def test_the_drivers_files_are_found() -> None:
    """Its libraries are there, of its version, by the SONAMEs that programs load them by."""
    driver = asyncio.run(look()).driver
    assert driver is not None
    assert driver.files_error == ""
    assert driver.files is not None
    paths = [*(library.path for library in driver.files.libraries), *(file.path for file in driver.files.files)]
    sonames = {library.soname: library.path for library in driver.files.libraries}

    assert [path for path in paths if not Path(path).is_file()] == []
    assert {"libcuda.so.1", "libnvidia-ml.so.1"} <= set(sonames)
    assert sonames["libcuda.so.1"].endswith(f"/libcuda.so.{driver.version}")


def test_nodes_have_the_numbers_that_they_have() -> None:
    """Of the GPUs, as they stand in /dev; of missing control nodes, by rule."""
    machine = asyncio.run(look())
    for node in (node for node in (*machine.shared_nodes, *nodes_of_gpus(machine.gpus or ())) if Path(node).exists()):
        stat = Path(node).stat()
        numbers = machine.device_node_stats[node]
        assert (numbers.major, numbers.minor) == (os.major(stat.st_rdev), os.minor(stat.st_rdev))
        assert (numbers.mode, numbers.gid) == (stat.st_mode & 0o7777, stat.st_gid)
        assert numbers.has_char_link == Path(f"/dev/char/{numbers.major}:{numbers.minor}").is_symlink()
    assert {f"/dev/nvidia{gpu.minor}" for gpu in machine.gpus or ()} <= set(machine.device_node_stats)
    assert {"/dev/nvidiactl", "/dev/nvidia-uvm"} <= set(machine.device_node_stats)


def test_the_rules_give_nodes_the_numbers_that_they_have() -> None:
    """NVIDIA's rules, held against NVIDIA's driver."""
    told = parse_major_numbers(Path("/proc/devices").read_text())
    machine = asyncio.run(look())
    for node, numbers in machine.device_node_stats.items():
        rule = expected_node_stat(node, told)
        if rule is not None and Path(node).exists():
            assert (node, rule.major, rule.minor) == (node, numbers.major, numbers.minor)


def test_nvidia_smi_says_the_same() -> None:
    """Index, UUID, name, place and memory of every GPU."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("needs nvidia-smi")
    query = ["nvidia-smi", "--query-gpu=index,uuid,name,pci.bus_id,memory.total", "--format=csv,noheader,nounits"]
    text = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout
    said = [[field.strip() for field in row] for row in csv.reader(text.splitlines())]
    machine = asyncio.run(look())
    ours = [[str(g.index), g.uuid, g.model, g.pci, str(g.memory_mib or "[N/A]")] for g in machine.gpus or ()]

    assert ours == [[index, uuid, name, pci.lower()[-12:], memory] for index, uuid, name, pci, memory in said]


def test_labels_agree_with_nvidia_smi() -> None:
    """On the driver, and on the models, how many GPUs are of each, and their compute capability."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("needs nvidia-smi")
    query = ["nvidia-smi", "--query-gpu=driver_version,name,compute_cap", "--format=csv,noheader,nounits"]
    text = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout
    said = Counter(tuple(field.strip() for field in row) for row in csv.reader(text.splitlines()))
    snapshot = Snapshot(machine=asyncio.run(look()), config=Config(settings=Settings()))
    found = {key: label.value for key, label in (feature_labels(snapshot) or {}).items()}

    assert all(gpu.pci_class.startswith("0x03") for gpu in snapshot.gpus)
    for (driver, name, capability), count in said.items():
        model = f"gpuplane.io/gpu.{key_part(name, 45)}"
        major, minor = capability.split(".")
        assert found["nvidia.com/cuda.driver-version.full"] == driver
        assert [found[f"{model}.{each}"] for each in ("count", "compute.major", "compute.minor")] == [
            str(count),
            major,
            minor,
        ]


async def test_letting_go_leaves_no_device_node_open() -> None:
    """Neither in our processes nor by leaving one behind; then the driver is taken up again."""
    watch = Watched(Nvidia(DriverLocation(), Timing(poll=0.2)))
    task = asyncio.create_task(watch.watch())
    await watch.until(lambda watch: bool(watch.gpus()))
    seen = watch.gpus()
    await watch.hardware.release()
    await watch.until(lambda watch: watch.driver() == ("waiting", "let go of"))
    assert not any("/dev/nvidia" in path for pid in family() for path in opened(pid))

    await watch.hardware.do(ObserveMachine())
    await watch.until(lambda watch: watch.driver()[0] == "ok")
    assert watch.gpus() == seen
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await watch.hardware.release()


async def test_a_captured_machine_is_the_machine(tmp_path: Path) -> None:
    """Written to a machine file, and shown by the stand-in of the driver, it is told the same."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler, cc, for the stand-in of the driver's library")
    if not may_make_nodes(tmp_path):
        pytest.skip("needs to make device nodes: CAP_MKNOD")
    machine = anonymous(await look())
    text = written(machine)
    standin = StandIn(tmp_path / "standin", build(tmp_path))
    standin.describe(read_machine(text.encode(), "captured.yaml"))
    async with watched(standin, deadline=10.0) as watch:
        await watch.until(lambda watch: bool(watch.gpus()))
        assert watch.node.snapshot.machine == machine
