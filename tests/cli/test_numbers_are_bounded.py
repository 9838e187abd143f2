"""Numbers and times of every command: what is none, has no end or makes no sense is refused on the command line."""

from collections.abc import Iterator
from typing import Any

import click
import pytest

from gpuplane.cli import root_command
from gpuplane.cli.kit.durations import Duration, PositiveNumber

ODD = ("nan", "inf", "-inf", "1e400", "-1", "-0.5", "")
TIMES = ("0s", "0ms", "-1s", "nan", "nans", "inf", "infs", "1e9s", "9" * 400 + "d", "100000000d", "٣s")
LARGE = "1e9"


def options(command: click.Command, name: str) -> Iterator[tuple[str, click.Parameter]]:
    """Every option below a command, by what is typed."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            assert below is not None
            yield from options(below, f"{name} {each}")
        return
    yield from ((f"{name} {each.opts[0]}", each) for each in command.params)


ALL = {name: option for name, option in options(root_command(), "gpuplane") if not name.startswith("gpuplane agent")}
"""Those of the agent are of the configuration: tests/node/core/config."""
NUMBERS: dict[str, click.ParamType[Any]] = {
    name: option.type
    for name, option in ALL.items()
    if isinstance(option.type, click.types.FloatParamType | click.types.IntParamType)
}
DURATIONS = {name: option.type for name, option in ALL.items() if isinstance(option.type, Duration)}


def test_the_options_are_found() -> None:
    amounts = ("cdi generate --timeout", "choose --size")
    times = ("driver release --for", "health drain --for")
    assert {f"gpuplane {each}" for each in amounts} <= NUMBERS.keys()
    assert {f"gpuplane {each}" for each in times} <= DURATIONS.keys()


@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_no_number_or_less_than_nothing_is_refused(name: str) -> None:
    for odd in ODD:
        with pytest.raises(click.BadParameter):
            NUMBERS[name].convert(odd, None, None)


@pytest.mark.parametrize(
    "name", [name for name, kind in NUMBERS.items() if not isinstance(kind, click.types.IntParamType)]
)
def test_an_amount_of_time_has_an_end(name: str) -> None:
    assert isinstance(NUMBERS[name], PositiveNumber)
    for odd in ("0", LARGE):
        with pytest.raises(click.BadParameter):
            NUMBERS[name].convert(odd, None, None)


@pytest.mark.parametrize("name", DURATIONS)
def test_a_time_has_a_beginning_and_an_end(name: str) -> None:
    for odd in TIMES:
        with pytest.raises(click.BadParameter):
            DURATIONS[name].convert(odd, None, None)
