"""The names that docs/stability.md promises are those of the golden files, as the running product shows them.

A name that is missing or new fails here, in whatever room it was changed. With REWRITE=1 in the environment
the change is accepted.
"""

import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuplane.node.model.inspection import Inspection
from gpuplane.node.model.reasons import REASON_CODES
from tests import golden
from tests.cli.terminals import run_command
from tests.conformance.node import Story, play
from tests.docs.commands import commands
from tests.docs.test_tables import first_cells

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
NOT_PROMISED = {"edits", "settings", "sources"}
"""Keys whose content docs/stability.md does not promise."""

LABELLED = """
driver: {version: 580.95.05, cuda: "13.0"}
product: DGXA100
vgpu: {present: true, host_driver_version: "550.54.16", host_driver_branch: r550_00}
gpus:
- index: 0
  uuid: GPU-0
  model: NVIDIA A100
  memory_mib: 40960
  compute_capability: "8.0"
  pci_class: "0x030200"
  fabric: {cluster: a5000000-0000-4000-8000-000000000002, clique: 1}
  mig:
    enabled: true
    devices: [{uuid: MIG-0, profile: 1g.5gb, gpu_instance: 7, memory_mib: 4864, attributes: {multiprocessors: 14}}]
"""
"""A machine that tells all that labels say."""

pytestmark = pytest.mark.xdist_group("promises")


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return play(tmp_path_factory.mktemp("n"))


def hold(name: str, lines: Iterable[str]) -> None:
    """Compare lines, in their order, with a golden file."""
    rule = f"{name}: these names are a promise, see docs/stability.md. REWRITE=1 accepts a change."
    golden.compare(GOLDEN / name, "".join(f"{line}\n" for line in lines), rule)


def gpuplane(*words: object) -> subprocess.CompletedProcess[str]:
    done = run_command(*words)
    return subprocess.CompletedProcess((), done.status, done.out, done.err)


def test_commands_and_their_options() -> None:
    """A line has a command with its arguments and options."""
    hold("commands.txt", sorted(" ".join((*words, *_parameters(each))) for words, each in commands().items()))


def _parameters(command: click.Command) -> Iterator[str]:
    for each in command.params:
        if isinstance(each, click.Argument):
            yield "ARGUMENT" if each.nargs == 1 else "ARGUMENT…"
    yield from sorted(name for each in command.params if isinstance(each, click.Option) for name in each.opts)


def test_flags_variables_and_keys_of_the_configuration() -> None:
    """A line has the flags, the environment variables and the key of one setting, as `config reference` prints them."""
    rows = [line.split(" | ") for line in gpuplane("config", "reference").stdout.splitlines()[2:]]

    hold("settings.txt", sorted(" ".join(re.findall(r"`([^`]+)`", " ".join(row[:3]))) for row in rows))


@pytest.mark.parametrize("name", ["configuration", "configuration-mps"])
def test_a_configuration_with_every_key_is_good(name: str) -> None:
    """The files are written by hand. A key that is taken away or renamed makes them wrong."""
    path = GOLDEN / f"{name}.yaml"
    checked = gpuplane("config", "check", path)

    assert (checked.returncode, checked.stdout) == (0, f"{path}: good\n"), checked.stderr


def test_a_machine_file_with_every_key_is_good() -> None:
    """golden/machine.yaml is written by hand. A key that is taken away or renamed makes it wrong."""
    chosen = gpuplane("choose", "--machine", GOLDEN / "machine.yaml", "--size", "1")

    assert chosen.returncode == 0, chosen.stderr


def test_metrics_and_their_labels(story: Story) -> None:
    """A line has the type, the name and the labels of a metric."""
    types, labels = dict[str, str](), dict[str, set[str]]()
    for page in story.pages:
        for family in text_string_to_metric_families(page):
            name = family.name + ("_total" if family.type == "counter" else "")
            types[name] = family.type
            labels.setdefault(name, set()).update(*(sample.labels for sample in family.samples))

    found = {f"{name}{{{','.join(sorted(labels[name]))}}}": kind for name, kind in sorted(types.items())}

    hold("metrics.txt", (f"{kind} {name}" for name, kind in found.items()))
    shown = {name for name in found if not name.startswith("DCGM_")}  # dcgm-exporter promises these
    described = {name.partition("{")[0]: name for name in first_cells("metrics.md")}
    assert described.keys() == {name.partition("{")[0] for name in shown}
    for name in shown:
        told = described[name.partition("{")[0]]
        if "…" in told:  # the labels of a device, of which there are more on other nodes
            assert set(re.findall(r"\w+", told)) <= set(re.findall(r"\w+", name))
        else:
            assert told == name


def test_labels_of_gpus(tmp_path: Path) -> None:
    """A line has the key of a label: of a machine that tells everything, by both MIG strategies."""
    machine = tmp_path / "machine.yaml"
    machine.write_text(LABELLED)
    keys = set[str]()
    for strategy in ("single", "mixed"):
        config = tmp_path / f"{strategy}.yaml"
        config.write_text(f"flags: {{migStrategy: {strategy}}}\n")
        shown = gpuplane("labels", "--machine", machine, "--config", config, "--json")
        keys |= json.loads(shown.stdout)["labels"].keys()

    hold("labels.txt", sorted(keys))


