"""Which nodes a cluster is to have, as a command line says it."""

import re
from collections.abc import Iterator
from pathlib import Path

from gpuplane.base import files
from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.nodeuuids import uuid_of_node
from gpuplane.node.hardware.described.profiles import find_machine_file
from gpuplane.sandbox.record import WantedNode

MAX_NODES = 1000
PART = re.compile(r"(?:(\d{1,4})\s*[x×*]\s*)?(.+)", re.ASCII | re.DOTALL)
UUID = re.compile(rb"\b(?:GPU|MIG)-[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b")
LONGEST_NAME = 50


class InvalidNodes(Exception):
    """What nodes are wanted cannot be understood."""


def parse_nodes(text: str) -> list[WantedNode]:
    """Of "2×hgx-h100,t4" hgx-h100-0, hgx-h100-1 and t4-0. `x` and `*` serve as well as `×`, and a machine file stands
    for a profile. Raises InvalidNodes, UnknownMachine, InvalidInput and OSError."""
    found: list[WantedNode] = []
    for count, machine in _parts(text):
        content = files.read(machine)
        count_gpus(content, machine.name)
        name = _node_name(machine)
        before = sum(each.name.rpartition("-")[0] == name for each in found)
        names = [f"{name}-{number}" for number in range(before, before + count)]
        found += [WantedNode(each, _with_own_uuids(content, each)) for each in names]
        if len(found) > MAX_NODES:
            raise InvalidNodes(f"more than {MAX_NODES} nodes are wanted")
    if not found:
        raise InvalidNodes("no node is wanted: write MACHINE or COUNT×MACHINE, as 2×hgx-h100")
    return found


def count_gpus(content: bytes, name: str = "machine.yaml") -> int:
    """How many GPUs a machine file describes. Raises InvalidInput, with the line."""
    return len(read_machine(content, name).gpus or ())


def _with_own_uuids(content: bytes, node: str) -> bytes:
    """A machine file of which several nodes have a copy: no two GPUs of a cluster have the same UUID."""
    return UUID.sub(lambda match: uuid_of_node(match[0].decode(), node).encode(), content)


def _parts(text: str) -> Iterator[tuple[int, Path]]:
    for part in filter(None, (each.strip() for each in text.split(","))):
        if match := PART.fullmatch(part):  # any text is a machine's name, as far as that goes
            yield int(match[1] or 1), find_machine_file(match[2])


def _node_name(machine: Path) -> str:
    """A name that Kubernetes takes (RFC 1123)."""
    words = re.sub(r"[^a-z0-9]+", "-", machine.name.removesuffix(".yaml").lower())
    return words.strip("-")[:LONGEST_NAME].strip("-") or "node"
