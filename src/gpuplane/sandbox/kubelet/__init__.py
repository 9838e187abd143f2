"""An embedded kubelet, as far as devices go."""

from gpuplane.sandbox.kubelet.dra.source import GivenClaims
from gpuplane.sandbox.kubelet.dra.times import DraTimes
from gpuplane.sandbox.kubelet.endpoint import Call
from gpuplane.sandbox.kubelet.pods import (
    Container,
    ContainerClaim,
    Pod,
    PodClaim,
    PodRejected,
    RunningPod,
    pod,
    pod_from_object,
)
from gpuplane.sandbox.kubelet.server import Kubelet

__all__ = [
    "Call",
    "Container",
    "ContainerClaim",
    "DraTimes",
    "GivenClaims",
    "Kubelet",
    "Pod",
    "PodClaim",
    "PodRejected",
    "RunningPod",
    "pod",
    "pod_from_object",
]
