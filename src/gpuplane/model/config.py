"""What the admin asked for.

`Settings` is NVIDIA's v1 file after flags, environment and defaults were laid over it; the meaning and the default
of every field are those of NVIDIA's device plugin, so that an existing ConfigMap works unchanged.
"""

from collections.abc import Mapping
from typing import Literal

from gpuplane.model.health import Ruling
from gpuplane.model.value import Value

MigStrategy = Literal["none", "single", "mixed"]
ListStrategy = Literal["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]
IdStrategy = Literal["uuid", "index"]
AllocationPolicy = Literal["distributed", "packed"]


class Naming(Value):
    """Devices whose model (or MIG profile) matches `pattern` are offered as `name`. `*` matches any run."""

    pattern: str
    name: str


class Replication(Value):
    """One entry of `sharing.timeSlicing.resources`: `name` is cut into `replicas` of each chosen device."""

    name: str
    replicas: int
    rename: str = ""
    devices: tuple[str, ...] | int | None = None  # None: all; a count; or indices and UUIDs


class Sharing(Value):
    """Time-slicing: which resources, and whether a request for more than one share is refused."""

    resources: tuple[Replication, ...] = ()
    fail_requests_greater_than_one: bool = False


class Settings(Value):
    """One complete configuration."""

    mig_strategy: MigStrategy = "none"
    device_list_strategy: tuple[ListStrategy, ...] = ("envvar",)
    device_id_strategy: IdStrategy = "uuid"
    pass_device_specs: bool = False
    driver_root: str = "/"  # paths on the host
    dev_root: str = "/"
    gdrcopy: bool = False
    gds: bool = False
    mofed: bool = False
    imex_channels: tuple[int, ...] = ()
    imex_required: bool = False
    cdi_annotation_prefix: str = "cdi.k8s.io/"
    sharing_policy: AllocationPolicy = "distributed"
    health_checks_disabled: str = ""  # as the admin wrote it
    health_checks_enabled: str = ""
    gpus: tuple[Naming, ...] = ()
    mig: tuple[Naming, ...] = ()
    sharing: Sharing = Sharing()
    probe_period: float = 5.0  # seconds: between recovery probes, and for which a fault has to be over before the first
    faults: Mapping[str, Ruling] = {}  # code of the fault catalogue → what is judged otherwise here


class Asked(Value):
    """What labels and annotations of our Node object ask for. `config`: a named config, "" for none."""

    config: str = ""
    release: str = ""  # why the driver has to be let go of; "" while it need not
    drains: Mapping[str, str] = {}  # a device, as a person names it → why it shall not be given out


class Config(Value):
    """The last good settings, under which name they stand, and what our Node object asks for.

    `settings` is None before the first good configuration; `asked` is None before the API server's first word.
    """

    settings: Settings | None = None
    name: str = ""
    asked: Asked | None = None
