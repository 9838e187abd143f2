"""Runs on all cores: a process of ours for each, which gets nodes and pods once, and then one run after the other.

One needs no other process: it plays here. Several are started by `subprocess`, not by a pool of `multiprocessing`: each
ends when its standard input does, so none is left behind however we end, and a Ctrl-C is ours alone to answer. A run is
a pure function, so the number of processes changes no figure.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Protocol

import msgspec

from gpuplane.base.value import Value
from gpuplane.cluster.model.nodes import Node
from gpuplane.cluster.simulation.fewer import gpus_fewer
from gpuplane.cluster.simulation.pods import TracePod
from gpuplane.cluster.simulation.replay import replay
from gpuplane.cluster.simulation.results import Run
from gpuplane.cluster.simulation.scenario import Scenario

EXIT_SECONDS = 10.0
"""Seconds that a process may take to end after its output."""


class Trace(Value):
    """What a policy is tried on: where nodes and pods come from does not matter."""

    nodes: tuple[Node, ...]
    pods: tuple[TracePod, ...]


class Ask(Value):
    """One run; with `needed_milli` the search for a smaller cluster that allocates so much."""

    policy: str
    seed: int
    scenario: Scenario
    needed_milli: float | None = None


class Answer(Value):
    """What became of it. `fewer`: GPUs; None where the whole cluster is too small, too."""

    run: Run | None = None
    fewer: float | None = None


class WorkerEnded(Exception):
    """A process ended before it had answered. What it wrote is on standard error. `status`: its exit status; −N by the
    signal N, as `subprocess` has it; None: it runs, but has closed its output."""

    def __init__(self, text: str, status: int | None) -> None:
        super().__init__(text)
        self.status = status


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


def answer(trace: Trace, ask: Ask) -> Answer:
    """What a worker does. Raises Impossible."""
    if ask.needed_milli is None:
        return Answer(run=replay(trace.nodes, trace.pods, ask.policy, ask.seed, ask.scenario))
    return Answer(fewer=gpus_fewer(trace.nodes, trace.pods, ask.policy, ask.seed, ask.scenario, ask.needed_milli))


class Workers(Protocol):
    """Who answers; `with workers(trace, count) as them`."""

    def answers(self, asks: Sequence[Ask], done: Callable[[], None] = lambda: None) -> list[Answer]:
        """In the order of what is asked; `done` is called at each that is there. Raises WorkerEnded, Impossible."""


class _Alone:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def answers(self, asks: Sequence[Ask], done: Callable[[], None] = lambda: None) -> list[Answer]:
        found = list[Answer]()
        for each in asks:
            found.append(answer(self._trace, each))
            done()
        return found


class _Processes:
    def __init__(self, pool: ThreadPoolExecutor, idle: "SimpleQueue[subprocess.Popen[bytes]]") -> None:
        self._pool, self._idle = pool, idle
        self._unanswered: dict[int, Ask] = {}  # pid of a process that has ended → what it was asked then

    def answers(self, asks: Sequence[Ask], done: Callable[[], None] = lambda: None) -> list[Answer]:
        futures: list[Future[Answer]] = [self._pool.submit(self._ask, each) for each in asks]
        try:
            for each in as_completed(futures):
                each.result()
                done()
        finally:
            for each in futures:
                each.cancel()
        return [each.result() for each in futures]

    def _ask(self, ask: Ask) -> Answer:
        process, line = self._idle.get(), b""
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(msgspec.json.encode(ask) + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            pass  # it has ended
        finally:
            if not line.endswith(b"\n"):
                ask = self._unanswered.setdefault(process.pid, ask)
            self._idle.put(process)  # also one that has ended: nobody waits for it, and what it was asked is known
        if not line.endswith(b"\n"):
            raise _ended(process, f"a process that played {ask.policy}, seed {ask.seed},")
        return msgspec.json.decode(line, type=Answer)


def _ended(process: "subprocess.Popen[bytes]", who: str) -> WorkerEnded:
    try:
        status = process.wait(EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        return WorkerEnded(f"{who} stopped answering", None)
    how = f"by {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"
    return WorkerEnded(f"{who} ended {how} before it was done", status)


@contextmanager
def workers(trace: Trace, count: int) -> Iterator[Workers]:
    """So many; no process is left when the context ends, however it does."""
    if count == 1:
        yield _Alone(trace)
        return
    said = msgspec.json.encode(trace) + b"\n"
    idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
    processes = list[subprocess.Popen[bytes]]()
    pool = ThreadPoolExecutor(count)
    try:
        for _ in range(count):
            command = [sys.executable, "-P", "-m", __package__]
            # A process group of its own: a Ctrl-C of the terminal does not reach it.
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
            processes.append(process)
            pool.submit(_tell, process, said, idle)
        yield _Processes(pool, idle)
    finally:
        for process in processes:
            process.kill()
        pool.shutdown(cancel_futures=True)
        for process in processes:
            process.communicate()


def _tell(process: "subprocess.Popen[bytes]", said: bytes, idle: "SimpleQueue[subprocess.Popen[bytes]]") -> None:
    """Give a process its trace; whether it has read it shows when it is asked."""
    try:
        assert process.stdin is not None
        process.stdin.write(said)
        process.stdin.flush()
    except OSError:
        pass
    finally:
        idle.put(process)
