"""Objects from YAML, written as `kubectl apply --server-side` writes them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from gpuplane.kubernetes.client.api import ApiClient

FIELD_MANAGER = "gpuplane-sandbox"
Json = dict[str, Any]


def read_objects(content: bytes) -> list[Json]:
    """The objects of a file, in their order. Raises yaml.YAMLError."""
    return [each for each in yaml.safe_load_all(content) if each]


async def apply_objects(client: "ApiClient", objects: Iterable[Json]) -> None:
    """Raises ApiServerError, and KeyError for a kind that the server does not know."""
    plurals: dict[tuple[str, str], tuple[str, bool]] = {}
    for each in objects:
        version, kind = each["apiVersion"], each["kind"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, kind) not in plurals:
            for known in (await client.get(root, Json))["resources"]:
                if "/" not in known["name"]:
                    plurals[version, known["kind"]] = known["name"], known["namespaced"]
        plural, is_namespaced = plurals[version, kind]
        space = f"/namespaces/{each['metadata'].get('namespace', 'default')}" if is_namespaced else ""
        await client.apply(f"{root}{space}/{plural}/{each['metadata']['name']}", each, FIELD_MANAGER)
