"""Options of a daemon's pages that do not go together are refused, and none is taken for another."""

import pytest

from gpuplane.service.servingoptions import serving_options


@pytest.mark.parametrize(
    "texts",
    [
        ("9410",),
        ("host:port",),
        ("host:70000",),
        ("host:1", "tls.crt"),
        ("host:1", "", "tls.key"),
        ("host:1", "", "", "Webhook"),
        ("host:1", "tls.crt", "tls.key", "webhook"),
        ("", "tls.crt"),
    ],
)
def test_what_does_not_go_together_is_refused(texts: tuple[str, ...]) -> None:
    """A token is sent over TLS alone; a mode that is misspelled opens nothing."""
    with pytest.raises(ValueError, match="--"):
        serving_options(*texts)


def test_the_default_is_what_it_was() -> None:
    """Without an address nothing listens; without files it is plain HTTP, for everybody."""
    assert serving_options("") is None
    found = serving_options("[::]:9410")
    assert found is not None
    assert (found.host, found.port, found.certificate, found.authorization) == ("::", 9410, None, "AlwaysAllow")
