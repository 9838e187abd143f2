"""How the programs of a control plane are started: their files and flags. Paths are relative to the state directory.

Everything is as on a real cluster (kubeadm's flags are the model), but for what a laptop has not:
- etcd listens on Unix sockets in our directory: its HTTP on loopback would be open to every user of the machine;
- the API server reaches nodes and pods by our proxy (`network.py`), and services by their endpoints, since nobody
  routes their addresses;
- the controllers and the scheduler serve no HTTP and elect no leader, and may ask as often as they like: with the usual
  20 requests a second a new cluster takes 4 s longer until it takes pods.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpuplane.sandbox.controlplane.programs import API_SERVER, CONTROLLER_MANAGER, ETCD, SCHEDULER

SERVICE_RANGE, SERVICE_ADDRESS = "10.96.0.0/16", "10.96.0.1"
SERVER_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
ADMIN, FRONT_PROXY, KUBELET_CLIENT = "kubernetes-admin", "front-proxy-client", "kube-apiserver-kubelet-client"
CLIENTS: Mapping[str, tuple[str, ...]] = {
    ADMIN: ("system:masters",),
    KUBELET_CLIENT: ("system:masters",),
    FRONT_PROXY: (),
    f"system:{CONTROLLER_MANAGER}": (),
    f"system:{SCHEDULER}": (),
}
"""Each user → its groups."""
EGRESS_SOCKET, EGRESS_FILE, SCHEDULER_FILE = "egress.sock", "egress.json", "scheduler.json"
ETCD_URL, PEER_URL = "unix://etcd.sock:0", "unix://peer.sock:0"
"""etcd wants a port and makes it part of the file's name."""
SOCKETS = (EGRESS_SOCKET, "etcd.sock:0", "peer.sock:0")
REQUESTS = {"qps": 500, "burst": 1000}


class Place(NamedTuple):
    """Where a control plane is: an address and a port that listen, and the address that Kubernetes knows."""

    address: str
    port: int
    advertised: str


def certificate_file(name: str) -> str:
    """Of a client or a server, its certificate with its key."""
    return f"pki/{name}.pem"


def kubeconfig_file(name: str) -> str:
    """Of a client."""
    return f"pki/{name}.kubeconfig"


def configurations() -> dict[str, bytes]:
    """Files that programs read: name → content."""
    egress = {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [
            {
                "name": "cluster",
                "connection": {
                    "proxyProtocol": "HTTPConnect",
                    "transport": {"uds": {"udsName": EGRESS_SOCKET}},
                },
            }
        ],
    }
    scheduler = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": kubeconfig_file(f"system:{SCHEDULER}"), **REQUESTS},
    }
    return {EGRESS_FILE: _json(egress), SCHEDULER_FILE: _json(scheduler)}


def program_arguments(place: Place, data: str, *, kept: bool, api_server: Sequence[str] = ()) -> dict[str, list[str]]:
    """The arguments of each program. `data`: etcd's directory. `kept`: it has to survive the machine's end.
    `api_server`: more of its flags."""
    etcd = {
        "data-dir": data,
        "listen-client-urls": ETCD_URL,
        "advertise-client-urls": ETCD_URL,
        "listen-peer-urls": PEER_URL,
        "initial-advertise-peer-urls": PEER_URL,
        "initial-cluster": f"default={PEER_URL}",
        "log-level": "warn",
        "unsafe-no-fsync": str(not kept).lower(),
    }
    return {
        ETCD: _flags(etcd),
        API_SERVER: [*_flags(_api_server(place)), *api_server],
        CONTROLLER_MANAGER: _flags(_controller_manager()),
        SCHEDULER: _flags({"config": SCHEDULER_FILE, "secure-port": "0"}),
    }


def _api_server(place: Place) -> dict[str, str]:
    server, kubelet_client, front_proxy = (certificate_file(name) for name in (API_SERVER, KUBELET_CLIENT, FRONT_PROXY))
    return {
        "etcd-servers": ETCD_URL,
        "bind-address": place.address,
        "secure-port": str(place.port),
        "advertise-address": place.advertised,
        "endpoint-reconciler-type": "none",
        "tls-cert-file": server,
        "tls-private-key-file": server,
        "client-ca-file": "pki/ca.crt",
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-signing-key-file": "pki/sa.key",
        "service-account-key-file": "pki/sa.key",
        "service-cluster-ip-range": SERVICE_RANGE,
        "allow-privileged": "true",
        "egress-selector-config-file": EGRESS_FILE,
        "enable-aggregator-routing": "true",
        "kubelet-preferred-address-types": "InternalIP",
        "kubelet-client-certificate": kubelet_client,
        "kubelet-client-key": kubelet_client,
        "kubelet-certificate-authority": "pki/ca.crt",
        "requestheader-client-ca-file": "pki/ca.crt",
        "requestheader-allowed-names": FRONT_PROXY,
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-username-headers": "X-Remote-User",
        "proxy-client-cert-file": front_proxy,
        "proxy-client-key-file": front_proxy,
    }


def _controller_manager() -> dict[str, str]:
    return {
        "kubeconfig": kubeconfig_file(f"system:{CONTROLLER_MANAGER}"),
        "kube-api-qps": str(REQUESTS["qps"]),
        "kube-api-burst": str(REQUESTS["burst"]),
        "secure-port": "0",
        "leader-elect": "false",
        "use-service-account-credentials": "true",
        "root-ca-file": "pki/ca.crt",
        "service-account-private-key-file": "pki/sa.key",
        "cluster-signing-cert-file": "pki/ca.crt",
        "cluster-signing-key-file": "pki/ca.key",
    }


def _flags(values: Mapping[str, str]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode()
