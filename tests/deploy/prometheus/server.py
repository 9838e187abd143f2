"""A real Prometheus (Debian's), for as long as a test needs one."""

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import which
from typing import Any, NamedTuple

import pytest
import yaml

from tests.deploy.kustomize import Json
from tests.node.agent.test_metrics_and_health_pages import free_port

PATIENCE = 60  # seconds; a busy machine may take long


class Series(NamedTuple):
    """One element of an instant vector."""

    labels: Mapping[str, str]
    value: float


class Prometheus:
    """The API of a Prometheus that runs."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str) -> list[Series]:
        """An instant query, now. A scalar has no labels. Raises AssertionError with what Prometheus says against it."""
        data = self.get("query", query=expression)
        if data["resultType"] == "scalar":
            return [Series({}, float(data["result"][1]))]
        return [Series(each["metric"], float(each["value"][1])) for each in data["result"]]

    def until(self, expression: str, count: int = 1) -> list[Series]:
        """The first answer that has as many series."""
        found: list[Series] = []
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if len(found := self.query(expression)) >= count:
                return found
            time.sleep(0.3)
        raise AssertionError(f"{expression}: {found}")

    def get(self, path: str, **parameters: str) -> Any:
        """The `data` of an answer."""
        try:
            with urllib.request.urlopen(
                f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=PATIENCE
            ) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{parameters}: {error.read().decode()}") from None


@contextmanager
def prometheus(folder: Path, scrapes: list[Json], rules: tuple[Path, ...] = ()) -> Iterator[Prometheus]:
    """Scrapes and evaluates each second, unless a scrape says otherwise. The test skips where there is none."""
    if which("prometheus") is None:
        pytest.skip("prometheus is not installed (Debian: prometheus)")
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "scrape_configs": scrapes,
        "rule_files": [str(path) for path in rules],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
                f"--web.listen-address={address}", "--log.level=warn",
            ],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        _until_ready(f"http://{address}", process, folder / "prometheus.log")
        yield Prometheus(f"http://{address}")
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=PATIENCE):
            return
        time.sleep(0.1)
    raise AssertionError(log.read_text())


def scrape_of_monitor(monitor: Json, pod: Json, addresses: list[str], interval: str, **labels: str) -> Json:
    """What prometheus-operator makes of a PodMonitor or ServiceMonitor, for agents of one node that are discovered.

    prometheus-operator: pkg/prometheus/promcfg.go, generatePodMonitorConfig and generateServiceMonitorConfig: its own
    labels come first, then the monitor's relabelings. `labels`: further ones of the target.
    """
    [endpoint] = monitor["spec"].get("podMetricsEndpoints") or monitor["spec"]["endpoints"]
    found = {
        "__meta_kubernetes_namespace": monitor["metadata"]["namespace"],
        "__meta_kubernetes_pod_name": "gpuplane-agent-x7k2p",
        "__meta_kubernetes_pod_node_name": "node-1",
        "__meta_kubernetes_pod_container_name": pod["spec"]["containers"][0]["name"],
        "__meta_kubernetes_service_name": "gpuplane-agent",
        "__meta_kubernetes_pod_label_app_kubernetes_io_name": pod["metadata"]["labels"][monitor["spec"]["jobLabel"]],
    }
    own = {
        "namespace": "__meta_kubernetes_namespace", "service": "__meta_kubernetes_service_name",
        "pod": "__meta_kubernetes_pod_name", "container": "__meta_kubernetes_pod_container_name",
        "job": "__meta_kubernetes_pod_label_app_kubernetes_io_name",
    }  # fmt: skip
    return {
        "job_name": f"{monitor['kind']}/{monitor['metadata']['namespace']}/{monitor['metadata']['name']}/0",
        "honor_labels": endpoint["honorLabels"],
        "scrape_interval": interval,
        "scrape_timeout": interval,
        "static_configs": [{"targets": addresses, "labels": {**found, **labels}}],
        "relabel_configs": [
            *({"source_labels": [source], "target_label": name} for name, source in own.items()),
            {"target_label": "endpoint", "replacement": endpoint["port"]},
            *(relabel_config(each) for each in endpoint["relabelings"]),
        ],
    }


def relabel_config(relabeling: Json) -> Json:
    """A relabeling of the operator as Prometheus writes it."""
    names = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    return {names.get(name, name): value for name, value in relabeling.items()}
