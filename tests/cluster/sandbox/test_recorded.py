"""What the API server shows of pods with claims on a played node is what it showed of a real kubelet 1.36.2."""

import asyncio
from collections.abc import AsyncIterator
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from gpuplane.node.kubelet.protocols import drahealth_pb2 as health
from gpuplane.sandbox.changes import Changes
from gpuplane.sandbox.kubelet import DraTimes
from gpuplane.sandbox.node.played import PlayedNode
from tests.cluster.sandbox.recorded import FAILED_PREPARE, RECORDED_REASONS, STATES
from tests.cluster.sandbox.world import DEADLINE, Json, World, running_world
from tests.sandbox.kubelet.recorded import CREATE_ERROR, FAILURES
from tests.sandbox.kubelet.toyplugin import DEVICES, DRIVER, POOL, ToyPlugin

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.xdist_group("played cluster"),
    pytest.mark.timeout(600),
]
NODE, NAMESPACE = "t4-0", "dra-lab"
OBJECTS, CLAIMS_API = f"/api/v1/namespaces/{NAMESPACE}", f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}"
TIMES = msgspec.structs.replace(
    DraTimes().scaled(0.02), dial=10.0, get_info=10.0, notify=10.0, call=45.0, pod_sync=1.0, health_age=600.0
)
"""Kubelet's times, 50 times shorter; but not those in which something has to be done on a busy machine."""


class Plugin(ToyPlugin):
    """It gives what the scheduler has allocated. `by_name`: how a claim's name begins → device; others have g4."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.by_name = {"p-tmpl": "g0", "p-new": "g3", "p-kept": "g3"}

    def devices(self, claim: Any) -> list[dict[str, Any]]:
        found = next((device for name, device in self.by_name.items() if claim.name.startswith(name)), "g4")
        self.allocated[claim.uid] = [(found, None)]
        return super().devices(claim)


class Lab:
    """A node without an agent, the recorded plugin on it, and what the API server has shown of pods since."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.node: PlayedNode = world.nodes[NODE]
        self.plugin = Plugin(self.node.spec.link)
        self.plugin.cdi = self.node.spec.directory / "root/etc/cdi"
        self.plugin.cdi.mkdir(parents=True, exist_ok=True)
        self.states: dict[str, list[str]] = {}
        self.seen = Changes()

    # objects

    async def prepare(self) -> None:
        """The namespace, the class and the template that were there."""
        await self.world.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
            {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "lab"},
             "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]}},
        )  # fmt: skip
        await self.world.apply(
            {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
             "metadata": {"name": "tmpl", "namespace": NAMESPACE}, "spec": {"spec": claim_spec("g0")}},
            {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
             "metadata": {"name": "third", "namespace": NAMESPACE}, "spec": {"spec": claim_spec("g3")}},
        )  # fmt: skip
        await self.publish()

    async def publish(self) -> None:
        """g0 to g3 are exclusive, g4 and g5 shared."""
        devices: list[Json] = [{"name": each, "attributes": {"name": {"string": each}}} for each in DEVICES]
        for shared in devices[4:]:
            shared["allowMultipleAllocations"] = True
        spec = {"driver": DRIVER, "nodeName": NODE, "devices": devices,
                "pool": {"name": POOL, "generation": 1, "resourceSliceCount": 1}}  # fmt: skip
        await self.world.apply(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": "lab-pool"},
                "spec": spec,
            }
        )

    async def claim(self, name: str, device: str = "g4") -> str:
        """A claim for one device; its UID."""
        self.plugin.by_name[name] = device
        await self.world.apply(
            {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
             "metadata": {"name": name, "namespace": NAMESPACE}, "spec": claim_spec(device)}
        )  # fmt: skip
        return str((await self.world.client.get(f"{CLAIMS_API}/resourceclaims/{name}", Json))["metadata"]["uid"])

    async def pod(self, name: str, *containers: Json, **claims: str) -> str:
        """A pod with these claims ("t:NAME" of a template), which its container "c" uses; its UID."""
        mine = [{"name": each, "resourceClaimTemplateName": claim[2:]} if claim.startswith("t:")
                else {"name": each, "resourceClaimName": claim} for each, claim in claims.items()]  # fmt: skip
        uses = containers or (container("c", *({"name": each} for each in claims)),)
        await self.world.apply(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE},
             "spec": {"terminationGracePeriodSeconds": 2, "resourceClaims": mine, "containers": list(uses)}}
        )  # fmt: skip
        found = await self.world.client.get(f"{OBJECTS}/pods/{name}", Json)
        return str(found["metadata"]["uid"])

    async def delete(self, name: str, **options: Any) -> None:
        await self.world.client.send("DELETE", f"{OBJECTS}/pods/{name}", options or None)

    # what is seen

    async def follow(self) -> None:
        """Enter each state of each pod, for ever."""
        path = f"{OBJECTS}/pods"
        listed = await self.world.client.get(path, Json)
        async with self.world.client.watch(path, Json, listed["metadata"]["resourceVersion"]) as changes:
            async for event in changes:
                if event.type == "BOOKMARK":
                    continue
                seen = "gone" if event.type == "DELETED" else describe(event.object)
                states = self.states.setdefault(event.object["metadata"]["name"], [])
                if seen and (not states or states[-1] != seen):
                    states.append(seen)
                self.seen.notify()

    async def until(self, name: str, state: str) -> None:
        """Until a pod was seen so last. Raises TimeoutError."""
        try:
            await self.seen.until(lambda: (self.states.get(name) or [""])[-1] == state, DEADLINE)
        except TimeoutError:
            raise TimeoutError(f"{name}: {self.states.get(name)}, not {state}; {self.plugin.calls}") from None

    async def until_told(self, name: str, reason: str, count: int = 1) -> None:
        """Until kubelet has told this of a pod so often."""

        async def told() -> bool:
            return any(each[0] == reason and each[2] >= count for each in await self.events(name))

        await self.world.until(told)

    async def is_free(self, claim: str) -> bool:
        """Whether nobody has a claim's devices."""
        found = await self.world.client.get(f"{CLAIMS_API}/resourceclaims/{claim}", Json)
        return "allocation" not in (found.get("status") or {})

    async def until_recorded(self, *names: str) -> None:
        """These pods end, and have shown what was recorded of them."""
        for name in names:
            if self.states[name][-1] != "gone":
                if " ending" not in self.states[name][-1]:
                    await self.delete(name)
                await self.until(name, "gone")
            assert self.states[name] == list(STATES[name]), name

    async def events(self, name: str) -> list[tuple[str, str, int]]:
        """(reason, message, count) of each that was recorded of kubelet's, in order."""
        found = await self.world.client.get(f"{OBJECTS}/events?limit=500", Json)
        mine = [each for each in found["items"] if each["involvedObject"]["name"] == name]
        mine.sort(key=lambda each: int(each["metadata"]["resourceVersion"]))
        return [(each["reason"], each["message"], each["count"]) for each in mine if each["reason"] in RECORDED_REASONS]


