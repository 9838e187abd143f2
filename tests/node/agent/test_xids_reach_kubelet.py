"""XIDs of the kernel log, all the way: a log, an agent as a process, a kubelet."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path

from gpuplane.node.hardware.described import machinefile
from gpuplane.node.hardware.described.profiles import find_machine_file
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Kubelet
from tests.node.hardware.nvidia.driver.standin import StandIn

GPU = "nvidia.com/gpu"
MACHINE = "gpus:\n" + "".join(
    f"- {{index: {i}, uuid: GPU-{i}, minor: {i}, model: T4, pci: '0000:0{i}:00.0'}}\n" for i in range(4)
)


def xid(seq: int, gpu: int, number: int = 79) -> str:
    return f"3,{seq},{seq}000,-;NVRM: Xid (PCI:0000:0{gpu}:00): {number}, pid=1, name=x, GPU has fallen off the bus.\n"


async def test_what_befell_a_gpu_while_no_agent_ran(tmp_path: Path) -> None:
    """The next agent finds it in the log. It takes its GPU and no other, and counts once however often it is read."""
    machine, log = tmp_path / "machine.yaml", tmp_path / "kmsg"
    machine.write_text(MACHINE)
    log.write_text("6,1,1,-;Linux version 6.12\n")

    def agent(*more: object) -> Agent:
        return Agent(
            "--machine", machine, "--kernel-log", log, "--kubelet-root", tmp_path / "k", "--state-dir", tmp_path / "s",
            *more,
        )  # fmt: skip

    def unhealthy() -> set[str]:
        return {id for id, health in kubelet.device_health().get(GPU, {}).items() if health == "Unhealthy"}

    async with Kubelet(tmp_path / "k") as kubelet:
        async with agent() as first:
            await first.until_says(f"kernel log: ok: {log}")
            await kubelet.until_capacity(GPU, 4, 4)
            append(log, xid(2, 1))
            await kubelet.until_capacity(GPU, 4, 3)
            assert unhealthy() == {"GPU-1"}
            await first.kill()
        append(log, xid(3, 2) + xid(4, 3, 13))
        async with agent() as second:
            await kubelet.until_capacity(GPU, 4, 2)
            assert unhealthy() == {"GPU-1", "GPU-2"}
            await second.until_says("GPU-3: xid-13")
            await remembered(tmp_path / "s", {"GPU-1": {"xid-79": 1}, "GPU-2": {"xid-79": 1}, "GPU-3": {"xid-13": 1}})
            assert await second.stop() == 0
        async with agent("--kernel-log", "") as third:
            await kubelet.until_capacity(GPU, 4, 2)
            assert not any("kernel log" in line for line in third.log)


async def test_beside_a_real_driver_the_log_is_where_the_host_has_it(tmp_path: Path, compiled: Path) -> None:
    """Without a word about it: an agent on the driver's library reads /dev/kmsg under its host root."""
    driver = StandIn(tmp_path / "d", compiled)
    machine = machinefile.read_machine(find_machine_file("l40s").read_bytes(), "l40s.yaml")
    gpus = machine.gpus or ()
    driver.describe(machine)
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr/lib64").symlink_to(driver.folder)
    log = driver.root / "dev/kmsg"
    log.touch()
    agent = Agent(
        "--machine", "nvml", "--driver-root-ctr-path", tmp_path, "--host-root", driver.root,
        "--kubelet-root", tmp_path / "k", "--state-dir", tmp_path / "s",
    )  # fmt: skip
    async with Kubelet(tmp_path / "k") as kubelet, agent:
        await kubelet.until_capacity(GPU, len(gpus), len(gpus))
        append(log, f"3,1,1,-;NVRM: Xid (PCI:{gpus[5].pci.removesuffix('.0').upper()}): 79, gone\n")
        await kubelet.until_capacity(GPU, len(gpus), len(gpus) - 1)
        assert kubelet.device_health()[GPU][gpus[5].uuid] == "Unhealthy"


def append(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


async def remembered(state: Path, counts: dict[str, dict[str, int]]) -> None:
    """Wait until the state directory has counted so often what befell each GPU."""
    async with asyncio.timeout(60):
        while True:
            with suppress(FileNotFoundError):
                devices = json.loads((state / "health.json").read_text())["value"]["devices"]
                if {
                    uuid: record["fault_counts"] for uuid, record in devices.items() if "fault_counts" in record
                } == counts:
                    return
            await asyncio.sleep(0.02)
