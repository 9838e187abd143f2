"""`gpuplane sandbox`: what a node needs beside the agent, on any machine."""

import asyncio
import os
import secrets
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import click
import msgspec

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # lost connections are no news of gRPC's here: kubelet says them

from gpuplane import files
from gpuplane.cli import ending
from gpuplane.cli.ending import Ended
from gpuplane.cli.options import PATH, Machine, OneOf
from gpuplane.cli.say import say
from gpuplane.cli.times import Amount, Duration
from gpuplane.core.strict import InvalidInput
from gpuplane.core.text import escape_unprintable, format_count
from gpuplane.hardware.machinefile import read
from gpuplane.hardware.profiles import find
from gpuplane.sandbox.chaos import Broken, Chaos, Holdings, HoldingsSummary, Moment, Summary
from gpuplane.sandbox.kubelet import Kubelet
from gpuplane.sandbox.kubelet.console import Console
from gpuplane.sandbox.kubelet.messages import Message

EVERY = 5.0
"""Seconds between two lines that say how it goes."""
WEEK = 7 * 24 * 60
"""Minutes that a play may last."""


@click.group()
def command() -> None:
    """Try gpuplane on any machine: no GPU, no cluster, no root."""


@command.command()
@click.option("--root", required=True, type=PATH, metavar="DIR", help="Kubelet's directory.")
@click.option(
    "--numa", is_flag=True, help="Choose devices of one NUMA node, as the Topology Manager's policy best-effort does."
)
@click.option(
    "--cdi-dir",
    "cdi",
    multiple=True,
    type=PATH,
    metavar="DIR",
    help="The sandbox resolves CDI devices with the specifications in this directory, as a container runtime does. "
    "You can give several; the last has priority. Default: the sandbox does not resolve CDI devices.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on each line.")
@click.option("--no-input", is_flag=True, help="Read no commands: run until a signal.")
def kubelet(root: Path, numa: bool, cdi: tuple[Path, ...], as_json: bool, no_input: bool) -> None:
    """Run the parts of a kubelet that deal with devices, and print what plugins do.

    It reads commands from its standard input, and ends when that ends; `help` lists them. In another terminal:

    gpuplane agent --machine dgx-a100 --kubelet-root DIR --state-dir OTHER
    """
    kubelet = Kubelet(root, align_numa=numa, cdi_dirs=cdi or None)
    asyncio.run(_serve(kubelet, _json if as_json else _text, words=not no_input))


@command.command()
@click.option(
    "--minutes", type=Amount("minutes", WEEK), default=5.0, show_default=True, help="How many minutes it runs."
)
@click.option("--seed", type=click.IntRange(min=0), help="The random seed of the test; default: a new seed each time.")
@click.option(
    "--machine", default="hgx-h100", show_default=True, type=Machine(), help="A profile's name, or a machine file."
)
@click.option(
    "--play",
    "which",
    type=OneOf(("faults", "holdings")),
    default="faults",
    show_default=True,
    help=(
        "The test. faults: devices fail and recover. holdings: GPU layouts and configurations change, and "
        "files are damaged and lost, while pods hold devices."
    ),
)
@click.option(
    "--probe-period",
    type=Duration(0.05, 60),
    default=0.2,
    metavar="TIME",
    help="The time between recovery probes, from 50ms to 1m; default 200ms. Only for faults.",
)
@click.option("--json", "as_json", is_flag=True, help="The summary as one JSON document.")
def chaos(minutes: float, seed: int | None, machine: str, which: str, probe_period: float, as_json: bool) -> None:
    """Run an agent and a kubelet with random faults, restarts and recoveries, and check the invariants all the time.

    With --play holdings: random changes of configuration and MIG layout, damaged state files, and second agents.

    The seed decides what happens. If an invariant is broken, the last steps are printed, and the exit status is 1.
    Ctrl-C ends it early: a summary is printed, and the exit status is 130.
    """
    try:
        source = find(machine)
        described = read(files.read(source), source.name)
    except InvalidInput as error:
        raise click.ClickException(str(error)) from None
    if not described.gpus:
        raise click.ClickException(f"{source.name} has no GPU that could fail")
    seed = secrets.randbelow(1 << 32) if seed is None else seed
    play: Chaos | Holdings = Holdings(machine, described, seed, minutes)
    if which == "faults":
        play = Chaos(machine, described, seed, minutes, probe_period)
    ended: Ended | None = None
    try:
        with suppress(Broken):  # the summary tells
            ending.run(_follow(play, quiet=as_json), play.scratch.abandon)
    except Ended as signalled:
        ended = signalled
    summary = play.summary(ended.signal.name if ended else "")
    with suppress(OSError) if ended else nullcontext():  # its terminal may have been closed
        _tell(summary, probe_period, as_json)
    if ended:
        raise ended
    if summary.broken:
        raise SystemExit(1)


