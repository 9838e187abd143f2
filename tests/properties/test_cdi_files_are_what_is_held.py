"""Whatever befalls a node: its files are what is wanted and what is held, and whoever holds a device finds it there.

Machine, configuration, pods, other files and harm to our own change in any order, with a round of the keeper after
each.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.allocate.response import allocate
from gpuplane.node.core.containers.cdi.desiredspecs import desired_spec_of_file, desired_specs
from gpuplane.node.core.containers.cdi.names import CDI_KINDS
from gpuplane.node.core.containers.cdi.registry import Registry, build_registry
from gpuplane.node.core.containers.cdi.specstatus import fingerprints_on_disk, spec_fingerprints
from gpuplane.node.host.specfiles import read_spec_files
from gpuplane.node.model.config import Settings
from gpuplane.node.model.facts import AllocationsListed, ConfigLoaded
from gpuplane.node.model.machine import Machine
from gpuplane.node.model.snapshot import Allocation
from tests.lengths import length
from tests.node.host.cdi.test_directory import BY_CDI, World
from tests.node.host.cdi.world import GPU, document, machine

CHANNEL, COPYING = "/dev/nvidia-caps-imex-channels/channel0", "/dev/gdrdrv"
CONFIGURATIONS = (
    BY_CDI,
    BY_CDI.but(device_id_strategy="index"),
    BY_CDI.but(imex_channels=(0,), gdrcopy=True, gds=True),
    BY_CDI.but(cdi_hook="nvidia"),
    Settings(device_list_strategy=("envvar",), mig_strategy="mixed"),
    Settings(mig_strategy="mixed"),
)

Names = tuple[str, ...]
"""What kubelet passes to the runtime for a container: qualified names."""


class Node(World):
    """A node with pods, one a device."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.pods: dict[tuple[str, str], Names] = {}  # resource and id → the names that its container is made with

    def admit(self, which: list[int]) -> None:
        """Of the pods that run and the devices that are free, these are the pods that run then."""
        free = dict(self.given())
        every = list({**free, **self.pods})
        chosen = {every[n % len(every)] for n in which} if every else set()
        self.pods = {key: self.pods[key] if key in self.pods else free[key] for key in sorted(chosen)}
        held = (Allocation(resource, (id,), holder=PodRef.parse(f"default/{id}/main")) for resource, id in self.pods)
        self.node.apply(AllocationsListed(tuple(held), 1.0))

    def given(self) -> Iterator[tuple[tuple[str, str], Names]]:
        """What a container is given now, of each device that can be given out."""
        for resource in offer(self.node.snapshot).resources:
            for device in resource.devices:
                if not device.unavailable_reason:
                    yield (
                        (resource.name, device.id),
                        allocate(self.node.snapshot, resource.name, [device.id]).cdi_devices,
                    )

    def known(self) -> Registry:
        """What a container runtime knows."""
        return build_registry(read_spec_files([self.place.cdi]))

    @property
    def other(self) -> Path:
        """A file of somebody else."""
        return self.place.cdi / "other.json"

    def leave(self, *names: str) -> None:
        """Somebody else defines devices of these names and no others, unless a container lives by one of those."""
        alone = {name for name, each in self.known().devices.items() if each.file.path == str(self.other)}
        if not alone.isdisjoint(self.needed()):
            return
        if names:
            self.place.cdi.mkdir(exist_ok=True)
            self.other.write_bytes(document(GPU, *names))
        else:
            self.other.unlink(missing_ok=True)

    def harm(self, data: bytes | None) -> None:
        """Our file goes, or is spoilt, while no container needs what nobody could make again."""
        if not self.pods and desired_specs(self.node.snapshot) and self.place.file().exists():
            self.place.file().unlink() if data is None else self.place.file().write_bytes(data)

    def needed(self) -> set[str]:
        """The names of all containers."""
        return {name for names in self.pods.values() for name in names}

    def check(self) -> None:
        """What is so after every round."""
        snapshot, known = self.node.snapshot, self.known()
        specs = [(kind, self.place.spec(kind)) for kind in CDI_KINDS]
        assert all(desired_spec_of_file(snapshot, kind, spec) == spec for kind, spec in specs)
        assert fingerprints_on_disk(snapshot) == frozenset(
            spec_fingerprints(spec for _, spec in specs if spec is not None)
        )
        for _, names in self.given():
            assert set(names) <= known.devices.keys(), "a device is given out that cannot be resolved"
        assert self.needed() <= known.devices.keys() | known.conflicting_files_by_device.keys(), (
            "a name that is held is missing"
        )
        mine = {self.place.cdi / other for other in self.place.left()}
        assert mine <= {self.other}


Step = Callable[[Node], None]


def _look(gpus: int, first: int, cut: dict[int, int], version: str) -> Step:
    found: Machine = machine(range(first, first + gpus), cut, version)
    found = found.but(shared_nodes=(*found.shared_nodes, CHANNEL, COPYING))
    return lambda node: node.look(found)


GPUS_CUT = st.dictionaries(st.integers(0, 4), st.sampled_from([2, 3]))
OTHERS = ["GPU-0", "GPU-2", "MIG-1-2-0", "0", "1:1", "9"]
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.builds(_look, st.integers(0, 3), st.integers(0, 2), GPUS_CUT, st.sampled_from(["580.95.05", "590.10"])),
    st.sampled_from(CONFIGURATIONS).map(lambda each: lambda node: node.node.apply(ConfigLoaded(each))),
    st.lists(st.integers(0, 8), max_size=4).map(lambda which: lambda node: node.admit(which)),
    st.lists(st.sampled_from(OTHERS), max_size=3, unique=True).map(lambda names: lambda node: node.leave(*names)),
    st.sampled_from([None, b"", b"{", document(GPU, "GPU-9", "9")]).map(lambda data: lambda node: node.harm(data)),
)


@settings(max_examples=length(50, 1000))
@given(st.lists(STEPS, max_size=15))
def test_files_are_what_is_wanted_and_what_is_held(steps: list[Step]) -> None:
    """A round after each step, nothing is left to do; who holds a device finds it, as does who is given one now."""
    folder = Path(tempfile.mkdtemp())
    try:
        node = Node(folder)
        assert node.round()
        for step in steps:
            step(node)
            assert node.round()
            node.check()
    finally:
        shutil.rmtree(folder)
