"""The validator: what container runtimes refuse, what they stumble over, and in which words that is said."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuplane.base.strict import InvalidInput
from gpuplane.node.core.containers.cdi.rules import is_qualified_name
from gpuplane.node.core.containers.cdi.validation import all_spec_problems, parse_spec, runtime_refusal_problems
from gpuplane.node.core.containers.cdi.version import CDI_VERSIONS, lowest_version
from gpuplane.node.model.cdi import CdiDevice, ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec
from tests.golden import Golden

DATA = Path(__file__).with_name("testdata")
HEAD = "cdiVersion: 0.7.0\nkind: nvidia.com/gpu\ndevices:\n- name: a\n  containerEdits:\n"


def wrong(text: str) -> list[str]:
    """What is wrong with a file, without the file's name."""
    try:
        parse_spec(text.encode(), "f", all_spec_problems)
    except InvalidInput as invalid:
        return [each.removeprefix("f:") for each in invalid.errors]
    return []


@pytest.mark.parametrize("name", ["nvidia.yaml", "foreign.json"])
def test_specifications_of_others_are_good(name: str) -> None:
    """As NVIDIA's toolkit writes them, and one that uses everything that CDI has."""
    data = (DATA / name).read_bytes()

    assert list(all_spec_problems(parse_spec(data, name, all_spec_problems))) == []


def test_nothing_is_lost_in_reading() -> None:
    """What was read, written again, is what was there; NVIDIA's numbers may be left out."""
    data = (DATA / "foreign.json").read_bytes()

    assert msgspec.json.decode(msgspec.json.encode(parse_spec(data, "foreign.json"))) == msgspec.json.decode(data)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", [1, 1]),
        ("[]", [1]),
        ("{", [2]),
        (
            "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n",
            [1],
        ),
        (
            HEAD + "    env: [A=1]\nx-note: mine\n",
            [7],
        ),
        (
            HEAD + "    env: [A=1]\n    deviceNode: []\n",
            [7],
        ),
        (HEAD + "    env: A=1\n", [6]),
        (
            HEAD + "    deviceNodes: [{path: /dev/a, minor: '3'}]\n",
            [6],
        ),
        (HEAD.replace("0.7.0", "0.7"), [1]),
        (
            HEAD.replace("0.7.0", "0.7.1") + "    env: [A=1]\n",
            [1],
        ),
        (
            HEAD + "  annotations: {'a b': c}\n",
            [4, 6],
        ),
        (
            HEAD + "    env: [A=1]\n- name: a\n  containerEdits: {env: [A=1]}\n",
            [7],
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file(text: str, lines: list[int], golden: Golden) -> None:
    """With the line of each error."""
    assert [int(each.partition(":")[0]) for each in wrong(text)] == lines
    golden(wrong(text), text)


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("nvidia.com/gpu", 0),
        ("a-b_c.D/e", 1),
        ("v/gpu", 1),
        ("nvidia.com", 1),
        ("/gpu", 1),
        ("nvidia.com/gpu/a", 1),
        ("1vidia.com/gpu_", 2),
        ("nvidia.com/gpü", 1),
    ],
)
def test_what_a_kind_may_be(kind: str, count: int, golden: Golden) -> None:
    """Vendor and class, by the library's grammar (pkg/parser)."""
    spec = good().but(kind=kind)

    assert [text.partition(": ")[0] for _, text in runtime_refusal_problems(spec)] == ["kind"] * count
    golden((text for _, text in runtime_refusal_problems(spec)), kind)


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        *((name, True) for name in ("0", "0:1", "GPU-1_a.b", "a" * 1000)),
        *((name, False) for name in ("", "-a", "a-", "a=b", "²", "a\n", "a/b")),
    ],
)
def test_what_a_device_may_be_called(name: str, fits: bool) -> None:
    """By the library's grammar (pkg/parser)."""
    assert (list(runtime_refusal_problems(good(name))) == []) is fits
    assert is_qualified_name(f"nvidia.com/gpu={name}") is fits


def mistakes() -> list[tuple[str, str]]:
    """(edits, what is wrong with them), as the file has them."""
    blocks = (DATA / "mistakes.txt").read_text().split("\n\n")[1:]
    return [(edits, said.strip()) for edits, _, said in (block.partition("\n") for block in blocks)]


