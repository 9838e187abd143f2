"""Nodes that have one machine file: their GPUs have UUIDs of their own, and all else is alike."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gpuplane.node.hardware.described.machinefile import check_machine, read_machine
from gpuplane.node.hardware.described.nodeuuids import with_uuids_of_node
from gpuplane.node.hardware.described.profiles import find_machine_file, profile_names
from gpuplane.node.hardware.described.source import Described
from gpuplane.node.hardware.observeonce import observe_once
from gpuplane.node.model.machine import MachineFile

UNKNOWN = b"gpus: [{index: 0, uuid: ''}]"


def uuids(machine: MachineFile) -> list[str]:
    """Of GPUs and MIG devices, in their order."""
    gpus = machine.gpus or ()
    return [*(gpu.uuid for gpu in gpus), *(mig.uuid for gpu in gpus for mig in gpu.mig_devices)]


def without_uuids(machine: MachineFile) -> str:
    """The rest, as text; the load of a MIG device is still that of the same device."""
    text = repr(machine)
    for number, uuid in enumerate(uuids(machine)):
        text = text.replace(uuid, f"<{number}>")
    return text


@pytest.mark.parametrize("name", profile_names())
def test_two_nodes_have_no_uuid_in_common(name: str) -> None:
    """Each of a Node's is its own, again at each start; the machine is the same, and valid."""
    file = read_machine(find_machine_file(name).read_bytes(), name)
    first, second = (with_uuids_of_node(file, node) for node in ("kind-worker", "kind-worker2"))
    every = [*uuids(file), *uuids(first), *uuids(second)]

    assert len({*every}) == 3 * len(uuids(file))
    assert [each.partition("-")[0] for each in uuids(first)] == [each.partition("-")[0] for each in uuids(file)]
    assert with_uuids_of_node(file, "kind-worker") == first
    assert without_uuids(first) == without_uuids(second) == without_uuids(file)
    assert not list(check_machine(first))


def test_a_gpu_without_a_uuid_has_none() -> None:
    """The driver does not report it, on whichever Node."""
    [gpu] = with_uuids_of_node(read_machine(UNKNOWN, "m.yaml"), "n1").gpus or ()
    assert gpu.uuid == ""


def test_a_source_tells_those_of_its_node() -> None:
    """Where it was given one; else those of the file."""

    async def version() -> AsyncIterator[bytes | OSError]:
        yield b"gpus: [{index: 0, uuid: GPU-a}]"

    async def seen(*node: str) -> list[str]:
        machine = await observe_once(Described(version(), "m.yaml", *node), 60)
        return [gpu.uuid for gpu in machine.gpus or ()]

    async def all_seen() -> tuple[list[str], list[str]]:
        return await seen(), await seen("n1")

    plain, own = asyncio.run(all_seen())
    assert plain == ["GPU-a"]
    assert own != plain
