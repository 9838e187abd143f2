"""Claims of our slices: what kube-scheduler and its controllers give, and what ours give where those are not.

One API server has kube-scheduler and kube-controller-manager; the other one has none, but ours. On both each case has a
node of its own, a DGX A100, and pods that come one after another.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import msgspec
import pytest
import pytest_asyncio
import yaml

from gpuplane.cli.kit.observed import observed_snapshot
from gpuplane.node.core.dra.publishing import manifest
from gpuplane.node.core.dra.slices import resource_slices
from gpuplane.node.hardware.described.profiles import PROFILES_FOLDER
from gpuplane.node.model.facts import ConfigLoaded
from gpuplane.sandbox.claimcontroller import run_claim_controller
from gpuplane.sandbox.scheduler.scheduler import run_scheduler
from tests.cluster.controlplane import Client, ControlPlane, Json
from tests.deploy.kustomize import DEPLOY
from tests.node.core.dra.nodes import DRA, after

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("control plane")]
HOST = "kubernetes.io/hostname"
RESOURCES = "/apis/resource.k8s.io/v1"
EXAMPLES = DEPLOY / "examples/dra"


# Pods. Of NVIDIA's quickstart (k8s-dra-driver-gpu, demo/specs/quickstart/v1) the claims, in our words.


def template(name: str, *requests: Json, **more: Any) -> Json:
    spec = {"devices": {"requests": list(requests), **more}}
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    return {**head, "metadata": {"name": name}, "spec": {"spec": spec}}


def request(name: str, device_class: str = "gpu.nvidia.com", expression: str = "", **more: Any) -> Json:
    selectors = {"selectors": [{"cel": {"expression": expression}}]} if expression else {}
    return {"name": name, "exactly": {"deviceClassName": device_class, **selectors, **more}}


def pod(name: str, **claim: str) -> Json:
    container = {"name": "c", "image": "x", "resources": {"claims": [{"name": "devices"}]}}
    spec = {"containers": [container], "resourceClaims": [{"name": "devices", **claim}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def made_of(name: str, *pods: str) -> list[Json]:
    return [pod(each, resourceClaimTemplateName=name) for each in pods]


def sharing(request_: str, **sharing: Any) -> Json:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
    return {"requests": [request_], "opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}


def example(name: str) -> list[Json]:
    return list(yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text()))


A100 = "device.attributes['gpu.nvidia.com'].productName.lowerAscii().matches('^.*a100.*$') && "
A100 += "device.attributes['gpu.nvidia.com'].index in [0, 2, 4, 6]"
MIG_SELECTOR = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'"
MIG_CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "mig.nvidia.com"},
    "spec": {"selectors": [{"cel": {"expression": MIG_SELECTOR}}]},
}
PROFILE = "device.attributes['gpu.nvidia.com'].profile == '{}'"
MIG = template(
    "mig-devices",
    request("mig-1g", "mig.nvidia.com", PROFILE.format("1g.5gb")),
    request("mig-2g", "mig.nvidia.com", PROFILE.format("2g.10gb")),
    constraints=[{"requests": [], "matchAttribute": "gpu.nvidia.com/parentUUID"}],
)
SHARED = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "shared"},
    "spec": {"devices": {"requests": [request("gpu")]}},
}
LAST = template("rest", request("gpu", allocationMode="All"))
TOO_MANY = template("nine", request("gpu", count=9))
DISTINCT = template(
    "far",
    request("gpu", count=2),
    constraints=[{"requests": ["gpu"], "distinctAttribute": "resource.kubernetes.io/numaNode"}],
)
FAILING = template("fails", request("gpu", expression="device.attributes['gpu.nvidia.com'].nothing == 1"))
ABSENT = template("absent", request("gpu", "nobody.example.com"))
Expected = Mapping[str, Any]
CASES: Mapping[str, tuple[Sequence[Json], Expected]] = {
    "one-gpu": (example("one-gpu"), {"one-gpu": {"gpu": [0]}}),
    "shared-claim": (example("shared-claim"), {"shared": {"gpu": [0]}}),
    "training": (example("training"), {"training": {"gpu": [0, 1]}}),  # below one PCIe root
    "best-available": (example("best-available"), {"best-available": {"acc/any": [0]}}),  # there is no Hopper
    "monitor": (example("monitor"), {"monitor": {"all": [*range(8)]}}),
    "gpu-and-kvm": (example("gpu-and-kvm"), {"gpu-and-kvm": {"gpu": [0], "kvm": ["device-node-kvm"]}}),
    "gpu-test1": (
        [template("t", request("gpu")), *made_of("t", "pod1", "pod2")],
        {"pod1": {"gpu": [0]}, "pod2": {"gpu": [1]}},
    ),
    "gpu-test3": (
        [SHARED, *(pod(each, resourceClaimName="shared") for each in ("pod1", "pod2"))],
        {"pod1": {"gpu": [0]}, "pod2": {"gpu": [0]}},
    ),
    "gpu-test4": ([MIG_CLASS, MIG, *made_of("mig-devices", "pod")], {"pod": "1 cannot allocate all claims"}),
    "gpu-test5": (
        [
            template(
                "t",
                request("ts"),
                request("mps"),
                config=[
                    {**sharing("ts", strategy="TimeSlicing"), "requests": ["ts", "mps"]},
                    sharing("ts", strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"}),
                    sharing("mps", strategy="MPS", mpsConfig={"defaultActiveThreadPercentage": 50}),
                ],
            ),
            *made_of("t", "pod0"),
        ],
        {"pod0": {"ts": [0], "mps": [1]}},
    ),
    "gpu-test6": (
        [template("t", request("gpu", expression=A100)), *made_of("t", *"abcde")],
        {
            **{name: {"gpu": [index]} for name, index in zip("abcd", (0, 2, 4, 6), strict=True)},
            "e": "1 cannot allocate all claims",
        },
    ),
    "gpu-test-count": ([template("t", request("gpu", count=2)), *made_of("t", "pod")], {"pod": {"gpu": [0, 1]}}),
    "all of them while one is held": (
        [template("t", request("gpu")), LAST, *made_of("t", "one"), *made_of("rest", "all")],
        {"one": {"gpu": [0]}, "all": "1 cannot allocate all claims"},
    ),
    "too many": ([TOO_MANY, *made_of("nine", "pod")], {"pod": "1 cannot allocate all claims"}),
    "apart": ([DISTINCT, *made_of("far", "pod")], {"pod": {"gpu": [0, 2]}}),
    "a selector that fails": ([FAILING, *made_of("fails", "pod")], {"pod": "CEL runtime error"}),
    "no class": ([ABSENT, *made_of("absent", "pod")], {"pod": "class nobody.example.com does not exist"}),
}  # fmt: skip


class Place:
    """A case: a node, its slices, and a namespace."""

    def __init__(self, admin: Client, name: str, slices: Sequence[Json]) -> None:
        self.admin, self.name, self.slices = admin, name, slices
        self.claims = f"{RESOURCES}/namespaces/{name}/resourceclaims"
        self.pods = f"/api/v1/namespaces/{name}/pods"

    async def play(self, objects: Sequence[Json]) -> Json:
        """What each pod is given, or why it is given nothing."""
        await self._make()
        given = {}
        for each in objects:
            if each["kind"] == "Pod":
                given[each["metadata"]["name"]] = await self._run(each)
            elif each["kind"] == "DeviceClass":
                await accepted(self.admin, each)
            elif each["kind"] != "Namespace":
                await accepted(self.admin, {**each, "metadata": {**each["metadata"], "namespace": self.name}})
        return given

    async def _make(self) -> None:
        labels = {HOST: self.name, "kubernetes.io/arch": "amd64"}
        ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2100-01-01T00:00:00Z"}
        capacity = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        path = f"/api/v1/nodes/{self.name}"
        await self.admin.ask("POST", "/api/v1/nodes", {"metadata": {"name": self.name, "labels": labels}})
        status = {"capacity": capacity, "allocatable": capacity, "conditions": [ready]}
        await self.admin.patch(path, {"status": status}, "status")
        await self.admin.patch(path, {"spec": {"taints": None}})  # where no controller takes it away
        for each in self.slices:
            await accepted(self.admin, each)
        labels = {"resource.kubernetes.io/admin-access": "true"}
        await accepted(
            self.admin, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name, "labels": labels}}
        )
        account = {"metadata": {"name": "default", "namespace": self.name}}
        await accepted(self.admin, {"apiVersion": "v1", "kind": "ServiceAccount", **account})

    async def _run(self, found: Json) -> Any:
        name = found["metadata"]["name"]
        spec = {**found["spec"], "nodeSelector": {HOST: self.name}}
        await self.admin.ask("POST", self.pods, {**found, "metadata": {"name": name}, "spec": spec})

        async def decided() -> Any:
            now = await self.admin.ask("GET", f"{self.pods}/{name}")
            told = [each["message"] for each in now["status"].get("conditions") or () if each["status"] == "False"]
            return now["spec"].get("nodeName") or any("waiting for" not in each for each in told)

        await self.admin.until(decided)
        now = await self.admin.ask("GET", f"{self.pods}/{name}")
        if "nodeName" not in now["spec"]:
            return now["status"]["conditions"][0]["message"]
        assert now["spec"]["nodeName"] == self.name
        made = {each["name"]: each["resourceClaimName"] for each in now["status"].get("resourceClaimStatuses") or ()}
        [uses] = now["spec"]["resourceClaims"]
        claim = await self.admin.ask("GET", f"{self.claims}/{uses.get('resourceClaimName') or made[uses['name']]}")
        assert name in [each["name"] for each in claim["status"]["reservedFor"]]
        return claim["status"]["allocation"]


async def accepted(admin: Client, found: Json) -> None:
    status, answer = await admin.apply(found)
    assert status < 300, answer


def published(machine: str, node: str) -> list[Json]:
    """What a node with this machine publishes."""
    snapshot = after(observed_snapshot(machine, None, PROFILES_FOLDER), ConfigLoaded(DRA))
    slices = resource_slices(snapshot, node)
    assert slices is not None
    return [msgspec.json.decode(msgspec.json.encode(manifest(each))) for each in slices]


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A DGX A100 that has /dev/kvm, too."""
    path = tmp_path_factory.mktemp("machine") / "dgx.yaml"
    kvm = "  - {id: kvm, kind: device-node, device_nodes: [/dev/kvm], numa: 0}\n"
    path.write_text(f"{(PROFILES_FOLDER / 'dgx-a100.yaml').read_text()}\ndevices:\n{kvm}")
    return str(path)


