"""What a list keeps: the declared fields of each object, and no page."""

import gc
import tracemalloc
from collections.abc import Mapping

import msgspec

from gpuplane.kubernetes.client.lists import ListReader
from gpuplane.kubernetes.objects import ApiPod

PADDING = "x" * 20_000


def page(number: int) -> bytes:
    """A page of pods that have all that a struct could hold on to, and much that nobody reads."""
    near = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": PADDING}]}
    spec = {
        "containers": [{"name": "c", "image": PADDING}],
        "affinity": {"podAffinity": near, "podAntiAffinity": near},
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "a"}],
        "schedulingGates": [{"name": "gate"}],
        "topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule", "topologyKey": PADDING}],
    }
    pods = [{"metadata": {"name": f"p{number}-{n}", "managedFields": [PADDING]}, "spec": spec} for n in range(10)]
    return msgspec.json.encode({"metadata": {"continue": f"{number + 1}" if number < 19 else ""}, "items": pods})


async def test_a_page_is_let_go_of_when_it_is_decoded() -> None:
    """20 pages of a megabyte leave no tenth of that behind."""

    async def ask(parameters: Mapping[str, str]) -> bytes:
        return page(int(parameters.get("continue", "0")))

    reader = ListReader("here", ApiPod, "cluster", "pod")
    tracemalloc.start()
    try:
        found = await reader.read(ask)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.items) == 200
    assert kept < 2_000_000
