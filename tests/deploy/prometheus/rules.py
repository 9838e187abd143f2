"""The rule files of deploy/prometheus, their tests, and Debian's promtool."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import yaml

from tests.deploy.kustomize import DEPLOY, Json

RULES = (DEPLOY / "prometheus/recording.yaml", DEPLOY / "prometheus/alerts.yaml")
RULE_TESTS = sorted(Path(__file__).parent.glob("*.test.yaml"))


def promtool(*arguments: object) -> None:
    """Run promtool; it has to succeed. The test skips where there is none."""
    if which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


def rules() -> list[Json]:
    """Every rule of both files."""
    return [rule for path in RULES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def alerts() -> dict[str, Json]:
    """Each alert by its name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def records() -> dict[str, str]:
    """The name of each recording rule → its expression."""
    return {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}


def expectations(kind: str) -> Iterator[Any]:
    """What the tests of the rules expect: of the kind alert_rule_test, or promql_expr_test."""
    for path in RULE_TESTS:
        for test in yaml.safe_load(path.read_text())["tests"]:
            yield from test.get(kind, ())
