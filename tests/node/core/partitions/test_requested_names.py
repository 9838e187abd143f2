"""Which configuration a name on the Node means: that of the admin's file, or one that is generated for the GPUs."""

import pytest

from gpuplane.node.core.partitions.desired import desired_layouts
from gpuplane.node.core.step import step
from gpuplane.node.model.config import NodeObjectRequests, PartitionSettings, Settings
from gpuplane.node.model.facts import ConfigLoaded, MachineObserved, MigConfigsLoaded, NodeRequestsChanged
from gpuplane.node.model.machine import Machine
from gpuplane.node.model.partitions import MigConfigEntry, MigConfigs
from gpuplane.node.model.snapshot import Snapshot
from tests.node.core.partitions.gpus import an_a100

OWN = {"all-1g.10gb": (MigConfigEntry(mig_enabled=True, mig_devices={"1g.10gb": 2}),)}


def instances(name: str, configs: MigConfigs | None) -> int | str:
    """How many GPU instances a name requests of one GPU, or the code of what is wrong with it."""
    snapshot = Snapshot()
    for fact in (
        ConfigLoaded(Settings(partitions=PartitionSettings(follow_label=True))),
        MigConfigsLoaded(configs),
        NodeRequestsChanged(NodeObjectRequests(mig_config=name)),
        MachineObserved(Machine(gpus=(an_a100(0),))),
    ):
        snapshot = step(snapshot, fact, 100.0)
    desired = desired_layouts(snapshot)
    assert desired is not None
    return desired.code or sum(desired.layouts["GPU-0"].mig_devices.values())


@pytest.mark.parametrize(
    ("name", "configs", "expected"),
    [
        ("all-1g.10gb", None, 7),
        ("all-1g.10gb", OWN, 2),
        ("all-3g.40gb", OWN, 2),
        ("all-3g.40gb", {}, "config-unknown"),
        ("all-3g.41gb", OWN, "config-unknown"),
    ],
    ids=["no file", "a name of the file", "a name that the file lacks", "a file not read yet", "nobody's"],
)
def test_a_file_adds_to_the_generated_configurations(
    name: str, configs: MigConfigs | None, expected: int | str
) -> None:
    """The file comes first. Before it was read once, a name may be one of the file's."""
    assert instances(name, configs) == expected
