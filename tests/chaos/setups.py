"""The machines and configurations of the play of holdings: what a GPU can be cut into, and what it can be called.

Two layouts of a GPU have no MIG device in common, so it shows whether devices of both are held at once. Of the memory
shares a quarter and a half have the same resource name and ids in common: `GPU-x::1` is 25 % by one, 50 % by the other.
"""

import uuid
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from gpuplane.base.value import Value
from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.profiles import find_machine_file
from gpuplane.node.model.machine import Gpu, MachineFile, Mig, MigDevice

OFF = "off"
PLACES: Mapping[str, tuple[int, tuple[int, ...]]] = {OFF: (1, ()), "halves": (2, (1, 2)), "quarters": (4, (3, 4, 5))}
"""Layout → into how many parts the GPU's memory is cut, and the GPU instances that there are."""
MOST = 3
"""GPUs of the play: of more not everything is tried in a minute."""

PREFIX = "nvidia.com/"
RIVAL = "rival"
"""How the resource names of the rival agent begin, after the prefix."""
WHOLE, MEMORY = "gpu", "gpu-memory"


class Setup(Value):
    """A configuration. `sizes`: a resource → the part of its device's memory that one id is; 0 for a time slice."""

    what: str
    content: Mapping[str, Any]
    sizes: Mapping[str, Fraction] = {}


def profile(name: str) -> MachineFile:
    """A built-in machine."""
    path = find_machine_file(name)
    return read_machine(path.read_bytes(), path.name)


def prepared(machine: MachineFile) -> MachineFile:
    """Some of the machine's GPUs, well; of several the first cannot be partitioned, the others are not."""
    gpus = (machine.gpus or ())[:MOST]
    plain = tuple(
        gpu.but(
            uncorrected_errors=0,
            faults=(),
            links=(),
            distances={},
            mig=Mig() if gpu.mig and (n or len(gpus) < 2) else None,
        )
        for n, gpu in enumerate(gpus)
    )
    return machine.but(gpus=plain, faults=(), failures=(), incidents=(), processes=())


def another(now: str, wanted: str) -> str:
    """The layout that is wanted, or the next one where that is the one that there is now: an edit changes something."""
    names = tuple(PLACES)
    return wanted if wanted != now else names[(names.index(wanted) + 1) % len(names)]


def laid_out(gpu: Gpu, layout: str) -> Gpu:
    """The GPU in this layout. The driver gives a MIG device the same UUID whenever it is made at the same place."""
    parts, instances = PLACES[layout]
    devices = tuple(
        MigDevice(
            uuid=f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, f'{gpu.uuid} {instance}')}",
            profile=f"{4 // parts}g.{gpu.memory_mib // 1024 // parts}gb",
            gpu_instance=instance,
            mig_index=slot,
            memory_mib=gpu.memory_mib // parts,
        )
        for slot, instance in enumerate(instances)
    )
    return gpu.but(mig=Mig(enabled=bool(devices), devices=devices))


def setups(gpus: Sequence[Gpu]) -> tuple[Setup, ...]:
    """The configurations of the agent."""
    memory = min(gpu.memory_mib for gpu in gpus)
    return (
        _setup("whole GPUs"),
        _setup("whole GPUs with another resource name", named="fast"),
        _setup("time slices", _slices(2), {WHOLE: Fraction(0)}),
        _setup("time slices with another resource name", _slices(3, "gpu-slice"), {"gpu-slice": Fraction(0)}),
        _setup("time slices with the resource name of memory shares", _slices(2, MEMORY), {MEMORY: Fraction(0)}),
        *(
            _setup(f"memory in shares of 1/{parts}", _memory(memory // parts), {MEMORY: Fraction(1, parts)})
            for parts in (2, 4)
        ),
    )


def akin(setup: Setup, among: Sequence[Setup]) -> tuple[Setup, ...]:
    """The other configurations that cut devices otherwise, and call the shares the same."""
    return tuple(each for each in among if each != setup and each.sizes and each.sizes.keys() == setup.sizes.keys())


def rival() -> Setup:
    """The configuration of the rival: names of its own for all that there is."""
    names = {"gpus": [{"pattern": "*", "name": RIVAL}], "mig": [{"pattern": "*", "name": f"{RIVAL}-mig"}]}
    return Setup(what="a rival's", content={"version": "v1", "flags": {"migStrategy": "mixed"}, "resources": names})


def marked(setup: Setup, mark: int) -> dict[str, Any]:
    """The configuration with a mark by which it is known when the agent has read it: a pattern of no GPU."""
    content = dict(setup.content)
    resources = content.get("resources", {})
    content["resources"] = {**resources, "gpus": [{"pattern": f"mark-{mark}", "name": "mark"}, *resources["gpus"]]}
    return content


def _slices(count: int, name: str | None = None) -> dict[str, Any]:
    entry = {"name": WHOLE, "replicas": count, **({"rename": name} if name else {})}
    return {"timeSlicing": {"resources": [entry]}}


def _memory(grain: int) -> dict[str, Any]:
    return {"memory": {"unit": "MiB", "shareSize": grain, "resources": [{"name": WHOLE, "rename": MEMORY}]}}


def _setup(
    what: str,
    sharing: Mapping[str, Any] | None = None,
    sizes: Mapping[str, Fraction] | None = None,
    named: str = WHOLE,
) -> Setup:
    content = {
        "version": "v1",
        "flags": {"migStrategy": "mixed"},
        "resources": {"gpus": [{"pattern": "*", "name": named}]},
        "sharing": sharing or {},
    }
    return Setup(what=what, content=content, sizes={PREFIX + name: size for name, size in (sizes or {}).items()})
