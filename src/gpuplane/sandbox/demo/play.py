"""The demo: which scenes a machine has, and the stage on which they play."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from gpuplane.base.text import join_first_names
from gpuplane.node.model.machine import MachineFile
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.demo import (
    admission,
    cdi,
    claim,
    gpufault,
    kubeletrestart,
    machine,
    memoryshares,
    partitions,
    plaindevice,
    registration,
    resourcename,
    shortage,
    shutdown,
    timeslices,
)
from gpuplane.sandbox.demo.stage import Scene, Stage, check
from gpuplane.sandbox.kubelet import Kubelet
from gpuplane.sandbox.scratch import Scratch

MIN_MIB = 4096
"""MiB of a GPU of which the demo gives parts to several pods."""


class Demo:
    """One play on a machine file, of which it edits a copy. Raises SceneFailed where the machine has too few GPUs."""

    def __init__(self, name: str, content: bytes, described: MachineFile) -> None:
        self.name, self.content, self.described = name, content, described
        self.scratch = Scratch()
        whole = [gpu for gpu in described.gpus or () if not gpu.mig_enabled]
        too_few = f"{name} has {len(whole)} whole GPUs, and the demo needs two; try --profile dgx-a100"
        check(len(whole) >= 2, too_few.replace("1 whole GPUs", "1 whole GPU"))
        small = [f"{gpu.uuid} with {gpu.memory_mib} MiB" for gpu in whole if gpu.memory_mib < MIN_MIB]
        check(
            not small,
            (f"{name} has {join_first_names(small, 3)} of memory, but the demo needs GPUs with {MIN_MIB} MiB or more"),
        )

    async def scenes(self) -> AsyncIterator[Scene]:
        """The scenes, as they happen. Raises SceneFailed."""
        with self.scratch as root:
            machine_file, config = root / "machine" / self.name, root / "config.yaml"
            machine_file.parent.mkdir()
            machine_file.write_bytes(self.content)
            config.write_text("version: v1\n")
            kubelet = Kubelet(root / "kubelet", cdi_dirs=root / "cdi")
            agent = Agent(
                "--machine", machine_file, "--config", config, "--kubelet-root", root / "kubelet",
                "--state-dir", root / "state", "--cdi-dir", root / "cdi",
            )  # fmt: skip
            stage = Stage(root, self.name, machine_file, config, self.described, kubelet, agent)
            yield machine.show(stage)
            async with kubelet, agent:
                for play in scenes_of(self.described):
                    yield await play(stage)


def scenes_of(described: MachineFile) -> Iterator[Callable[[Stage], Awaitable[Scene]]]:
    """The scenes that a machine has, in their order."""
    yield registration.play
    yield admission.play
    yield shortage.play
    yield gpufault.play
    yield kubeletrestart.play
    yield resourcename.play
    yield memoryshares.play
    yield timeslices.play
    yield plaindevice.play
    if partitions.find_gpu(described.gpus or ()) is not None:
        yield partitions.play
    if described.driver and described.driver.files:
        yield claim.play
        yield cdi.play
    yield shutdown.play
