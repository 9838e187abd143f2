"""The program needs nothing of the host that it runs on."""

import subprocess
from pathlib import Path

import pytest

from tests.node.host.hook.build import SOURCES, build, missing


def is_static(program: Path) -> bool:
    """Whether the kernel starts it without an interpreter."""
    listed = subprocess.run(["readelf", "-lW", program], capture_output=True, text=True, check=True, timeout=60)
    return "INTERP" not in listed.stdout


def test_it_is_static(hook: Path) -> None:
    """It has no interpreter, no writable code, and its stack cannot be executed; where it lies is random."""
    listed = subprocess.run(["readelf", "-lW", hook], capture_output=True, text=True, check=True, timeout=60).stdout

    assert is_static(hook)
    assert not any("RWE" in line for line in listed.splitlines())
    assert "GNU_RELRO" in listed
    dynamic = subprocess.run(["readelf", "-dW", hook], capture_output=True, text=True, check=True, timeout=60).stdout
    assert "NEEDED" not in dynamic
    assert "Flags: NOW PIE" in dynamic


def test_musl_builds_it_too(tmp_path: Path) -> None:
    """Without a warning, and small."""
    if what := missing("musl-gcc"):
        pytest.skip(f"needs {what} (Debian: apt install musl-tools)")
    program = build(tmp_path, "CC=musl-gcc")

    assert is_static(program)
    assert program.stat().st_size < 200_000
    assert subprocess.run([program, "--version"], capture_output=True, timeout=20, env={}).returncode == 0


def test_its_lines_are_as_ours_are() -> None:
    """120 columns, no tabs, no space at an end."""
    for path in SOURCES.glob("*.[ch]"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert len(line) <= 120 and "\t" not in line and line == line.rstrip(), f"{path.name}:{number}"
