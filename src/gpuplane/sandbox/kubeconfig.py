"""A kubeconfig as a document (k8s.io/client-go/tools/clientcmd/api/v1)."""

from typing import Any

Json = dict[str, Any]


def kubeconfig_document(name: str, cluster: Json, user: Json, namespace: str = "") -> Json:
    """One cluster and one user of it, who are its current context, all by one name."""
    context = {"cluster": name, "user": name, **({"namespace": namespace} if namespace else {})}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": context}],
        "current-context": name,
    }
