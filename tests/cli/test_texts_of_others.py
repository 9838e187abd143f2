"""What a driver or a file says never steers a terminal, whichever command prints it."""

from pathlib import Path

import pytest
import yaml

from tests.cli.terminals import Terminals

STEERING = "\x1b]0;title\x07\x9b31m"
"""Sets the title of a terminal, and its colour: ESC and the 8-bit CSI begin what it obeys (ECMA-48)."""

COMMANDS = {
    "labels": (),
    "config explain": ("CONFIG",),
    "choose": ("--size", "1"),
    "slices": (),
    "mig export": (),
    "mig plan": ("-f", "LAYOUTS", "-c", "any"),
    "cdi generate": (),
}


@pytest.fixture(scope="module")
def terminals():  # type: ignore[no-untyped-def]
    with Terminals() as terminals:
        yield terminals


@pytest.mark.parametrize("columns", [None, 100], ids=["lines", "terminal"])
@pytest.mark.parametrize("command", COMMANDS)
def test_what_steers_a_terminal_is_escaped(
    tmp_path: Path, terminals: Terminals, command: str, columns: int | None
) -> None:
    """A UUID, a model, a version and a fault's message; in a pipe too, for that may end on a terminal."""
    faults = [{"code": "query-failed", "message": f"none{STEERING}"}]
    gpu = {"index": 0, "uuid": f"GPU-{STEERING}", "model": f"NVIDIA {STEERING}", "memory_mib": 81920}
    other = {"index": 1, "uuid": "GPU-1", "model": f"NVIDIA {STEERING}", "memory_mib": 81920, "faults": faults}
    files = {
        "MACHINE": {"gpus": [gpu, other], "driver": {"version": f"580{STEERING}"}},
        "CONFIG": {"version": "v1"},
        "LAYOUTS": {
            "version": "v1",
            "mig-configs": {"any": [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 1}}]},
        },
    }
    for name, content in files.items():
        (tmp_path / name).write_text(yaml.safe_dump(content, allow_unicode=True))
    words = [tmp_path / each if each in files else each for each in (*COMMANDS[command], "--machine", "MACHINE")]

    ended = terminals.run(*command.split(), *words, columns=columns)

    assert ended.out or ended.err
    assert not {"\x07", "\x9b"} & {*ended.out, *ended.err}
    assert "\x1b]" not in ended.out + ended.err
