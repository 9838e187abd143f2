"""mig-parted's file: what it takes is taken, all that is wrong is told with its line, and `export` writes the same."""

from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.base.strict import InvalidInput
from gpuplane.node.core.partitions.entries import layouts_of_entries
from gpuplane.node.core.partitions.migparted import (
    Format,
    export_configs,
    format_configs,
    parse_configs,
    parse_device_id,
    select_config,
)
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.partitions import MigConfigEntry
from tests.node.core.partitions.gpus import A30, A100_40, A100_80, DISPLAY, H100, a_gpu

CONFIGS = Path(__file__).parent / "configs"
ENTRY = "version: v1\nmig-configs:\n  a:\n  - "


def entries(text: str) -> tuple[MigConfigEntry, ...]:
    """The entries of the configuration `a`."""
    return parse_configs(text.encode(), "f")["a"]


def errors(text: str) -> list[str]:
    """What is wrong with a file."""
    with pytest.raises(InvalidInput) as caught:
        parse_configs(text.encode(), "f")
    return caught.value.errors


@pytest.mark.parametrize(("file", "count"), [("a100.yaml", 7), ("default.yaml", 65), ("station.yaml", 3)])
def test_configurations_of_nvidias_tools_are_accepted(file: str, count: int) -> None:
    """All of them: their number."""
    assert len(parse_configs((CONFIGS / file).read_bytes(), file)) == count


def test_an_entry_is_read_with_its_line() -> None:
    """A filter is a text or a list, devices are a list or all; YAML and JSON say the same."""
    a, b = entries(
        ENTRY + "device-filter: '0x233010DE'\n    devices: [1, 2]\n    mig-enabled: true\n"
        "    mig-devices: {1g.10gb: 2, 2g.20gb: 0}\n  - {devices: all, mig-enabled: false}"
    )
    assert a == MigConfigEntry(
        mig_enabled=True, mig_devices={"1g.10gb": 2}, device_filters=(H100,), indices=(1, 2), source="f:4"
    )
    assert b == MigConfigEntry(mig_enabled=False, source="f:8")
    json = '{"version":"v1","mig-configs":{"a":[{"devices":"all","device-filter":["0x1","0x2:0x3"],"mig-enabled":true,'
    (c,) = entries(json + '"mig-devices":{"1c.3g.40gb":1,"1g.10gb+me":1}}]}}')
    assert c.device_filters == ("0x1", "0x2:0x3")
    assert c.indices is None
    assert c.mig_devices == {"1c.3g.40gb": 1, "1g.10gb+me": 1}


@pytest.mark.parametrize(
    "entry",
    [
        "{devices: all, mig-enabled: false, mig-devices: {}}",
        "{devices: all, mig-enabled: false, mig-devices: null, device-filter: null}",
        "{devices: all, mig-enabled: true, mig-devices: {}, device-filter: []}",
        "{devices: [], mig-enabled: true, mig-devices: {1g.5gb: 1, 7g.80gb: 0}, device-filter: ''}",
        "{devices: [0], mig-enabled: true, mig-devices: {'1c.1g.24gb+me.all': 1, 1g.24gb-me: 1, 1g.24gb+gfx: 2}}",
        "{devices: [0], mig-enabled: true, mig-devices: {1g.5gb: 1}, device-filter: '590352606'}",
    ],
)
def test_what_mig_parted_takes_is_taken(entry: str) -> None:
    """Its rules (api/spec/v1/spec.go)."""
    assert len(entries(ENTRY + entry)) == 1


@pytest.mark.parametrize(
    ("entry", "lines"),
    [
        ("{mig-enabled: false}", [4]),
        ("{devices: all}", [4]),
        ("{devices: every, mig-enabled: false}", [4]),
        ("{devices: 1, mig-enabled: false}", [4]),
        ("{devices: {}, mig-enabled: false}", [4]),
        ("{devices: [a], mig-enabled: false}", [4]),
        ("{devices: [-1], mig-enabled: false}", [4]),
        ("{devices: all, mig-enabled: 'true', mig-devices: {}}", [4]),
        ("{devices: all, mig-enabled: }", [4]),
        ("{devices: all, mig-enabled: true}", [4]),
        ("{devices: all, mig-enabled: true, mig-devices: null}", [4]),
        ("{devices: all, mig-enabled: false, mig-devices: {1g.5gb: 0}}", [4]),
        ("{devices: all, mig-enabled: false, mig_devices: {}}", [4]),
        ("{devices: all, mig-enabled: false, device-filter: 0x233010DE}", [4]),
        ("{devices: all, mig-enabled: false, device-filter: A100-SXM4-40GB}", [4]),
        ("{devices: all, mig-enabled: false, device-filter: '0x233010DE:0x1:0x2'}", [4]),
        ("{devices: all, mig-enabled: false, device-filter: '0x1233010DE'}", [4]),
        ("devices: all\n    mig-enabled: true\n    mig-devices:\n      1g.5gb: 0\n      2g.10gb: 0", [6]),
        ("devices: all\n    mig-enabled: true\n    mig-devices:\n      1g.5gb: 1\n      2g.10gb: -1", [8]),
        ("devices: all\n    mig-enabled: true\n    mig-devices:\n      1g.5gb: many\n      1g5gb: 1", [7]),
        ("devices: all\n    mig-enabled: true\n    mig-devices:\n      1G.5GB: 1\n      3c.2g.10gb: 1", [7, 8]),
        ("devices: all\n    mig-enabled: true\n    mig-devices:\n      1g.5gb+mee: 1", [7]),
        ("devices: all\n    mig-enabled: true\n    mig-devices:\n      1g.5gb: 1\n      1g.5gb: 2", [8]),
    ],
)
def test_all_that_is_wrong_is_told_with_its_line(entry: str, lines: list[int]) -> None:
    """In one pass."""
    assert [int(each.split(":")[1]) for each in errors(ENTRY + entry)] == lines


