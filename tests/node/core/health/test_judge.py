"""How a fault is judged: the catalogue, NVIDIA's two variables, and the file."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.node.core.config.resolve import resolve_settings
from gpuplane.node.core.faults.overrides import effective_entry, parse_health_check_list
from gpuplane.node.core.kinds.nvidia.faults import CATALOGUE, UNLISTED_XID
from gpuplane.node.core.kinds.nvidia.xids import xid_number
from gpuplane.node.core.step import step
from gpuplane.node.model.config import Settings
from gpuplane.node.model.facts import ConfigLoaded, FaultOccurred, MachineObserved
from gpuplane.node.model.health import FaultOverride
from gpuplane.node.model.machine import Gpu, Machine
from gpuplane.node.model.snapshot import Snapshot
from tests.node.core.health.world import trouble

IGNORED = {13, 31, 43, 45, 68, 109}
"""What NVIDIA's plugin ignores by default (k8s-device-plugin 0.20, internal/rm/health.go)."""

NOTES = IGNORED | {154, 63, 92, 106, 107, 108, 121, 137, 157, 162, 163, 164, 165}
"""And what we do, as docs/faults.md explains: 154 only announces what a look shows. Of the others NVIDIA's catalogue
says IGNORE, and of 162 to 165 that no reset is required."""


@cache
def settings(disabled: str = "", enabled: str = "", file: str = "") -> Settings:
    environment = {"DP_DISABLE_HEALTHCHECKS": disabled, "DP_ENABLE_HEALTHCHECKS": enabled}
    return resolve_settings(file.encode(), "c.yaml", {}, environment)


def counts(number: int, disabled: str = "", enabled: str = "") -> bool:
    """Whether an XID makes a GPU unhealthy."""
    return effective_entry(f"xid-{number}", settings(disabled, enabled)).severity == "unhealthy"


EVERY = (*(number for code in CATALOGUE if (number := xid_number(code)) is not None), 1, 999, 99999)


@pytest.mark.parametrize(
    ("disabled", "enabled", "ignored"),
    [
        ("", "", NOTES),
        ("68", "", NOTES),
        ("48", "", NOTES | {48}),
        ("48,79", "", NOTES | {48, 79}),
        (" 48 , 79 ,", "", NOTES | {48, 79}),
        (",", "", NOTES),
        ("not-an-int", "", NOTES),
        ("-48", "", NOTES),
        ("48.0,0x30,4 8,48", "", NOTES | {48}),
        ("048", "", NOTES | {48}),
        ("48xids", "", NOTES),
        ("all", "", set(EVERY)),
        ("xids", "", set(EVERY)),
        ("ALL", "", set(EVERY)),
        ("48,xids", "", set(EVERY)),
        ("", "48", NOTES),
        ("", "13", NOTES - {13}),
        ("", "13,154", NOTES - {13, 154}),
        ("", "all", set[int]()),
        ("", "Xids", set[int]()),
        ("48", "48", NOTES),
        ("48,79", "48", NOTES | {79}),
        ("13", "13", NOTES - {13}),
        ("48", "all", set[int]()),
        ("all", "all", set[int]()),
        # where theirs is not as it is documented: there nothing would be checked at all
        ("all", "79", set(EVERY) - {79}),
        ("xids", "13,79", set(EVERY) - {13, 79}),
        ("0", "", NOTES),
        ("0,48", "", NOTES | {48}),
        ("", "0", NOTES),
    ],
)
def test_nvidias_variables_mean_what_is_documented(disabled: str, enabled: str, ignored: set[int]) -> None:
    """Each combination → the XIDs that leave a GPU healthy, of all in the catalogue and some that are not."""
    assert {number for number in EVERY if not counts(number, disabled, enabled)} == ignored


WORDS = st.lists(st.sampled_from(["13", "48", "79", "999", "all", "xids", "x", "", "-1", " 48"]), max_size=4)


