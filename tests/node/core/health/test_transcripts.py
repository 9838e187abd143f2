"""The course of illnesses, as transcripts: what is done to a node, and all that becomes of it.

A line that begins with `>` is a command (below); the lines after it are what followed: when, whom, and how it stands
now; `kubelet` where what kubelet is told changes, `probe` where a recovery probe is wished for, `says` for a log line.
With REWRITE=1 in the environment what is gets written down; commit the difference only if you understand it.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpuplane.node.core.health.devicehealth import health_without_parents
from gpuplane.node.core.ledger import adapt_to_new_boot
from gpuplane.node.core.step import next_due_time
from gpuplane.node.model.config import NodeObjectRequests
from gpuplane.node.model.facts import (
    ConfigLoaded,
    DrainRequested,
    DriverReleaseRequested,
    FaultOccurred,
    LedgerLoaded,
    NodeRequestsChanged,
    ProbeFinished,
    StatusChanged,
    Tick,
)
from gpuplane.node.model.health import Drain, FaultOverride
from gpuplane.node.model.machine import Fault, Gpu, Link, Mig
from gpuplane.node.model.snapshot import DriverRelease, Ledger
from gpuplane.node.model.status import DRIVER_PART, DriverStatus
from tests.node.core.health.world import BOOT, SETTINGS, World, machine

FOLDER = Path(__file__).parent / "testdata"
EPOCH = 1_000_000.0  # seconds since 1970 when the test's clock began
ABSENT = {"kubelet": "all healthy", "probe": "over", "node": "healthy"}
"""What it means that nothing is said of something; of devices, that they are not there."""


class Transcript:
    """Runs the commands of one file."""

    def __init__(self) -> None:
        self.world = World(machine(2))
        self.settings, self.boots = SETTINGS, 0
        self.gone: dict[str, Gpu] = {}
        self.seen = self.view()

    def run(self, lines: list[str]) -> Iterator[str]:
        """The file with what followed each command."""
        for line in lines:
            if line.startswith("> "):
                yield line
                yield from self.command(*line.removeprefix("> ").split())
            elif not line or line.startswith("#"):
                yield line

    def command(self, name: str, *words: str) -> Iterator[str]:
        said = len(self.world.said)
        if name == "wait":
            yield from self.wait(float(words[0]))
            return
        getattr(self, name.replace("-", "_"))(*words)
        yield from self.followed(said)

    def wait(self, seconds: float) -> Iterator[str]:
        """Time passes, step by step."""
        until, world = self.world.now + seconds, self.world
        while (at := next_due_time(world.snapshot)) is not None and at <= until:
            said, world.now = len(world.said), max(at, world.now)
            world.apply(Tick())
            assert (again := next_due_time(world.snapshot)) is None or again > at, (
                f"time stands still at {at}: {world.snapshot}"
            )
            yield from self.followed(said)
        world.now = until

    def view(self) -> dict[str, str]:
        """All that others see: what → how."""
        world = self.world
        seen = {}
        for each in health_without_parents(world.snapshot):
            state = each.state if each.state == "healthy" else f"{each.state}, {each.reason}"
            seen[each.device or "node"] = state + f" (until: {each.clear_when_text})" * bool(each.clear_when_text)
        seen |= {f"probe {uuid}": "wished for" for uuid in world.wished()}
        if world.ill():
            seen["kubelet"] = "unhealthy: " + " ".join(sorted(world.ill()))
        return seen

    def followed(self, said: int) -> Iterator[str]:
        before, self.seen = self.seen, self.view()
        when = f"{self.world.now - 1000:g}s"
        for key in sorted(before.keys() | self.seen.keys()):
            if before.get(key) != self.seen.get(key):
                yield f"{when} {key}: {self.seen.get(key) or ABSENT.get(key.partition(' ')[0], 'device removed')}"
        for _, each in self.world.said[said:]:
            yield f"{when} says {each.level}: {each.about}: {each.text}"

    # the commands

    def unseen(self, name: str, *words: str) -> None:
        """`unseen show 0`: the same, and nobody has looked yet."""
        self.world.looks = False
        getattr(self, name)(*words)
        self.world.looks = True

    def machine(self, gpus: str, *more: str) -> None:
        """`machine 2 mig=0 lanes=4`: begin with another machine."""
        options = dict(each.split("=") for each in more)
        parts = [int(each) for each in options.get("mig", "").split(",") if each]
        self.world, self.settings = World(machine(int(gpus), parts, int(options.get("lanes", 0)))), SETTINGS
        self.seen = self.view()

    def show(self, device: str, *codes: str) -> None:
        """`show 0 gpu-lost nvlink-errors=11`: a look at which GPU 0 (or MIG device 0:1) has these faults alone."""
        self.world.show(device, *codes)

    def fail(self, *codes: str) -> None:
        """`fail driver-hang`: looks fail for this; nothing: they work again."""
        self.world.fail(*codes)

    def restarts(self, code: str) -> None:
        """`restarts driver-crash`: the driver's process ends, its GPUs stay counted."""
        world, fault = self.world, Fault(code=code, message=f"{code} is shown")
        world.machine = world.machine.but(faults=(fault,) if code != "no-more" else ())
        world.look()

    def count(self, gpu: str, errors: str) -> None:
        """`count 0 3`: GPU 0 counts three uncorrectable errors."""
        self.world.become(self.world.gpu(int(gpu)).but(uncorrected_errors=int(errors)))
        self.world.look()

    def lanes(self, gpu: str, lanes: str) -> None:
        """`lanes 0 3`: so many NVLinks of GPU 0 are active."""
        self.world.become(self.world.gpu(int(gpu)).but(links=(Link(peer="nvswitch", nvlink_count=int(lanes)),)))
        self.world.look()

    def mig(self, gpu: str, to: str) -> None:
        """`mig 0 on`: GPU 0 is cut into two, its NVLinks rest; `off`; `empty`: in MIG mode without devices."""
        world, old = self.world, self.world.gpu(int(gpu))
        cut = machine(int(gpu) + 1, [int(gpu)]).gpus
        assert cut is not None
        parted = {"on": cut[-1].mig, "empty": Mig(enabled=True), "off": Mig()}[to]
        world.become(old.but(mig=parted, links=() if to != "off" else (Link(peer="nvswitch", nvlink_count=4),)))
        world.look()

    def away(self, gpu: str) -> None:
        """`away 0`: the driver counts the GPUs, and not this one."""
        world = self.world
        self.gone[gpu] = world.gpu(int(gpu))
        world.machine = world.machine.but(gpus=tuple(g for g in world.machine.gpus or () if g.index != int(gpu)))
        world.look()

    def back(self, gpu: str, *uuid: str) -> None:
        """`back 0`: it is counted again; `back 0 GPU-new`: another card is in its place."""
        old = self.gone.pop(gpu)
        new = old.but(uuid=uuid[0]) if uuid else old
        gpus = sorted((new, *(self.world.machine.gpus or ())), key=lambda g: g.index)
        self.world.machine = self.world.machine.but(gpus=tuple(gpus))
        self.world.look()

    def happen(self, gpu: str, code: str, *more: str) -> None:
        """`happen 0 xid-94 instance=1 pids=7,8 log=3 ago=5`: an event about GPU 0."""
        options = dict(each.split("=") for each in more)
        world = self.world
        world.apply(
            FaultOccurred(
                code=code,
                gpu=f"GPU-{gpu}" if gpu != "all" else "",
                message=f"{code} happened",
                at=world.now - float(options.get("ago", 0)),
                gpu_instance=int(options["instance"]) if "instance" in options else None,
                pids=tuple(int(each) for each in options.get("pids", "").split(",") if each),
                kernel_log_number=int(options["log"]) if "log" in options else None,
            )
        )

    def compute(self, gpu: str, *pids: str) -> None:
        """`compute 0 7 8`: the processes that compute on GPU 0."""
        self.world.processes[int(gpu)] = tuple(map(int, pids))

    def hold(self, *pods: str) -> None:
        """`hold p=GPU-0`: what containers hold."""
        self.world.hold(**dict(each.split("=") for each in pods))

    def answer(self) -> None:
        """The wished probes are answered by what the machine is."""
        self.world.answer()

    def answer_late(self, gpu: str, ago: str) -> None:
        """`answer-late 0 20`: a probe wished for so long ago is answered."""
        self.world.apply(ProbeFinished(requested_at=self.world.now - float(ago), gpu=self.world.gpu(int(gpu))))

    def drain(self, device: str, *seconds: str) -> None:
        """`drain GPU-0 60`: a person drains it (for so long)."""
        world = self.world
        for_ = float(seconds[0]) if seconds else None
        until, wall = (None, None) if for_ is None else (world.now + for_, EPOCH + world.now + for_)
        world.apply(DrainRequested(device, Drain(reason="a new fan", until=until, until_wall_clock=wall)))

    def restore(self, device: str) -> None:
        """`restore GPU-0`"""
        self.world.apply(DrainRequested(device, None))

    def node_asks(self, *devices: str) -> None:
        """`node-asks 0 GPU-1`: our Node's annotation drains these."""
        self.world.apply(
            NodeRequestsChanged(NodeObjectRequests(drain_reasons=dict.fromkeys(devices, "by the annotation")))
        )

    def release(self, seconds: str) -> None:
        """`release 60`: the driver is let go of."""
        self.world.apply(
            DriverReleaseRequested(DriverRelease(until=self.world.now + float(seconds), reason="maintenance"))
        )
        self.world.apply(StatusChanged(DRIVER_PART, DriverStatus(state="waiting", text="released", released=True)))

    def take(self) -> None:
        """The driver is taken up again; the next `look` shows what it is."""
        self.world.apply(DriverReleaseRequested(None))

    def look(self) -> None:
        """A look at the machine."""
        self.world.look()

    def rule(self, code: str, *more: str) -> None:
        """`rule xid-79 severity=note grace_period=3`: the configuration's own word about a fault."""
        options = (each.split("=") for each in more)
        said = {key: float(value) if key in ("grace_period", "clear_after") else value for key, value in options}
        faults = {**self.settings.faults, code: msgspec.convert(said, FaultOverride)}
        self.settings = self.settings.but(faults=faults)
        self.world.apply(ConfigLoaded(self.settings))

    def environment(self, *lists: str) -> None:
        """`environment disable=79 enable=31`: DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS."""
        options = dict(each.split("=") for each in lists)
        disabled, enabled = options.get("disable", ""), options.get("enable", "")
        self.world.apply(
            ConfigLoaded(self.settings.but(health_checks_disabled=disabled, health_checks_enabled=enabled))
        )

    def restart(self, *how: str) -> None:
        """`restart`: another agent, with what this one remembered; `restart reboot`: after a reboot of 30 s;
        `restart alone`: kubelet has not said yet what containers hold."""
        old, ledger, now = self.world, self.world.snapshot.ledger, self.world.now
        if "reboot" in how:
            self.boots += 1
            wall, now = EPOCH + now + 30, now + 30  # the clock that counts from the boot is not ours to show here
            ledger = adapt_to_new_boot(ledger, f"{BOOT}-{self.boots}", wall, now)
        self.world = World.__new__(World)
        self.world.__dict__.update(old.__dict__, now=now, snapshot=type(old.snapshot)(ledger=Ledger()))
        self.world.apply(LedgerLoaded(ledger))
        self.world.apply(ConfigLoaded(self.settings))
        if "alone" not in how:
            self.world.hold()
        self.world.look()


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.txt")), ids=lambda file: file.stem)
def test_what_follows_is_as_written(file: Path) -> None:
    """Each transcript says at its head what it shows."""
    written = file.read_text().splitlines()

    followed = list(Transcript().run(written))

    if os.environ.get("REWRITE"):
        file.write_text("\n".join(followed) + "\n")
    else:
        assert followed == written
