"""The nodes of a cluster and their GPUs: what there is, whoever has it."""

from collections.abc import Mapping

from gpuplane.base.value import Value
from gpuplane.kubernetes.selectors import Taint


class Gpu(Value):
    """A GPU of a node. `units`: how many ids the node offers for it; so many pods may share it. `link_group`: GPUs of
    one node with one number reach each other by NVLink; 0: by PCIe alone. `profiles`: MIG devices by profile; a GPU
    with MIG on is not given out whole. `resource`: the name by which the node offers it; "": not known. `containers`:
    how many may share it; 0: any number. `code`: why it is given to nobody; "" for none."""

    id: str
    model: str = ""
    memory_mib: int = 0
    units: int = 1
    link_group: int = 0
    is_partitioned: bool = False
    profiles: Mapping[str, int] = {}
    resource: str = ""
    containers: int = 0
    code: str = ""


class Node(Value):
    """A node of the cluster. `is_schedulable`: whether any pod may come. `taints`: those that a pod may tolerate.
    `others`: how much it has of each other resource, as kube-scheduler counts it, GPUs among them."""

    name: str
    cpu_milli: int
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    labels: Mapping[str, str] = {}
    is_schedulable: bool = True
    taints: tuple[Taint, ...] = ()
    others: Mapping[str, int] = {}
