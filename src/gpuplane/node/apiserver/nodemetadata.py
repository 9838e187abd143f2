"""Labels and the annotation `gpuplane.io/gpus` of our Node object, by server-side apply.

The field manager is `gpuplane`. An apply says all that we mean: a label that we mean no more goes, unless somebody else
manages it too; nobody else's labels are touched. A key that somebody else manages with another value is a conflict.
Then it is taken over: these keys are ours or GPU Feature Discovery's, which we replace. The status names who had them.
A program that goes on writing them wins until the next check (`keeper.CHECK_INTERVAL`): nothing goes in circles.

The body has the UID of the Node that was looked at. Without that an apply would create a Node that was deleted.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from gpuplane.base.text import join_first_names
from gpuplane.base.value import Value
from gpuplane.kubernetes.client.errors import ApiServerError
from gpuplane.kubernetes.contracts.nodeannotation import ANNOTATION, encode_node_gpus
from gpuplane.kubernetes.objects import ApiNode, ObjectMetadata
from gpuplane.node.apiserver.keeper import node_settings
from gpuplane.node.apiserver.node import NODES_PATH
from gpuplane.node.core.reports.migstate import is_state_label_wanted, state_label
from gpuplane.node.core.reports.nodeannotation import node_gpus
from gpuplane.node.core.reports.nodelabels import MIG_STATE_LABEL, writable_labels
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import MIG_STATE_PART, NODE_METADATA_PART

if TYPE_CHECKING:
    from gpuplane.kubernetes.client.api import ApiClient

Labels = Callable[[Snapshot], Mapping[str, str] | None]
"""The labels that a node has; None while they are not known."""
FIELD_MANAGER, MIG_FIELD_MANAGER = "gpuplane", "gpuplane-mig"
MOST_NAMES = 3  # of keys that a status lists


class WantedMetadata(Value):
    """What we mean of our Node's metadata. `refused`: keys of labels that Kubernetes would not take."""

    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    refused: tuple[str, ...] = ()


class _ManagedFields(msgspec.Struct):
    manager: str = ""
    operation: str = ""
    fields: Any = msgspec.field(default=None, name="fieldsV1")


class _ManagedMetadata(ObjectMetadata):
    """With what is larger than all the rest: who manages which field. Here alone it is decoded."""

    managed_fields: list[_ManagedFields] | None = None


class _ManagedNode(ApiNode):
    metadata: _ManagedMetadata


class _MetadataWriter:
    """What one field manager keeps of the metadata of the Node of this name."""

    was_ours = True

    def __init__(self, name: str, manager: str) -> None:
        self._name, self._path, self._manager = name, f"{NODES_PATH}/{name}", manager

    async def write(self, client: "ApiClient", wanted: WantedMetadata) -> str:
        metadata = await self._read(client)
        conflicts: tuple[tuple[str, str], ...] = ()
        if not _is_there(metadata, wanted, self._manager):
            conflicts = await client.apply(self._path, self._body(metadata.uid, wanted), self._manager)
        verb = "is" if len(wanted.labels) + len(wanted.annotations) == 1 else "are"
        return f"{_describe(wanted)} of Node {self._name} {verb} up to date" + "".join(_remarks(wanted, conflicts))

    async def remove(self, client: "ApiClient") -> None:
        try:
            metadata = await self._read(client)
        except ApiServerError as error:
            if error.code:
                return  # whoever may not read it has written nothing there
            raise
        if _our_fields(metadata, self._manager):
            await client.apply(self._path, self._body(metadata.uid, WantedMetadata()), self._manager)

    async def _read(self, client: "ApiClient") -> _ManagedMetadata:
        return (await client.get(self._path, _ManagedNode, metadata_only=True)).metadata

    def _body(self, uid: str, wanted: WantedMetadata) -> dict[str, Any]:
        metadata = {"name": self._name, "uid": uid, "labels": wanted.labels, "annotations": wanted.annotations}
        return {"apiVersion": "v1", "kind": "Node", "metadata": {key: each for key, each in metadata.items() if each}}


