"""Recording rules and alerts: valid, tested by promtool, explained, and about names that exist.

The tests of the rules are files of promtool's own format, *.test.yaml in this folder.
"""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from gpuplane.cli.commands import runbook
from gpuplane.node.core.kinds.table import FAULTS
from gpuplane.node.core.telemetry.counters import DEFAULT_COUNTERS
from tests.deploy.kustomize import DEPLOY
from tests.deploy.prometheus.rules import RULE_TESTS, RULES, alerts, expectations, promtool, records, rules
from tests.golden import compare

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs/runbooks"
GOLDEN = ROOT / "tests/conformance/golden"
FOREIGN = {"up", "kube_node_info"}
"""Series of Prometheus and of kube-state-metrics."""
SEVERITIES = {"critical", "warning", "info"}


def test_promtool_accepts_the_rules() -> None:
    promtool("check", "rules", *RULES)


def test_promtool_accepts_the_scrape(tmp_path: Path) -> None:
    """deploy/prometheus/scrape.yaml; Debian's Prometheus knows no Kubernetes, so that this part is left out here."""
    config = yaml.safe_load((DEPLOY / "prometheus/scrape.yaml").read_text())
    for scrape in config["scrape_configs"]:
        del scrape["kubernetes_sd_configs"]
    config["rule_files"] = [str(path) for path in RULES]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))

    promtool("check", "config", tmp_path / "prometheus.yml")


@pytest.mark.parametrize("path", RULE_TESTS, ids=lambda path: path.name)
def test_the_rules_do_what_their_tests_say(path: Path) -> None:
    """By promtool."""
    promtool("test", "rules", path)


def test_each_alert_fires_in_a_test_and_is_silent_in_another() -> None:
    told = list(expectations("alert_rule_test"))

    assert {each["alertname"] for each in told if each["exp_alerts"]} == {*alerts()}
    assert {each["alertname"] for each in told if not each["exp_alerts"]} == {*alerts()}


def test_each_recording_rule_has_a_value_in_a_test() -> None:
    told = [each["expr"] for each in expectations("promql_expr_test") if each["exp_samples"]]

    assert {name for name in records() if any(name in expr for expr in told)} == {*records()}


def test_each_alert_has_its_page() -> None:
    """Of at most 30 lines: what it means, how to check, what to do. And each page has its alert."""
    assert {path.stem for path in PAGES.glob("*.md")} == {*alerts()}
    for name, rule in alerts().items():
        lines = (PAGES / f"{name}.md").read_text().splitlines()

        assert len(lines) <= 30, name
        assert [line for line in lines if line.startswith("#")] == [f"# {name}", "## Check", "## Do"]
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in SEVERITIES
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        where = "{{ with $externalLabels.gpuplane_runbooks }}{{ . }}/" + f"{name}.md"
        assert rule["annotations"]["runbook_url"] == where + "{{ else }}" + f"gpuplane runbook {name}" + "{{ end }}"


def test_each_alert_names_a_command_that_prints_its_page() -> None:
    """Where no address is set. A wheel has the pages, too."""
    for name in alerts():
        ended = CliRunner().invoke(runbook.command, [name])

        assert (ended.exit_code, ended.output) == (0, (PAGES / f"{name}.md").read_text())
    assert CliRunner().invoke(runbook.command, []).output.split() == sorted(alerts())
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert built["force-include"] == {"docs/runbooks": "gpuplane/runbooks"}


def test_one_label_of_prometheus_sets_the_address_of_all_pages(tmp_path: Path) -> None:
    """The label gpuplane_runbooks; promtool gives it to a test of ours."""
    test = yaml.safe_load((Path(__file__).parent / "xids.test.yaml").read_text())
    test["rule_files"] = [str(path) for path in RULES]
    for each in test["tests"]:
        each["external_labels"] = {"gpuplane_runbooks": "https://git.example/runbooks"}
    text = re.sub(r"gpuplane runbook (\w+)", r"https://git.example/runbooks/\1.md", yaml.safe_dump(test))
    (tmp_path / "with.test.yaml").write_text(text)

    promtool("test", "rules", tmp_path / "with.test.yaml")


def test_the_page_lists_each_alert_and_each_record() -> None:
    """docs/monitoring.md, in the order of the files."""
    page = (ROOT / "docs/monitoring.md").read_text()
    rows = re.findall(r"^\| \[(\w+)\]\(runbooks/(\w+)\.md\) \| (\w+) \|", page, re.M)

    assert rows == [(name, name, rule["labels"]["severity"]) for name, rule in alerts().items()]
    assert re.findall(r"^\| `([a-z]+:\w+:\w+)` \|", page, re.M) == [*records()]


def test_the_operators_rules_are_the_same() -> None:
    """components/prometheus-rules is made of the two files. REWRITE=1 writes it."""
    groups = (line for path in RULES for line in path.read_text().partition("\ngroups:\n")[2].splitlines())
    text = HEAD + "".join(f"  {line}\n" if line else "\n" for line in groups)

    compare(DEPLOY / "components/prometheus-rules/prometheusrule.yaml", text, "made of deploy/prometheus")


HEAD = """\
# Written by tests/deploy/prometheus/test_rules.py from deploy/prometheus: change the rules there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: gpuplane
  namespace: gpuplane
  labels:
    app.kubernetes.io/name: gpuplane
spec:
  groups:
"""


def test_the_rules_read_series_that_exist() -> None:
    """Those that a running product has shown (tests/conformance), default fields of DCGM, and records of their own."""
    ours = {line.split()[1].partition("{")[0] for line in (GOLDEN / "metrics.txt").read_text().splitlines()}
    known = ours | {each.field for each in DEFAULT_COUNTERS} | {*records()} | FOREIGN
    read = {name for rule in rules() for name in re.findall(SERIES, re.sub(r'"[^"]*"', '""', rule["expr"]))}

    assert read - known == set()
    assert len(read) > 30


SERIES = r"\b(?:gpuplane|DCGM|process|kube)_\w+|\b[a-z]+:gpuplane\w+:\w+|\bup\b(?=\{)"


def test_the_rules_read_codes_that_exist() -> None:
    """Each alternative of a selector of codes matches one of the catalogue or of the other reasons."""
    reasons = (GOLDEN / "reasons.txt").read_text().split()
    known = {*FAULTS.entries, *reasons}
    selectors = [each for rule in rules() for each in re.findall(r'code[=!]~"([^"]*)"', rule["expr"])]

    assert selectors
    for pattern in {each for selector in selectors for each in re.split(r"\|(?![^(]*\))", selector)}:
        assert [code for code in known if re.fullmatch(pattern, code)], pattern
