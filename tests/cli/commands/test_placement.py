"""`gpuplane placement`: what is printed of a small cluster, for people, for programs, and on standard error."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpuplane.cli import root_command
from gpuplane.cli.commands.placement import plan
from gpuplane.cli.kit import presenter
from gpuplane.cluster.engine.reasons import TEXTS_OF_NODES
from tests.cluster.reading.small import node, objects, pod

ROOT = Path(__file__).parents[3]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return write(tmp_path / "c.json", objects())


def write(path: Path, items: list[Any], kind: str = "List") -> Path:
    path.write_text(json.dumps({"kind": kind, "items": items}))
    return path


def ask(*words: object) -> Result:
    shown = CliRunner().invoke(root_command(), [*map(str, words)])
    assert shown.exit_code == 0, shown.output
    return shown


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads the result on a terminal."""
    for module in (presenter, plan):
        monkeypatch.setattr(module, "is_terminal", lambda: True)


def test_lines_of_an_explanation_name_the_place_and_its_gpus(saved: Path) -> None:
    found = json.loads(ask("placement", "explain", "--file", saved, "--json").stdout)
    places = {each["pod"]: each["place"] for each in found["pods"]}
    lines = [line.split("\t") for line in ask("placement", "explain", "--file", saved).stdout.splitlines()]

    assert [line for line in lines if line[1] in ("now", "place")] == [
        ["team/small", "place", places["team/small"]["node"], ",".join(places["team/small"]["gpus"])]
    ]
    assert ["team/huge", "no-gpus", "6", "n0,n1,n2,n3,n4,n5"] in lines


def test_lines_of_a_running_pod_say_where_it_is(saved: Path) -> None:
    now, place, *_ = ask("placement", "explain", "team/a2", "--file", saved).stdout.splitlines()

    assert re.fullmatch(r"team/a2\tnow\tn2\t\S+,\S+", now)
    assert re.fullmatch(r"team/a2\tplace\tn\d\t\S+,\S+", place)


@pytest.mark.usefixtures("person")
def test_a_gpu_with_room_on_a_node_without_would_not_do(saved: Path) -> None:
    """Where the pod as a whole fits, it would."""
    for name, says in (("team/big", "has room"), ("team/small", "would do, too")):
        shown = ask("placement", "explain", name, "--node", "n5", "--file", saved).stdout
        assert re.search(rf"^    n5/\S+ {says}, 1000 milli-GPU free$", shown, re.MULTILINE), shown


def test_reasons_read_alike_of_one_node_and_of_several() -> None:
    """No verb agrees with the number of nodes."""
    assert not [each for each in TEXTS_OF_NODES.values() if re.search(r"^(are|have|do)\b|\bthat (are|have|do)\b", each)]


@pytest.mark.usefixtures("person")
@pytest.mark.parametrize(
    ("waiting", "says"),
    [
        (["big"], "1 pod waits; 0 would get a place."),
        (["big", "huge"], "2 pods wait; 0 would get a place."),
        ([], ""),
    ],
)
def test_a_plan_without_a_move_says_who_waits(tmp_path: Path, waiting: list[str], says: str) -> None:
    full = [node("n0"), pod("a", 4, "n0"), *(pod(name, 4) for name in waiting)]
    shown = ask("placement", "plan", "--file", write(tmp_path / "c.json", full)).stdout

    assert "No move brings anything." in shown
    assert shown.splitlines()[2:] == ([says] if says else [])


def test_a_program_is_told_that_there_is_no_move(tmp_path: Path) -> None:
    """On standard error; the list is empty."""
    shown = ask("placement", "plan", "--file", write(tmp_path / "c.json", [node("n0"), pod("a", 4, "n0")]))

    assert shown.stdout == ""
    assert "No move brings anything." in shown.stderr


@pytest.mark.usefixtures("person")
def test_a_plan_says_who_waits_before_and_after(tmp_path: Path) -> None:
    there = [node("n0"), node("n1"), pod("a", 2, "n0"), pod("b", 2, "n1"), pod("big", 4)]
    shown = ask("placement", "plan", "--moves", 5, "--file", write(tmp_path / "c.json", there)).stdout

    assert "1 pod waits; 0 would get a place before, 1 after." in shown
    assert "Of 1 pod nobody says which GPUs it has: its move may bring less." in shown


def test_a_plan_says_how_many_moves_it_takes(tmp_path: Path) -> None:
    """A pod of four waits for two pods that would have to move together."""
    there = [node("n0"), node("n1"), *(pod(f"{name}{on}", 1, f"n{on}") for on in "01" for name in "ab"), pod("big", 4)]
    path = write(tmp_path / "c.json", there)

    said = ask("placement", "plan", "--moves", 1, "--file", path).stderr.splitlines()[-1]
    assert said == "It takes 2 moves to bring anything: give --moves 2 or more."
    assert json.loads(ask("placement", "plan", "--moves", 2, "--file", path, "--json").stdout)["least_moves"] == 0


