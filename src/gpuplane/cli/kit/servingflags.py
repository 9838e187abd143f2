"""The options of a daemon's pages, as the commands of all daemons have them."""

import os
from collections.abc import Callable, Mapping
from functools import wraps

from gpuplane.base.value import Value
from gpuplane.service.servingoptions import ServingOptions, serving_options


class ServingFlag(Value):
    """One option. The command line has priority over the environment."""

    name: str
    environment_variable: str  # "" for none
    metavar: str
    help: str


METRICS_ADDRESS_FLAG = ServingFlag(
    "metrics-address", "", "HOST:PORT", "serve /metrics, /healthz and /readyz; default off"
)
CERTIFICATE_FLAG = ServingFlag(
    "tls-cert-file", "TLS_CERT_FILE", "FILE",
    "serve them over TLS, with the certificate and its chain in this PEM file; a change of the file is followed; "
    "environment TLS_CERT_FILE; default: plain HTTP",
)  # fmt: skip
PRIVATE_KEY_FLAG = ServingFlag(
    "tls-private-key-file", "TLS_PRIVATE_KEY_FILE", "FILE",
    "the private key of that certificate; environment TLS_PRIVATE_KEY_FILE",
)  # fmt: skip
AUTHORIZATION_FLAG = ServingFlag(
    "authorization-mode", "AUTHORIZATION_MODE", "MODE",
    "who may read /metrics: AlwaysAllow: everybody; Webhook: whoever has a bearer token that the API server accepts "
    "and may get the nonResourceURL /metrics (needs TLS); environment AUTHORIZATION_MODE; default AlwaysAllow",
)  # fmt: skip
SERVING_FLAGS = METRICS_ADDRESS_FLAG, CERTIFICATE_FLAG, PRIVATE_KEY_FLAG, AUTHORIZATION_FLAG


def read_serving_options(
    given: Callable[[str], str | None], environment: Mapping[str, str], kubeconfig: str = ""
) -> ServingOptions | None:
    """The options by what `given` says of each flag, None for nothing. Raises ValueError.

    `kubeconfig`: of the API server that is asked; "" for that of our pod.
    """

    def text(flag: ServingFlag) -> str:
        text = given(flag.name)
        return environment.get(flag.environment_variable, "") if text is None else text

    return serving_options(
        text(METRICS_ADDRESS_FLAG), text(CERTIFICATE_FLAG), text(PRIVATE_KEY_FLAG), text(AUTHORIZATION_FLAG), kubeconfig
    )


def serving_options_of_command(command: Callable[..., None]) -> Callable[..., None]:
    """A decorator for click: the command has these options, and is called with `pages`."""
    import click  # the agent does without

    @wraps(command)
    def with_pages(**given: str | None) -> None:
        texts = {flag.name: given.pop(flag.name.replace("-", "_")) for flag in SERVING_FLAGS}
        try:
            pages = read_serving_options(texts.__getitem__, os.environ, os.environ.get("KUBECONFIG", ""))
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        command(**given, pages=pages)

    for flag in reversed(SERVING_FLAGS):
        with_pages = click.option(f"--{flag.name}", metavar=flag.metavar, help=f"{flag.help}.")(with_pages)
    return with_pages
