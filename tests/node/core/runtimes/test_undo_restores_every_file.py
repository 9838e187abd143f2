"""Any file: configured and taken back, the bytes are the same; configured, it says the same but for one key."""

import difflib
import json
import tomllib
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.base.strict import InvalidInput
from gpuplane.node.core.runtimes import containerd, docker
from gpuplane.node.core.runtimes.plan import ConfigChangePlan, RuntimeConfigFileContent, record_change, revert_change

NAME = "io.containerd.grpc.v1.cri"
space = st.text(" \t", max_size=3)
comment = st.just("") | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=8).map(
    "#{}".format
)
text = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=6).map(
    lambda each: json.dumps(each, ensure_ascii=False)
)
value = st.one_of(
    st.integers(-99, 99).map(str),
    st.booleans().map(lambda each: str(each).lower()),
    text.filter(lambda each: "\x7f" not in each),
    st.just('"""\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = 1"""'),
    st.lists(st.integers(0, 9), max_size=3).map(lambda each: "[ " + ",\n ".join(map(str, each)) + " ]"),
    st.just("{ a = 1, b = { c = 2 } }"),
)


@st.composite
def section(draw: st.DrawFn, header: str, *more: str) -> str:
    """A table with random keys, comments, empty lines and indentation."""
    lines = [f"{draw(space)}{header}{draw(space)}{draw(comment)}"] if header else []
    keys = draw(st.lists(st.sampled_from(["a", "b-c", '"d.e"', "f", "'g h'"]), max_size=4, unique=True))
    for entry in draw(st.permutations([*(f"{key}{draw(space)}={draw(space)}{draw(value)}" for key in keys), *more])):
        lines += draw(st.lists(space | comment, max_size=2))
        lines.append(f"{draw(space)}{entry}{draw(space)}{draw(comment)}")
    return "\n".join(lines)


@st.composite
def configuration(draw: st.DrawFn) -> bytes:
    """A file of containerd's, version 2, as anybody may have written it."""
    said = draw(st.sampled_from(["", "", "enable_cdi = false", "enable_cdi=false"]))
    tables = [
        draw(section(f'[plugins."{NAME}"]', *filter(None, [said]))) if said or draw(st.booleans()) else "",
        draw(section(f'[plugins."{NAME}".cni]')) if draw(st.booleans()) else "",
        draw(section(f'[plugins . "{NAME}" . containerd.runtimes.kata]')) if draw(st.booleans()) else "",
        draw(section('[plugins."io.containerd.internal.v1.opt"]')) if draw(st.booleans()) else "",
        draw(section("[grpc]")) if draw(st.booleans()) else "",
        draw(section("[[many]]")) if draw(st.booleans()) else "",
    ]
    parts = [draw(section("", "version = 2")), *draw(st.permutations([each for each in tables if each]))]
    whole = "\n".join(parts) + draw(st.sampled_from(["", "\n", "\n\n", "\n# end"]))
    return (whole.replace("\n", "\r\n") if draw(st.booleans()) else whole).encode()


def planned(data: bytes) -> ConfigChangePlan:
    """What containerd 1.7 needs of a file."""
    return containerd.plan_changes((RuntimeConfigFileContent("config.toml", data),), (1, 7, 24), "/var/run/cdi")


@given(configuration())
def test_one_key_of_toml_and_back(data: bytes) -> None:
    """One line comes or is another; the same is said but for the key; taken back it is the file that it was."""
    before = tomllib.loads(data.decode())
    (change,) = planned(data).changes
    after = tomllib.loads(change.after.decode())
    assert after["plugins"][NAME].pop("enable_cdi") is True
    before.setdefault("plugins", {}).setdefault(NAME, {}).pop("enable_cdi", None)
    assert after == before
    assert planned(change.after).changes == ()

    old, new = (each.decode().replace("\r\n", "\n").split("\n") for each in (data, change.after))
    assert sum(line[0] == "-" for line in difflib.ndiff(old, new)) <= 1

    memory = record_change("containerd", "config.toml", "", change, None)
    assert revert_change(memory, change.after).data == data


@given(configuration(), st.sampled_from(["# theirs\n", "\n[theirs]\nx = 1\n"]))
def test_undo_in_an_edited_toml_file(data: bytes, theirs: str) -> None:
    """What somebody else put at the end stays, and says what it said; our key is gone, or as it was."""
    (change,) = planned(data).changes
    edited = change.after + (b"" if change.after.endswith(b"\n") else b"\n") + theirs.encode()
    result = revert_change(record_change("containerd", "config.toml", "", change, None), edited).data

    assert result is not None and result.endswith(theirs.encode())
    before, after = tomllib.loads(data.decode()), tomllib.loads(result.decode())
    after.pop("theirs", None)
    assert _without_empty(after) == _without_empty(before)


