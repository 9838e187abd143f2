"""`gpuplane choose`: one question tried by hand."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuplane.cli.choose import command
from gpuplane.hardware.profiles import find

ID = "GPU-70000100-0000-4000-8000-00000000000"


def choose(*arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def test_the_answer_with_its_worth_what_it_leaves_and_why() -> None:
    """And which other sets there are: how many, what they are worth and leave, and the lowest of them."""
    shown = choose("--machine", "dgx1-v100", "--size", 2)

    assert shown.exit_code == 0, shown.output
    assert shown.output.splitlines() == [
        "gpus\t2,3",
        f"id\t{ID}2",
        f"id\t{ID}3",
        "worth\t250",
        "leaves\t-\t1120\t250",
        "why\t2 sets are worth as much and leave as much: the lowest",
        "sets\t2\t250\t-\t1120\t250\t2,3",
        "sets\t4\t230\t-\t1120\t250\t0,3",
        "sets\t2\t210\t-\t840\t250\t0,4",
        "sets\t2\t150\t-\t1120\t250\t0,1",
        "sets\t4\t130\t-\t1120\t250\t0,2",
    ]


@pytest.mark.parametrize(
    ("arguments", "gpus", "why"),
    [
        (("--available", "0,1,2", "--size", 1), "2", "of the 3 sets that are worth most it leaves most"),
        (("--available", "0,1,2", "--size", 2), "0,1", "no other set is worth as much"),
        (("--available", "0,1,2", "--size", 5), "0,1,2", "these are all that there are"),
        (("--required", "7,6,1", "--size", 2), "1,6", "more are required than are asked for"),
        (("--required", "7", "--size", 2), "6,7", "no other set is worth as much"),
        (("--available", "0,1,2,4", "--size", 2, "--policy", "numa"), "0,1", "no other set is worth as much"),
        (
            ("--available", "0,1,2,3,4,6", "--size", 1),
            "4",
            "of the 6 sets that are worth most 2 leave most: the lowest",
        ),
    ],
)
def test_why(arguments: tuple[object, ...], gpus: str, why: str) -> None:
    """On a DGX A100."""
    shown = choose("--machine", "dgx-a100", *arguments).output.splitlines()

    assert shown[0] == f"gpus\t{gpus}"
    assert f"why\t{why}" in shown


def test_shares_are_named_as_people_count_them(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n")
    base = ("--machine", "dgx1-v100", "--config", config, "--size", 3)

    assert choose(*base, "--available", f"0,1,4,5::2,{ID}6::1").output.splitlines()[:1] == ["gpus\t0,1,4"]
    packed = choose(*base, "--policy", "packed", "--available", f"5::2,{ID}6::1,7").output.splitlines()
    assert packed[:4] == ["gpus\t7 ×3", f"id\t{ID}7::0", f"id\t{ID}7::1", f"id\t{ID}7::2"]
    assert packed[-1] == "why\tshares: as few GPUs as there can be, the most used first"


def test_for_machines_every_key_is_there() -> None:
    document = json.loads(choose("--machine", "dgx-a100", "--size", 8, "--json").output)

    assert list(document) == ["resource", "policy", "ids", "gpus", "worth", "bound", "leaves", "kinds", "why"]
    assert document["gpus"] == {str(index): 1 for index in range(8)}
    assert document["leaves"] == [None, None, None]


def test_beyond_a_table_the_answer_comes_with_what_is_missing_at_most(tmp_path: Path) -> None:
    """24 GPUs, in three islands of eight."""
    rack = tmp_path / "rack.yaml"
    rack.write_text("gpus:\n" + "".join(_islander(n) for n in range(24)))
    found = json.loads(choose("--machine", rack, "--size", 8, "--json").output)

    assert found["gpus"] == {str(index): 1 for index in range(8)}
    assert found["worth"] == found["bound"] == 28 * 120
    assert found["kinds"] == found["leaves"] == []
    assert "at most 3360" in choose("--machine", rack, "--size", 8).output


def _islander(n: int) -> str:
    peers = [m for m in range(n // 8 * 8, n // 8 * 8 + 8) if m != n]
    links = ", ".join(f"{{peer: '0000:{m:02x}:00.0', lanes: 1}}" for m in peers)
    return f"- {{index: {n}, uuid: GPU-{n}, pci: '0000:{n:02x}:00.0', numa: {n // 8}, links: [{links}]}}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--machine", "dgx-a100", "--size", 2, "--available", "0,9"), "has no device '9'; by index it has 0, 1, 2"),
        (
            ("--machine", "dgx-a100", "--size", 2, "--resource", "a/b"),
            "would not advertise a/b; it has: nvidia.com/gpu",
        ),
        (("--machine", "nothing", "--size", 2), "named 'nothing'"),
        (("--machine", "./nothing", "--size", 2), "nothing: No such file"),
        (("--machine", "dgx-a100", "--size", 0), "0 is not in the range"),
        (("--machine", "dgx-a100", "--size", 2, "--config", find("t4")), "unknown key"),
    ],
)
def test_what_cannot_be_asked(arguments: tuple[object, ...], said: str) -> None:
    shown = choose(*arguments)

    assert shown.exit_code != 0
    assert said in shown.output
