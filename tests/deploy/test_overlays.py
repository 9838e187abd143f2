"""What `kubectl apply -k` makes of deploy/: complete, typed, least privileged, and explained.

The overlays are built by `tests.deploy.kustomize`. Where a real kustomize is installed the two are compared.
"""

import copy
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube import codecs

from tests.deploy.kustomize import DEPLOY, MERGE_KEYS, Json, apply, build, identity, real

OVERLAYS = ("nvidia-runtime", "host")
OF_NODES = ("node-labels", "node-feature", "features-file", "startup-taint", "trial")
OF_PROMETHEUS = ("grafana-dashboard", "pod-monitor", "prometheus-rules", "service-monitor")
OF_METRICS = ("metrics-authorization", "metrics-tls", "pod-labels", "process-metrics")
IN_BOTH = ("dra", "hook", "mig-config", "network-policy", *OF_METRICS, *OF_NODES, *OF_PROMETHEUS)


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def objects(overlay: str) -> list[Json]:
    return build(DEPLOY / "overlays" / overlay)


def _pod(objects: list[Json]) -> Json:
    [daemonset] = [each for each in objects if each["kind"] == "DaemonSet"]
    spec: Json = daemonset["spec"]["template"]["spec"]
    return spec


def _container(objects: list[Json]) -> Json:
    [container] = _pod(objects)["containers"]
    found: Json = container
    return found


def _all(pod: Json) -> list[Json]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def _variables(container: Json) -> dict[str, Any]:
    return {each["name"]: each.get("value") for each in container["env"]}


def test_the_objects(objects: list[Json]) -> None:
    """These and no others."""
    assert sorted(f"{each['kind']} {each['metadata']['name']}" for each in objects) == [
        "ClusterRole gpuplane-agent",
        "ClusterRoleBinding gpuplane-agent",
        "ConfigMap gpuplane-configs",
        "DaemonSet gpuplane-agent",
        "Namespace gpuplane",
        "ResourceQuota gpuplane-critical",
        "Role gpuplane-agent",
        "RoleBinding gpuplane-agent",
        "ServiceAccount gpuplane-agent",
        "ValidatingAdmissionPolicy gpuplane-agent-own-node",
        "ValidatingAdmissionPolicyBinding gpuplane-agent-own-node",
    ]


def test_every_field_is_kubernetes(objects: list[Json]) -> None:
    """Decoding into Kubernetes' types loses nothing: no key is misspelt, none has another type."""
    for each in objects:
        assert _typed(each) == _pruned(each), each["kind"]


def test_a_misspelt_field_would_be_seen(objects: list[Json]) -> None:
    """The test above can fail."""
    wrong = copy.deepcopy(next(each for each in objects if each["kind"] == "DaemonSet"))
    wrong["spec"]["template"]["spec"]["hostNetwrok"] = True

    assert _typed(wrong) != _pruned(wrong)


def _typed(found: Json) -> Any:
    return _pruned(codecs.from_dict(found).to_dict())  # type: ignore[no-untyped-call]


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _pruned(v) for k, v in value.items() if v is not None and _pruned(v) != {}}
    if isinstance(value, list):
        return [_pruned(each) for each in value]
    return value


def test_the_real_kustomize_agrees(overlay: str, objects: list[Json]) -> None:
    """The builder of this test builds what kubectl would."""
    found = real(DEPLOY / "overlays" / overlay)
    if found is None:
        pytest.skip("neither kustomize nor kubectl is installed; the builder of these tests stands in")

    def sorted_by_identity(found: list[Json]) -> list[Json]:
        return sorted((_ordered(each) for each in found), key=lambda each: str(identity(each)))

    assert sorted_by_identity(found) == sorted_by_identity(objects)


def _ordered(value: Any, key: str = "") -> Any:
    """Lists that are merged by a key have no order of their own."""
    if isinstance(value, dict):
        return {k: _ordered(v, k) for k, v in value.items()}
    if isinstance(value, list):
        items = [_ordered(each) for each in value]
        return sorted(items, key=lambda each: str(each[MERGE_KEYS[key]])) if key in MERGE_KEYS else items
    return value