@st.composite
def array(draw: st.DrawFn) -> str:
    """A list of directories, in one line or in several, with comments, with a comma at the end or without."""
    names = draw(st.lists(st.sampled_from(["/etc/cdi", "/opt/cdi", "/srv/c d i"]), max_size=3, unique=True))
    gap = st.just("") | space | st.tuples(space, comment, space).map(lambda parts: f"{parts[0]}{parts[1]}\n{parts[2]}")
    parts = [draw(gap) + draw(st.sampled_from([f'"{name}"', f"'{name}'"])) for name in names]
    return (
        "["
        + f"{draw(space)},".join(parts)
        + draw(st.sampled_from([",", ""]) if names else st.just(""))
        + f"{draw(gap)}]"
    )


@given(array(), comment, st.booleans())
def test_one_more_in_a_list_and_back(written: str, told: str, windows: bool) -> None:
    """Whatever the list looks like, its comments stay, and it has one more directory at its end."""
    table = "plugins.'io.containerd.cri.v1.runtime'"
    whole = f"version = 3\n[{table}]\n cdi_spec_dirs = {written} {told}\nx = 1\n# end\n"
    data = (whole.replace("\n", "\r\n") if windows else whole).encode()
    before = tomllib.loads(data.decode())["plugins"]["io.containerd.cri.v1.runtime"]["cdi_spec_dirs"]
    plan = containerd.plan_changes((RuntimeConfigFileContent("config.toml", data),), (2, 1), "/run/cdi")
    (change,) = plan.changes

    after = tomllib.loads(change.after.decode())["plugins"]["io.containerd.cri.v1.runtime"]["cdi_spec_dirs"]
    assert after == [*before, "/run/cdi"]
    assert [line for line in _comments(data) if line not in _comments(change.after)] == []
    memory = record_change("containerd", "config.toml", "", change, None)
    assert revert_change(memory, change.after).data == data
    edited = revert_change(memory, change.after + b"# theirs\n").data
    assert edited is not None
    assert tomllib.loads(edited.decode()) == tomllib.loads(data.decode())


def _comments(data: bytes) -> list[str]:
    return [line.partition("#")[2].strip() for line in data.decode().replace("\r\n", "\n").split("\n") if "#" in line]


def _without_empty(said: dict[str, Any]) -> dict[str, Any]:
    plugins = {name: table for name, table in said.get("plugins", {}).items() if table}
    return {**said, "plugins": plugins}


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
features = st.none() | st.dictionaries(st.sampled_from(["cdi", "buildkit", "x"]), st.booleans(), max_size=3)


@given(
    st.dictionaries(
        st.text(max_size=5).filter(lambda key: key not in ("features", "cdi-spec-dirs")), plain, max_size=4
    ),
    features,
    st.sampled_from([None, 1, 3, "\t", 0]),
    st.sampled_from([(", ", ": "), (",", ":"), (" , ", " : ")]),
    st.booleans(),
)
def test_one_key_of_json_and_back(
    said: dict[str, Any], flags: dict[str, bool] | None, indent: Any, signs: tuple[str, str], last: bool
) -> None:
    """All other keys stay in their order and their layout; taken back it is the file that it was."""
    whole = said | ({} if flags is None else {"features": flags})
    whole = whole if last else dict(reversed(whole.items()))
    data = json.dumps(whole, indent=indent, separators=signs).encode()
    plan = docker.plan_changes(RuntimeConfigFileContent("daemon.json", data), (27, 0), "/var/run/cdi")
    if flags and flags.get("cdi"):
        assert plan.changes == ()
        return
    (change,) = plan.changes

    after = json.loads(change.after)
    assert after == {**whole, "features": {**(flags or {}), "cdi": True}}
    assert list(after) == list(whole) if flags is not None else list(after)[:-1] == list(whole)
    memory = record_change("docker", "daemon.json", "", change, None)
    assert revert_change(memory, change.after).data == data
    edited = revert_change(memory, change.after + b"\n\n").data
    assert edited is not None and json.loads(edited) == whole


@given(st.binary(max_size=60) | st.text(' \n[]{}"=.#,a1\\', max_size=40).map(str.encode))
def test_any_bytes_are_judged_or_refused_with_the_file(data: bytes) -> None:
    """Nothing that lies in a file makes us fail otherwise than by an error that names it."""
    for plan in (
        planned,
        lambda each: docker.plan_changes(RuntimeConfigFileContent("daemon.json", each), (27, 0), "/var/run/cdi"),
    ):
        try:
            plan(data)
        except InvalidInput as invalid:
            assert all(line.startswith(("config.toml", "daemon.json")) for line in invalid.errors)


def test_what_is_nested_without_end_is_refused() -> None:
    """It ends neither the command nor the stack."""
    for data in (b"x = " + b"[" * 5000, b"a." * 3000 + b"b = 1\n", b"x = " + b"[" * 300 + b"]" * 300 + b"\n"):
        with suppress(InvalidInput):
            planned(data)
    for data in (b"[" * 100_000, b'{"a":' * 900 + b"1" + b"}" * 900):
        with suppress(InvalidInput):
            docker.plan_changes(RuntimeConfigFileContent("daemon.json", data), (27, 0), "/var/run/cdi")