@pytest.mark.usefixtures("person")
def test_who_would_have_to_end_and_only_waits_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json", [node("n0"), pod("x", 4, priority=3), pod("y", 4, priority=3)])

    shown = ask("placement", "explain", "--file", path).stdout
    assert "it would fit onto n0 when team/x (priority 3, which waits before it) ends" in shown


@pytest.mark.usefixtures("person")
def test_a_plan_is_readable_at_40_columns(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a pod comes from is below its row."""
    monkeypatch.setenv("COLUMNS", "40")
    head, first, below, *_ = ask("placement", "plan", "--moves", 5, "--file", saved).stdout.splitlines()

    assert head.split() == ["STEP", "POD", "TO", "GAIN"]
    assert re.fullmatch(r"1     team/\w\d +n\d n\d/\d +\d\.\d\d", first)
    assert re.fullmatch(r" +from n\d n\d/\d", below)


def test_a_note_says_what_is_wrong_with_the_first(tmp_path: Path) -> None:
    """In the document are all of them."""
    broken = [{"kind": "Node", "metadata": {"name": name, "labels": [1]}} for name in ("x", "y", "z")]
    path = write(tmp_path / "c.json", [*objects(), *broken])
    shown = ask("placement", "explain", "--file", path, "--json")

    assert (
        "x and 2 more: it is not as the API has it, and is left out (object-unreadable); x: Expected `object | null`, "
        "got `array` - at `$.metadata.labels`\n"
    ) in shown.stderr
    assert [each["subject"] for each in json.loads(shown.stdout)["notes"]][:3] == ["x", "y", "z"]


def test_a_simulation_does_not_say_what_is_assumed_of_who_has_what(saved: Path) -> None:
    """Its nodes are empty."""
    assert "held-assumed" in ask("placement", "plan", "--file", saved).stderr
    assert ask("simulate", "--file", saved, "--seeds", 1).stderr.count("(held-assumed)") == 0


@pytest.mark.parametrize("kind", ["NodeList", "PodList"])
def test_lists_of_one_kind(tmp_path: Path, kind: str) -> None:
    """As `kubectl get --raw` gives them: no item says what it is."""
    items = [each for each in objects() if f"{each['kind']}List" == kind]
    for each in items:
        del each["kind"], each["apiVersion"]
    shown = CliRunner().invoke(
        root_command(), ["placement", "plan", "--file", str(write(tmp_path / "c.json", items, kind))]
    )

    if kind == "NodeList":
        assert (shown.exit_code, shown.stderr) == (0, "No move brings anything.\n")
    else:
        assert shown.exit_code == 1
        assert "has no nodes: write it with `kubectl get nodes,pods,pdb --all-namespaces -o json`" in shown.stderr


@pytest.mark.parametrize(
    ("words", "page"),
    [
        (("placement", "explain"), "commands.md"),
        (("placement", "plan"), "commands.md"),
        (("simulate", "--seeds", "1,2", "--policy", "fgd,binpack", "--fewer"), "simulate.md"),
    ],
)
def test_every_key_of_a_document_is_described(saved: Path, words: tuple[str, ...], page: str) -> None:
    """And there, whatever stands in it: what is of one kind has the same keys everywhere."""
    found = json.loads(ask(*words, "--file", saved, "--json").stdout)
    row = re.escape(" ".join(words[:2]) if words[0] == "placement" else words[0])
    text = (ROOT / "docs" / page).read_text()
    described = re.search(rf"^\| `{row}` \|.*$", text, re.MULTILINE)[0] if page == "commands.md" else text  # type: ignore[index]

    assert {key for key in keys(found) if f"`{key}`" not in described} == set()
    assert not [each for each in lists(found) if len({frozenset(item) for item in each}) > 1]


def keys(value: Any) -> Iterator[str]:
    """Of a document; what is named by a pod, a class or a code is none."""
    if isinstance(value, list):
        for each in value:
            yield from keys(each)
    elif isinstance(value, dict):
        if any(not re.fullmatch("[a-z_]+", key) or key in (*TEXTS_OF_NODES, "cpu", "shared") for key in value):
            for each in value.values():
                yield from keys(each)
            return
        for key, each in value.items():
            yield key
            yield from keys(each)


def lists(value: Any) -> Iterator[list[dict[str, Any]]]:
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        if isinstance(each, list) and each and isinstance(each[0], dict):
            yield each
        yield from lists(each)
