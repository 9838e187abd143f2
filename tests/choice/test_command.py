"""`gpuplane choose`: one question tried by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpuplane.cli.choose import command
from gpuplane.hardware.profiles import find

ID = "GPU-70000100-0000-4000-8000-00000000000"


def choose(*arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def refused(*arguments: object) -> Any:
    """The answer where no container would be started: as JSON, and exit status 1."""
    shown = choose(*arguments, "--json")
    assert shown.exit_code == 1
    document = json.loads(shown.stdout)
    assert shown.stderr == f"Error: {document['refused']}\n"
    return document


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
        (("--available", "0,1,2", "--size", 3), "0,1,2", "these are all that there are"),
        (("--required", "7,7", "--size", 1), "7", "no other set is worth as much"),
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


def test_shares_by_mps_are_chosen_as_if_their_daemons_served(tmp_path: Path) -> None:
    """Nobody runs them here, and the answer says what it supposes; more than one share is refused by default."""
    config = tmp_path / "config.yaml"
    config.write_text("sharing: {mps: {resources: [{name: gpu, replicas: 4}]}}\n")
    base = ("--machine", "dgx1-v100", "--config", config)

    shown = choose(*base, "--size", 1).output.splitlines()
    assert shown[:2] == ["gpus\t0", f"id\t{ID}0::0"]
    assert shown[-1].startswith("note\tMPS is shown as if its daemons served; they need the supervisor, gpuplane mps")
    refused = choose(*base, "--size", 2)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith("Error: nvidia.com/gpu: 2 shares requested, but failReq")


def test_memory_is_all_of_one_gpu_and_what_has_no_room_is_refused(tmp_path: Path) -> None:
    """By what a container that gets what kubelet takes instead is told at Allocate."""
    config = tmp_path / "config.yaml"
    config.write_text("sharing: {memory: {resources: [{name: gpu}]}}\n")
    base = ("--machine", "dgx-a100", "--config", config)

    fits = choose(*base, "--size", 8).output.splitlines()
    assert fits[0] == "gpus\t0 ×8"
    assert fits[-1] == "why\tshares: all of the one device where the least is left over"
    none = refused(*base, "--size", 81)
    assert (none["gpus"], none["why"]) == ({}, "shares: no device has so many")
    assert none["refused"].startswith("nvidia.com/gpu.mem: 81 GiB of memory have to come from one GPU")


def test_memory_of_one_share_to_a_gpu_is_still_memory(tmp_path: Path) -> None:
    """Two of them are of two GPUs, and no GPU has them."""
    config = tmp_path / "config.yaml"
    config.write_text("sharing: {memory: {grain: 10, resources: [{name: gpu}]}}\n")
    shown = refused("--machine", "dgx1-v100", "--config", config, "--size", 2)

    assert shown["why"] == "shares: no device has so many"
    assert shown["refused"].startswith("nvidia.com/gpu.mem: 20 GiB of memory have to come from one GPU")


def test_shares_that_must_be_apart_are_refused_where_there_are_too_few_gpus(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4, distinct: true}]}}\n")
    base = ("--config", config, "--size", 2)

    apart = choose("--machine", "dgx1-v100", *base).output.splitlines()
    assert apart[-1] == "why\tshares: as many GPUs as there are, the least used first; one of each GPU"
    one = refused("--machine", "dgx1-v100", *base, "--available", "3")
    assert one["gpus"] == {"3": 1}
    assert one["refused"].startswith("nvidia.com/gpu: 2 shares have to be of 2 different GPUs")
    assert "GPUs with a free share, as kubelet last listed: 1; request 1 at most" in one["refused"]


def test_what_is_not_there_is_refused_and_what_is_ill(tmp_path: Path) -> None:
    """More than are available kubelet does not even ask for."""
    ill = tmp_path / "ill.yaml"
    ill.write_text(
        "gpus:\n- {index: 0, uuid: GPU-0}\n- {index: 1, uuid: GPU-1, faults: [{code: gpu-lost, message: gone}]}\n"
    )

    two = choose("--machine", ill, "--size", 2)
    assert (two.exit_code, two.stdout) == (1, "")
    assert two.stderr == "Error: nvidia.com/gpu: 2 requested, 1 available: kubelet does not admit the pod\n"
    shown = refused("--machine", ill, "--size", 1, "--required", "1")
    assert shown["refused"] == "nvidia.com/gpu: device GPU-1 cannot be given out: gpu-lost: gone"


def test_for_machines_every_key_is_there() -> None:
    document = json.loads(choose("--machine", "dgx-a100", "--size", 8, "--json").output)

    assert list(document) == [
        "resource",
        "policy",
        "ids",
        "gpus",
        "worth",
        "bound",
        "leaves",
        "kinds",
        "why",
        "note",
        "refused",
    ]
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
    ("status", "arguments", "said"),
    [
        (1, ("--machine", "dgx-a100", "--size", 2, "--available", "0,9"), "has no device '9'; by index it has 0, 1, 2"),
        (
            1,
            ("--machine", "dgx-a100", "--size", 2, "--resource", "a/b"),
            "would not advertise a/b; it has: nvidia.com/gpu",
        ),
        (2, ("--machine", "nothing", "--size", 2), "named 'nothing'"),
        (1, ("--machine", "./nothing", "--size", 2), "nothing: No such file"),
        (2, ("--machine", "dgx-a100", "--size", 0), "0 is not in the range"),
        (2, ("--machine", "dgx-a100", "--size", 2, "--required", "0,1,2"), "names 3 devices, more than --size 2"),
        (
            2,
            ("--machine", "dgx1-v100", "--size", 2, "--available", "0,1", "--required", "4,1"),
            f"--required names what is not among --available: {ID}4\n",
        ),
        (1, ("--machine", "dgx-a100", "--size", 9), "9 requested, 8 available"),
        (1, ("--machine", "dgx-a100", "--size", 10**30), "available"),
        (1, ("--machine", "dgx-a100", "--size", 1, "--available", ""), "1 requested, 0 available"),
        (1, ("--machine", "dgx-a100", "--size", 2, "--config", find("t4")), "unknown key"),
    ],
)
def test_what_cannot_be_asked_and_what_cannot_be(status: int, arguments: tuple[object, ...], said: str) -> None:
    """A wrong combination of options is status 2; what this machine does not have, or a file, is 1."""
    shown = choose(*arguments)

    assert shown.exit_code == status
    assert shown.stdout == ""
    assert said in shown.stderr
