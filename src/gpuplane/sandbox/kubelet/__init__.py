"""An embedded kubelet, as far as devices go."""

from gpuplane.sandbox.kubelet.endpoint import Call
from gpuplane.sandbox.kubelet.pods import Container, Pod, PodRejected, RunningPod, pod
from gpuplane.sandbox.kubelet.server import Kubelet

__all__ = ["Call", "Container", "Kubelet", "Pod", "PodRejected", "RunningPod", "pod"]
