"""What is shown of a cluster that runs."""

from gpuplane.cli.kit.presenter import print_result
from gpuplane.sandbox.record import ClusterRecord


def show(record: ClusterRecord, as_json: bool) -> None:
    """Print where a cluster is."""
    lines = (
        f"Kubernetes v{record.version} runs at {record.url}, with {len(record.nodes)} nodes: {', '.join(record.nodes)}",
        f"machine files: {record.directory}/nodes/NAME/machine.yaml",
        f"export KUBECONFIG={record.kubeconfig}",
    )
    print_result(record, lines, as_json=as_json)
