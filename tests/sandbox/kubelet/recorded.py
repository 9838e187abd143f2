"""What kubelet 1.36.2 asked a toy plugin and told of pods, phase by phase, on 22 November 2026.

The plugin is `toyplugin.py`, the names are those of its claims. UIDs are put in as {name}. Times are left out here; the
tests have kubelet's, made shorter.
"""

REFUSAL = (
    "RegisterPlugin error -- plugin validation failed with err: invalid supported gRPC versions of DRA driver plugin "
    "gpu.lab.io at endpoint {endpoint}: none of services supported by the plugin ([{offered}]) are supported by the "
    'kubelet (["v1.DRAPlugin" "v1beta1.DRAPlugin"])'
)
"""What NotifyRegistrationStatus says of other versions."""

DEADLINES = {"GetInfo": 1.0, "NotifyRegistrationStatus": 5.0, "prepare": 45.0, "unprepare": 45.0}
"""Seconds that a plugin was given."""

CALLS = {
    "template claim": ("prepare {claim}",),
    "two claims, two containers": ("prepare two-a,two-b",),
    "claim shared by two pods": ("prepare shared",),
    "unprepare: last pod of a shared claim": ("prepare shared", "unprepare shared"),
    "no CDI, unknown CDI, wrong request, no container": (
        "prepare nouse",
        "prepare badcdi",
        "prepare wrong",
        "prepare nocdi",
        "unprepare badcdi",
        "unprepare nouse",
        "unprepare wrong",
        "unprepare nocdi",
    ),
    "err3": ("prepare err3",) * 4,
    "skip2": ("prepare skip2",) * 3,
    "grpc2": ("prepare grpc2",) * 3,
    "extra1": ("prepare extra1",) * 2,
    "slow1": ("prepare slow1",) * 2,
    "unprepare errors": ("prepare unerr3",) + ("unprepare unerr3",) * 4,
    "pod force-deleted": ("prepare force", "unprepare force"),
    "claim deleted and re-created with the same name": ("prepare again", "unprepare again", "prepare again"),
    "plugin gone": ("prepare again", "unprepare again"),
    "plugin restart within 3 s": ("prepare tmpl",),
    "kubelet restart": ("prepare tmpl", "prepare err3", "prepare err3", "unprepare tmpl"),
    "container killed after a kubelet restart": ("prepare tmpl",),
}
"""NodePrepareResources and NodeUnprepareResources, in order, with the claims of each call."""

FAILURES = {
    "not registered": ("DRA driver gpu.lab.io is not registered",),
    "err3": tuple(
        f"NodePrepareResources failed for ResourceClaim err3: prepare failed on purpose, attempt {times}"
        for times in (1, 2, 3)
    ),
    "skip2": ("NodePrepareResources skipped 1 ResourceClaims",) * 2,
    "grpc2": ("NodePrepareResources: rpc error: code = Internal desc = prepare grpc error on purpose",) * 2,
    "extra1": ("NodePrepareResources returned result for unknown claim UID 00000000-dead-beef-0000-000000000000",),
    "slow1": ("NodePrepareResources: rpc error: code = DeadlineExceeded desc = context deadline exceeded",),
    "claim deleted and re-created with the same name": (
        "old ResourceClaim with same name again and different UID {again} still exists (previous pod force-deleted?!)",
    ),
}
"""What the Event FailedPrepareDynamicResources said, after "Failed to prepare dynamic resources: prepare dynamic
resources: "."""

CREATE_ERROR = (
    "CreateContainerError",
    "failed to create containerd container: CDI device injection failed: "
    "unresolvable CDI devices gpu.lab.io/claim=does-not-exist",
)

UNSHARED = (
    '{"ClaimUID":"23cfb283-3eda-4d0e-a2f3-40e2d838e0a8","ClaimName":"two-a","Namespace":"dra-lab",'
    '"PodUIDs":{"884827ce-fe61-4eda-82b5-9ba3c241fe89":{}},"DriverState":{"gpu.lab.io":{"Devices":['
    '{"PoolName":"pool","DeviceName":"g1","ShareID":null,"RequestNames":["gpu"],'
    '"CDIDeviceIDs":["gpu.lab.io/claim=c23cfb283-3eda-4d0e-a2f3-40e2d838e0a8-g1"]}]}}}'
)
SHARED = (
    '{"ClaimUID":"75434cc9-654c-42dd-823f-dc80c41d6767","ClaimName":"two-b","Namespace":"dra-lab",'
    '"PodUIDs":{"884827ce-fe61-4eda-82b5-9ba3c241fe89":{}},"DriverState":{"gpu.lab.io":{"Devices":['
    '{"PoolName":"pool","DeviceName":"g4","ShareID":"4d1ac047-bcdb-4673-aa24-070d2b6b9486","RequestNames":["gpu"],'
    '"CDIDeviceIDs":["gpu.lab.io/claim=c75434cc9-654c-42dd-823f-dc80c41d6767-g4"]}]}}}'
)
HEAD = '{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":['

CHECKPOINTS = {f"{HEAD}]}}": 2361995144, f"{HEAD}{UNSHARED},{SHARED}]}}": 3084217917}
"""What stood in dra_manager_state: Data → Checksum."""

DIFFERENCES = {
    "plugins_registry is looked at each second, without inotify": "kubelet acts on what it watches at the same pace",
    "a socket that is renamed away ends its registration": "kubelet hears of removals alone; nobody renames one away",
    "device plugins and CSI drivers in plugins_registry are refused": "no plugin of ours registers there as such",
    "dra_health_state is not written": "after a start the stream tells health again before anybody asks for it",
    "the order of claims in the checkpoint is that of their entry": "kubelet's is that of a Go map: none",
    "extended resources that claims stand for are not known": "Container.claims says what a container gets",
    "a pod is retried after one fixed time": "kubelet's varies by half, at random",
    "containers end after one fixed time": "nothing runs in them",
}
"""What the embedded kubelet does otherwise, on purpose, and why."""
