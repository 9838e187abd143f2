"""A driver with a Hopper and an Ampere, which changes of partitions are made of."""

import sys

from gpuplane.node.model.facts import ChangePartition, PartitionChangeFinished
from gpuplane.node.model.machine import Mig
from gpuplane.node.model.partitions import PartitionChange, SetMigMode
from tests.node.hardware.nvidia.driver.standin import StandIn
from tests.node.hardware.nvidia.driver.watched import Watched

HOPPER, AMPERE = "GPU-0", "GPU-1"
MACHINE = """
driver: {version: "580.95.05", cuda: "13.0"}
gpus:
  - {index: 0, uuid: GPU-0, minor: 0, pci: "0000:01:00.0", model: NVIDIA H100 80GB HBM3, memory_mib: 81559,
     compute_capability: "9.0", pci_id: "0x233010DE", mig: {}, device_nodes: [/dev/nvidia0]}
  - {index: 1, uuid: GPU-1, minor: 1, pci: "0000:02:00.0", model: NVIDIA A100-SXM4-80GB, memory_mib: 81920,
     compute_capability: "8.0", pci_id: "0x20B210DE", mig: {}, device_nodes: [/dev/nvidia1]}
major_numbers: {nvidia-caps: 236, nvidia: 195, nvidiactl: 195}
shared_nodes: [/dev/nvidiactl]
"""
RESET = f"""#!{sys.executable}
import os, sys
path = sys.argv[0].rpartition("/usr/bin/")[0] + "/driver/machine"
lines = dict(line.rstrip("\\n").split("=", 1) for line in open(path))
(gpu,) = (key[: -len(".uuid")] for key, value in lines.items() if value == sys.argv[1] and key.count(".") == 2)
lines[gpu + ".mig"] = lines.pop(gpu + ".mig.pending", lines[gpu + ".mig"])
kept = {{k: v for k, v in lines.items() if not k.startswith((gpu + ".gi.", gpu + ".mig."))}}
with open(path + ".reset", "w") as file:
    file.writelines(f"{{key}}={{value}}\\n" for key, value in sorted(kept.items()))
os.replace(path + ".reset", path)
"""
ON = SetMigMode(True)


async def made(watch: Watched, gpu: str, change: PartitionChange) -> PartitionChangeFinished:
    """What came of a change; a look was told before."""
    number = 1.0 + sum(isinstance(each, PartitionChangeFinished) for each in watch.facts)
    await watch.hardware.do(ChangePartition(gpu=gpu, change=change, requested_at=number))

    def answers() -> list[PartitionChangeFinished]:
        return [e for e in watch.facts if isinstance(e, PartitionChangeFinished) and e.requested_at == number]

    await watch.hear(lambda _: bool(answers()))
    return answers()[0]


def mig(watch: Watched, gpu: str) -> Mig:
    """A GPU's partitioning, as it is known now."""
    found = watch.node.snapshot.gpu(gpu)
    assert found is not None
    assert found.mig is not None
    return found.mig


def plant(standin: StandIn, failures: dict[str, str]) -> None:
    """Have calls fail, and no others. What was changed by calls stays."""
    path, fresh = standin.folder / "machine", standin.folder / "machine.planted"
    lines = dict(line.split("=", 1) for line in path.read_text().splitlines())
    kept = {key: value for key, value in lines.items() if not key.startswith("failure.")} | failures
    fresh.write_text("".join(f"{key}={value}\n" for key, value in sorted(kept.items())))
    fresh.replace(path)
