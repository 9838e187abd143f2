"""What the catalogue advises can be typed as it stands, and does what it says where a fault made the agent print it."""

import asyncio
import json
import re
import shlex
from pathlib import Path

import pytest

from gpuplane.node.core.commands import command_line
from gpuplane.node.core.faults.cataloguetable import FALLBACK_ENTRIES
from gpuplane.node.core.kinds.table import FAULTS
from gpuplane.node.model.health import CatalogueEntry
from gpuplane.sandbox.kubelet import Kubelet
from tests.docs.commands import Shown, check, commands
from tests.node.agent.test_process import GPU, Place, gpuplane

ENTRIES = {**FAULTS.entries, **dict(FALLBACK_ENTRIES)}
NAMES = {"DEVICE": "GPU-1", "GPU": "GPU-1"}
RESETS = {"nvidia-smi -r -i GPU"}
LOOKS = {
    "gpu-lost",
    "recovery-reset",
    "recovery-drain",
    "remap-pending",
    "remap-failed",
    "nvlink-down",
    "pcie-degraded",
}
EVENTS = {"xid-48", "xid-54", "xid-74", "xid-79", "xid-94", "dram-retirement-failed", "poison-fatal"}
"""Faults of each advice and of each end."""


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_each_command_of_an_advice_can_be_typed(entry: CatalogueEntry) -> None:
    """Also beside the state directory of the agent that prints it; and no advice hides a command in its sentence."""
    known = commands()
    for command in entry.commands:
        words = shlex.split(command_line(command, "/tmp/a b", NAMES))
        assert not {"DEVICE", "GPU"} & {*words}
        if words[0] == "gpuplane":
            check(Shown(0, tuple(words[1:]), whole=True), known)
            assert words[-2:] == ["--state-dir", "/tmp/a b"]
    assert not re.search(r"gpuplane|nvidia-smi -|modprobe nvidia", f"{entry.advice}")


def test_whoever_advises_a_reset_says_how() -> None:
    """The driver is released before and resumed after: a GPU that is open cannot be reset."""
    resets = [
        entry for entry in ENTRIES.values() if any(command[:2] == ("nvidia-smi", "-r") for command in entry.commands)
    ]

    assert {*resets} >= {ENTRIES["xid-79"], ENTRIES["gpu-lost"], ENTRIES["xid-74"], ENTRIES["recovery-drain"]}
    for entry in resets:
        lines = [command_line(command) for command in entry.commands]
        [at] = (n for n, line in enumerate(lines) if line in ("nvidia-smi -r -i GPU", "nvidia-smi -r"))
        assert lines[at - 1].startswith("gpuplane driver release --for ")
        assert lines[at + 1] == "gpuplane driver resume"


def machine(faulty: bool) -> str:
    """A GPU for each fault, and one that is well."""
    looks, events = sorted(LOOKS), sorted(EVENTS)
    gpus = [f"faults: [{{code: {code}, message: m}}]" if faulty else "" for code in looks] + [""] * (len(events) + 1)
    lines = [f"- {{index: {n}, uuid: GPU-{n}, model: NVIDIA A100, {more}}}" for n, more in enumerate(gpus)]
    fell = [f"- {{gpu: {len(looks) + n}, code: {code}, message: m}}" for n, code in enumerate(events)]
    return "\n".join(["gpus:", *lines, "incidents:", *fell, ""])


def config(probe_period: str) -> str:
    """A file with this pause between probes, where no fault has to last before it counts."""
    return f"version: v1\nhealth: {{probePeriod: {probe_period}, faults: {{pcie-degraded: {{gracePeriod: 0s}}}}}}\n"


async def devices(place: Place) -> list[dict[str, str]]:
    """How the devices stand."""
    status, text = await gpuplane("inspect", "health", "--json", "--state-dir", place.state)
    assert status == 0, text
    found: list[dict[str, str]] = json.loads(text)["devices"]
    return found


async def test_what_is_printed_for_a_fault_ends_it(tmp_path: Path) -> None:
    """The commands as they stand, in their order; the machine file plays nvidia-smi. Then the command that ends it."""
    place = Place(tmp_path)
    place.config.write_text(config("1h"))  # all are ill at once: none is probed and given out again before it was read
    place.machine.write_text(machine(faulty=True))
    count = len(LOOKS) + len(EVENTS) + 1
    async with Kubelet(place.kubelet) as kubelet, place.agent():
        await kubelet.until(lambda: len(kubelet.device_health().get(GPU, {})) == count)
        async with asyncio.timeout(120):
            while sum(each["state"] != "healthy" for each in await devices(place)) < count - 1:
                await asyncio.sleep(0.2)
        ill = [each for each in await devices(place) if each["state"] != "healthy"]
        place.edit(place.config, config("200ms"))
        printed: dict[str, list[list[str]]] = {}
        for each in ill:
            _, _, typed = each["advice"].partition(" Type: ")
            lines = [shlex.split(line) for line in typed.split("; ")] if typed else []
            assert [line[-1] for line in lines if line[:2] == ["nvidia-smi", "-r"]] in ([], [each["uuid"]])
            printed["\n".join(shlex.join(line) for line in lines if line[0] == "gpuplane")] = lines
        reset = [lines for lines in printed.values() if any(line[:2] == ["nvidia-smi", "-r"] for line in lines)]
        for line in reset[0]:
            if line[0] == "gpuplane":
                status, said = await gpuplane(*line[1:])
                assert status == 0, said
            elif line[1] == "-r":
                assert {each["state"] for each in await devices(place)} == {"unhealthy"}  # it is released
                place.edit(place.machine, machine(faulty=False))
        for each in ill:
            if named := re.search(r"with (gpuplane health restore .*)", each["clear_when_text"]):
                status, said = await gpuplane(*shlex.split(named[1])[1:])
                assert status == 0, said
        await kubelet.until_capacity(GPU, count, count)
