"""The certificate of a server follows its files, and what cannot be used changes nothing."""

import os
import ssl
from pathlib import Path

import pytest

from gpuplane.service.certificate import ServingCertificate
from gpuplane.service.servingoptions import CertificateFiles
from tests.service.secret import EXPIRY, PEMS, Secret


def test_the_expiry_is_that_of_the_certificate(tmp_path: Path) -> None:
    """In both of the forms that a time has in a certificate."""
    for name, expiry in EXPIRY.items():
        assert ServingCertificate(Secret(tmp_path / name, name).files).expires_at == expiry


def test_a_swapped_link_is_a_new_certificate(tmp_path: Path) -> None:
    """As kubelet swaps the files of a Secret. What stays the same is not loaded again."""
    secret = Secret(tmp_path, "first")
    certificate = ServingCertificate(secret.files)
    context = certificate.context
    certificate.reload()
    assert certificate.context is context

    secret.swap("second")
    certificate.reload()
    assert certificate.context is not context
    assert certificate.expires_at == EXPIRY["second"]


PAIRS = {
    "another's key": ("second.crt", "first.key"),
    "half a certificate": ("half.crt", "first.key"),
    "half a key": ("first.crt", "half.key"),
    "nothing": ("empty", "empty"),
    "no certificate": ("first.key", "first.key"),
    "no key": ("first.crt", "first.crt"),
    "a key with a password": ("first.crt", "encrypted.key"),
    "no file": ("first.crt", "missing"),
    "a FIFO": ("first.crt", "fifo"),
    "a directory": ("first.crt", "."),
    "a file without end": ("first.crt", "large"),
}


@pytest.mark.parametrize("case", PAIRS)
def test_a_pair_that_cannot_be_used_changes_nothing(tmp_path: Path, case: str) -> None:
    """The last one stays; at the start it is an error. It names the file, says something, and nothing of the key."""
    secret = Secret(tmp_path, "first")
    certificate = ServingCertificate(secret.files)
    context, expires_at = certificate.context, certificate.expires_at
    half = {name: (PEMS / f"first.{name}").read_bytes()[:150] for name in ("crt", "key")}
    made = tmp_path / "made"
    made.mkdir()
    for name in ("first.crt", "first.key", "second.crt", "encrypted.key"):
        (made / name).write_bytes((PEMS / name).read_bytes())
    for name, content in half.items():
        (made / f"half.{name}").write_bytes(content)
    (made / "empty").touch()
    os.mkfifo(made / "fifo")
    with (made / "large").open("wb") as large:
        large.truncate(1 << 30)

    secret.link(*(made / name for name in PAIRS[case]))
    with pytest.raises(OSError, match=r".") as told:
        certificate.reload()
    assert (certificate.context, certificate.expires_at) == (context, expires_at)
    assert str(secret.files.private_key) in told.value.filename
    assert told.value.strerror
    assert not any(line in str(told.value) for line in (PEMS / "first.key").read_text().splitlines()[1:-1])
    with pytest.raises(OSError, match=r"."):
        ServingCertificate(secret.files)


def test_the_oldest_tls_is_1_2(tmp_path: Path) -> None:
    """Whatever the system's own configuration of OpenSSL allows."""
    context = ServingCertificate(Secret(tmp_path, "first").files).context
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_the_expiry_of_a_chain_is_that_of_its_first_certificate(tmp_path: Path) -> None:
    """That is the server's own; text before it is none of it."""
    secret = Secret(tmp_path, "first")
    chain = tmp_path / "chain"
    chain.write_bytes(b"Certificate:\n" + (PEMS / "first.crt").read_bytes() + (PEMS / "second.crt").read_bytes())
    certificate = ServingCertificate(CertificateFiles(chain, secret.files.private_key))
    assert certificate.expires_at == EXPIRY["first"]