def claim_spec(device: str) -> Json:
    selector = {"cel": {"expression": f"device.attributes['{DRIVER}'].name == '{device}'"}}
    exactly = {"deviceClassName": "lab", "selectors": [selector]}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


def container(name: str, *claims: Json) -> Json:
    return {"name": name, "image": "busybox:1", "command": ["sleep", "inf"], "resources": {"claims": list(claims)}}


def describe(pod: Json) -> str:
    """As `recorded.py` writes a state of a pod: phase, why its first container waits, whether the pod ends, health of
    its claims, restarts. "" before kubelet has said anything."""
    status = pod.get("status") or {}
    if not status.get("containerStatuses"):
        return ""
    first = status["containerStatuses"][0]
    health = [
        f"{each['name']}={device_name(one['resourceID'])}:{one['health']}"
        + (f":{one['message']}" if one.get("message") else "")
        for each in first.get("allocatedResourcesStatus") or ()
        for one in each["resources"]
    ]
    words = [status["phase"], (first["state"].get("waiting") or {}).get("reason", "")]
    words += ["ending" if "deletionTimestamp" in pod["metadata"] else "", *health]
    words += [f"restarts={first['restartCount']}"] if first["restartCount"] else []
    return " ".join(filter(None, words))


def device_name(cdi: str) -> str:
    """The device of a CDI name that has a claim's UID."""
    return cdi.rpartition("-")[2] if "claim=c" in cdi else cdi


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    directory = tmp_path_factory.mktemp("lab")
    async with running_world(directory, programs, "t4", agents=False, dra_times=TIMES) as world:
        found = Lab(world)
        await found.prepare()
        following = asyncio.create_task(found.follow())
        try:
            yield found
        finally:
            following.cancel()
            await found.plugin.stop()