def _tell(summary: Summary | HoldingsSummary, probe_period: float, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(msgspec.structs.asdict(summary)).decode())
    else:
        say("\n".join(_summary(summary, probe_period)))


async def _follow(play: Chaos | Holdings, quiet: bool) -> None:
    """Say how it goes: on one line of a terminal, else a line every few seconds."""
    if quiet or not sys.stdout.isatty():
        said = 0.0
        async for moment in play.play():
            if not quiet and moment.seconds >= said + EVERY:
                said = moment.seconds
                click.echo(_moment(moment))
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(highlight=False).status(f"seed {play.seed}") as status:
        async for moment in play.play():
            status.update(f"seed {play.seed}  {escape(_moment(moment))}")


def _moment(moment: Moment) -> str:
    minutes, seconds = divmod(int(moment.seconds), 60)
    return f"{minutes}:{seconds:02}  burst {moment.burst}, {moment.checks} checks: {moment.did}"


def _summary(summary: Summary | HoldingsSummary, probe_period: float) -> Iterator[str]:
    """For people."""
    if isinstance(summary, Summary):
        length, own, again = (
            format_count(summary.bursts, "burst"),
            _health(summary, probe_period),
            f"--probe-period {probe_period:g}s",
        )
    else:
        length, again = format_count(summary.rounds, "round"), "--play holdings"
        own = iter((f"slowest: all devices were offered {summary.slowest_release:.2f} s after the last pod had ended",))
    ended = f", ended by {summary.ended_by}" if summary.ended_by else ""
    yield f"seed {summary.seed} on {summary.machine}: {summary.minutes:.1f} minutes, {length}{ended}"
    yield "done:    " + ", ".join(f"{count} × {kind}" for kind, count in summary.injections.items())
    yield "checked: " + ", ".join(f"{count} × {kind}" for kind, count in summary.checks.items())
    yield from own
    if summary.broken:
        yield from ("", "the agent's log ends with:", *summary.log, "", "the last steps:", *summary.steps)
        yield from ("", f"BROKEN: {summary.broken}")
        how = f"--minutes {summary.minutes + 1:.0f} --seed {summary.seed} --machine {summary.machine} {again}"
        yield f"to repeat this run: gpuplane sandbox chaos {how}"


def _health(summary: Summary, probe_period: float) -> Iterator[str]:
    yield f"seen:    {format_count(summary.codes, 'code')} of the fault catalogue"
    yield f"restarts: {summary.agent_restarts} of the agent, {summary.kubelet_restarts} of kubelet"
    begin, end = summary.memory_begin / 1024, summary.memory_end / 1024
    yield f"memory:  {begin:.1f} MiB, {end:.1f} MiB at the end; {summary.memory_per_minute:+.0f} KiB a minute"
    yield f"slowest recovery without relapses: {summary.slowest_recovery:.2f} s, with {probe_period:g} s between probes"


async def _serve(kubelet: Kubelet, say: Callable[[Message], None], words: bool) -> None:
    stop = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # the last where its terminal is closed
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    async with kubelet:
        where = str(kubelet.root / "device-plugins/kubelet.sock")
        hint = ("type help for a list of commands",) if words else ()
        say(Message("serving", {"socket": where}, (f"kubelet serves {where}", *hint)))
        console = Console(kubelet, say)
        tasks = [asyncio.create_task(console.follow()), asyncio.create_task(_until(stop))]
        if words:
            tasks.append(asyncio.create_task(_obey(console)))
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, console.cancel_admissions(), return_exceptions=True)
    with suppress(OSError) if stop.is_set() else nullcontext():  # its terminal may have been closed
        for task in done:
            task.result()
        say(Message("stopped", {}, ("kubelet has stopped",)))


async def _until(stop: asyncio.Event) -> None:
    await stop.wait()


async def _obey(console: Console) -> None:
    async for line in _lines():
        if not await console.execute(line):
            break


async def _lines() -> AsyncIterator[str]:
    """What is typed, until its end. A thread reads, since not every standard input can be waited for."""
    queue: asyncio.Queue[str | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def put(line: str | None) -> None:
        with suppress(RuntimeError):  # the loop has ended before the input did
            loop.call_soon_threadsafe(queue.put_nowait, line)

    def read() -> None:
        rest = b""
        with suppress(OSError):
            while more := os.read(0, 1 << 16):
                *whole, rest = (rest + more).split(b"\n")
                for line in whole:
                    put(line.decode(errors="replace"))
        put(rest.decode(errors="replace"))
        put(None)

    threading.Thread(target=read, daemon=True).start()
    while (line := await queue.get()) is not None:
        yield line


def _text(said: Message) -> None:
    say("\n".join(map(escape_unprintable, said.lines)))


def _json(said: Message) -> None:
    click.echo(msgspec.json.encode({"event": said.event, **said.data}).decode())