class Played(NamedTuple):
    """What each case's pods were given by Kubernetes' programs, and by ours."""

    admins: Sequence[Client]
    kubernetes: Mapping[str, Any]
    ours: Mapping[str, Any]


def place_name(case: str) -> str:
    return f"claims-{[*CASES].index(case)}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def played(
    control_plane: ControlPlane, profile: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Played]:
    bare = ControlPlane(tmp_path_factory.mktemp("api-server"))
    slices = {case: published(profile, place_name(case)) for case in CASES}
    async with AsyncExitStack() as stack:
        stack.callback(bare.run, "down")
        await asyncio.to_thread(bare.run, "up", "--no-scheduler", "--no-controllers")
        admins = [await stack.enter_async_context(Client(each)) for each in (control_plane, bare)]
        await stack.enter_async_context(run_claim_controller(bare.kubeconfig))
        await stack.enter_async_context(run_scheduler(bare.kubeconfig))

        async def play(admin: Client) -> Mapping[str, Any]:
            await accepted(admin, yaml.safe_load((DEPLOY / "components/dra/deviceclass.yaml").read_text()))
            places = [Place(admin, place_name(case), slices[case]) for case in CASES]
            given = await asyncio.gather(
                *(each.play(objects) for each, (objects, _) in zip(places, CASES.values(), strict=True))
            )
            return dict(zip(CASES, given, strict=True))

        kubernetes, ours = await asyncio.gather(*map(play, admins))
        yield Played(admins, kubernetes, ours)
        for case in CASES:
            await admins[0].ask("DELETE", f"/api/v1/nodes/{place_name(case)}")
            await admins[0].ask("DELETE", f"/api/v1/namespaces/{place_name(case)}")
            await admins[0].ask(
                "DELETE", f"{RESOURCES}/resourceslices", fieldSelector=f"spec.nodeName={place_name(case)}"
            )