def test_keys_of_json_documents(story: Story) -> None:
    """A line has a command and the path of a key; `*` is a key that names a thing, as a file or a fault."""
    hold(
        "json.txt",
        sorted({f"{name}: {path}" for name, document in story.documents.items() for path in _keys(document)}),
    )


def _keys(value: Any, above: str = "") -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _keys(each, f"{above}[]")
    elif isinstance(value, dict):
        for key, each in value.items():
            path = f"{above}.{key if re.fullmatch('[a-z][a-z_]*', key) else '*'}".lstrip(".")
            yield path
            yield from () if key in NOT_PROMISED else _keys(each, path)


def test_words_of_the_document_of_inspect() -> None:
    """A line has a key and all values that it can have."""
    schema = msgspec.json.schema(Inspection)
    words = dict[str, set[str]]()
    for key, values in _enumerations(schema):
        words.setdefault(key, set()).update(values)

    hold("words.txt", (f"{key}: {' '.join(sorted(words[key]))}" for key in sorted(words)))


def _enumerations(schema: Any, key: str = "") -> Iterator[tuple[str, list[str]]]:
    if isinstance(schema, dict):
        if all(isinstance(each, str) for each in schema.get("enum", (0,))):
            yield key, schema["enum"]
        for name, each in schema.items():
            yield from _enumerations(each, key if name in ("anyOf", "items") else name)
    elif isinstance(schema, list):
        for each in schema:
            yield from _enumerations(each, key)


def test_codes_of_faults() -> None:
    """A line has the code of a fault, how it is seen, its scope, its severity and what ends it."""
    rows = [line.strip("| ").split(" | ") for line in gpuplane("health", "reference").stdout.splitlines()[2:]]

    hold("faults.txt", (" ".join((" ".join(re.findall(r"`([^`]+)`", row[0])), *row[1:5])) for row in rows))


def test_codes_of_reasons() -> None:
    """Those that are no codes of faults. The page of faults has a row for each, with what the program says of it."""
    rows = {f"| `{code}` | {meaning} |" for code, meaning in REASON_CODES.items()}

    hold("reasons.txt", sorted(REASON_CODES))
    assert rows <= set((ROOT / "docs" / "faults.md").read_text().splitlines())


def test_fields_of_the_log(story: Story) -> None:
    """Those that a quiet life needs; `error` needs one that goes wrong."""
    hold("log.txt", sorted({key for line in story.log for key in json.loads(line)}))


def test_files_of_the_state_directory(story: Story) -> None:
    """Their names and versions. tests/node/agent/state has files of this version and of a newer one."""
    versions = {json.loads(content)["version"] for name, content in story.state.items() if name.endswith(".json")}

    assert story.state.keys() <= first_cells("state.md")
    hold("state.txt", (*sorted(first_cells("state.md")), *(f"version {each}" for each in versions)))


def test_names_of_cdi(story: Story) -> None:
    """The file, the kind and the names of the devices, which kubelet's checkpoint keeps while containers run."""
    specifications = {name: json.loads(content) for name, content in story.specifications.items()}
    kinds = [f"{name} {each['kind']}" for name, each in sorted(specifications.items())]

    hold("cdi.txt", (*kinds, *(device["name"] for each in specifications.values() for device in each["devices"])))


def test_what_kubernetes_reads(story: Story) -> None:
    """The condition and the Events of a Node are among the names that are promised."""
    conditions = story.node["status"]["conditions"]
    names = set(_names())

    assert [each["type"] for each in conditions] == ["GPUProblem", "gpuplane.io/GPUReady"]
    assert {each[key] for each in conditions for key in ("type", "reason")} <= names
    assert len(story.events) > 3
    assert {each["reason"] for each in story.events} | {each["source"]["component"] for each in story.events} <= names


def test_parts_are_among_those_that_are_promised(story: Story) -> None:
    """The part of a resource or of an MPS daemon has its name after a slash."""
    parts = {each["name"].split("/")[0] for each in story.documents["inspect"]["parts"]}

    assert len(parts) > 8
    assert parts <= set(_names("parts"))


def _names(*sections: str) -> Iterator[str]:
    """Of golden/names.txt, which is written by hand; of some sections."""
    for section in (GOLDEN / "names.txt").read_text().split("\n# ")[1:]:
        title, *names = section.splitlines()
        if not sections or title.split(":")[0] in sections:
            yield from filter(None, names)


@pytest.mark.parametrize("name", sorted(_names()))
def test_a_name_is_still_in_the_program(name: str) -> None:
    """As a text of a module, of the hook or of a manifest."""
    files = [*ROOT.glob("src/gpuplane/**/*.py"), *ROOT.glob("src/gpuplane/**/*.c"), *ROOT.glob("deploy/**/*.yaml")]
    text = re.compile(rf"(?<![\w./-]){re.escape(name)}(?![\w.-])")

    assert any(text.search(each.read_text()) for each in files), f"{name} is a promise, see docs/stability.md"
