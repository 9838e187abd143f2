"""How one agent is set up."""

from pathlib import Path

from gpuplane.base.value import Value
from gpuplane.node.agent.configure import Source
from gpuplane.node.apiserver.node import CONFIG_LABEL
from gpuplane.node.host.cdi.hook import HOOK_PATH
from gpuplane.service.servingoptions import ServingOptions


class Options(Value):
    """How one agent is set up. Paths are as this process sees them."""

    kubelet_root: Path
    state_dir: Path
    registers: bool = True  # with kubelet; False: a part says that it does not
    config: Source = Source()
    node_name: str = ""  # "" for no API server
    pod_uid: str = ""  # of our pod; part of the names of our DRA sockets; "" where no other agent may run beside this
    node_label: str = CONFIG_LABEL  # which names a configuration
    kubeconfig: Path | None = None
    pages: ServingOptions | None = None  # where /metrics, /healthz and /readyz are; None: no listening
    counters: Path | None = None  # the admin's list of DCGM fields; None: NVIDIA's default list
    host_name: str = ""  # the label Hostname of series
    records_root: Path = Path("/")  # what holds kubelet's records of pods, below /var/log
    kernel_log: Path | None = None  # as /dev/kmsg; None: not read
    kernel_pids: bool = True  # whether its process ids are those that the hardware tells
    cdi_dir: Path | None = None  # None: no specifications are kept
    device_nodes: Path | None = None  # the root in whose /dev nodes and links are made; None: nowhere
    hook: Path = HOOK_PATH  # on the host, and here
    driver_root: Path | None = None  # where the driver's root is seen; None: it is not

    @property
    def plugins(self) -> Path:
        """Kubelet's directory of device plugins."""
        return self.kubelet_root / "device-plugins"
