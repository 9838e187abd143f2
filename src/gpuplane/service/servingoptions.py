"""Where a daemon serves its pages, and to whom. The names of the options are kubelet's."""

from pathlib import Path
from typing import Literal

from gpuplane.base.value import Value

AuthorizationMode = Literal["AlwaysAllow", "Webhook"]
"""Who may read metrics. AlwaysAllow: everybody. Webhook: whoever the API server says may (TokenReview and
SubjectAccessReview)."""


class CertificateFiles(Value):
    """A certificate with its chain, and its private key, in PEM."""

    certificate: Path
    private_key: Path


class ServingOptions(Value):
    """Where pages are served: by TLS where there is a certificate."""

    host: str
    port: int
    certificate: CertificateFiles | None = None
    authorization: AuthorizationMode = "AlwaysAllow"
    kubeconfig: Path | None = None  # for Webhook; None: of the pod that we are in


def serving_options(
    address: str,
    certificate: str = "",
    private_key: str = "",
    authorization: str = "",
    kubeconfig: str = "",
) -> ServingOptions | None:
    """The options by the texts of a command line; None where there is no address. Raises ValueError."""
    if bool(certificate) != bool(private_key):
        raise ValueError("--tls-cert-file and --tls-private-key-file belong together: set both or none")
    mode: AuthorizationMode = "Webhook" if authorization == "Webhook" else "AlwaysAllow"
    if (authorization or mode) != mode:
        raise ValueError(f"--authorization-mode must be AlwaysAllow or Webhook, not {authorization!r}")
    if mode == "Webhook" and not certificate:
        raise ValueError(
            "--authorization-mode Webhook needs --tls-cert-file and --tls-private-key-file: without TLS everybody on "
            "the way could read the tokens"
        )
    if not address:
        return None
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"--metrics-address must be HOST:PORT, such as 0.0.0.0:9410, not {address!r}")
    files = CertificateFiles(Path(certificate), Path(private_key)) if certificate else None
    return ServingOptions(
        host=host.strip("[]"),
        port=int(port),
        certificate=files,
        authorization=mode,
        kubeconfig=Path(kubeconfig) if kubeconfig else None,
    )
