"""The registry holds what a real runtime does with the same files: who is resolved, and what a container then has."""

from pathlib import Path
from textwrap import dedent

import pytest

from gpuplane.node.core.containers.cdi.registry import Registry, UnresolvableDevices, build_registry, resolve_devices
from gpuplane.node.core.containers.cdi.validation import all_spec_problems
from gpuplane.node.host.specfiles import read_spec_files
from tests.conformance.podman.box import Failed, Podman, Seen

pytestmark = pytest.mark.xdist_group("podman")  # what has one store is not used by two workers


def written(directory: Path, **files: str) -> Registry:
    """What we make of these specifications, each of a kind lab.example/NAME if it names no other."""
    for name, text in files.items():
        head = "cdiVersion: 0.5.0\n" + ("" if "kind:" in text else f"kind: lab.example/{name}\n")
        (directory / f"{name}.yaml").write_text(head + dedent(text))
    return build_registry(read_spec_files([directory]))


def test_what_a_container_has_of_several_devices(podman: Podman, bare: Seen, tmp_path: Path) -> None:
    """Of one path or variable the last gift holds, in the order of the names; what all give comes before them, once.
    Names without quotes and keys without values are read."""
    for name in ("one", "two", "both"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    known = written(
        tmp_path,
        dev=f"""
            devices:
            - name: 0
              containerEdits:
                env: [A=zero, B=zero]
                deviceNodes:
                - {{path: /dev/x, type: c, major: 1, minor: 3}}
                - {{path: /dev/y, type: c, major: 1, minor: 3}}
                mounts:
                - {{hostPath: {tmp_path}/one, containerPath: /m/n, options: [rbind, ro]}}
                - {{hostPath: {tmp_path}/both, containerPath: /m, options: [rbind, rw]}}
            - name: one
              containerEdits:
                env: [A=one, C=one]
                deviceNodes: [{{path: /dev/x, type: c, major: 1, minor: 5}}]
                mounts: [{{hostPath: {tmp_path}/two, containerPath: /m/n, options: [rbind, ro]}}]
            containerEdits:
              env: [A=all, ALL=1]
              hooks: ~
        """,
    )
    (tmp_path / "both/n").mkdir()
    names = ["lab.example/dev=one", "lab.example/dev=0", "lab.example/dev=one"]
    ours, seen = resolve_devices(known, names), podman.look(tmp_path, *names)

    assert seen.env - bare.env == {*ours.env}
    assert {*ours.env} == {"A=one", "B=zero", "C=one", "ALL=1"}
    assert seen.nodes.items() - bare.nodes.items() == {
        (node.path, (node.major, node.minor)) for node in ours.device_nodes
    }
    assert [mount.container_path for mount in ours.mounts] == ["/m", "/m/n"]
    for mount in ours.mounts:
        assert mount.host_path.endswith(seen.mounts[mount.container_path][0])


REFUSED = {
    "twice": "devices: [{name: a, containerEdits: {env: [A=1]}}, {name: a, containerEdits: {env: [A=1]}}]",
    "empty": "devices: [{name: a, containerEdits: {}}, {name: b, containerEdits: {env: [A=1]}}]",
    "nothing": "devices: []",
    "unknown": "devices: [{name: a, containerEdits: {env: [A=1], unknown: 1}}]",
    "own": "devices: [{name: a, containerEdits: {env: [A=1]}}]\nx-own: 1",
    "variable": "devices: [{name: a, containerEdits: {env: [A]}}]",
    "hook": "devices: [{name: a, containerEdits: {hooks: [{hookName: createcontainer, path: /bin/true}]}}]",
    "letters": "devices: [{name: a, containerEdits: {deviceNodes: [{path: /dev/x, permissions: rx}]}}]",
    "sort": "devices: [{name: a, containerEdits: {deviceNodes: [{path: /dev/x, type: d}]}}]",
    "number": "devices: [{name: a, containerEdits: {deviceNodes: [{path: /dev/x, major: '1'}]}}]",
    "path": "devices: [{name: a, containerEdits: {mounts: [{hostPath: '', containerPath: /a}]}}]",
    "repeated": "devices: [{name: a, name: a, containerEdits: {env: [A=1]}}]",
    "broken": "devices: [",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_we_refuse_is_refused(podman: Podman, tmp_path: Path, name: str) -> None:
    """And one beside it is not."""
    known = written(tmp_path, good="devices: [{name: a, containerEdits: {env: [GOOD=1]}}]", **{name: REFUSED[name]})

    assert list(known.problem_by_file) == [f"{tmp_path}/{name}.yaml"]
    assert list(known.devices) == ["lab.example/good=a"]
    with pytest.raises(Failed, match="unresolvable CDI devices"):
        podman.run(tmp_path, f"lab.example/{name}=a", script="true")
    if name == "broken":
        assert "GOOD=1" in podman.run(tmp_path, "lab.example/good=a", script="env")


def test_a_conflict_takes_away_a_device_and_no_other(podman: Podman, tmp_path: Path) -> None:
    """Of two files that define it."""
    text = """
        kind: lab.example/dev
        devices: [{{name: a, containerEdits: {{env: [A={0}]}}}}, {{name: {0}, containerEdits: {{env: [B={0}]}}}}]
    """
    known = written(tmp_path, one=text.format("one"), two=text.format("two"))

    with pytest.raises(UnresolvableDevices):
        resolve_devices(known, ["lab.example/dev=a"])
    with pytest.raises(Failed, match=r"unresolvable CDI devices lab.example/dev=a"):
        podman.run(tmp_path, "lab.example/dev=a", script="true")
    assert "B=two" in podman.run(tmp_path, "lab.example/dev=two", script="env")


STUMBLED = {
    "mount": ("mounts: [{hostPath: /etc/hostname, containerPath: /x, options: [ro]}]", "no such device"),
    "source": ("mounts: [{hostPath: etc/hostname, containerPath: /x, options: [rbind]}]", "no such file"),
    "program": ("hooks: [{hookName: createContainer, path: sh}]", "no such file"),
    "timeout": (
        "hooks: [{hookName: createContainer, path: /bin/sleep, args: [sleep, '60'], timeout: 0}]",
        "ran past specified timeout",
    ),
}


@pytest.mark.parametrize("name", STUMBLED)
def test_what_the_library_lets_pass_fails_when_a_container_starts(podman: Podman, tmp_path: Path, name: str) -> None:
    """It is resolved, here and there; the validator alone has a word on it."""
    edits, said = STUMBLED[name]
    known = written(tmp_path, **{name: f"devices: [{{name: a, containerEdits: {{{edits}}}}}]"})
    spec = known.devices[f"lab.example/{name}=a"].file.spec

    assert spec is not None
    assert len(list(all_spec_problems(spec))) == 1
    with pytest.raises(Failed, match=said):
        podman.run(tmp_path, f"lab.example/{name}=a", script="true")