MAY, COMPONENTS = "What the agent may do, and why", "Components"
LOCKED_DOWN = {
    "runAsUser": 0,
    "runAsGroup": 0,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
PRIVILEGED = {"runAsUser": 0, "runAsGroup": 0, "readOnlyRootFilesystem": True, "privileged": True}
SECURITY = {"nvidia-runtime": LOCKED_DOWN, "host": PRIVILEGED}
KUBELET = "/var/lib/kubelet"
HOST_PATHS = {
    f"{KUBELET}/device-plugins": (f"{KUBELET}/device-plugins", "rw"),
    f"{KUBELET}/pod-resources": (f"{KUBELET}/pod-resources", "ro"),
    "/var/lib/gpuplane": ("/var/lib/gpuplane", "rw"),
}
DRA_DIRECTORIES = ("plugins_registry", "plugins/gpu.nvidia.com")
CDI, HOOK = "/var/run/cdi", "/opt/gpuplane/bin"
ROOT_PATHS = {"/": ("/driver-root", "ro"), CDI: (CDI, "rw")}
DRIVER = ("/usr", "/sbin", "/lib/firmware", "/etc/OpenCL", "/etc/alternatives")
CDI_PATHS = {CDI: (CDI, "rw")} | {each: (f"/driver-root{each}", "ro") for each in DRIVER}
HOST_PATHS_OF = {
    "nvidia-runtime": HOST_PATHS,
    "host": {**HOST_PATHS, **ROOT_PATHS, HOOK: (HOOK, "ro"), "/dev": ("/dev", "ro")},
}


def test_who_may_what_on_the_node(overlay: str, objects: list[Json]) -> None:
    """The table of privileges: all of it, and nothing of the host besides."""
    pod, container = _pod(objects), _container(objects)

    assert container["securityContext"] == SECURITY[overlay]
    assert not {"hostNetwork", "hostIPC", "securityContext"} & set(pod)
    assert len(pod.get("initContainers", ())) == (1 if overlay == "host" else 0)
    assert pod.get("hostPID", False) == (overlay == "host")
    assert [each for port in container["ports"] for each in port] == ["name", "containerPort"]
    assert dict(_host_paths(pod, container)) == HOST_PATHS_OF[overlay]
    assert pod.get("runtimeClassName") == ("nvidia" if overlay == "nvidia-runtime" else None)


def _host_paths(pod: Json, container: Json) -> Iterator[tuple[str, tuple[str, str]]]:
    mounts = {each["name"]: each for each in container["volumeMounts"]}
    for volume in pod["volumes"]:
        if "hostPath" in volume:
            mount = mounts[volume["name"]]
            yield volume["hostPath"]["path"], (mount["mountPath"], "ro" if mount.get("readOnly") else "rw")


RIGHTS = {
    ("ClusterRole", ""): [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
    ],
    ("Role", "default"): [{"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}],
}


def test_who_may_what_in_the_cluster(objects: list[Json]) -> None:
    """The table of rights: all of it, bound to the agent's account alone, and explained in deploy/README.md."""
    roles = {(each["kind"], each["metadata"].get("namespace", "")): each for each in objects if _is(each, "Role")}
    bindings = [each for each in objects if _is(each, "RoleBinding")]

    assert {key: each["rules"] for key, each in roles.items()} == RIGHTS
    assert len(bindings) == len(roles)
    for binding in bindings:
        role = roles[binding["roleRef"]["kind"], binding["metadata"].get("namespace", "")]
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        assert [(each["kind"], each["namespace"], each["name"]) for each in binding["subjects"]] == [
            ("ServiceAccount", "gpuplane", _pod(objects)["serviceAccountName"])
        ]

    rows = {cells[0]: cells[1:] for cells in _rows((DEPLOY / "README.md").read_text())}
    for (_, namespace), rules in RIGHTS.items():
        for rule in rules:
            what = f"`{rule['resources'][0]}`: {', '.join(rule['verbs'])}" + f", in `{namespace}`" * bool(namespace)
            assert len(rows[what][0]) > 30, what
            assert len(rows[what][1]) > 30, what


@pytest.mark.parametrize(
    ("component", "kind", "rule"),
    [
        ("node-labels", "ClusterRole", ("", "nodes", ["patch"])),
        ("startup-taint", "ClusterRole", ("", "nodes", ["patch"])),
        ("node-feature", "Role", ("nfd.k8s-sigs.io", "nodefeatures", ["get", "create", "patch", "delete"])),
        ("features-file", "", None),
    ],
)
def test_what_a_component_adds_for_the_node_object(
    objects: list[Json], component: str, kind: str, rule: tuple[str, str, list[str]] | None
) -> None:
    """One right for the agent's account, explained in deploy/README.md, and how it is switched on; no privilege."""
    found = apply(DEPLOY / "components" / component, objects)
    known = {identity(each) for each in objects}
    added = {each["kind"]: each for each in found if identity(each) not in known}
    assert {each for each in added if "Role" in each} == ({kind, f"{kind}Binding"} if kind else set())
    before, after = _container(objects), _container(found)
    assert after["securityContext"] == before["securityContext"]
    names = {each["name"] for each in after["env"]} - {each["name"] for each in before["env"]}
    assert names
    assert names <= {"FEATURE_LABELS", "NODE_ANNOTATION", "STARTUP_TAINT"}
    if rule is None:
        return
    group, resource, verbs = rule
    assert added[kind]["rules"] == [{"apiGroups": [group], "resources": [resource], "verbs": verbs}]
    assert added[f"{kind}Binding"]["roleRef"]["name"] == added[kind]["metadata"]["name"]
    assert [each["name"] for each in added[f"{kind}Binding"]["subjects"]] == [_pod(objects)["serviceAccountName"]]
    rows = {cells[0]: cells[1:] for cells in _rows((DEPLOY / "README.md").read_text())}
    within = ", in its namespace" if kind == "Role" else ""
    assert all(rows[f"`{resource}`: {', '.join(verbs)}{within}, with `components/{component}`"])


def _is(found: Json, kind: str) -> bool:
    return bool(found["kind"].removeprefix("Cluster") == kind)


def test_every_host_path_and_privilege_has_its_reason(overlay: str, objects: list[Json]) -> None:
    """deploy/README.md has a row for each, with an access and a reason."""
    rows = {cells[0]: cells[1:] for cells in _rows((DEPLOY / "README.md").read_text())}
    for path, (_, access) in _host_paths(_pod(objects), _container(objects)):
        said, of, why = rows[f"`{path}`"]

        assert said.startswith("read-only") == (access == "ro"), path
        assert f"`{overlay}`" in ("`nvidia-runtime`, `host`" if of == "both" else of).split(", "), path
        assert len(why) > 30
    for privilege in ("user 0, all capabilities dropped", "`SYS_ADMIN`", "`privileged`", "`hostPID`", "TCP port 9410"):
        assert len(rows[privilege][1]) > 30


def _rows(text: str, heading: str = MAY) -> Iterator[list[str]]:
    """The cells of a section's tables."""
    for line in text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0].splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def test_what_is_to_be_uncommented(overlay: str, tmp_path: Path) -> None:
    """The image's registry, and every component where one fits: uncommented, the overlay builds with all of them."""
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    path = tmp_path / "deploy/overlays" / overlay / "kustomization.yaml"
    path.write_text(re.sub(r"^# (images:|components:|  - )", r"\1", path.read_text(), flags=re.MULTILINE))
    layer = yaml.safe_load(path.read_text())
    here = {f"../../components/{each.name}" for each in (DEPLOY / "components").iterdir()}

    both = {f"../../components/{each}" for each in IN_BOTH}

    assert set(layer["components"]) == (here if overlay == "nvidia-runtime" else both)
    assert layer["images"] == [{"name": "gpuplane", "newName": "registry.example/gpuplane", "newTag": "0.1.0"}]
    found = real(path.parent)
    if found is not None:
        built = [each for each in found if each["kind"] == "DaemonSet"]
        assert {each["image"] for pod in map(_pod, ([each] for each in built)) for each in _all(pod)} == {
            "registry.example/gpuplane:0.1.0"
        }
        assert len(built) == (2 if overlay == "nvidia-runtime" else 1)


def test_every_component_is_explained() -> None:
    """deploy/README.md says for which nodes it is, and what it adds."""
    rows = {cells[0]: cells[1:] for cells in _rows((DEPLOY / "README.md").read_text(), COMPONENTS)}
    for each in (DEPLOY / "components").iterdir():
        assert len(rows[f"`{each.name}`"]) == 2, each.name
        assert all(rows[f"`{each.name}`"]), each.name


def test_what_each_mount_is_good_for_is_said() -> None:
    """deploy/README.md says of each directory of the node what somebody could do by it who has taken the agent over."""
    said = "".join(cells[0] for cells in _rows((DEPLOY / "README.md").read_text(), "If the agent were taken over"))
    objects = build(DEPLOY / "overlays/nvidia-runtime")
    for each in ("cdi", "dra", "driver-root", "mps"):
        found = apply(DEPLOY / "components" / each, objects)
        agent = [each for each in found if each["metadata"]["name"] == "gpuplane-agent"]
        for path, (place, _) in _host_paths(_pod(agent), _container(agent)):
            assert f"`{path}`" in said or (place.startswith("/driver-root/") and "directories of the driver" in said), (
                path
            )


def test_mig_adds_one_capability(tmp_path: Path) -> None:
    """components/mig adds what NVIDIA's runtime wants for it, and nothing else."""
    plain = build(DEPLOY / "overlays/nvidia-runtime")
    container = _container(apply(DEPLOY / "components/mig", plain))

    assert container["securityContext"] == LOCKED_DOWN | {"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}
    assert [each for each in container["env"] if each not in _container(plain)["env"]] == [
        {"name": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"}
    ]


def test_mig_config_add_what_changes_partitions(overlay: str) -> None:
    """components/mig-config: one capability, the host's processes, a ConfigMap that need not be there, and one right,
    which the policy narrows; and nothing of the node's files."""
    plain = build(DEPLOY / "overlays" / overlay)
    found = apply(DEPLOY / "components/mig-config", plain)
    pod, container, before = _pod(found), _container(found), _container(plain)
    added = {"name": "mig-configs", "configMap": {"name": "default-mig-parted-config", "optional": True}}

    assert dict(_host_paths(pod, container)) == dict(_host_paths(_pod(plain), before))
    assert [each for each in pod["volumes"] if each not in _pod(plain)["volumes"]] == [added]
    assert pod | {"containers": 0, "volumes": 0} == _pod(plain) | {"hostPID": True, "containers": 0, "volumes": 0}
    assert [each for each in container["env"] if each not in before["env"]] == [
        {"name": "FOLLOW_MIG_LABEL", "value": "true"},
        {"name": "NVIDIA_MIG_CONFIG_DEVICES", "value": "all"},
        {"name": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"},
    ]
    security: Json = dict(SECURITY[overlay])  # type: ignore[call-overload]
    security["capabilities"] = {**security.get("capabilities", {}), "add": ["SYS_ADMIN"]}
    assert container["securityContext"] == security
    known = {identity(each) for each in plain}
    roles = {each["kind"]: each for each in found if identity(each) not in known}
    assert roles.keys() == {"ClusterRole", "ClusterRoleBinding"}
    assert roles["ClusterRole"]["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}]
    assert roles["ClusterRoleBinding"]["roleRef"]["name"] == roles["ClusterRole"]["metadata"]["name"]
    assert [each["name"] for each in roles["ClusterRoleBinding"]["subjects"]] == [pod["serviceAccountName"]]
    rows = {cells[0]: cells[1:] for cells in _rows((DEPLOY / "README.md").read_text())}
    assert all(rows["`nodes`: patch, with `components/mig-config`"])
    assert all(_typed(each) == _pruned(each) for each in found)
    both = apply(DEPLOY / "components/mig", found) if overlay == "nvidia-runtime" else found
    assert _container(both)["securityContext"] == container["securityContext"]


def test_dra_adds_two_directories_of_kubelet_and_rights_for_claims(overlay: str) -> None:
    """components/dra: where kubelet finds the driver, a class of devices, and rights that its policy narrows."""
    plain = build(DEPLOY / "overlays" / overlay)
    found = apply(DEPLOY / "components/dra", plain)
    pod, container, before = _pod(found), _container(found), _container(plain)
    paths = {f"{KUBELET}/{name}": (f"{KUBELET}/{name}", "rw") for name in DRA_DIRECTORIES}
    assert dict(_host_paths(pod, container)) == {**HOST_PATHS_OF[overlay], **paths}
    assert container["securityContext"] == before["securityContext"]
    assert _variables(container).items() - _variables(before).items() == {("GPUPLANE_DRA", "true"), ("POD_UID", None)}
    known = {identity(each) for each in plain}
    added = {each["kind"]: each for each in found if identity(each) not in known}
    assert added.keys() == {
        "ClusterRole",
        "ClusterRoleBinding",
        "DeviceClass",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
    rows = {cells[0]: cells[1:] for cells in _rows((DEPLOY / "README.md").read_text())}
    rights = {rule["resources"][0]: rule["verbs"] for rule in added["ClusterRole"]["rules"]}
    assert rights == {
        "resourceclaims": ["get"],
        "resourceclaims/status": ["patch"],
        "resourceclaims/driver": ["associated-node:patch"],
        "resourceslices": ["list", "watch", "create", "patch", "delete"],
    }
    for resource, verbs in rights.items():
        assert all(rows[f"`{resource}`: {', '.join(verbs)}, with `components/dra`"])
    for path in paths:
        assert all(rows[f"`{path}`"])
    assert added["ClusterRoleBinding"]["roleRef"]["name"] == added["ClusterRole"]["metadata"]["name"]
    assert [each["name"] for each in added["ClusterRoleBinding"]["subjects"]] == [pod["serviceAccountName"]]


def test_time_slices_add_one_capability() -> None:
    """components/time-slices adds what the driver wants for them, and nothing else, with and without components/mig."""
    plain = build(DEPLOY / "overlays/nvidia-runtime")
    for objects in (plain, apply(DEPLOY / "components/mig", plain)):
        container, before = _container(apply(DEPLOY / "components/time-slices", objects)), _container(objects)
        capabilities = {"drop": ["ALL"], "add": ["SYS_ADMIN"]}

        assert container["securityContext"] == LOCKED_DOWN | {"capabilities": capabilities}
        assert container | {"securityContext": None} == before | {"securityContext": None}


def test_process_metrics_show_processes_and_names_of_logs(overlay: str) -> None:
    """components/process-metrics adds hostPID and two directories, read-only, and nothing else."""
    plain = build(DEPLOY / "overlays" / overlay)
    found = apply(DEPLOY / "components/process-metrics", plain)
    pod, container = _pod(found), _container(found)
    added = {path: (path, "ro") for path in ("/var/log/containers", "/var/log/pods")}

    assert dict(_host_paths(pod, container)) == dict(_host_paths(_pod(plain), _container(plain))) | added
    assert pod == _pod(plain) | {"hostPID": True, "containers": pod["containers"], "volumes": pod["volumes"]}
    assert {**container, "volumeMounts": 0} == {**_container(plain), "volumeMounts": 0}


def test_pod_labels_add_one_right(objects: list[Json]) -> None:
    """components/pod-labels adds it for the agent's account, explained in deploy/README.md, and changes no pod."""
    found = apply(DEPLOY / "components/pod-labels", objects)
    known = {identity(each) for each in objects}
    added = {each["kind"]: each for each in found if identity(each) not in known}

    assert added.keys() == {"ClusterRole", "ClusterRoleBinding"}
    assert added["ClusterRole"]["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    assert added["ClusterRoleBinding"]["roleRef"]["name"] == added["ClusterRole"]["metadata"]["name"]
    assert _pod(found) == _pod(objects)
    rows = {cells[0]: cells[1:] for cells in _rows((DEPLOY / "README.md").read_text())}
    assert all(rows["`pods`: list, watch, with `components/pod-labels`"])


def test_kernel_log_adds_the_device_and_what_opens_it() -> None:
    """components/kernel-log mounts it read-only, makes the agent privileged and gives it the process ids that the log
    has, with and without components/mig."""
    plain = build(DEPLOY / "overlays/nvidia-runtime")
    for objects in (plain, apply(DEPLOY / "components/mig", plain)):
        found = apply(DEPLOY / "components/kernel-log", objects)
        pod, container = _pod(found), _container(found)

        assert container["securityContext"] == PRIVILEGED
        assert pod == _pod(objects) | {"hostPID": True, "containers": pod["containers"], "volumes": pod["volumes"]}
        assert dict(_host_paths(pod, container)) == HOST_PATHS | {"/dev/kmsg": ("/dev/kmsg", "ro")}
        assert {**container, "securityContext": 0, "volumeMounts": 0} == {
            **_container(objects), "securityContext": 0, "volumeMounts": 0
        }  # fmt: skip
        assert all(_typed(each) == _pruned(each) for each in found)


def test_cdi_shows_the_drivers_files_and_where_specifications_are(objects: list[Json], overlay: str) -> None:
    """components/cdi adds directories of the driver, and no privilege; without it the agent keeps no specifications."""
    [argument] = [each for each in _container(objects)["args"] if each.startswith("--cdi-dir=")]
    assert argument == "--cdi-dir=$(CDI_DIR)"
    assert _variables(_container(objects))["CDI_DIR"] == (CDI if overlay == "host" else "")
    if overlay == "host":
        return

    found = apply(DEPLOY / "components/cdi", objects)
    pod, container = _pod(found), _container(found)
    assert container["securityContext"] == LOCKED_DOWN
    assert pod == _pod(objects) | {"containers": pod["containers"], "volumes": pod["volumes"]}
    assert dict(_host_paths(pod, container)) == HOST_PATHS | CDI_PATHS
    assert _variables(container) == _variables(_container(objects)) | {
        "CDI_DIR": CDI, "DRIVER_ROOT_CTR_PATH": "/driver-root"
    }  # fmt: skip
    assert all(_typed(each) == _pruned(each) for each in found)


def test_driver_root_is_in_place_of_the_drivers_directories() -> None:
    """components/driver-root: one mount of the whole root, as far as possible read-only, and nothing else."""
    cdi = apply(DEPLOY / "components/cdi", build(DEPLOY / "overlays/nvidia-runtime"))
    found = apply(DEPLOY / "components/driver-root", cdi)
    pod, container = _pod(found), _container(found)

    assert dict(_host_paths(pod, container)) == HOST_PATHS | ROOT_PATHS
    assert {**container, "volumeMounts": 0} == {**_container(cdi), "volumeMounts": 0}
    [root] = [each for each in container["volumeMounts"] if each["name"] == "driver-root"]
    assert root["recursiveReadOnly"] == "IfPossible", "or /proc, /sys and /run could be written there"
    assert "mountPropagation" not in root, "Kubernetes refuses both"
    assert all(_typed(each) == _pruned(each) for each in found)


@pytest.mark.parametrize("component", ["cdi", "driver-root"])
def test_what_the_agent_sees_of_the_driver_has_its_reason(component: str) -> None:
    """deploy/README.md has a row for each directory."""
    rows = {cells[0]: cells[1:] for cells in _rows((DEPLOY / "README.md").read_text())}
    paths = ["/"] if component == "driver-root" else ["`, `".join(DRIVER), CDI]

    for said, of, why in (rows[f"`{each}`"] for each in paths):
        assert said
        assert f"`nvidia-runtime` with `components/{component}`" in of.split(", ")
        assert len(why) > 30


def test_the_agent_cannot_write_what_containers_call(overlay: str, objects: list[Json]) -> None:
    """components/hook: another container installs the program, has no privilege and sees nothing else of the node."""
    found = objects if overlay == "host" else apply(DEPLOY / "components/hook", objects)
    pod, agent = _pod(found), _container(found)
    [hook] = pod["initContainers"]

    assert hook["command"] == ["gpuplane-hook", "install", HOOK]
    assert hook["securityContext"] == LOCKED_DOWN
    assert [(each["mountPath"], each.get("readOnly")) for each in hook["volumeMounts"]] == [(HOOK, None)]
    assert dict(_host_paths(pod, agent)) == HOST_PATHS_OF[overlay] | {HOOK: (HOOK, "ro")}
    assert f"--hook-path={HOOK}/gpuplane-hook" in agent["args"]
    assert hook["image"] == agent["image"]
    rows = {cells[0]: cells[1:] for cells in _rows((DEPLOY / "README.md").read_text())}
    assert len(rows[f"`{HOOK}`, in the init container"][-1]) > 30
    assert all(_typed(each) == _pruned(each) for each in found)


def test_the_host_overlay_has_the_kernel_log() -> None:
    """All of /dev, where a privileged agent looks for it."""
    found = build(DEPLOY / "overlays/host")

    assert dict(_host_paths(_pod(found), _container(found)))["/dev"] == ("/dev", "ro")
    assert not any(each.startswith(("--host-root", "--kernel-log")) for each in _container(found)["args"])


def test_the_port_can_be_left_to_one_namespace(overlay: str, objects: list[Json]) -> None:
    """components/network-policy: of the agent's pods the one port, for the pods of a namespace that one chooses."""
    found = apply(DEPLOY / "components/network-policy", objects)
    [policy] = [each for each in found if each["kind"] == "NetworkPolicy"]
    [daemonset] = [each for each in found if each["kind"] == "DaemonSet"]
    [port] = _container(found)["ports"]
    spec = policy["spec"]

    assert policy["metadata"]["namespace"] == daemonset["metadata"]["namespace"]
    assert spec["podSelector"]["matchLabels"].items() <= daemonset["spec"]["template"]["metadata"]["labels"].items()
    assert spec["policyTypes"] == ["Ingress"]
    assert spec["ingress"] == [
        {
            "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
            "ports": [{"protocol": "TCP", "port": port["containerPort"]}],
        }
    ]
    assert "hostNetwork" not in _pod(found), "no policy would hold for it"
    assert _typed(policy) == _pruned(policy)
    assert [each for each in found if each is not policy] == objects


def test_metrics_over_tls(objects: list[Json]) -> None:
    """components/metrics-tls: the files of one Secret, and probes with the same scheme. The rest stays."""
    found = apply(DEPLOY / "components/metrics-tls", objects)
    pod, container = _pod(found), _container(found)
    [volume] = [each for each in pod["volumes"] if "secret" in each]
    [mount] = [each for each in container["volumeMounts"] if each["name"] == volume["name"]]
    before = _container(objects)

    assert mount["readOnly"]
    assert {name: value for name, value in _variables(container).items() if name not in _variables(before)} == {
        "TLS_CERT_FILE": f"{mount['mountPath']}/tls.crt",
        "TLS_PRIVATE_KEY_FILE": f"{mount['mountPath']}/tls.key",
    }
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {**before[probe]["httpGet"], "scheme": "HTTPS"}
    assert container["args"] == before["args"]
    assert [each for each in found if each["kind"] != "DaemonSet"] == [
        each for each in objects if each["kind"] != "DaemonSet"
    ]


def test_only_readers_get_metrics(objects: list[Json]) -> None:
    """components/metrics-authorization: two rights to ask, explained in deploy/README.md, and a role for readers."""
    found = apply(DEPLOY / "components/metrics-authorization", objects)
    known = {identity(each) for each in objects}
    added = {each["metadata"]["name"]: each for each in found if each["kind"] == "ClusterRole"}
    account = added["gpuplane-agent-metrics-authorization"]
    rows = {cells[0]: cells[1:] for cells in _rows((DEPLOY / "README.md").read_text())}

    assert [each["kind"] for each in found if identity(each) not in known] == [
        "ClusterRole",
        "ClusterRoleBinding",
        "ClusterRole",
    ]
    for rule in account["rules"]:
        assert rule["verbs"] == ["create"]
        assert all(rows[f"`{rule['resources'][0]}`: create, with `components/metrics-authorization`"])
    assert added["gpuplane-metrics-reader"]["rules"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    assert _variables(_container(found)) == {**_variables(_container(objects)), "AUTHORIZATION_MODE": "Webhook"}


def test_where_it_runs(objects: list[Json]) -> None:
    """On the nodes that NVIDIA's chart chooses, past the taints that it tolerates, before other pods."""
    pod = _pod(objects)
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]

    assert [(e["key"], e["operator"], e["values"]) for term in terms for e in term["matchExpressions"]] == [
        ("feature.node.kubernetes.io/pci-10de.present", "In", ["true"]),
        ("feature.node.kubernetes.io/cpu-model.vendor_id", "In", ["NVIDIA"]),
        ("nvidia.com/gpu.present", "In", ["true"]),
    ]
    assert pod["tolerations"] == [
        {"key": "CriticalAddonsOnly", "operator": "Exists"},
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
    ]
    assert pod["priorityClassName"] == "system-node-critical"


def test_probes_and_metrics_share_one_port(objects: list[Json]) -> None:
    """Liveness, readiness and --metrics-address mean the same port."""
    container = _container(objects)
    [port] = container["ports"]

    assert f"--metrics-address=0.0.0.0:{port['containerPort']}" in container["args"]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": port["name"]}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": port["name"]}


def test_the_configurations_are_mounted_as_a_directory(objects: list[Json]) -> None:
    """A ConfigMap with a fixed name, no subPath: kubelet brings edits to the running agent."""
    pod, container = _pod(objects), _container(objects)
    [configs] = [each for each in objects if each["kind"] == "ConfigMap"]
    [volume] = [each for each in pod["volumes"] if "configMap" in each]
    [mount] = [each for each in container["volumeMounts"] if each["name"] == volume["name"]]

    assert volume["configMap"]["name"] == configs["metadata"]["name"] == "gpuplane-configs"
    assert "subPath" not in mount
    assert f"--config={mount['mountPath']}" in container["args"]
    assert "default" in configs["data"]


def test_an_upgrade_starts_the_new_agent_beside_the_old(objects: list[Json]) -> None:
    """Nothing of the pod is such that there could be only one of it on a node, and both lock the same directory."""
    [daemonset] = [
        each for each in objects if (each["kind"], each["metadata"]["name"]) == ("DaemonSet", "gpuplane-agent")
    ]
    pod, container = _pod(objects), _container(objects)
    strategy = daemonset["spec"]["updateStrategy"]

    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "10%", "maxUnavailable": 0}}
    assert not pod.get("hostNetwork")
    assert all("hostPort" not in port for port in container["ports"])
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    [mount] = [each for each in container["volumeMounts"] if each["mountPath"] == "/var/lib/kubelet/device-plugins"]
    [volume] = [each for each in pod["volumes"] if each["name"] == mount["name"]]
    assert volume["hostPath"] == {"path": mount["mountPath"], "type": "Directory"}
    assert not mount.keys() & {"subPath", "readOnly"}
