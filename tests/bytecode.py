"""Bytecode of ours, made once before several workers need it: each of them would compile every module by itself.

It is made where Python is told to write none, too: without it the tests take three times as long to load, and a process
that a test starts four times.
"""

import compileall
import os
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import PYC_TAIL, _read_pyc, _rewrite_test, _write_pyc, assertstate_key, get_cache_dir

ROOT = Path(__file__).parents[1]


def make(config: pytest.Config) -> None:
    """By all cores. What is current is left as it is."""
    modules = sorted(path for folder in ("src", "bench", "tests") for path in (ROOT / folder).rglob("*.py"))
    cores = len(os.sched_getaffinity(0))
    children = [_fork(config, modules[part::cores]) for part in range(cores)]
    assert not any(os.waitpid(child, 0)[1] for child in children), "bytecode of the tests cannot be made"


def _fork(config: pytest.Config, modules: list[Path]) -> int:
    """A process that makes that of these modules."""
    if child := os.fork():
        return child
    status = 1
    try:
        for path in modules:
            if path.name.startswith("test_") or path.name == "conftest.py":
                _rewrite(config, path)
            else:
                compileall.compile_file(path, quiet=2)
        status = 0
    finally:
        os._exit(status)


def _rewrite(config: pytest.Config, path: Path) -> None:
    """As pytest does when it imports a module of tests: its asserts show their values."""
    bytecode = get_cache_dir(path) / f"{path.stem}{PYC_TAIL}"
    if _read_pyc(path, bytecode) is None:
        bytecode.parent.mkdir(exist_ok=True)
        times, code = _rewrite_test(path, config)
        _write_pyc(config.stash[assertstate_key], code, times, bytecode)
