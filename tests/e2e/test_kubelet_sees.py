"""What kubelet sees of each shipped machine under a configuration: devices, options, advice and answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cases import CASES, Case
from tests.e2e.golden import FOLDER, same
from tests.e2e.kubelet import Fields, Kubelet
from tests.e2e.programs import Agent


def seen(kubelet: Kubelet, resource: str) -> Fields:
    """All that a resource shows. Advice is asked first: what is allocated changes it."""
    listed = kubelet.listed(resource)
    ids = [each["id"] for each in listed]
    few = ids[: min(len(ids), 8)]
    answers: dict[str, Any] = {
        "1": kubelet.allocate(resource, ids[:1]),
        "last 2": kubelet.allocate(resource, ids[-2:]),
        "unknown": kubelet.allocate(resource, ["GPU-00000000-0000-0000-0000-000000000000"]),
    }
    return {
        "options": kubelet.options(resource),
        "devices": listed,
        "preferred": {
            **{str(size): kubelet.preferred(resource, ids, size) for size in (1, 2, 4) if size <= len(ids)},
            "2 with the last": kubelet.preferred(resource, few, 2, (few[-1],)) if len(few) > 1 else [],
        },
        "allocate": answers,
    }


def documents(folder: Path) -> dict[str, Any]:
    """The CDI documents in a directory, and their modes."""
    return {
        path.name: {"mode": oct(path.stat().st_mode & 0o777), "document": json.loads(path.read_text())}
        for path in sorted(folder.glob("*.json"))
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kubelet_sees(case: Case, here: Path) -> None:
    flags = list(case.flags)
    if case.config:
        (here / "config.yaml").write_text(case.config)
        flags += ["--config", str(here / "config.yaml")]
    with Kubelet(here / "k") as kubelet, Agent(here, case.machine, *flags) as agent:
        agent.until(lambda: len(kubelet.plugins) >= case.wants and agent.page("/readyz")[0] == 200, "ready")
        found: dict[str, Any] = {name: seen(kubelet, name) for name in sorted(kubelet.plugins)}
        if case.cdi:
            found["cdi"] = documents(here / "c")

    same(f"kubelet/{case.name}", found, here)


def test_every_golden_file_has_its_case() -> None:
    assert {path.stem for path in (FOLDER / "kubelet").glob("*.json")} == {case.name for case in CASES}
