"""What an API server showed of pods on kubelet 1.36.2, with a toy DRA plugin, on 22 November 2026.

A state: the pod's phase, why its first container waits, whether the pod ends, the health of its claims, restarts. Pods
were looked at each 0.1 s: that a pod ends was not seen of one that is deleted by force, and that it has failed just
before it goes was seen of those alone whose containers had run.
"""

from collections.abc import Mapping, Sequence

FAILED_PREPARE = "Failed to prepare dynamic resources: prepare dynamic resources: "
RECORDED_REASONS = ("FailedPrepareDynamicResources", "Failed", "Started")
"""Of Events."""

CREATING = "Pending ContainerCreating"
OVER = ("Failed ending", "gone")


def _life(health: str, *later: str, before: str = "") -> Sequence[str]:
    """Of a pod that was created, ran and was deleted. `later`: what its health was afterwards."""
    running = [f"Running {each}".strip() for each in (health, *later)]
    ending = f"Running ending {(health, *later)[-1]}".strip()
    return (f"{CREATING} {before}".strip(), *running, ending, *OVER)


STATES: Mapping[str, Sequence[str]] = {
    "p-tmpl": _life("claim:g=g0:Healthy"),
    "p-two": _life("claim:a=g1:Healthy claim:b=g4:Healthy"),
    "p-sh1": (
        CREATING,
        "Running claim:g=g2:Healthy",
        "Running ending claim:g=g2:Healthy",
        "Failed ending claim:g=g2:Healthy",
        "gone",
    ),
    "p-sh2": _life("claim:g=g2:Healthy", before="claim:g=g2:Healthy"),
    "p-nouse": _life(""),
    "p-nocdi": _life("claim:g=gpu.lab.io/pool/g4:Healthy"),
    "p-wrong": _life("claim:g=g4:Healthy"),
    "p-badcdi": (
        CREATING,
        "Pending CreateContainerError claim:g=gpu.lab.io/claim=does-not-exist:Healthy",
        "Pending CreateContainerError ending claim:g=gpu.lab.io/claim=does-not-exist:Healthy",
        *OVER,
    ),
    "p-err3": _life("claim:g=g4:Healthy"),
    "p-skip2": _life("claim:g=g4:Healthy"),
    "p-grpc2": _life("claim:g=g4:Healthy"),
    "p-extra1": _life("claim:g=g4:Healthy"),
    "p-health": _life(
        "claim:g=g0:Healthy",
        "claim:g=g0:Unhealthy:XID 79 on purpose",
        "claim:g=g0:Unhealthy:other text",
        "claim:g=g0:Unknown",
        "claim:g=g0:Healthy",
    ),
    "p-unerr": _life("claim:g=g4:Healthy"),
    "p-force": (CREATING, "Running claim:g=g2:Healthy", "Running ending claim:g=g2:Healthy", "gone"),
    "p-held": _life("claim:g=g1:Healthy", "claim:g=g1:Unknown"),
    "p-new": _life("claim:g=g3:Healthy"),
}
"""Pod → its states, in order."""

DIFFERENCES = (
    "`exec`, `attach` and `port-forward` are refused in a sentence: no program runs that they could reach.",
    "A played program ends at once when it is asked to, with status 143.",
    "A container that cannot be created is tried again every 2 s; on a node it is 13 to 15 s.",
    "A pod is shown as `ContainerCreating` before anything is done for it; on a node one that starts fast skips that.",
    "`BackOff` is counted once for each pause; on a node at each sync of the pod.",
    "After kubelet's restart, pods run on whose init containers had devices; on a node they are rejected while no "
    "plugin is registered.",
    "Every image is there, and neither memory nor disk runs short: kubelet evicts nobody by itself.",
    "The Node object follows the device manager within a second; on a node within 10 s.",
    "Files of ConfigMaps and Secrets follow within 10 s; on a node within 60 to 90 s.",
    "Each node has 16 CPUs and 128 GiB of memory for each of its GPUs.",
    "Logs have no times: kubectl's options for these are refused. Probes by a command always succeed.",
    "Volumes of claims, CSI and images are empty directories. A directory or file of the host is made, whatever its "
    "type.",
)
"""What a played node does otherwise, on purpose: the list in docs/sandbox.md."""