class NodeMetadataWriter(_MetadataWriter):
    """What `keeper.keep` keeps of the Node of this name. `labels`: the view that has them."""

    part = NODE_METADATA_PART
    rights = "deploy/components/node-labels"
    is_urgent = False

    def __init__(self, name: str, labels: Labels) -> None:
        super().__init__(name, FIELD_MANAGER)
        self._labels = labels

    def is_wanted(self, snapshot: Snapshot) -> bool:
        settings = node_settings(snapshot)
        return settings.labels == "node" or settings.annotation

    def inputs(self, snapshot: Snapshot) -> object:
        return (
            snapshot.machine,
            snapshot.devices,
            snapshot.config,
            snapshot.allocations,
            snapshot.ledger,
            snapshot.statuses.but(NODE_METADATA_PART, None),
        )

    async def derive(self, snapshot: Snapshot) -> WantedMetadata | None:
        settings = node_settings(snapshot)
        labels = self._labels(snapshot) if settings.labels == "node" else {}
        gpus = node_gpus(snapshot) if settings.annotation else None
        if labels is None or (settings.annotation and gpus is None):
            return None
        kept, refused = writable_labels(labels)
        annotations = {ANNOTATION: await asyncio.to_thread(encode_node_gpus, gpus)} if gpus is not None else {}
        return WantedMetadata(labels=kept, annotations=annotations, refused=refused)


class MigStateLabelWriter(_MetadataWriter):
    """How the requested MIG layouts stand, as a label of the Node of this name. Programs wait for it.

    It has a field manager of its own, so that it is written apart from labels that describe the node, and at once.
    """

    part = MIG_STATE_PART
    rights = "deploy/components/mig-config"
    is_urgent = True

    def __init__(self, name: str) -> None:
        super().__init__(name, MIG_FIELD_MANAGER)

    def is_wanted(self, snapshot: Snapshot) -> bool:
        return is_state_label_wanted(snapshot)

    def inputs(self, snapshot: Snapshot) -> object:
        return state_label(snapshot)

    async def derive(self, snapshot: Snapshot) -> WantedMetadata | None:
        state = state_label(snapshot)
        return WantedMetadata(labels={MIG_STATE_LABEL: state}) if state is not None else None


def _is_there(found: _ManagedMetadata, wanted: WantedMetadata, manager: str) -> bool:
    """Whether the Node has all that we mean with our name on it, and nothing else of ours."""
    ours = {("labels", key) for key in wanted.labels} | {("annotations", key) for key in wanted.annotations}
    labels, annotations = found.labels or {}, found.annotations or {}
    return (
        _our_fields(found, manager) == ours
        and all(labels.get(key) == value for key, value in wanted.labels.items())
        and all(annotations.get(key) == value for key, value in wanted.annotations.items())
    )


def _our_fields(found: _ManagedMetadata, manager: str) -> set[tuple[str, str]]:
    """The labels and annotations that a field manager of ours manages by apply."""
    applied = (
        each.fields
        for each in found.managed_fields or ()
        if (each.manager, each.operation) == (manager, "Apply") and isinstance(each.fields, dict)
    )
    return {field for fields in applied for field in _decode_fields(fields)}


def _decode_fields(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(labels or annotations, key) of a FieldsV1. "." is the map itself."""
    metadata = fields.get("f:metadata")
    for part in ("labels", "annotations"):
        of_part = metadata.get(f"f:{part}") if isinstance(metadata, dict) else None
        for key in of_part if isinstance(of_part, dict) else ():
            if key.startswith("f:"):
                yield part, key.removeprefix("f:")


def _describe(wanted: WantedMetadata) -> str:
    count = len(wanted.labels)
    labels = [f"{count} label{'s' * (count != 1)}"] if wanted.labels else []
    return " and ".join([*labels, *(f"annotation {key}" for key in wanted.annotations)]) or "no labels"


def _remarks(wanted: WantedMetadata, conflicts: tuple[tuple[str, str], ...]) -> Iterator[str]:
    if conflicts:
        who = join_first_names(sorted({who for who, _ in conflicts}), MOST_NAMES)
        fields = join_first_names(sorted({field for _, field in conflicts}), MOST_NAMES)
        yield f"; somebody else writes them too ({who}), which was overwritten: {fields}"
    yield describe_refused(wanted.refused)


def describe_refused(keys: tuple[str, ...]) -> str:
    """Which labels are not written, to be appended to a status; "" for none."""
    return f"; left out because Kubernetes would refuse them: {join_first_names(keys, MOST_NAMES)}" if keys else ""
