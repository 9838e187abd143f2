"""`gpuplane sandbox kubelet`: the parts of a kubelet that deal with devices, on any machine."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import click
import msgspec

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # lost connections are no news of gRPC's here: kubelet says them

from gpuplane.base.text import escape_unprintable
from gpuplane.cli.kit.messages import say
from gpuplane.cli.kit.options import FILE_PATH, json_option
from gpuplane.sandbox.kubelet import Kubelet
from gpuplane.sandbox.kubelet.console import Console
from gpuplane.sandbox.kubelet.messages import Message
from gpuplane.service.serving import stop_at_signal


@click.command()
@click.option("--root", required=True, type=FILE_PATH, metavar="DIR", help="Kubelet's directory.")
@click.option(
    "--numa", is_flag=True, help="Choose devices of one NUMA node, as the Topology Manager's policy best-effort does."
)
@click.option(
    "--cdi-dir",
    "cdi",
    multiple=True,
    type=FILE_PATH,
    metavar="DIR",
    help="The sandbox resolves CDI devices with the specifications in this directory, as a container runtime does. "
    "You can give several; the last has priority. Default: the sandbox does not resolve CDI devices.",
)
@json_option("Print one JSON object on each line.")
@click.option("--no-input", is_flag=True, help="Read no commands: run until a signal.")
def command(root: Path, numa: bool, cdi: tuple[Path, ...], as_json: bool, no_input: bool) -> None:
    """Run the parts of a kubelet that deal with devices, and print what plugins do.

    It reads commands from its standard input, and ends when that ends; `help` lists them. In another terminal:

    gpuplane agent --machine dgx-a100 --kubelet-root DIR --state-dir OTHER
    """
    kubelet = Kubelet(root, align_numa=numa, cdi_dirs=cdi or None)
    asyncio.run(_serve(kubelet, _json if as_json else _text, words=not no_input))


async def _serve(kubelet: Kubelet, say: Callable[[Message], None], words: bool) -> None:
    stop = stop_at_signal(signal.SIGHUP)  # where its terminal is closed
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


def _text(message: Message) -> None:
    say("\n".join(map(escape_unprintable, message.lines)))


def _json(message: Message) -> None:
    click.echo(msgspec.json.encode({"event": message.event, **message.data}).decode())
