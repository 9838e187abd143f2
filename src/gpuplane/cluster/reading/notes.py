"""What is not as it should be in a cluster that was read."""

from collections.abc import Mapping
from typing import Literal

from gpuplane.base.value import Value

NoteCode = Literal[
    "object-unreadable",
    "annotation-unreadable",
    "held-assumed",
    "over-held",
    "device-gone",
    "claims-unread",
    "budgets-unread",
    "gated",
    "model-unknown",
    "node-unknown",
    "duplicate-name",
]
NOTE_TEXTS: Mapping[NoteCode, str] = {
    "object-unreadable": "it is not as the API has it, and is left out",
    "annotation-unreadable": "its annotation cannot be read, so its labels describe it",
    "held-assumed": "nobody says which GPUs some of its pods have, or not of all, so they count where they fit best",
    "over-held": "its pods ask for more than there is",
    "device-gone": "a container holds a device that the node does not have",
    "claims-unread": "it has devices by claims (DRA), and claims are not read",
    "budgets-unread": "you may not list them, so a pod may be named that its budget of disruption keeps where it is",
    "gated": "it waits until somebody takes its scheduling gates away, and is left out",
    "model-unknown": "nobody says of what model its GPUs are, and such GPUs count as alike on all nodes",
    "node-unknown": "it is bound to a node that is not listed",
    "duplicate-name": "another one has this name, and the first counts; or another pod has its UID",
}
"""Code → what it says of its subject."""


class Note(Value, omit_defaults=False):
    """What is not as it should be, of a node, of a pod or budget "namespace/name", or of a kind of objects."""

    code: NoteCode
    subject: str
    detail: str = ""
