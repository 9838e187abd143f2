"""A process that has the files written as often as it can: two machines in turns, until it is killed."""

import asyncio
import sys
from pathlib import Path

from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.agent.node import Node
from gpuplane.node.host.cdi.specifications import SpecificationKeeper
from gpuplane.node.model.config import Settings
from gpuplane.node.model.facts import AllocationsListed, ConfigLoaded, MachineObserved, StatusChanged
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.status import CDI_FILES_PART, CdiFilesStatus
from tests.node.host.cdi.world import machine


async def main(directory: Path) -> None:
    """One container holds GPU-0 throughout, which is there every other time."""
    node = Node(Snapshot())
    node.apply(StatusChanged(CDI_FILES_PART, CdiFilesStatus(state="waiting")))
    node.apply(ConfigLoaded(Settings(device_list_strategy=("cdi-cri",))))
    node.apply(
        AllocationsListed((Allocation("nvidia.com/gpu", ("GPU-0",), holder=PodRef.parse("default/train/main")),), 0.0)
    )
    keeper = SpecificationKeeper(node, directory)
    while True:
        for found in (machine(range(8)), machine(range(1, 9), version="590.10")):
            node.apply(MachineObserved(found))
            assert await keeper.round()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
