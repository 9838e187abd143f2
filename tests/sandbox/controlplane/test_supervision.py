"""Programs that end are started again, and that is said once; scripts stand in for them."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuplane.sandbox.controlplane import supervision
from gpuplane.sandbox.controlplane.supervision import ProgramFails, Supervisor, last_line
from tests.sandbox.controlplane.pids import gone


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Short pauses."""
    monkeypatch.setattr(supervision, "BACKOFF", (0.01, 0.02))
    (tmp_path / "logs").mkdir()


async def test_a_program_that_ends_is_started_again(tmp_path: Path) -> None:
    """However often it ends soon, that is said once."""
    said = list[str]()
    script = "echo run >> runs; echo the reason >&2; exit 3"
    programs = Supervisor(tmp_path, {"a": ["sh", "-c", script]}, said.append)
    programs.is_ready = True
    await programs.start("a")
    await until(lambda: (tmp_path / "runs").exists() and (tmp_path / "runs").read_text().count("run") > 5)
    await programs.end(gently=())

    assert said == [
        f"a has ended (status 3: the reason) and is started again. Its log: {tmp_path}/logs/a.log",
    ]


async def test_after_it_has_run_for_a_while_its_end_is_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it starts again without delay."""
    monkeypatch.setattr(supervision, "STEADY_AFTER", 0.0)
    said = list[str]()
    programs = Supervisor(tmp_path, {"a": ["sleep", "60"]}, said.append)
    programs.is_ready = True
    await programs.start("a")
    for _ in range(3):
        await programs.restart("a")

    assert len(said) == 3
    assert all("signal 9" in each for each in said)
    await programs.end(gently=())


async def test_one_that_ends_as_soon_as_it_starts_is_an_error(tmp_path: Path) -> None:
    """Not the first time. The error has what it said last, on one line, and where the rest is."""
    script = "printf 'first\\nthe \\033[31mlast line\\n\\n'; exit 1"
    programs = Supervisor(tmp_path, {"a": ["sh", "-c", script], "b": ["sleep", "60"]}, print)
    await programs.start("b", "a")
    programs.check()
    with pytest.raises(ProgramFails, match=rf"a ends .*: the �\[31mlast line\. Its log: {tmp_path}/logs/a\.log"):
        await fails(programs)

    await programs.end(gently=())


async def test_one_that_cannot_be_started_again_is_an_error(tmp_path: Path) -> None:
    """Somebody has removed it."""
    (tmp_path / "a").write_text("#!/bin/sh\nrm $0\n")
    (tmp_path / "a").chmod(0o755)
    programs = Supervisor(tmp_path, {"a": [tmp_path / "a"]}, print)
    await programs.start("a")
    with pytest.raises(ProgramFails, match=rf"a ends .*: it cannot be started again: .* '{tmp_path}/a'"):
        await fails(programs)
    programs.is_ready = True
    (tmp_path / "a").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "a").chmod(0o755)
    await until(lambda: "a" in programs.pids)

    await programs.end(gently=())


async def test_in_the_end_all_have_ended(tmp_path: Path) -> None:
    """Some gently, after the others."""
    script = "trap 'test -d /proc/$(cat other) || echo alone; exit' TERM; echo ready; while :; do sleep 0.01; done"
    commands = {"gentle": ["sh", "-c", script], "other": ["sleep", "60"]}
    programs = Supervisor(tmp_path, commands, print)
    await programs.start("gentle", "other")
    pids = programs.pids
    (tmp_path / "other").write_text(str(pids["other"]))
    log = tmp_path / "logs/gentle.log"
    await until(lambda: "ready" in log.read_text())
    await programs.end(gently=("gentle", "missing"))

    assert log.read_text() == "ready\nalone\n"
    assert programs.pids == {}
    for pid in pids.values():
        await gone(pid)


async def test_no_proxy_is_in_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server would ask it for our nodes."""
    for name in ("HTTPS_PROXY", "https_proxy", "KUBECONFIG"):
        monkeypatch.setenv(name, "http://proxy.example")
    programs = Supervisor(tmp_path, {"a": ["sh", "-c", "env; echo done; sleep 60"]}, print)
    await programs.start("a")
    log = tmp_path / "logs/a.log"
    await until(lambda: "done" in log.read_text())
    await programs.end(gently=())

    assert "example" not in log.read_text()
    assert "PATH=" in log.read_text()


def test_a_log_without_words(tmp_path: Path) -> None:
    """One that is missing, empty, or has a line without an end."""
    (tmp_path / "empty").touch()
    (tmp_path / "long").write_bytes(b"x" * 100_000)

    assert last_line(tmp_path / "none") == last_line(tmp_path / "empty") == "it says nothing"
    assert last_line(tmp_path / "long").startswith("xxx")
    assert len(last_line(tmp_path / "long")) <= 300


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)


async def fails(programs: Supervisor) -> None:
    """Until something keeps them from running, which it raises."""
    async with asyncio.timeout(60):
        while True:
            programs.check()
            await asyncio.sleep(0.005)
