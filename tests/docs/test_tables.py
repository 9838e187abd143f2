"""Tables of the pages say what the code says, and their examples are what they show."""

import json
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gpuplane.node.core.config.resolve import resolve_settings
from gpuplane.node.core.dra.taints import KEY_BY_KIND
from gpuplane.node.core.kinds.attributes import UNKNOWN
from gpuplane.node.core.kinds.table import KINDS
from gpuplane.node.model.config import Settings
from gpuplane.node.model.snapshot import Ledger, Snapshot
from tests.cli.terminals import Terminals, screen

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/**/*.md")]
CONFIGURES = {"version", "flags", "resources", "sharing", "health", "imex", "node"}
NOT_IN_A_FILE = {"boot_id"}  # each file has it
BESIDE = {"lock", "control.sock"}


def first_cells(page: str) -> set[str]:
    """Of the rows of all its tables: what stands between backticks."""
    rows = re.findall(r"^\| ([^|]*) \|", (ROOT / "docs" / page).read_text(), re.M)
    return {code for row in rows for code in re.findall(r"`([^`]*)`", row)}


def test_the_page_of_the_state_directory_lists_its_files() -> None:
    """One for each part of the ledger."""
    parts = {field.encode_name for field in msgspec.structs.fields(Ledger)} - NOT_IN_A_FILE

    files = {f"{part.replace('_', '-')}.json" for part in parts - {"claims"}} | {"claims/UID.json"}
    assert first_cells("state.md") == files | BESIDE


def test_the_house_has_these_rooms_and_a_snapshot_these_fields() -> None:
    """The rooms are those that `make lint` holds apart."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    wings = [each for each in contracts if each["id"] in {"wings", "node-layers", "cluster-layers", "sandbox-layers"}]
    rooms = {room for wing in wings for layer in wing["layers"] for room in re.findall(r"\w+", layer)}
    fields = {field.name for field in msgspec.structs.fields(Snapshot)} - {"generation"}

    assert first_cells("architecture.md") == rooms | fields


def test_the_page_of_resourceslices_has_every_attribute_and_taint() -> None:
    """Each attribute with the type and the value that it has where nothing is known; the keys of taints."""
    text = (ROOT / "docs/resourceslices.md").read_text()
    rows = re.findall(r"^\| `([\w./]+)` \| (string|int|version) \| [^|]* \| (?:`(.*)`)? ?\|$", text, re.M)
    of_kinds = [kind.dra.absent_device(kind.id_prefixes[0]).attributes for kind in KINDS.values()]
    own = {name: each for attributes in of_kinds for name, each in attributes.items() if name not in UNKNOWN}
    known = {name: msgspec.to_builtins(each) for name, each in {**UNKNOWN, **own}.items()}
    assert {
        name: (kind, {kind: json.loads(value)} if kind != "version" else {kind: value})
        for name, kind, value in rows
        if value
    } == {name: (*each, each) for name, each in known.items() if name != "type"}
    assert [name for name, _, _ in rows] == [*known]
    keys = {each.partition("=")[0] for each in first_cells("resourceslices.md") if "=" in each or "DRIVER" in each}
    assert keys - {"NODE-DRIVER-gpu-UUID"} == {*KEY_BY_KIND.values(), "DRIVER/xid", "DRIVER/gpu-lost"}


def blocks(language: str) -> list[str]:
    """All blocks of code in that language, without their indentation."""
    found = []
    for page in PAGES:
        for indent, block in re.findall(rf"^( *)```{language}\n(.*?)^\1```$", page.read_text(), re.M | re.S):
            found.append(re.sub(rf"^{indent}", "", block, flags=re.M))
    return found


@pytest.mark.parametrize("block", blocks("yaml"))
def test_each_example_of_a_configuration_is_good(block: str) -> None:
    """It says something, and nothing wrong. What is YAML and no configuration is at least YAML."""
    keys = (yaml.safe_load(block) or {}).keys()
    if keys and keys <= CONFIGURES:
        assert resolve_settings(block.encode(), "example.yaml") != Settings()


def test_the_first_pod_asks_for_what_is_offered() -> None:
    """By the name that a GPU has where nothing is configured."""
    pods = [yaml.safe_load(block) for block in blocks("yaml") if "first-gpu-pod" in block]

    assert [pod["spec"]["containers"][0]["resources"]["limits"] for pod in pods] == [{"nvidia.com/gpu": 1}]


def test_the_choice_is_what_the_page_shows() -> None:
    """`gpuplane choose`, on a terminal."""
    page = (ROOT / "docs/choice.md").read_text()
    command, shown = re.findall(r"```console\n\$ gpuplane (.*?)\n(.*?)```", page, re.S)[0]
    with Terminals() as terminals:
        ended = terminals.run(*command.split(), columns=120)

    assert ended.status == 0
    assert [line.rstrip() for line in screen(ended.out)] == shown.split("\n")


@cache
def manifests() -> list[Any]:
    """All that deploy/ makes."""
    return [each for path in ROOT.glob("deploy/**/*.yaml") for each in yaml.safe_load_all(path.read_text()) if each]


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", *ROOT.glob("deploy/*.md"), *ROOT.glob("docs/runbooks/*.md")],
    ids=lambda page: page.name,
)
def test_what_is_asked_of_the_cluster_is_what_the_manifests_make(page: Path) -> None:
    """Namespace, DaemonSets, the label of the agent's pods, and the image's version."""
    text = page.read_text()
    made = manifests()
    names = {(each["kind"], each["metadata"]["name"]) for each in made if "metadata" in each}
    labels = {tuple(label) for each in made for label in each.get("metadata", {}).get("labels", {}).items()}
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    assert {("Namespace", name) for name in re.findall(r"-n (gpuplane[\w-]*)", text)} <= names
    assert {("DaemonSet", name) for name in re.findall(r"daemonset/(gpuplane[\w-]*)", text)} <= names
    assert {tuple(each.split("=")) for each in re.findall(r"-l (app\S+=\w+)", text)} <= labels
    assert {*re.findall(r"/gpuplane:(\d[\w.]*)", text)} <= {version}
    assert all((ROOT / each).is_dir() for each in re.findall(r"-k (deploy/\S+[\w-])", text))
