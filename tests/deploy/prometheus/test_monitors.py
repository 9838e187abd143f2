"""Both monitors, and the scrape without an operator, ask each agent and call its series the same."""

import copy
from typing import Any

import pytest
import yaml
from lightkube import codecs

from tests.deploy.kustomize import DEPLOY, Json, apply, build

AGENT = {"app.kubernetes.io/name": "gpuplane", "app.kubernetes.io/component": "agent"}
ENDPOINTS = {"PodMonitor": "podMetricsEndpoints", "ServiceMonitor": "endpoints"}


@pytest.fixture(params=["nvidia-runtime", "host"])
def objects(request: pytest.FixtureRequest) -> list[Json]:
    return build(DEPLOY / "overlays" / request.param)


def added(component: str, objects: list[Json]) -> list[Json]:
    """What a component adds; it changes nothing else."""
    found = apply(DEPLOY / "components" / component, objects)
    assert found[: len(objects)] == objects
    return found[len(objects) :]


def endpoint(monitor: Json) -> Json:
    [found] = monitor["spec"][ENDPOINTS[monitor["kind"]]]
    return dict(found)


def one(objects: list[Json], kind: str) -> Json:
    [found] = [each for each in objects if each["kind"] == kind]
    return found


def test_the_pod_monitor_selects_the_agents(objects: list[Json]) -> None:
    """Their pods by labels, in its own namespace, and the port by its name. The supervisor of MPS is no agent."""
    [monitor] = added("pod-monitor", objects)
    pod = one(objects, "DaemonSet")["spec"]["template"]
    mps = apply(DEPLOY / "components/mps", build(DEPLOY / "overlays/nvidia-runtime"))
    [supervisor] = [each["spec"]["template"] for each in mps if each["metadata"]["name"] == "gpuplane-mps"]
    selected = monitor["spec"]["selector"]["matchLabels"]

    assert selected == AGENT
    assert selected.items() <= pod["metadata"]["labels"].items()
    assert not selected.items() <= supervisor["metadata"]["labels"].items()
    assert monitor["metadata"]["namespace"] == one(objects, "DaemonSet")["metadata"]["namespace"]
    assert endpoint(monitor)["port"] in [each["name"] for each in pod["spec"]["containers"][0]["ports"]]


def test_the_service_monitor_selects_a_service_of_the_agents(objects: list[Json]) -> None:
    """Without an address of its own; by the name of its port, which is that of the pods."""
    service, monitor = added("service-monitor", objects)
    pod = one(objects, "DaemonSet")["spec"]["template"]
    [port] = service["spec"]["ports"]

    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["spec"]["selector"] == AGENT
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert service["spec"]["clusterIP"] == "None"
    assert endpoint(monitor)["port"] == port["name"]
    assert (port["targetPort"], port["port"]) in [
        (each["name"], each["containerPort"]) for each in pod["spec"]["containers"][0]["ports"]
    ]
    assert codecs.from_dict(copy.deepcopy(service)).to_dict()["spec"].keys() == service["spec"].keys()  # type: ignore[no-untyped-call]


def test_all_scrapes_are_the_same(objects: list[Json]) -> None:
    """Interval, whose labels count, and the name of the node; the operator's other labels are dropped again."""
    [pods] = added("pod-monitor", objects)
    _, services = added("service-monitor", objects)
    [plain] = yaml.safe_load((DEPLOY / "prometheus/scrape.yaml").read_text())["scrape_configs"]

    assert endpoint(pods) == endpoint(services)
    assert endpoint(pods)["honorLabels"] is plain["honor_labels"] is True
    assert endpoint(pods)["interval"] == plain["scrape_interval"]
    assert endpoint(pods)["scrapeTimeout"] == plain["scrape_timeout"]
    assert pods["spec"]["jobLabel"] == services["spec"]["jobLabel"] == "app.kubernetes.io/name"
    assert plain["job_name"] == AGENT["app.kubernetes.io/name"]
    [discovery] = plain["kubernetes_sd_configs"]
    assert discovery["selectors"][0]["label"] == ",".join(f"{name}={value}" for name, value in AGENT.items())
    assert plain["relabel_configs"][-1] == snake(endpoint(pods)["relabelings"][0])


def snake(relabeling: Json) -> dict[str, Any]:
    """A relabeling of the operator as Prometheus writes it."""
    names = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    return {names.get(name, name): value for name, value in relabeling.items()}


def test_the_rules_are_an_object_of_the_operator(objects: list[Json]) -> None:
    [rules] = added("prometheus-rules", objects)

    assert (rules["apiVersion"], rules["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert rules["spec"].keys() == {"groups"}