async def test_a_pod_waits_for_its_driver(lab: Lab) -> None:
    await lab.pod("p-tmpl", g="t:tmpl")
    await lab.until_told("p-tmpl", "FailedPrepareDynamicResources")
    await lab.plugin.start()
    await lab.until("p-tmpl", "Running claim:g=g0:Healthy")
    await lab.until_told("p-tmpl", "Started")
    [failed, started] = await lab.events("p-tmpl")
    assert failed[:2] == ("FailedPrepareDynamicResources", f"{FAILED_PREPARE}{FAILURES['not registered'][0]}")
    assert started == ("Started", "Container started", 1)

    claims = (await lab.world.client.get(f"{CLAIMS_API}/resourceclaims", Json))["items"]
    [claim] = [each for each in claims if each["metadata"]["name"].startswith("p-tmpl-g-")]
    assert [each["name"] for each in claim["status"]["reservedFor"]] == ["p-tmpl"]
    await lab.until_recorded("p-tmpl")

    async def gone() -> bool:
        return await lab.world.get(f"{CLAIMS_API}/resourceclaims/{claim['metadata']['name']}") is None

    await lab.world.until(gone)


async def test_claims_in_two_containers_and_a_shared_one(lab: Lab) -> None:
    await lab.claim("two-a", "g1")
    await lab.claim("two-b", "g4")
    await lab.claim("shared", "g2")
    both = container("c", {"name": "a"}, {"name": "b"})
    await lab.pod("p-two", both, container("d", {"name": "b", "request": "gpu"}), a="two-a", b="two-b")
    for name in ("p-sh1", "p-sh2"):
        await lab.pod(name, g="shared")
        await lab.until(name, "Running claim:g=g2:Healthy")
    await lab.until("p-two", STATES["p-two"][1])
    found = await lab.world.client.get(f"{OBJECTS}/pods/p-two", Json)
    assert found["status"]["containerStatuses"][1]["allocatedResourcesStatus"][0]["name"] == "claim:b/gpu"
    await lab.until_told("p-two", "Started")
    assert {*await lab.events("p-two")} == {("Started", "Container started", 1)}
    await lab.until_recorded("p-two", "p-sh1", "p-sh2")
    assert lab.plugin.calls[-2:] == ["unprepare two-a,two-b", "unprepare shared"]
    assert await lab.is_free("shared")


async def test_what_the_plugin_answers_and_containers_want(lab: Lab) -> None:
    for name in ("nouse", "nocdi", "badcdi", "wrong"):
        await lab.claim(name)
        await lab.pod(f"p-{name}", *([container("c")] if name == "nouse" else []), g=name)
    for name in ("nouse", "nocdi", "badcdi", "wrong"):
        await lab.until(f"p-{name}", STATES[f"p-{name}"][1])
    await lab.until_told("p-badcdi", "Failed", 2)
    [failed] = await lab.events("p-badcdi")
    assert failed[:2] == ("Failed", f"Error: {CREATE_ERROR[1]}")
    await lab.until_recorded("p-nouse", "p-nocdi", "p-badcdi", "p-wrong")


async def test_prepare_that_fails_is_tried_again(lab: Lab) -> None:
    names = ("err3", "skip2", "grpc2", "extra1")
    for name in names:
        await lab.claim(name)
        await lab.pod(f"p-{name}", g=name)
    for name in names:
        await lab.until(f"p-{name}", "Running claim:g=g4:Healthy")
        await lab.until_told(f"p-{name}", "Started")
        counted = {f"{FAILED_PREPARE}{each}": FAILURES[name].count(each) for each in FAILURES[name]}
        failed = [("FailedPrepareDynamicResources", message, count) for message, count in counted.items()]
        assert await lab.events(f"p-{name}") == [*failed, ("Started", "Container started", 1)]
    await lab.until_recorded(*(f"p-{name}" for name in names))


async def test_health_is_shown(lab: Lab) -> None:
    await lab.claim("health", "g0")
    await lab.pod("p-health", g="health")
    await lab.until("p-health", "Running claim:g=g0:Healthy")
    for said, message in ((health.UNHEALTHY, "XID 79 on purpose"), (health.UNHEALTHY, "other text"),
                          (health.UNKNOWN, ""), (health.HEALTHY, "")):  # fmt: skip
        before = len(lab.states["p-health"])
        lab.plugin.set_health("g0", said, message)
        await lab.seen.until(lambda before=before: len(lab.states["p-health"]) > before, DEADLINE)  # type: ignore[misc]
    await lab.until_recorded("p-health")