@pytest.mark.parametrize(
    "text",
    ["", "version: v1\nmig-configs: {}", "version: v2", "mig-configs: {}", "version: v1\nmig-configs:\n  a: []", "[]",
     "version: v1\nbogus: 1", "version: v1\nx-mine: 1", "version: v1\n---\nversion: v1"],
)  # fmt: skip
def test_what_is_no_such_file_is_refused(text: str) -> None:
    """Without a version, of another version, without a configuration or an entry, with other keys."""
    assert errors(text)


def test_a_misspelt_profile_is_recognised() -> None:
    """What was meant stands in the message, so that it can be copied."""
    (said,) = errors(ENTRY + "{devices: all, mig-enabled: true, mig-devices: {1G10GB+me: 1}}")
    assert "'1g.10gb+me'" in said


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """And nothing else is raised."""
    try:
        parse_configs(data, "f")
    except InvalidInput as invalid:
        assert invalid.errors


def test_a_configuration_is_selected_by_name_or_as_the_only_one() -> None:
    """Without a name several are one too many."""
    one = {"a": (MigConfigEntry(mig_enabled=False),)}
    assert select_config(one, "", "f")[0] == "a"
    assert select_config({**one, "b": ()}, "b", "f") == ("b", ())
    for configs, name in ((one, "b"), ({**one, "b": ()}, ""), ({}, ""), ({}, "a")):
        with pytest.raises(InvalidInput):
            select_config(configs, name, "f")


def test_device_ids_are_numbers_as_go_reads_them() -> None:
    """Hexadecimal in either case, decimal, octal, binary."""
    assert parse_device_id("0x233010DE") == parse_device_id("0X233010de") == (0x233010DE, None)
    assert parse_device_id("590352606:0b11") == (0x233010DE, 3)
    assert parse_device_id("017:0o17") == (15, 15)
    for text in ("", ":", "0x", "08", "233010DE", "0x233010DE:", "1_0", "-1", "4294967296"):
        with pytest.raises(ValueError, match=r"PCI id|32 bits"):
            parse_device_id(text)


def test_equal_gpus_are_exported_as_one_entry() -> None:
    """As mig-parted merges them: a filter where there are several kinds, `all` where an entry has all of its kinds."""
    same = [a_gpu(i, devices={"1g.10gb": 7}) for i in range(4)]
    assert exported(same) == (MigConfigEntry(mig_enabled=True, mig_devices={"1g.10gb": 7}),)
    assert exported([*same, a_gpu(4), a_gpu(5, devices={})]) == (
        MigConfigEntry(mig_enabled=True, mig_devices={"1g.10gb": 7}, indices=(0, 1, 2, 3)),
        MigConfigEntry(mig_enabled=False, indices=(4,)),
        MigConfigEntry(mig_enabled=True, indices=(5,)),
    )
    mixed = [a_gpu(0, A100_80, {"3g.40gb": 2}), a_gpu(1, DISPLAY, mig=False), a_gpu(2, A30), a_gpu(3, A100_80)]
    assert exported(mixed) == (
        MigConfigEntry(mig_enabled=True, mig_devices={"3g.40gb": 2}, device_filters=(A100_80,), indices=(0,)),
        MigConfigEntry(mig_enabled=False, device_filters=(DISPLAY, A100_80, A30), indices=(1, 2, 3)),
    )
    assert exported([a_gpu(0, A30), a_gpu(1, A100_80)]) == (MigConfigEntry(mig_enabled=False),)
    assert export_configs(same, "mine").keys() == {"mine"}


def exported(gpus: list[Gpu]) -> tuple[MigConfigEntry, ...]:
    """The one configuration."""
    return export_configs(gpus)["current"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([A100_40, A100_80, A30, H100]),
            st.none() | st.dictionaries(st.sampled_from(["1g.10gb", "2g.20gb", "1c.3g.40gb"]), st.integers(1, 3)),
        ),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from(get_args(Format)),
)
def test_what_is_exported_requests_what_is_there(gpus: list[tuple[str, dict[str, int] | None]], form: Format) -> None:
    """Whatever there is: read again, the file requests of each GPU what it has."""
    there = [a_gpu(i, kind, devices) for i, (kind, devices) in enumerate(gpus)]
    written = format_configs(export_configs(there), form)
    layouts, problems = layouts_of_entries(parse_configs(written.encode(), "f")["current"], there)
    assert not problems
    assert {uuid: (each.mig_enabled, dict(each.mig_devices)) for uuid, each in layouts.items()} == {
        f"GPU-{i}": (devices is not None, devices or {}) for i, (_, devices) in enumerate(gpus)
    }


@pytest.mark.parametrize("file", ["a100.yaml", "default.yaml", "station.yaml"])
def test_a_file_that_is_written_is_read_as_the_same(file: str) -> None:
    """In both formats, all but the lines."""
    configs = parse_configs((CONFIGS / file).read_bytes(), file)
    bare = {name: tuple(each.but(source="") for each in found) for name, found in configs.items()}
    for form in get_args(Format):
        again = parse_configs(format_configs(configs, form).encode(), "f")
        assert {name: tuple(each.but(source="") for each in found) for name, found in again.items()} == bare
    assert msgspec.json.decode(format_configs(configs, "json"))["version"] == "v1"
