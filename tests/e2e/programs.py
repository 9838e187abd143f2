"""gpuplane's commands as processes: the agent, the embedded kubelet, and those that end by themselves."""

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.e2e.waiting import PATIENCE, until

JSON = Any
KEPT = ("PATH", "HOME", "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE", "TMPDIR", "LD_LIBRARY_PATH")
"""What a process is given of our environment: no variable of ours or of NVIDIA's plugin among it."""
GPUPLANE = (sys.executable, "-m", "gpuplane")


def environment(**more: str) -> dict[str, str]:
    """The environment of every process that is started here."""
    return {name: os.environ[name] for name in KEPT if name in os.environ} | {"LC_ALL": "C.UTF-8"} | more


class Ended:
    """What became of a command."""

    def __init__(self, status: int, output: str, errors: str) -> None:
        self.status, self.output, self.errors = status, output, errors

    def json(self) -> JSON:
        """The document on its standard output."""
        return json.loads(self.output)

    def lines(self) -> list[JSON]:
        """The documents on its standard output, one a line."""
        return [json.loads(line) for line in self.output.splitlines()]


def command(*words: object, given: str | bytes | None = None, env: Mapping[str, str] | None = None) -> Ended:
    """Run `gpuplane WORDS…` to its end."""
    data = given.encode() if isinstance(given, str) else given
    done = subprocess.run(
        [*GPUPLANE, *map(str, words)],
        input=data,
        stdin=subprocess.DEVNULL if data is None else None,
        capture_output=True,
        env=environment(**(env or {})),
        timeout=2 * PATIENCE,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


def good(*words: object) -> Ended:
    """The same, where it must succeed."""
    done = command(*words)
    assert done.status == 0, f"{words}: {done.status}\n{done.output}\n{done.errors}"
    return done


class Process:
    """`with Process(log, words…):` a command that runs until it is ended. What it writes to standard error is `log`."""

    def __init__(self, log: Path, *words: object, env: Mapping[str, str] | None = None) -> None:
        self.log, self.words, self.env = log, [str(each) for each in words], dict(env or {})
        self.process: subprocess.Popen[bytes] | None = None
        self.stdout: int = subprocess.DEVNULL
        self.stdin: int = subprocess.DEVNULL

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.kill()

    def start(self) -> None:
        """Start it."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*GPUPLANE, *self.words],
                stdin=self.stdin,
                stdout=self.stdout,
                stderr=log,
                env=environment(**self.env),
                start_new_session=True,
            )

    def stop(self) -> int:
        """End it by SIGTERM; its exit status."""
        assert self.process is not None
        self.process.terminate()
        status = self.process.wait(PATIENCE)
        self._close()
        return status

    def kill(self) -> None:
        """End it by SIGKILL, where it still runs."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE)
        self._close()

    def _close(self) -> None:
        assert self.process is not None
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process = None

    def told(self) -> str:
        """The end of its log, for whoever reads why a test failed."""
        end = "\n".join(self.log.read_text(errors="replace").splitlines()[-30:]) if self.log.exists() else ""
        status = self.process.poll() if self.process else "stopped"
        return f"gpuplane {' '.join(self.words)}: {status}\n{end}"

    def until(self, look: Callable[[], Any], what: str) -> Any:
        """What `look` returns once that is true, by way of `until`."""
        return until(look, what, more=self.told)


class Agent(Process):
    """An agent below a folder: its kubelet in `k`, its state in `s`, CDI specifications in `c`, its MPS root `m`."""

    def __init__(
        self, here: Path, machine: object, *flags: object, env: Mapping[str, str] | None = None, state: str = "s"
    ) -> None:
        self.here, self.state = here, here / state
        self.port = _free_port()
        address = f"127.0.0.1:{self.port}"
        super().__init__(
            here / "agent.log",
            "agent", "--machine", machine, "--kubelet-root", here / "k", "--state-dir", self.state,
            "--cdi-dir", here / "c", "--mps-root", here / "m", "--metrics-address", address,
            "--hook-path", here / "no-hook", *flags,
            env=env,
        )  # fmt: skip

    def page(self, path: str) -> tuple[int, str]:
        """A page of its status endpoint: status, text. Status 0: nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def until_ready(self) -> None:
        """Until /readyz says that it is."""
        self.until(lambda: self.page("/readyz")[0] == 200, "ready")

    def until_answers(self) -> Self:
        """Until commands can ask it."""
        self.until((self.state / "control.sock").exists, "its control socket")
        self.until(lambda: self.page("/healthz")[0] == 200, "its status endpoint")
        return self

    def command(self, *words: object) -> Ended:
        """A command that asks this agent."""
        return command(*words, "--state-dir", self.state)

    def inspect(self) -> JSON:
        """The document of `gpuplane inspect --json`, once the agent can be asked."""
        self.until_answers()
        done = self.command("inspect", "--json")
        assert done.status == 0, f"{done.errors}\n{self.told()}"
        return done.json()

    def device(self, index: str) -> JSON:
        """A device of that document."""
        return next(each for each in self.inspect()["devices"] if each["index"] == index)

    def part(self, name: str) -> JSON:
        """A part of that document; None where there is none of that name."""
        return next((each for each in self.inspect()["parts"] if each["name"] == name), None)

    def request(self, line: bytes) -> JSON:
        """What it answers to one line on its control socket."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(str(self.state / "control.sock"))
            connection.sendall(line)
            with connection.makefile("rb") as stream:
                return json.loads(stream.read())


class Console(Process):
    """The embedded kubelet of `gpuplane sandbox kubelet`, as one types to it."""

    def __init__(self, here: Path, *flags: object) -> None:
        words = ("sandbox", "kubelet", "--root", here / "k", "--cdi-dir", here / "c", "--json", *flags)
        super().__init__(here / "kubelet.log", *words)
        self.output = here / "kubelet.out"
        self.stdin = subprocess.PIPE

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self.output.write_bytes(b"")
        with self.output.open("ab") as output:
            self.stdout = output.fileno()
            super().start()
        self.until(lambda: self.events("serving"), "kubelet serves")

    def events(self, kind: str, since: int = 0) -> list[JSON]:
        """What it has said, of one kind; only after its first `since` lines."""
        whole = self.output.read_text().rpartition("\n")[0].splitlines()
        return [each for each in map(json.loads, whole[since:]) if each["event"] == kind]

    def said(self) -> int:
        """How many lines it has written."""
        return self.output.read_bytes().count(b"\n")

    def type(self, line: str, *answers: str) -> JSON:
        """Type a line, and return the first event after it that is one of `answers`."""
        assert self.process is not None and self.process.stdin is not None
        since = self.said()
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        if not answers:
            return None

        def look() -> JSON:
            return next((found for kind in answers for found in self.events(kind, since)), None)

        return self.until(look, f"kubelet says {answers} to {line!r}")

    def figures(self, resource: str = "nvidia.com/gpu") -> tuple[int, int]:
        """The last capacity and allocatable of a resource; (0, 0) while it is not known."""
        said = [each for each in self.events("node") if each.get("resource") == resource]
        return (said[-1]["capacity"], said[-1]["allocatable"]) if said else (0, 0)

    def until_figures(self, capacity: int, allocatable: int, resource: str = "nvidia.com/gpu") -> None:
        """Until the node shows so many."""
        want = capacity, allocatable
        self.until(lambda: self.figures(resource) == want, f"{resource} {want}, not {self.figures(resource)}")

    def until_devices(self, resource: str, want: Mapping[str, str]) -> None:
        """Until the newest list of a resource has these healths."""
        self.until(lambda: want.items() <= self.devices(resource).items(), f"{resource}: {want}")

    def devices(self, resource: str = "nvidia.com/gpu") -> dict[str, str]:
        """The newest list of a resource: id → health."""
        said = [each["devices"] for each in self.events("devices") if each["resource"] == resource]
        return dict(said[-1]) if said else {}


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def words(text: str) -> Sequence[str]:
    """A command line without quotes."""
    return text.split()
