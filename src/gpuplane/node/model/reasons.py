"""Why a device is not given out, why nothing is offered, why the agent is not ready: reasons, as programs read them.

A reason has a code: that of a fault of the catalogue, or one of `REASON_CODES`. Each has a line in docs/inspect.md.
"""

from collections.abc import Mapping
from typing import Literal, get_args

from gpuplane.base.text import Text
from gpuplane.base.value import Value
from gpuplane.kubernetes.podref import PodRef

ReasonKind = Literal["problem", "degraded", "drained", "released", "held", "configured", "waiting"]
"""What a reason is. A `problem` is the only one with which something is wrong that keeps a device from being given out.

degraded: something is wrong, and the device is given out all the same. drained: a person does not want it given out.
released: a person requests the release of the driver, or the machine has not been observed since. held: a container
holds it by another name, or in another way. configured: the configuration gives it no name. waiting: it is over in a
moment.
"""

ReasonCode = Literal[
    "allocations-unknown",
    "cdi-conflict",
    "cdi-no-device",
    "cdi-not-written",
    "cdi-write-failed",
    "claim-cleanup-failed",
    "claim-config-invalid",
    "claim-device-in-use",
    "claim-device-unknown",
    "claim-duplicate-uid",
    "claim-malformed",
    "claim-not-allocated",
    "claim-not-fetched",
    "claim-not-found",
    "claim-not-prepared",
    "claim-not-stored",
    "claim-too-many-devices",
    "config-missing",
    "device-invalid",
    "dra-disabled",
    "driver-released",
    "drained",
    "duplicate-uuid",
    "held-as-other-resource",
    "held-in-other-layout",
    "held-in-unknown-layout",
    "held-on-unknown-gpu",
    "kind-unknown",
    "layout-changing",
    "layout-not-stored",
    "machine-not-observed",
    "memory-not-reported",
    "memory-smaller-than-share",
    "mig-mode",
    "mig-profile-not-chosen",
    "mig-profile-unnamed",
    "mig-without-devices",
    "mps-compute-mode",
    "mps-not-seen",
    "mps-not-serving",
    "mps-too-many-clients",
    "mps-without-device",
    "no-device-available",
    "not-described",
    "plugin-not-registered",
    "resource-of-other-kind",
    "standby",
    "too-many-shares-on-node",
]

REASON_CODES: Mapping[ReasonCode, str] = {
    "allocations-unknown": "kubelet has not reported what containers hold",
    "cdi-conflict": "a CDI file of another program defines the same device",
    "cdi-no-device": "the device cannot be described in the CDI files",
    "cdi-not-written": "the CDI files are being written",
    "cdi-write-failed": "the CDI files cannot be written",
    "claim-cleanup-failed": "what is left of a claim cannot be removed",
    "claim-config-invalid": "the configuration of the claim cannot be followed",
    "claim-device-in-use": "another claim or container has the device",
    "claim-device-unknown": "the node does not have the device that the claim was allocated",
    "claim-duplicate-uid": "another claim has the same UID",
    "claim-malformed": "the claim has no valid name or UID, or a device of it no valid request",
    "claim-not-allocated": "the claim has no allocation with devices of the driver",
    "claim-not-fetched": "the API server does not give the claim",
    "claim-not-found": "the claim does not exist, or is another one of the same name",
    "claim-not-prepared": "the agent has not prepared the claim",
    "claim-not-stored": "the claim is not in the state directory yet",
    "claim-too-many-devices": "the claim has more devices than the agent prepares for one claim",
    "config-missing": "there is no valid configuration",
    "device-invalid": "the device has no valid id or resource name",
    "dra-disabled": "the configuration disables Dynamic Resource Allocation",
    "driver-released": "somebody requested the release of the driver",
    "drained": "somebody drained the device",
    "duplicate-uuid": "another device has the same UUID",
    "held-as-other-resource": "a container holds the device as another resource",
    "held-in-other-layout": "a container holds shares of another size or kind",
    "held-in-unknown-layout": "a container holds shares, and the agent does not know their kind",
    "held-on-unknown-gpu": "a container holds a MIG device that no longer exists, and the agent does not know its GPU",
    "kind-unknown": "the agent does not know this kind of device",
    "layout-changing": "the MIG layout of its GPU is being changed",
    "layout-not-stored": "the layout of its shares is not in the state directory yet",
    "machine-not-observed": "the machine has not been observed yet",
    "memory-not-reported": "the driver does not report the memory that is to be shared",
    "memory-smaller-than-share": "the device has less memory than one share",
    "mig-mode": "the GPU is in MIG mode, and migStrategy is none",
    "mig-profile-not-chosen": "migStrategy single offers devices of another profile",
    "mig-profile-unnamed": "the profile has no resource name",
    "mig-without-devices": "the GPU is in MIG mode and has no MIG devices",
    "mps-compute-mode": "MPS has not restored the compute mode of the GPU",
    "mps-not-seen": "the MPS supervisor or control daemon has not reported yet",
    "mps-not-serving": "the MPS supervisor or control daemon does not work",
    "mps-too-many-clients": "the GPU cannot have as many MPS clients as are configured",
    "mps-without-device": "the MPS control daemon runs without the device",
    "no-device-available": "no device of a resource is given out",
    "not-described": "the driver does not report the UUID or profile of the device",
    "plugin-not-registered": "kubelet does not read the list of the resource",
    "resource-of-other-kind": "devices of another kind have the same resource name",
    "standby": "another agent serves this kubelet",
    "too-many-shares-on-node": "the node would have more shares than kubelet can take",
}
"""What each code means. (Those of faults are in the fault catalogue.)"""

assert set(REASON_CODES) == set(get_args(ReasonCode))


class Holder(Value):
    """Who holds a device: a container, which got it as `resource`. `pod` is unknown while kubelet admits it.

    `claim`: "namespace/name" of the claim by which it has it; `resource` is its driver's name then.
    """

    resource: str
    pod: PodRef = PodRef()
    claim: str = ""


class Reason(Value):
    """Why a device is not given out. Programs read all but `text`, people read `text`."""

    kind: ReasonKind
    text: Text
    part: str = ""  # the part that is the reason, as in `gpuplane inspect`: "cdi"; "" for none
    code: str = ""  # of a fault, or of `REASON_CODES`
    faulty_device: str = ""  # whose fault: a UUID; "" for the node's, and where it is no fault
    holder: Holder | None = None  # of a device that a container holds

    @property
    def is_fault(self) -> bool:
        """Whether it is a fault of a device or of the driver."""
        return bool(self.code) and self.code not in REASON_CODES

    @property
    def identity_key(self) -> tuple[str, ...]:
        """The reason without its wording, which may change with each look: the same cause is nothing new."""
        if self.kind == "released":
            return (self.kind,)
        held = () if self.holder is None else (self.holder.resource, str(self.holder.pod))
        return self.kind, self.part, self.faulty_device, self.code, *held
