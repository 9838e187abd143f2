"""What a runtime says is understood, and what is not understood is an error of one line."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

from tests.golden import Golden
from tests.node.host.hook.world import HOSTILE, LIBRARIES, Container, snapshot

Found = TypeVar("Found")
LINK = f"--link=libcuda.so.580.95.05::{LIBRARIES}/libcuda.so.1"


def linked(container: Container) -> bool:
    """Whether the hook has done its work in this root."""
    return container.inside(f"{LIBRARIES}/libcuda.so.1").is_symlink()


@pytest.mark.parametrize("path", ["../root", "{root}", "../root/../root", "..\\u002froot"])
def test_the_root_is_the_bundles(container: Container, path: str) -> None:
    """As runc tells it: in config.json, relative to the bundle or absolute."""
    text = path.replace("{root}", str(container.root))
    (container.bundle / "config.json").write_text(f'{{"process": {{"root": 1}}, "root": {{"path": "{text}"}}}}')
    container.well(LINK)

    assert linked(container)


def test_the_root_is_the_states(container: Container) -> None:
    """As crun tells it; the bundle is not even looked at."""
    state = json.dumps({"bundle": "/nowhere", "root": str(container.root)}).encode()

    assert container.run(LINK, state=state) == (0, "")
    assert linked(container)


def test_paths_may_have_any_characters(container: Container) -> None:
    """Escapes as encoders write them, a character beyond 16 bits too."""
    renamed = container.root.rename(container.folder / 'r<&>"ö😀')
    state = json.dumps({"root": str(renamed)}).replace("<", "\\u003c").encode()

    assert container.run(LINK, state=state) == (0, "")


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (b"", "standard input is not the state of a container"),
        (b"[]", "standard input is not the state of a container"),
        (b'{"bundle": "/nowhere"} x', "standard input is not the state of a container"),
        (b"{" * 100_000, "standard input is not the state of a container"),
        (b"{}", "neither root nor bundle"),
        (b'{"bundle": "relative"}', "neither root nor bundle"),
        (b'{"bundle": 7, "root": null}', "neither root nor bundle"),
        (b'{"bundle": "/a\\u0000b"}', "neither root nor bundle"),
        (b'{"bundle": "' + b"/a" * 5000 + b'"}', "neither root nor bundle"),
        (b'{"bundle": "/nowhere"}', "the runtime names /nowhere as its bundle, and there is no config.json in it"),
        (b'{"root": "/nowhere"}', "cannot open the container's root /nowhere: No such file or directory"),
        (b'{"root": "/etc/passwd"}', "cannot open the container's root /etc/passwd: Not a directory"),
        (b'{"root": "/"}', "the container's root is the host's"),
        (b'{"root": "/proc/self/root"}', "the container's root is the host's"),
        (
            b'{"root": "/x\\u001b[2J\\ngpuplane-hook: all is well"}',
            "root /x?[2J?gpuplane-hook: all is well: No such file",
        ),
        (b'{"root": "/x\\u009b2J\\u202e"}', "root /x??2J???: No such file"),
    ],
)
def test_a_state_that_is_none_is_said(container: Container, state: bytes, said: str) -> None:
    """In one line that a terminal can show."""
    code, line = container.run(LINK, state=state)

    assert (code, line.count("\n")) == (1, 1)
    assert line.startswith("gpuplane-hook: ")
    assert said in line


@pytest.mark.parametrize("config", [b"", b"{}", b'{"root": {}}', b'{"root": {"path": ""}}', b'{"root": "x"}', b"\xff"])
def test_a_bundle_that_is_none_is_said(container: Container, config: bytes) -> None:
    """With the path of its config.json."""
    (container.bundle / "config.json").write_bytes(config)
    code, line = container.run(LINK)

    assert code == 1
    assert f"{container.bundle}/config.json" in line


def test_a_bundle_of_no_files_is_said(container: Container, golden: Golden) -> None:
    """A FIFO does not hold it up."""
    (container.bundle / "config.json").unlink()
    os.mkfifo(container.bundle / "config.json")

    golden(container.run(LINK).said.replace(str(container.bundle), "BUNDLE"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--link=x"],
        ["--link=::/x"],
        ["--link=x::y"],
        ["--link=x::/"],
        ["--link=x::/y/.."],
        ["--link"],
        ["--folder=usr/lib"],
        ["--folder=/a\n/b"],
        ["--folder=/a b"],
        ["--folder=/" + "a" * 5000],
        ["--compat=/usr/local/cuda/compat"],
        ["--compat=/c", "--driver=580;", "--cuda=13.0"],
        ["--deadline=0"],
        ["--unknown"],
        ["--unknown=1"],
    ],
)
def test_arguments_that_are_none_change_nothing(container: Container, arguments: list[str]) -> None:
    """They are refused before anything is done, the good ones beside them too."""
    before = snapshot(container.root)
    code, line = container.run(LINK, *arguments)

    assert (code, line.count("\n")) == (1, 1)
    assert snapshot(container.root) == before


def test_the_callers_surroundings_do_not_matter(container: Container) -> None:
    """A hostile environment, no descriptors but the state, ignored signals, a working directory that is gone."""
    gone = container.folder / "gone"
    gone.mkdir()
    script = f"""
        cd {gone}; rmdir {gone}; trap "" CHLD TERM; umask 777
        echo '{{"root": "{container.root}"}}' > {container.folder}/state
        exec {container.hook} create-container '{LINK}' '--folder={LIBRARIES}' < {container.folder}/state >&- 2>&-
    """
    ended = subprocess.run(["sh", "-c", script], env=dict(HOSTILE, PATH=os.environ["PATH"]), timeout=20, cwd="/")

    assert ended.returncode == 0
    assert linked(container)
    assert container.inside("/etc/ld.so.conf.d/00-gpuplane.conf").stat().st_mode & 0o777 == 0o644


def test_it_gives_up_in_time(container: Container) -> None:
    """A runtime that never ends what it says: one line, and an exit."""
    command = [str(container.hook), "create-container", LINK, "--deadline=1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin and process.stderr
        process.stdin.write(b"{")
        process.stdin.flush()

        assert process.wait(20) == 1
        assert b"given up at the deadline" in process.stderr.read()


def test_nothing_of_it_outlives_it(container: Container) -> None:
    """Where a runtime kills the hook at its timeout, the process in the container's root ends with it."""
    program = container.folder / "ldconfig"
    source = '#include <unistd.h>\nint main(void) { for (;;) { write(2, "", 0); sleep(1); } }'
    subprocess.run(["cc", "-static", "-x", "c", "-", "-o", program], input=source, text=True, check=True, timeout=60)
    script = f"mount --bind {program} /sbin/ldconfig; exec {container.hook} create-container --folder={LIBRARIES}"
    command = ["unshare", "--mount", "sh", "-euc", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.stdin
        process.stdin.write(json.dumps(container.state).encode())
        process.stdin.close()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        child = eventually(lambda: next((each for each in children.read_text().split() if runs(each, "ldconfig")), ""))
        lines = Path(f"/proc/{child}/status").read_text().splitlines()
        process.send_signal(signal.SIGKILL)
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)

    assert eventually(lambda: not Path(f"/proc/{child}").exists())
    assert {int(status[each], 16) for each in ("CapPrm", "CapEff", "CapBnd")} == {1 << 1}, "CAP_DAC_OVERRIDE alone"
    assert (status["NoNewPrivs"], int(status["CapInh"], 16), int(status["CapAmb"], 16)) == ("1", 0, 0)


def runs(process: str, name: str) -> bool:
    """Whether it has become that program. One that has ended has not."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/cmdline").read_bytes().startswith(name.encode() + b"\0")
    return False


def eventually(look: Callable[[], Found]) -> Found:
    """What it finds, as soon as it finds something."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if found := look():
            return found
        time.sleep(0.01)
    raise TimeoutError