@given(st.sampled_from(EVERY), WORDS.map(",".join), WORDS.map(",".join))
def test_an_xid_counts_as_the_rule_says(number: int, disabled: str, enabled: str) -> None:
    """Enabled; or neither disabled nor ignored by default."""

    def says(text: str) -> bool:
        words = {word.strip() for word in text.split(",")}
        return bool(words & {"all", "xids", str(number)})

    assert counts(number, disabled, enabled) == (says(enabled) or not (says(disabled) or number in NOTES))


@given(st.text())
def test_any_text_is_a_list(text: str) -> None:
    """Whatever a variable holds; each word means something or is named as one that does not."""
    found = parse_health_check_list(text)

    assert all(1 <= number <= 99999 for number in found.xids)
    assert all(word and word in text.lower() for word in found.invalid_words)


@pytest.mark.parametrize("code", [code for code in CATALOGUE if xid_number(code) is None])
def test_the_variables_are_about_xids_alone(code: str) -> None:
    """What a look shows, and events that are no XIDs, are judged as ever."""
    for disabled, enabled in (("all", ""), ("", "all"), ("all", "all")):
        assert effective_entry(code, settings(disabled, enabled)) == CATALOGUE[code]


def test_the_variables_change_nothing_but_the_severity() -> None:
    """What ends an XID, and in whom, is its nature."""
    for number in EVERY:
        plain = CATALOGUE.get(f"xid-{number}", UNLISTED_XID)
        assert effective_entry(f"xid-{number}", settings("all")) == plain.but(severity="note")
        assert effective_entry(f"xid-{number}", settings("", "all")) == plain.but(severity="unhealthy")


def test_a_rule_changes_what_it_says_and_nothing_else() -> None:
    """Field for field; other faults are the catalogue's."""
    ruled = Settings(
        faults={
            "xid-94": FaultOverride(clear_when="time-passed", clear_after=600.0),
            "xid-999": FaultOverride(severity="note"),
        }
    )

    assert effective_entry("xid-94", ruled) == CATALOGUE["xid-94"].but(clear_when="time-passed", clear_after=600.0)
    assert effective_entry("xid-999", ruled) == UNLISTED_XID.but(severity="note")
    assert effective_entry("xid-95", ruled) == CATALOGUE["xid-95"]
    assert effective_entry("xid-94", None) == effective_entry("xid-94", Settings()) == CATALOGUE["xid-94"]


@pytest.mark.parametrize(
    ("disabled", "enabled", "severity"),
    [
        ("", "", "degraded"),
        ("94", "", "note"),
        ("all", "", "note"),
        ("", "94", "unhealthy"),
        ("94", "94", "unhealthy"),
        ("48", "79", "degraded"),
    ],
)
def test_the_environment_comes_before_the_file(disabled: str, enabled: str, severity: str) -> None:
    """In the severity alone: the rest of a rule holds."""
    file = "health: {faults: {xid-94: {severity: degraded, gracePeriod: 30s}}}"

    assert effective_entry("xid-94", settings(disabled, enabled, file)) == CATALOGUE["xid-94"].but(
        severity=severity, grace_period=30.0
    )


def test_a_new_configuration_judges_what_stands_already() -> None:
    """A GPU is given free by the change that makes its fault a note, and taken back by the one that takes it back."""
    gpu = Gpu(index=0, uuid="GPU-a")
    snapshot = step(Snapshot(), ConfigLoaded(settings()), 0.0)
    snapshot = step(snapshot, MachineObserved(Machine(gpus=(gpu,))), 1.0)
    snapshot = step(snapshot, FaultOccurred(code="xid-79", gpu="GPU-a", message="gone", at=2.0), 2.0)
    noted = step(snapshot, ConfigLoaded(settings(file="health: {faults: {xid-79: {severity: note}}}")), 3.0)

    assert trouble(snapshot, gpu) == "xid-79: gone"
    assert trouble(noted, gpu) == ""
    assert trouble(step(noted, ConfigLoaded(settings()), 4.0), gpu) == "xid-79: gone"
