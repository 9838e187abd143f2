"""What the pages show can be typed: commands, options, words, targets of make; and what they name is there."""

import re
from pathlib import Path

import pytest

from gpuplane.sandbox.kubelet.console import COMMANDS
from tests.docs.commands import Shown, Wrong, check, commands, leaves, options, shown

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")]
SOURCE = ROOT / "src/gpuplane"

FOREIGN = {"--user"}
"""Options of other programs that the pages name between backticks: that of nvidia-persistenced."""

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def codes(page: Path) -> set[str]:
    """What stands between backticks, without blocks of code."""
    return set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.S)))


@every_page
def test_each_command_is_one(page: Path) -> None:
    """Its words, its options, and their values where there are few; in blocks also what must not be left out."""
    known, wrong = commands(), []
    for each in shown(page):
        try:
            check(each, known)
        except Wrong as error:
            wrong.append(f"line {each.line}: gpuplane {' '.join(each.words)}: {error}")

    assert wrong == []


def test_commands_are_found() -> None:
    """In blocks of both kinds, after a prompt, in a pod, in YAML, and in a sentence."""
    found = {each.words for page in PAGES for each in shown(page)}

    assert found >= {
        ("sandbox", "kubelet", "--root", "/tmp/node"),
        ("choose", "--machine", "dgx1-v100", "--size", "2"),
        ("health", "drain", "3", "--why", "fan noise"),
        ("runtime", "configure", "--runtime=containerd", "--runtime-version=VERSION", "--dry-run"),
        ("config", "reference"),
    }


@pytest.mark.parametrize(
    "words",
    [
        "nothing",
        "cdi nothing",
        "inspect --nothing",
        "agent --nothing=1",
        "agent --machine dgx-z1",
        "agent --log-format prose",
        "choose --size 2 --policy sideways",
        "health drain 3",
        "config reference this",
        "driver release --why",
    ],
)
def test_a_wrong_command_is_found_out(words: str) -> None:
    """A command, an option or a value that there is not, and one that is missing."""
    with pytest.raises(Wrong):
        check(Shown(1, tuple(words.split()), whole=True), commands())


def test_the_page_of_commands_has_each() -> None:
    """And none that there is not."""
    page = (ROOT / "docs/commands.md").read_text()
    table = re.findall(r"^\| `gpuplane ([^`]*)` \|", page, re.M)

    assert {re.split(r" (?=[-A-Z])", each, maxsplit=1)[0] for each in table} == leaves() | {"inspect health"}


@every_page
def test_each_option_is_one(page: Path) -> None:
    """Of one of our commands, or of a program that is named here."""
    named = {match[1] for code in codes(page) if (match := re.match(r"(--[a-z][\w.-]*)", code))}

    assert named - options() - FOREIGN == set()


@every_page
def test_each_file_of_ours_is_there(page: Path) -> None:
    """From the repository's root, or from the package's, by which the pages name modules."""
    folders = {each.name for root in (ROOT, SOURCE) for each in root.iterdir() if each.is_dir()}
    paths = {code for code in codes(page) if re.fullmatch(r"[\w-]+(/[\w.-]+)+/?", code)}
    ours = {path for path in paths if path.split("/")[0] in folders}

    assert {path for path in ours if not (ROOT / path).exists() and not (SOURCE / path).exists()} == set()


@every_page
def test_each_metric_is_one(page: Path) -> None:
    """Its name stands in the program. After a colon it is a part of the name of a recording rule."""
    program = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    named = set(re.findall(r"(?<!:)\bgpuplane_[a-z_]+", page.read_text()))

    assert {name for name in named if name not in program} == set()


@every_page
def test_each_target_of_make_is_one(page: Path) -> None:
    """And each variable that is given to one."""
    makefile = (ROOT / "Makefile").read_text()
    text = page.read_text()
    called = re.findall(r"(?:`|^ *)make ([a-z]+)((?: [A-Z]+=\w+)*)", text, re.M)

    for target, given in called:
        assert re.search(rf"^{target}:", makefile, re.M), target
        assert all(f"$({name})" in makefile or f"$(if $({name})" in makefile for name in re.findall(r"[A-Z]+", given))


def test_the_words_of_the_embedded_kubelet() -> None:
    """As its own help lists them."""
    page = (ROOT / "docs/sandbox.md").read_text().partition("## One node by hand")[2]
    table = [line for line in page.splitlines() if re.match(r"\| `[a-z]+", line)]

    assert table == [f"| `{f'{word} {rest}'.strip()}` | {meaning} |" for word, (rest, meaning) in COMMANDS.items()]
