"""`gpuplane sandbox`: what a node needs beside the agent, on any machine."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import click
import msgspec

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # lost connections are no news of gRPC's here: kubelet says them

from gpuplane.sandbox.kubelet import Kubelet
from gpuplane.sandbox.kubelet.console import Console, Said


@click.group()
def command() -> None:
    """Try gpuplane on any machine: no GPU, no cluster, no root."""


@command.command()
@click.option("--root", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Kubelet's directory.")
@click.option("--numa", is_flag=True, help="Choose devices of one NUMA node: the Topology Manager's best-effort.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--no-input", is_flag=True, help="Read no words: run until a signal.")
def kubelet(root: Path, numa: bool, as_json: bool, no_input: bool) -> None:
    """Run a kubelet, as far as devices go, and say what plugins do with it.

    It reads words on its standard input and ends when that does; `help` lists them. In another terminal:

    gpuplane agent --machine dgx-a100 --kubelet-root DIR --state-dir OTHER
    """
    try:
        asyncio.run(_serve(Kubelet(root, numa=numa), _json if as_json else _text, words=not no_input))
    except BrokenPipeError:
        raise  # whoever read along has gone: click ends without a word
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise click.ClickException(f"{where}{error.strerror or error}") from None


async def _serve(kubelet: Kubelet, say: Callable[[Said], None], words: bool) -> None:
    stop = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    async with kubelet:
        where = str(kubelet.root / "device-plugins/kubelet.sock")
        hint = ("type help for what can be done here",) if words else ()
        say(Said("serving", {"socket": where}, (f"kubelet serves {where}", *hint)))
        console = Console(kubelet, say)
        tasks = [asyncio.create_task(console.follow()), asyncio.create_task(_until(stop))]
        if words:
            tasks.append(asyncio.create_task(_obey(console)))
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, console.leave(), return_exceptions=True)
    for task in done:
        task.result()
    say(Said("stopped", {}, ("kubelet has stopped",)))


async def _until(stop: asyncio.Event) -> None:
    await stop.wait()


async def _obey(console: Console) -> None:
    async for line in _lines():
        if not await console.obey(line):
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


def _text(said: Said) -> None:
    click.echo("\n".join(said.lines))


def _json(said: Said) -> None:
    click.echo(msgspec.json.encode({"event": said.event, **said.data}).decode())
