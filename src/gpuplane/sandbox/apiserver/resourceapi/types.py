"""The types of resource.k8s.io/v1 in Kubernetes 1.36, in the order of Go's structs (pkg/apis/resource/types.go)."""

from gpuplane.sandbox.apiserver.objects import Json
from gpuplane.sandbox.apiserver.shapes import Default, Shapes

RESOURCE_API_VERSION = "resource.k8s.io/v1"
SHAPE_TABLE = """
ResourceSlice apiVersion kind metadata!:ObjectMeta spec!:ResourceSliceSpec
ResourceSliceSpec driver! pool!:ResourcePool nodeName* nodeSelector*:NodeSelector allNodes*:bool devices:[Device] perDeviceNodeSelection*:bool@DRAPartitionableDevices sharedCounters:[CounterSet]@DRAPartitionableDevices
ResourcePool name! generation!:int64 resourceSliceCount!:int64
CounterSet name! counters:{Counter}
Counter value!:Quantity
Device name! attributes:{DeviceAttribute} capacity:{DeviceCapacity} consumesCounters:[DeviceCounterConsumption]@DRAPartitionableDevices nodeName*@DRAPartitionableDevices nodeSelector*:NodeSelector@DRAPartitionableDevices allNodes*:bool@DRAPartitionableDevices taints:[DeviceTaint]@DRADeviceTaints bindsToNode*:bool@DRADeviceBindingConditions bindingConditions:[string]@DRADeviceBindingConditions bindingFailureConditions:[string]@DRADeviceBindingConditions allowMultipleAllocations*:bool@DRAConsumableCapacity nodeAllocatableResourceMappings:{Raw}@DRANodeAllocatableResources
DeviceCounterConsumption counterSet! counters:{Counter}
DeviceCapacity value!:Quantity requestPolicy*:CapacityRequestPolicy@DRAConsumableCapacity
CapacityRequestPolicy default!*:Quantity validValues:[Quantity] validRange*:CapacityRequestPolicyRange
CapacityRequestPolicyRange min*:Quantity max*:Quantity step*:Quantity
DeviceAttribute int*:int64 bool*:bool string* version* ints:[int64]@DRAListTypeAttributes bools:[bool]@DRAListTypeAttributes strings:[string]@DRAListTypeAttributes versions:[string]@DRAListTypeAttributes
DeviceTaint key! value effect! timeAdded*:Time
ResourceClaim apiVersion kind metadata!:ObjectMeta spec!:ResourceClaimSpec status!:ResourceClaimStatus
ResourceClaimSpec devices!:DeviceClaim
DeviceClaim requests!:[DeviceRequest] constraints:[DeviceConstraint] config:[DeviceClaimConfiguration]
DeviceRequest name! exactly*:ExactDeviceRequest firstAvailable:[DeviceSubRequest]@DRAPrioritizedList
ExactDeviceRequest deviceClassName! selectors:[DeviceSelector] allocationMode count:int64 adminAccess*:bool@DRAAdminAccess tolerations:[DeviceToleration]@DRADeviceTaints capacity*:CapacityRequirements@DRAConsumableCapacity
DeviceSubRequest name! deviceClassName! selectors:[DeviceSelector] allocationMode count:int64 tolerations:[DeviceToleration]@DRADeviceTaints capacity*:CapacityRequirements@DRAConsumableCapacity
CapacityRequirements requests:{Quantity}
DeviceSelector cel*:CELDeviceSelector
CELDeviceSelector expression!
DeviceToleration key operator value effect tolerationSeconds*:int64
DeviceConstraint requests:[string] matchAttribute* distinctAttribute*@DRAConsumableCapacity
DeviceClaimConfiguration requests:[string] opaque*:OpaqueDeviceConfiguration
OpaqueDeviceConfiguration driver! parameters!:Raw
ResourceClaimStatus allocation*:AllocationResult reservedFor:[ResourceClaimConsumerReference]#uid devices:[AllocatedDeviceStatus]@DRAResourceClaimDeviceStatus#driver,device,pool,shareID
AllocationResult devices!:DeviceAllocationResult nodeSelector*:NodeSelector allocationTimestamp*:Time@DRADeviceBindingConditions
DeviceAllocationResult results:[DeviceRequestAllocationResult] config:[DeviceAllocationConfiguration]
DeviceRequestAllocationResult request! driver! pool! device! adminAccess*:bool@DRAAdminAccess tolerations:[DeviceToleration]@DRADeviceTaints bindingConditions:[string]@DRADeviceBindingConditions bindingFailureConditions:[string]@DRADeviceBindingConditions shareID*@DRAConsumableCapacity consumedCapacity:{Quantity}@DRAConsumableCapacity
DeviceAllocationConfiguration source! requests:[string] opaque*:OpaqueDeviceConfiguration
ResourceClaimConsumerReference apiGroup resource! name! uid!
AllocatedDeviceStatus driver! pool! device! shareID*@DRAConsumableCapacity conditions!:[Condition]#type data*:Raw networkData*:NetworkDeviceData
NetworkDeviceData interfaceName ips:[string] hardwareAddress
Condition type! status! observedGeneration:int64 lastTransitionTime!*:Time reason! message!
ResourceClaimTemplate apiVersion kind metadata!:ObjectMeta spec!:ResourceClaimTemplateSpec
ResourceClaimTemplateSpec metadata!:ObjectMeta spec!:ResourceClaimSpec
DeviceClass apiVersion kind metadata!:ObjectMeta spec!:DeviceClassSpec
DeviceClassSpec selectors:[DeviceSelector] config:[DeviceClassConfiguration] extendedResourceName*@DRAExtendedResource
DeviceClassConfiguration opaque*:OpaqueDeviceConfiguration
NodeSelector nodeSelectorTerms!:[NodeSelectorTerm]
NodeSelectorTerm matchExpressions:[NodeSelectorRequirement] matchFields:[NodeSelectorRequirement]
NodeSelectorRequirement key! operator! values:[string]
ObjectMeta name generateName namespace selfLink uid resourceVersion generation:int64 creationTimestamp*:Time deletionTimestamp*:Time deletionGracePeriodSeconds*:int64 labels:{string} annotations:{string} ownerReferences:[OwnerReference] finalizers:[string] managedFields:[Raw]
OwnerReference apiVersion! kind! name! uid! controller*:bool blockOwnerDeletion*:bool
"""  # noqa: E501 (a struct a line)
GO_NAMES = {"cel": "CEL", "uid": "UID", "ips": "IPs", "int": "IntValue", "bool": "BoolValue", "string": "StringValue"}
GO_NAMES |= {"version": "VersionValue", "ints": "IntValues", "bools": "BoolValues", "strings": "StringValues"}
GO_NAMES |= {"versions": "VersionValues", "apiGroup": "APIGroup"}


def _default_request(request: Json, _: str) -> None:
    if not request.get("allocationMode"):
        request["allocationMode"] = "ExactCount"
    if request["allocationMode"] == "ExactCount" and not request.get("count"):
        request["count"] = 1


def _default_toleration(toleration: Json, _: str) -> None:
    if not toleration.get("operator"):
        toleration["operator"] = "Equal"


def _default_taint(taint: Json, now: str) -> None:
    if not taint.get("timeAdded"):
        taint["timeAdded"] = now


DEFAULT_SETTERS: dict[str, Default] = {"ExactDeviceRequest": _default_request, "DeviceSubRequest": _default_request}
DEFAULT_SETTERS |= {"DeviceToleration": _default_toleration, "DeviceTaint": _default_taint}
"""pkg/apis/resource/v1/defaults.go."""
SHAPES = Shapes(SHAPE_TABLE, DEFAULT_SETTERS, GO_NAMES)
