"""Nodes and ResourceClaims at the limits of the API, and of wrong types: the right answer, or one line of error.

The limits: annotations of 256 KiB in all (apimachinery, pkg/api/validation/objectmeta.go), labels by
pkg/util/validation/validation.go.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from string import ascii_letters, digits
from typing import Any

import pytest

from gpuplane.kubernetes.client import retry
from gpuplane.node.apiserver.claims import ClaimReader
from gpuplane.node.apiserver.node import CONFIG_LABEL
from gpuplane.node.core.requests import node_requests
from gpuplane.node.model.claims import ClaimName, ClaimUnavailable
from gpuplane.sandbox.apiserver.server import ApiServer, InjectedFailure
from tests.node.apiserver.test_claims import DRIVER, RESULT, UID, told
from tests.node.apiserver.test_claims import PATH as CLAIM
from tests.node.apiserver.test_node_requests import NAME, PATH, following, node_object

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    monkeypatch.setattr(retry, "PAUSE_LIMITS", (0.01, 0.05))
    async with ApiServer() as server:
        yield server


async def test_a_node_at_the_limits_of_the_api(server: ApiServer, kubeconfig: Path) -> None:
    """Thousands of labels of the longest names and values, of every legal sign, and all annotations that fit."""
    signs = f"{ascii_letters}-_.{digits}"[:63]
    labels = {f"{'a' * 63}.{'b.' * 90}c/{signs[:58]}{n:05}": signs for n in range(2000)}
    annotations = {f"example.com/{n}": '"\\\u2028\x1b]0;' * 1400 for n in range(20)}
    assert sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) < 256 << 10
    server.put(PATH, node_object({**labels, CONFIG_LABEL: signs}, annotations))
    async with following(kubeconfig) as node:
        await node.stands("ok")
        assert node_requests(node.snapshot).config_name == signs
        server.put(PATH, node_object({**labels, CONFIG_LABEL: "other"}, annotations))
        await node.comes_to(lambda snapshot: node_requests(snapshot).config_name == "other")
    assert node.standings == ["ok"]


WRONG_NODES = [
    '{"metadata": null}',
    '{"metadata": []}',
    "7",
    "null",
    f'{{"metadata": {{"name": "{NAME}", "labels": {{"{CONFIG_LABEL}": 7}}}}}}',
    f'{{"metadata": {{"name": "{NAME}", "labels": {{"{CONFIG_LABEL}": null}}}}}}',
    f'{{"metadata": {{"name": "{NAME}", "labels": ["{CONFIG_LABEL}"]}}}}',
    f'{{"metadata": {{"name": "{NAME}", "annotations": true}}}}',
    '{"metadata": {"name": 1e400}}',
    '{"metadata": {"name": "x", "resourceVersion": 5}}',
    f'{{"metadata": {{"name": "{NAME}", "labels": {{"x": {DEEP}}}}}}}',
    f'{{"metadata": {{"name": "{NAME}", "unknown": {DEEP}}}}}',
]


@pytest.mark.parametrize("wrong", WRONG_NODES, ids=range(len(WRONG_NODES)))
@pytest.mark.parametrize("request_", ["GET /api/v1/nodes", "WATCH *"])
async def test_a_node_of_wrong_types(
    server: ApiServer, kubeconfig: Path, request_: str, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In a list it is an error of the server; in a stream it ends the stream. What comes after is believed."""
    server.put(PATH, node_object({CONFIG_LABEL: "good"}))
    text = f'{{"metadata": {{"resourceVersion": "1"}}, "items": [{wrong}]}}'
    if request_ == "WATCH *":
        text = f'{{"type": "MODIFIED", "object": {wrong}}}\n'
    server.failures.append(InjectedFailure(request_, times=2, garbage=text.encode()))
    async with following(kubeconfig) as node:
        await server.until(lambda: not server.failures[0].times, 60)
        server.put(PATH, node_object({CONFIG_LABEL: "better"}))
        await node.comes_to(lambda snapshot: node_requests(snapshot).config_name == "better")
    assert ("failing" in node.standings) is (request_ != "WATCH *")
    assert not [each for each in caplog.records if each.exc_info]


def claim(**status: Any) -> str:
    found = told(RESULT)
    found["metadata"]["uid"] = UID
    return json.dumps({**found, "status": {**found["status"], **status}})


WRONG_CLAIMS = [
    '{"metadata": null}',
    "[]",
    '{"metadata": {"uid": 7}}',
    claim(allocation=[]),
    claim(allocation={"devices": {"results": ["gpu-0"]}}),
    claim(allocation={"devices": {"results": [{**RESULT, "device": 0}]}}),
    claim(allocation={"devices": {"results": [{**RESULT, "adminAccess": "yes"}]}}),
    claim(allocation={"devices": {"results": [RESULT], "config": [{"requests": "acc"}]}}),
    claim(allocation={"devices": {"results": [RESULT], "config": [{"opaque": {"driver": [DRIVER]}}]}}),
    claim(reservedFor=[{"resource": "pods", "name": None}]),
    claim(devices=[1]),
    claim(devices="DEEP").replace('"DEEP"', DEEP),
    claim(allocation={"devices": {"results": "DEEP"}}).replace('"DEEP"', DEEP),
    claim(
        allocation={"devices": {"results": [RESULT], "config": [{"opaque": {"driver": DRIVER, "parameters": "DEEP"}}]}}
    ).replace('"DEEP"', DEEP),
]


@pytest.mark.parametrize("wrong", WRONG_CLAIMS, ids=range(len(WRONG_CLAIMS)))
async def test_a_claim_of_wrong_types(server: ApiServer, kubeconfig: Path, wrong: str) -> None:
    """It is refused, and the next answer is believed."""
    server.put(CLAIM, told(RESULT))
    server.failures.append(InjectedFailure(f"GET {CLAIM}", garbage=wrong.encode()))
    reader, name = ClaimReader(kubeconfig), ClaimName("default", "train", UID)
    with pytest.raises(ClaimUnavailable) as refused:
        await reader.fetch(name, DRIVER)
    assert refused.value.reason.code == "claim-not-fetched"
    assert len(str(refused.value.reason.text)) < 2000
    server.put(CLAIM, {**told(RESULT), "metadata": {**told(RESULT)["metadata"]}})
    async with asyncio.timeout(60):
        assert (await reader.read(name)).status.allocation is not None
    await reader.close()


@pytest.mark.parametrize(
    ("parameters", "read"),
    [
        (b'{"a": "\xff\xc3"}', '{"a": "\ufffd\ufffd"}'),
        (b'{"kind": "\\u0000"}', '{"kind": "\\u0000"}'),
        (b'"\\ud800"', ""),
    ],
)
async def test_a_configuration_of_strange_bytes(
    server: ApiServer, kubeconfig: Path, parameters: bytes, read: str
) -> None:
    """The API server keeps any bytes there. What is no text at all makes the answer none ("")."""
    entry = {"opaque": {"driver": DRIVER, "parameters": "HERE"}}
    text = claim(allocation={"devices": {"results": [RESULT], "config": [entry]}}).encode()
    server.failures.append(InjectedFailure(f"GET {CLAIM}", garbage=text.replace(b'"HERE"', parameters)))
    reader, name = ClaimReader(kubeconfig), ClaimName("default", "train", UID)
    if not read:
        with pytest.raises(ClaimUnavailable):
            await reader.fetch(name, DRIVER)
    else:
        assert [each.parameters for each in (await reader.fetch(name, DRIVER)).configs] == [read]
    await reader.close()