@pytest.mark.parametrize(("edits", "said"), mistakes())
def test_what_edits_may_be(edits: str, said: str) -> None:
    """It is told alike of a device's edits and of those of all devices."""
    made = msgspec.json.decode(edits, type=ContainerEdits)
    common = good().but(cdi_version="1.1.0", container_edits=made)
    own = common.but(container_edits=ContainerEdits(), devices=(CdiDevice("a", container_edits=made),))

    assert [text for _, text in all_spec_problems(common)] == [f"containerEdits.{said}"]
    assert [text for _, text in all_spec_problems(own)] == [f"devices[0].containerEdits.{said}"]


def test_what_the_library_lets_pass_is_no_reason_to_refuse_a_file(golden: Golden) -> None:
    """Runtimes would know its devices; so the registry does."""
    spec = good().but(
        cdi_version="v0.7.0",
        kind="not_a_domain/" + "c" * 64,
        container_edits=ContainerEdits(
            device_nodes=(DeviceNode("dev"),), mounts=(Mount("a", "b"),), hooks=(Hook("poststop", "x", timeout=-1),)
        ),
    )

    assert list(runtime_refusal_problems(spec)) == []
    assert [text.partition(": ")[0] for _, text in all_spec_problems(spec)] == [
        "cdiVersion",
        "kind",
        "kind",
        "containerEdits.deviceNodes[0].path",
        "containerEdits.hooks[0].path",
        "containerEdits.hooks[0].timeout",
        "containerEdits.mounts[0].containerPath",
        "containerEdits.mounts[0].hostPath",
        "containerEdits.mounts[0].options",
    ]
    golden(text for _, text in all_spec_problems(spec))


def test_annotations_have_kubernetes_limits(golden: Golden) -> None:
    """A key as Kubernetes has it, in letters of either case; 256 KiB of one thing's annotations."""
    fine = {"example.com/" + "a" * 63: "x", "A": "y" * 1000}
    domain = {"a" * 254 + "/b": "", "/b": "", "a/" + "b" * 64: ""}
    large = {"a": "b" * (256 << 10)}

    assert list(all_spec_problems(good().but(annotations=fine))) == []
    assert len(list(runtime_refusal_problems(good().but(annotations=domain)))) == 3
    [(_, text)] = runtime_refusal_problems(good().but(annotations=large))
    assert text.startswith("annotations: ")
    golden(text)


def test_it_is_read_as_runtimes_read_it() -> None:
    """Numbers and truth values as text, and keys without a value."""
    head = "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\nannotations: {b: true}\ncontainerEdits:\n"
    text = head + "devices: [{name: 0, containerEdits: {env: [A=1], mounts: ~}}]\n"

    assert wrong(text) == []
    assert parse_spec(text.encode(), "f").devices[0].name == "0"
    assert parse_spec(text.encode(), "f").annotations == {"b": "true"}


def good(name: str = "a", **edits: Any) -> Spec:
    """A good specification of one device."""
    made = ContainerEdits(**edits) if edits else ContainerEdits(env=("A=1",))
    return Spec("0.7.0", "nvidia.com/gpu", devices=(CdiDevice(name, container_edits=made),))


NEEDS = [
    ("0.3.0", good()),
    ("0.3.0", good(mounts=(Mount("/a", "/b", ("bind",)),), device_nodes=(DeviceNode("/a"),))),
    ("0.4.0", good(mounts=(Mount("/a", "/b", type="bind"),))),
    ("0.5.0", good(device_nodes=(DeviceNode("/a", "/b"),))),
    ("0.5.0", good("0")),
    ("0.6.0", good().but(annotations={"a": "b"})),
    ("0.6.0", good().but(devices=(CdiDevice("0", {"a": "b"}, ContainerEdits(env=("A=1",))),))),
    ("0.6.0", good().but(kind="nvidia.com/gpu.coherent")),
    ("0.7.0", good(additional_gids=(0,))),
    ("0.7.0", good(intel_rdt=IntelRdt())),
    ("1.1.0", good(intel_rdt=IntelRdt(schemata=("a",)))),
    ("1.1.0", good(intel_rdt=IntelRdt(enable_monitoring=True))),
    ("1.1.0", good().but(container_edits=ContainerEdits(net_devices=(NetDevice("a", "b"),)))),
]


