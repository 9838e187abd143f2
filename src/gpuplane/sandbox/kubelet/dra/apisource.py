"""Claims of an API server, over plain HTTP."""

from typing import Any

import httpx2

from gpuplane.sandbox.kubelet.devices import KubeletError

GROUP_PATH = "/apis/resource.k8s.io/v1"
REQUEST_TIMEOUT_SECONDS = 10.0
"""Seconds that a request may take."""


class ApiClaims:
    """`async with ApiClaims("http://127.0.0.1:8001", "node-a") as claims`; `token`: a bearer token, "" for none."""

    def __init__(self, url: str, node_name: str, token: str = "") -> None:
        self.node_name = node_name
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._client = httpx2.AsyncClient(
            base_url=url,
            headers={"user-agent": "kubelet/sandbox", **headers},
            timeout=REQUEST_TIMEOUT_SECONDS,
            trust_env=False,
        )

    async def __aenter__(self) -> "ApiClaims":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def get_claim(self, namespace: str, name: str) -> dict[str, Any]:
        """Raises KubeletError."""
        found = await self._ask("GET", f"{GROUP_PATH}/namespaces/{namespace}/resourceclaims/{name}")
        if not isinstance(found, dict) or not isinstance(found.get("metadata"), dict):
            raise KubeletError("the API server did not answer with a claim")
        return found

    async def delete_slices(self, driver: str) -> None:
        """Raises KubeletError."""
        selector = f"spec.nodeName={self.node_name}" + (f",spec.driver={driver}" if driver else "")
        await self._ask("DELETE", f"{GROUP_PATH}/resourceslices", {"fieldSelector": selector})

    async def _ask(self, method: str, path: str, params: dict[str, str] | None = None) -> Any:
        try:
            answer = await self._client.request(method, path, params=params)
            content = answer.json()
        except (httpx2.HTTPError, ValueError) as error:
            raise KubeletError(f"{method} {path}: {error or type(error).__name__}") from None
        if answer.is_success:
            return content
        raise KubeletError(str(content.get("message") if isinstance(content, dict) else answer.status_code))