def devices(allocation: Json) -> Json:
    """Request → its GPUs by their index; other devices by their name."""
    found: Json = {}
    for each in allocation["devices"]["results"]:
        name = each["device"]
        found.setdefault(each["request"], []).append(int(name[-1]) if name.startswith("gpu-") else name)
    return found


@pytest.mark.parametrize("case", CASES)
async def test_what_pods_are_given(played: Played, case: str) -> None:
    """By kube-scheduler what we expect, and by ours just the same: devices, configurations, nodes."""
    expected = CASES[case][1]
    kubernetes, ours = played.kubernetes[case], played.ours[case]
    assert kubernetes.keys() == ours.keys() == expected.keys()
    for name, wanted in expected.items():
        if isinstance(wanted, str):
            assert wanted in kubernetes[name]
            assert wanted in ours[name]
        else:
            assert devices(kubernetes[name]) == wanted
            assert without_times(ours[name]) == without_times(kubernetes[name])


def without_times(allocation: Json) -> Json:
    return {key: each for key, each in allocation.items() if key != "allocationTimestamp"}


async def test_what_ends_with_a_pod(played: Played) -> None:
    """A claim that was made for it; of one that others may use the allocation and the reservation."""
    for admin in played.admins:
        for case, name in (("one-gpu", "one-gpu"), ("shared-claim", "shared")):
            space = f"namespaces/{place_name(case)}"
            await admin.ask("DELETE", f"/api/v1/{space}/pods/{name}", gracePeriodSeconds="0")

            async def claims(path: str = f"{RESOURCES}/{space}/resourceclaims", admin: Client = admin) -> list[Json]:
                found: list[Json] = (await admin.ask("GET", path))["items"]
                return found

            async def ended(claims: Any = claims) -> bool:
                return not any(each.get("status", {}).get("reservedFor") for each in await claims())

            await admin.until(ended)
            if case == "shared-claim":
                assert [each["metadata"]["name"] for each in await claims()] == ["shared"]
                continue

            async def gone(claims: Any = claims) -> bool:
                return not await claims()

            await admin.until(gone)


async def test_every_example_is_tried() -> None:
    """But the one that needs a gate that is off."""
    assert {each.stem for each in EXAMPLES.glob("*.yaml")} - {*CASES} == {"maintenance"}
