"""`gpuplane choose`: one question tried by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpuplane.cli.commands.choose import command
from gpuplane.node.hardware.described.profiles import find_machine_file
from tests.golden import Golden

ID = "GPU-70000100-0000-4000-8000-00000000000"


def choose(*arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def refused(*arguments: object) -> Any:
    """The answer where no container would be started: as JSON, and exit status 1."""
    shown = choose(*arguments, "--json")
    assert shown.exit_code == 1
    document = json.loads(shown.stdout)
    assert shown.stderr == f"Error: {document['refusal_text']}\n"
    return document


def test_the_answer_with_its_worth_what_it_leaves_and_why(golden: Golden) -> None:
    """And which other sets there are: how many, what they are worth and leave, and the lowest of them."""
    shown = choose("--machine", "dgx1-v100", "--size", 2)

    assert shown.exit_code == 0, shown.output
    golden(shown.output)


@pytest.mark.parametrize(
    ("arguments", "gpus"),
    [
        (("--available", "0,1,2", "--size", 1), "2"),
        (("--available", "0,1,2", "--size", 2), "0,1"),
        (("--available", "0,1,2", "--size", 3), "0,1,2"),
        (("--required", "7,7", "--size", 1), "7"),
        (("--required", "7", "--size", 2), "6,7"),
        (("--available", "0,1,2,4", "--size", 2, "--policy", "numa"), "0,1"),
        (("--available", "0,1,2,3,4,6", "--size", 1), "4"),
    ],
)
def test_why(arguments: tuple[object, ...], gpus: str, golden: Golden) -> None:
    """On a DGX A100."""
    shown = choose("--machine", "dgx-a100", *arguments).output.splitlines()

    assert shown[0] == f"gpus\t{gpus}"
    golden((line for line in shown if line.startswith("why\t")), " ".join(map(str, arguments)))


def test_shares_are_named_as_people_count_them(tmp_path: Path, golden: Golden) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n")
    base = ("--machine", "dgx1-v100", "--config", config, "--size", 3)

    assert choose(*base, "--available", f"0,1,4,5::2,{ID}6::1").output.splitlines()[:1] == ["gpus\t0,1,4"]
    packed = choose(*base, "--policy", "packed", "--available", f"5::2,{ID}6::1,7").output.splitlines()
    assert packed[:4] == ["gpus\t7 ×3", f"id\t{ID}7::0", f"id\t{ID}7::1", f"id\t{ID}7::2"]
    golden(packed[-1])


def test_shares_by_mps_are_chosen_as_if_their_daemons_served(tmp_path: Path, golden: Golden) -> None:
    """Nobody runs them here, and the answer says what it supposes; more than one share is refused by default."""
    config = tmp_path / "config.yaml"
    config.write_text("sharing: {mps: {resources: [{name: gpu, replicas: 4}]}}\n")
    base = ("--machine", "dgx1-v100", "--config", config)

    shown = choose(*base, "--size", 1).output.splitlines()
    assert shown[:2] == ["gpus\t0", f"id\t{ID}0::0"]
    golden(shown[-1], "the note")
    refused = choose(*base, "--size", 2)
    assert (refused.exit_code, refused.stdout) == (1, "")
    golden(refused.stderr, "refused")


def test_memory_is_all_of_one_gpu_and_what_has_no_room_is_refused(tmp_path: Path, golden: Golden) -> None:
    """By what a container that gets what kubelet takes instead is told at Allocate."""
    config = tmp_path / "config.yaml"
    config.write_text("sharing: {memory: {resources: [{name: gpu}]}}\n")
    base = ("--machine", "dgx-a100", "--config", config)

    fits = choose(*base, "--size", 8).output.splitlines()
    assert fits[0] == "gpus\t0 ×8"
    golden(fits[-1], "it fits")
    none = refused(*base, "--size", 81)
    assert none["gpus"] == {}
    golden((none["choice_reason"], none["refusal_text"]), "refused")


def test_memory_of_one_share_to_a_gpu_is_still_memory(tmp_path: Path, golden: Golden) -> None:
    """Two of them are of two GPUs, and no GPU has them."""
    config = tmp_path / "config.yaml"
    config.write_text("sharing: {memory: {shareSize: 10, resources: [{name: gpu}]}}\n")
    shown = refused("--machine", "dgx1-v100", "--config", config, "--size", 2)

    assert shown["gpus"] == {}
    golden((shown["choice_reason"], shown["refusal_text"]))


def test_shares_that_must_be_apart_are_refused_where_there_are_too_few_gpus(tmp_path: Path, golden: Golden) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4, distinctGPUs: true}]}}\n")
    base = ("--config", config, "--size", 2)

    apart = choose("--machine", "dgx1-v100", *base).output.splitlines()
    golden(apart[-1], "why")
    one = refused("--machine", "dgx1-v100", *base, "--available", "3")
    assert one["gpus"] == {"3": 1}
    golden(one["refusal_text"], "refused")


def test_what_is_not_there_is_refused_and_what_is_unavailable(tmp_path: Path, golden: Golden) -> None:
    """More than are available kubelet does not even ask for."""
    ill = tmp_path / "ill.yaml"
    ill.write_text(
        "gpus:\n- {index: 0, uuid: GPU-0}\n- {index: 1, uuid: GPU-1, faults: [{code: gpu-lost, message: gone}]}\n"
    )

    two = choose("--machine", ill, "--size", 2)
    assert (two.exit_code, two.stdout) == (1, "")
    golden(two.stderr, "not there")
    shown = refused("--machine", ill, "--size", 1, "--required", "1")
    golden(shown["refusal_text"], "unavailable")


def test_for_machines_every_key_is_there() -> None:
    document = json.loads(choose("--machine", "dgx-a100", "--size", 8, "--json").output)

    assert list(document) == [
        "resource",
        "policy",
        "ids",
        "gpus",
        "link_score",
        "link_score_bound",
        "remaining_link_scores",
        "best_sets",
        "choice_reason",
        "assumption",
        "refusal_text",
    ]
    assert document["gpus"] == {str(index): 1 for index in range(8)}
    assert document["remaining_link_scores"] == [None, None, None]


def test_beyond_a_table_the_answer_comes_with_what_is_missing_at_most(tmp_path: Path, golden: Golden) -> None:
    """24 GPUs, in three islands of eight."""
    rack = tmp_path / "rack.yaml"
    rack.write_text("gpus:\n" + "".join(_islander(n) for n in range(24)))
    found = json.loads(choose("--machine", rack, "--size", 8, "--json").output)

    assert found["gpus"] == {str(index): 1 for index in range(8)}
    assert found["link_score"] == found["link_score_bound"] == 28 * 120
    assert found["best_sets"] == found["remaining_link_scores"] == []
    golden(choose("--machine", rack, "--size", 8).output)


def _islander(n: int) -> str:
    peers = [m for m in range(n // 8 * 8, n // 8 * 8 + 8) if m != n]
    links = ", ".join(f"{{peer: '0000:{m:02x}:00.0', nvlink_count: 1}}" for m in peers)
    return f"- {{index: {n}, uuid: GPU-{n}, pci: '0000:{n:02x}:00.0', numa: {n // 8}, links: [{links}]}}\n"


@pytest.mark.parametrize(
    ("status", "arguments"),
    [
        (1, ("--machine", "dgx-a100", "--size", 2, "--available", "0,9")),
        (1, ("--machine", "dgx-a100", "--size", 2, "--resource", "a/b")),
        (2, ("--machine", "nothing", "--size", 2)),
        (1, ("--machine", "./nothing", "--size", 2)),
        (2, ("--machine", "dgx-a100", "--size", 0)),
        (2, ("--machine", "dgx-a100", "--size", 2, "--required", "0,1,2")),
        (2, ("--machine", "dgx1-v100", "--size", 2, "--available", "0,1", "--required", "4,1")),
        (1, ("--machine", "dgx-a100", "--size", 9)),
        (1, ("--machine", "dgx-a100", "--size", 10**30)),
        (1, ("--machine", "dgx-a100", "--size", 1, "--available", "")),
        (1, ("--machine", "dgx-a100", "--size", 2, "--config", find_machine_file("t4"))),
    ],
)
def test_what_cannot_be_asked_and_what_cannot_be(status: int, arguments: tuple[object, ...], golden: Golden) -> None:
    """A wrong combination of options is status 2; what this machine does not have, or a file, is 1."""
    shown = choose(*arguments)

    assert shown.exit_code == status
    assert shown.stdout == ""
    profiles = str(find_machine_file("t4").parent)
    golden(shown.stderr.replace(profiles, "PROFILES"), " ".join(map(str, arguments)).replace(profiles, "PROFILES"))