@pytest.mark.parametrize(("version", "spec"), NEEDS)
def test_each_feature_needs_its_version(version: str, spec: Spec) -> None:
    """The lowest that has it is good, so is each one above it, and none below it but for 0.1.0 to 0.3.0."""
    assert lowest_version(spec) == version
    for each in CDI_VERSIONS:
        too_old = version > "0.3.0" and CDI_VERSIONS.index(each) < CDI_VERSIONS.index(version)
        said = [text for _, text in all_spec_problems(spec.but(cdi_version=each))]
        assert len(said) == too_old, (each, said)
        assert all(version in text and each in text for text in said)


# properties

texts = st.text(max_size=6) | st.sampled_from(("/dev/a", "A=1", "a", "gpu", "prestart", "c", "rw", "nvidia.com/gpu"))
numbers = st.none() | st.integers(-(1 << 63), (1 << 64) - 1)
many = st.lists
edits = st.builds(
    ContainerEdits,
    env=many(texts, max_size=2).map(tuple),
    device_nodes=many(
        st.builds(DeviceNode, texts, texts, texts, numbers, numbers, numbers, texts, numbers, numbers), max_size=2
    ).map(tuple),
    net_devices=many(st.builds(NetDevice, texts, texts), max_size=2).map(tuple),
    hooks=many(
        st.builds(Hook, texts, texts, many(texts, max_size=2).map(tuple), many(texts, max_size=2).map(tuple), numbers),
        max_size=2,
    ).map(tuple),
    mounts=many(st.builds(Mount, texts, texts, many(texts, max_size=2).map(tuple), texts), max_size=2).map(tuple),
    intel_rdt=st.none() | st.builds(IntelRdt, texts, texts, texts, many(texts, max_size=2).map(tuple), st.booleans()),
    additional_gids=many(st.integers(), max_size=2).map(tuple),
)
annotations = st.dictionaries(texts, texts, max_size=2)
specs = st.builds(
    Spec,
    st.sampled_from(CDI_VERSIONS) | texts,
    texts,
    annotations,
    many(st.builds(CdiDevice, texts, annotations, edits), max_size=2).map(tuple),
    edits,
)


@given(specs)
@example(Spec("0.6.0", "nvidia.com/gpu", {"\n": ""}))
def test_any_document_is_judged(spec: Spec) -> None:
    """Whatever stands in it: every mistake is told in one line, and what runtimes refuse is wrong."""
    found = list(all_spec_problems(spec))

    assert found[: len(list(runtime_refusal_problems(spec)))] == list(runtime_refusal_problems(spec))
    assert all(text and "\n" not in text for _, text in found)


@given(specs)
def test_what_is_good_is_good_when_it_is_read(spec: Spec) -> None:
    """A document without mistakes is what comes of its bytes, and one with mistakes is refused as a file too."""
    data = msgspec.json.encode(spec)
    if list(all_spec_problems(spec)):
        with pytest.raises(InvalidInput):
            parse_spec(data, "f", all_spec_problems)
    else:
        assert parse_spec(data, "f", all_spec_problems) == spec


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_a_specification_or_invalid(data: bytes) -> None:
    """Nothing else is raised, and the file is named."""
    with pytest.raises(InvalidInput) as invalid:
        parse_spec(data, "f.yaml", all_spec_problems)

    assert all(error.startswith("f.yaml:") for error in invalid.value.errors)


@given(st.data(), st.sampled_from(["nvidia.yaml", "foreign.json"]))
def test_a_file_with_a_broken_byte_is_read_or_invalid(data: st.DataObject, name: str) -> None:
    """Or cut off anywhere."""
    content = bytearray((DATA / name).read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at : data.draw(st.sampled_from((at + 1, len(content))))] = data.draw(st.binary(max_size=2))
    try:
        spec = parse_spec(bytes(content), name, all_spec_problems)
    except InvalidInput as invalid:
        assert all(error.startswith(f"{name}:") for error in invalid.errors)
    else:
        assert list(all_spec_problems(spec)) == []
