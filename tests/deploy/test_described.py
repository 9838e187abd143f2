"""deploy/overlays/described: agents of described machines, on nodes without a GPU and with no privilege."""

import functools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube import codecs

from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.profiles import profile_names
from tests.deploy.kustomize import DEPLOY, Json, build, identity, real

OVERLAY, POOL = DEPLOY / "overlays/described", DEPLOY / "examples/described-pool"
KUBELET = "/var/lib/kubelet"
HOST_PATHS = {f"{KUBELET}/device-plugins", f"{KUBELET}/pod-resources", "/var/lib/gpuplane"}
OF_DRA = {f"{KUBELET}/plugins_registry", f"{KUBELET}/plugins/gpu.nvidia.com", "/var/run/cdi"}
LOCKED_DOWN = {
    "runAsUser": 0,
    "runAsGroup": 0,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pod_of(objects: list[Json]) -> Json:
    [daemonset] = [each for each in objects if each["kind"] == "DaemonSet"]
    spec: Json = daemonset["spec"]["template"]["spec"]
    return spec


def container_of(objects: list[Json]) -> Json:
    [container] = pod_of(objects)["containers"]
    found: Json = container
    return found


def variables(objects: list[Json]) -> dict[str, str | None]:
    return {each["name"]: each.get("value") for each in container_of(objects)["env"]}


def host_paths(objects: list[Json]) -> set[str]:
    return {each["hostPath"]["path"] for each in pod_of(objects)["volumes"] if "hostPath" in each}


def is_kubernetes(found: Json) -> bool:
    """Whether decoding into Kubernetes' types loses nothing."""
    decoded = codecs.from_dict(found).to_dict()  # type: ignore[no-untyped-call]
    return not missing(found, decoded)


def missing(found: object, decoded: object) -> bool:
    if isinstance(found, dict) and isinstance(decoded, dict):
        return any(missing(value, decoded.get(key)) for key, value in found.items() if value not in (None, {}))
    if isinstance(found, list) and isinstance(decoded, list):
        return len(found) != len(decoded) or any(map(missing, found, decoded))
    return decoded is None


def test_nothing_of_a_driver_and_no_privilege() -> None:
    """The agent sees kubelet's directories and its own; the nodes are those of a pool, whatever NVIDIA's labels say."""
    objects = build(OVERLAY)
    pod, container = pod_of(objects), container_of(objects)

    assert container["securityContext"] == LOCKED_DOWN
    assert not {"hostPID", "hostNetwork", "hostIPC", "runtimeClassName", "affinity", "initContainers"} & {*pod}
    assert pod["nodeSelector"] == {"gpuplane.io/machine": "described"}
    assert host_paths(objects) == HOST_PATHS
    assert "--machine=$(MACHINE)" in container["args"]
    assert variables(objects) == {
        "NODE_NAME": None,
        "MACHINE": "/etc/gpuplane/machines/machine.yaml",
        "STAND_INS": "true",
        "CDI_DIR": "",
    }
    assert all(map(is_kubernetes, objects))


def test_no_other_overlay_gives_stand_ins() -> None:
    """With them containers get no GPU: those agents look for real ones."""
    for name in ("host", "nvidia-runtime"):
        found = variables(build(DEPLOY / "overlays" / name))
        assert found["MACHINE"] == "nvml"
        assert "STAND_INS" not in found


def test_the_machine_file_is_mounted_where_the_agent_reads_it() -> None:
    """As a whole directory, so that an edit is seen; with the fault that the page plants, it is read too."""
    objects = build(OVERLAY)
    [machines] = [each for each in objects if each["metadata"]["name"] == "gpuplane-machines"]
    [mount] = [each for each in container_of(objects)["volumeMounts"] if each["name"] == "machines"]
    folder, _, name = str(variables(objects)["MACHINE"]).rpartition("/")
    text = machines["data"][name]

    assert mount == {"name": "machines", "mountPath": folder, "readOnly": True}
    assert len(read_machine(text.encode(), name).gpus or ()) == 2
    faulty = read_machine(text.replace("# faults", "faults").encode(), name)
    assert [[fault.code for fault in gpu.faults] for gpu in faulty.gpus or ()] == [[], ["gpu-lost"]]


def test_what_is_to_be_uncommented(tmp_path: Path) -> None:
    """The image's registry, the file for claims, and the components: no privilege comes with them, and of the node only
    what claims need."""
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    path = tmp_path / "deploy/overlays/described/kustomization.yaml"
    text = re.sub(r"^# (images:|components:|  - )", r"\1", path.read_text(), flags=re.MULTILINE)
    assert yaml.safe_load(text)["images"] == [
        {"name": "gpuplane", "newName": "registry.example/gpuplane", "newTag": "0.1.0"}
    ]
    layer = yaml.safe_load(text)
    assert {"dra", "mig-config", "node-labels", "pod-labels"} < {Path(each).name for each in layer["components"]}
    del layer["images"]  # the builder of these tests does not know them
    path.write_text(yaml.safe_dump(layer))

    for objects in filter(None, (build(path.parent), real(path.parent))):
        assert container_of(objects)["securityContext"] == LOCKED_DOWN
        assert "hostPID" not in pod_of(objects)
        assert host_paths(objects) == HOST_PATHS | OF_DRA
        assert variables(objects).items() >= {
            "CDI_DIR": "/var/run/cdi", "STAND_INS": "true", "GPUPLANE_DRA": "true", "FOLLOW_MIG_LABEL": "true"
        }.items()  # fmt: skip


def test_a_second_pool_stands_beside_the_first() -> None:
    """Other nodes, another machine; it has no object of the first pool, not even the Namespace, and can be deleted."""
    first, second = build(OVERLAY), build(POOL)
    names = [{(each["kind"], each["metadata"]["name"]) for each in objects} for objects in (first, second)]

    assert not names[0] & names[1]
    assert ("Namespace", "gpuplane") in names[0]
    assert pod_of(second)["nodeSelector"] == {"gpuplane.io/machine": "t4"}
    assert variables(second) == variables(first) | {"MACHINE": "t4"}
    assert variables(second)["MACHINE"] in profile_names()
    volumes = {each["name"]: each for each in pod_of(second)["volumes"]}
    assert volumes["machines"]["configMap"]["name"] == "gpuplane-machines-t4"


@pytest.mark.parametrize("directory", [OVERLAY, POOL], ids=["overlay", "pool"])
def test_the_real_kustomize_agrees(directory: Path) -> None:
    """The builder of these tests builds what kubectl would."""
    found = real(directory)
    if found is None:
        pytest.skip("neither kustomize nor kubectl is installed; the builder of these tests stands in")
    built = build(directory)

    assert sorted(map(identity, found)) == sorted(map(identity, built))
    assert sorted_lists(pod_of(found)) == sorted_lists(pod_of(built))


def sorted_lists(value: Any) -> Any:
    """Lists that are merged by a key have no order of their own."""
    if isinstance(value, dict):
        return {key: sorted_lists(each) for key, each in value.items()}
    ordered = functools.partial(json.dumps, sort_keys=True)
    return sorted(map(sorted_lists, value), key=ordered) if isinstance(value, list) else value