async def test_a_pod_stays_while_its_claim_cannot_be_unprepared(lab: Lab) -> None:
    await lab.claim("unerr3")
    await lab.pod("p-unerr", g="unerr3")
    await lab.until("p-unerr", "Running claim:g=g4:Healthy")
    await lab.delete("p-unerr")
    await lab.seen.until(lambda: lab.states["p-unerr"][-1] == "gone", DEADLINE)
    await lab.until_recorded("p-unerr")
    assert lab.plugin.calls.count("unprepare unerr3") == 4


async def test_a_pod_that_is_deleted_by_force(lab: Lab) -> None:
    await lab.claim("force", "g2")
    await lab.pod("p-force", g="force")
    await lab.until("p-force", "Running claim:g=g2:Healthy")
    await lab.delete("p-force", gracePeriodSeconds=0)
    await lab.until_recorded("p-force")

    async def free() -> bool:
        return "unprepare force" in lab.plugin.calls and await lab.is_free("force")

    await lab.world.until(free)


async def test_a_claim_of_the_same_name(lab: Lab) -> None:
    old = await lab.claim("again", "g2")
    await lab.pod("p-again1", g="again")
    await lab.until("p-again1", "Running claim:g=g2:Healthy")
    await lab.delete("p-again1", gracePeriodSeconds=0)
    await lab.world.client.send("DELETE", f"{CLAIMS_API}/resourceclaims/again")

    async def gone() -> bool:
        return await lab.world.get(f"{CLAIMS_API}/resourceclaims/again") is None

    await lab.world.until(gone)
    assert await lab.claim("again", "g2") != old
    await lab.pod("p-again2", g="again")
    await lab.until("p-again2", "Running claim:g=g2:Healthy")
    calls = [call for call, _ in groupby(lab.plugin.calls)]  # kubelet's reconciler may ask in between, too
    assert calls[-3:] == ["prepare again", "unprepare again", "prepare again"]
    await lab.delete("p-again2")
    await lab.until("p-again2", "gone")


async def test_while_the_plugin_is_gone_pods_wait_for_it(lab: Lab) -> None:
    await lab.claim("held", "g1")
    await lab.pod("p-held", g="held")
    await lab.until("p-held", "Running claim:g=g1:Healthy")
    await lab.plugin.stop()

    async def wiped() -> bool:
        return await lab.world.get("/apis/resource.k8s.io/v1/resourceslices/lab-pool") is None

    await lab.world.until(wiped)
    await lab.publish()
    await lab.pod("p-new", g="t:third")
    await lab.until_told("p-new", "FailedPrepareDynamicResources")
    await lab.until("p-held", "Running claim:g=g1:Unknown")
    await lab.delete("p-held")
    await lab.until("p-held", "Running ending claim:g=g1:Unknown")
    await lab.plugin.start()
    await lab.until("p-held", "gone")
    shown = [each for each in lab.states["p-held"] if each != "Running ending claim:g=g1:Healthy"]  # if it is in time
    assert shown == list(STATES["p-held"])
    await lab.until("p-new", "Running claim:g=g3:Healthy")
    await lab.until_recorded("p-new")


@pytest.mark.parametrize("kill", [False, True])
async def test_pods_run_on_while_kubelet_starts_again(lab: Lab, kill: bool) -> None:
    name = f"p-kept-{kill}".lower()
    await lab.pod(name, g="t:third")
    await lab.until(name, "Running claim:g=g3:Healthy")
    registered, calls = len(lab.plugin.statuses), list(lab.plugin.calls)
    await lab.node.restart_kubelet(kill=kill)
    await lab.plugin.until_registered(registered + 1)
    await lab.publish()
    [run] = [each for each in lab.node.pods.runs.values() if each.pod.metadata.name == name]
    await run.programs["c"].stop(0)
    await lab.until(name, "Running claim:g=g3:Healthy restarts=1")
    assert lab.plugin.calls == calls
    started = [("Started", "Container started", 1)] * 2  # it counts anew

    async def told() -> bool:
        return await lab.events(name) == started

    await lab.world.until(told)
    await lab.delete(name)
    await lab.until(name, "gone")
