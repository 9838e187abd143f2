"""What is taken although it is written otherwise, as NVIDIA's plugin takes it, and what is said about it."""

import re
from pathlib import Path

import pytest

from gpuplane.base.strict import InvalidInput
from gpuplane.node.core.config.resolve import ResolvedConfig, resolve_with_sources
from gpuplane.node.model.config import ReplicatedResource, Settings
from tests.golden import Golden

PAGE = (Path(__file__).parents[4] / "docs/configuration.md").read_text()
GPU = "nvidia.com/gpu"


def resolved(text: str) -> ResolvedConfig:
    """A file alone."""
    return resolve_with_sources(text.encode(), "c.yaml")


@pytest.mark.parametrize(
    ("text", "changed", "places"),
    [
        (
            "flags:\n  migstrategy: single",
            {"mig_strategy": "single"},
            ["c.yaml:2: flags.migstrategy"],
        ),
        (
            "VERSION: v1\nFlags:\n  Plugin:\n    passdevicespecs: true",
            {"pass_device_specs": True},
            [
                "c.yaml:1: VERSION",
                "c.yaml:2: Flags",
                "c.yaml:3: flags.Plugin",
                "c.yaml:4: flags.plugin.passdevicespecs",
            ],
        ),
        (
            "imex: {ChannelIDs: [0]}",
            {"imex_channels": (0,)},
            ["c.yaml:1: imex.ChannelIDs"],
        ),
        # a key of flags.plugin directly under flags
        (
            "flags:\n  deviceListStrategy: envvar\n  PassDeviceSpecs: true",
            {},
            ["c.yaml:2: flags.deviceListStrategy", "c.yaml:3: flags.PassDeviceSpecs"],
        ),
        ("flags: {migStrategy: mixed, plugin: {passDeviceSpecs: true}}", None, []),
    ],
)
def test_keys_of_another_case_or_place(
    text: str, changed: dict[str, object] | None, places: list[str], golden: Golden
) -> None:
    """They mean what they mean to Go's decoder, and a line says how to write them."""
    found = resolved(text)

    shown = [
        next(place for place in [*places, ""] if all(part in each for part in place.split())) for each in found.warnings
    ]
    assert shown == places
    for place, each in zip(places, found.warnings, strict=True):
        golden(each, place)
    assert changed is None or found.settings == Settings(**changed)  # type: ignore[arg-type]


def test_a_setting_of_another_case_is_explained_by_its_line() -> None:
    """What decided can be asked for as if it were written right."""
    assert resolved("flags:\n\n  MIGStrategy: mixed").sources["mig_strategy"] == "c.yaml:3"


@pytest.mark.parametrize("replicas", ["4", "4.0", "0.4e1"])
def test_a_whole_number_may_be_written_as_a_float(replicas: str) -> None:
    """To sigs.k8s.io/yaml they are the same number."""
    (entry,) = resolved(
        f"sharing: {{timeSlicing: {{resources: [{{name: gpu, replicas: {replicas}}}]}}}}"
    ).settings.sharing.replicated_resources

    assert entry == ReplicatedResource(GPU, 4)


def test_devices_are_named_as_the_driver_names_them() -> None:
    """An index with zeros before it and a UUID in capitals select what they mean."""
    devices = (
        '["01", "1:00", GPU-4CF8DB2D-06C0-7D70-1A51-E59B25B2C16C, MIG-GPU-4CF8DB2D-06C0-7D70-1A51-E59B25B2C16C/1/0]'
    )
    text = f"sharing: {{timeSlicing: {{resources: [{{name: gpu, replicas: 2, devices: {devices}}}]}}}}"
    (entry,) = resolved(text).settings.sharing.replicated_resources

    assert entry.devices == (
        "1",
        "1:0",
        "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c",
        "MIG-GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c/1/0",
    )


@pytest.mark.parametrize(("code", "meant"), [("xid-179", "xid-79"), ("xid-172", ""), ("xid-255", "")])
def test_an_xid_that_the_catalogue_does_not_list_is_taken_and_doubted(code: str, meant: str, golden: Golden) -> None:
    """A newer driver may have it; or it is a slip of the fingers."""
    found = resolved(f"health:\n  faults:\n    {code}: {{severity: note}}\n    xid-79: {{severity: note}}")

    assert set(found.settings.faults) == {code, "xid-79"}
    [doubt] = found.warnings
    assert doubt.startswith(f"c.yaml:3: health.faults.{code}: ")
    assert meant in doubt
    golden(doubt, code)


ROWS = re.findall(r"^\| `(.+?)` \| .+ \| (taken|a warning|an error)\b.* \|$", PAGE, re.M)


@pytest.mark.parametrize(("text", "outcome"), ROWS)
def test_the_page_says_what_becomes_of_each_input(text: str, outcome: str) -> None:
    """Its table of inputs that NVIDIA's plugin takes in a way of its own."""
    try:
        found = resolved(text.replace("↵", "\n"))
    except InvalidInput:
        assert outcome == "an error"
    else:
        assert outcome == ("a warning" if found.warnings else "taken")


def test_the_page_has_such_a_table() -> None:
    """All kinds of outcome are in it."""
    assert len(ROWS) > 12
    assert {outcome for _, outcome in ROWS} == {"taken", "a warning", "an error"}
