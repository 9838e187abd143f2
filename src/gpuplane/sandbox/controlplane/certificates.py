"""The authority of a sandbox's cluster: who its servers and clients are. A cluster that is kept keeps it.

What it issues is valid for a year, and is issued anew at each start. Keys are ECDSA P-256, which take no time to make;
one of RSA takes 0.1 s. They are in files that we alone may read.
"""

import ipaddress
import os
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpuplane.base import files

AUTHORITY_NAME, SERVER_NAME = "gpuplane-sandbox", "gpuplane-sandbox-server"
"""Whose subject is its issuer's is taken for self-signed. Who a server is says its alternative name."""
AUTHORITY_LIFETIME, LIFETIME = timedelta(days=3650), timedelta(days=365)
CLOCK_SKEW = timedelta(days=1)
"""So much earlier everything is valid: clocks jump."""
CERTIFICATE_FILE, KEY_FILE, SERVICE_ACCOUNT_FILE = "ca.crt", "ca.key", "sa.key"
MAX_PEM_BYTES = 1 << 16


class KeyPair(NamedTuple):
    """A certificate and its private key, both in PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """`Authority.load_or_make(directory)`. `certificate`: its own, in PEM."""

    def __init__(self, directory: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.certificate_file, self.key_file = directory / CERTIFICATE_FILE, directory / KEY_FILE
        self.service_account_file = directory / SERVICE_ACCOUNT_FILE
        """The key that signs the tokens of service accounts."""
        self._issuer, self._key = certificate, key
        self.certificate = certificate.public_bytes(Encoding.PEM)

    @classmethod
    def load_or_make(cls, directory: Path) -> Self:
        """That of a directory, which is made where it is missing. One that is damaged or expires is replaced. Raises
        OSError."""
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # its mode would not be its parents'
        directory.mkdir(mode=0o700, exist_ok=True)
        with suppress(ValueError, FileNotFoundError):
            return cls(directory, *_load(directory))
        made = cls(directory, *_make())
        write_file(made.key_file, _pem(made._key))
        write_file(made.certificate_file, made.certificate, mode=0o644)
        write_file(made.service_account_file, _pem(ec.generate_private_key(ec.SECP256R1())))
        return made

    def issue_client(self, user: str, groups: Iterable[str] = ()) -> KeyPair:
        """Of whoever Kubernetes knows as this user, in these groups (X.509 client certificates: CN and O)."""
        parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        name = x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, user)])
        return self._issue(name, ExtendedKeyUsageOID.CLIENT_AUTH)

    def issue_server(self, names: Iterable[str], addresses: Iterable[str]) -> KeyPair:
        """Of a server that has these DNS names and IP addresses."""
        ours = [x509.DNSName(name) for name in names]
        others = [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SERVER_NAME)])
        return self._issue(name, ExtendedKeyUsageOID.SERVER_AUTH, x509.SubjectAlternativeName([*ours, *others]))

    def _issue(
        self, subject: x509.Name, usage: x509.ObjectIdentifier, alternatives: x509.SubjectAlternativeName | None = None
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(subject, self._issuer.subject, key, LIFETIME)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return KeyPair(certificate.public_bytes(Encoding.PEM), _pem(key))


def write_file(path: Path, content: bytes, *, mode: int = 0o600, sync: bool = True) -> None:
    """Give a file another content. Raises OSError, which names the file also where the disk is full."""
    try:
        files.replace(path, content, mode=mode, sync=sync)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def _load(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Raises ValueError for what cannot be used any more, and OSError."""
    certificate = x509.load_pem_x509_certificate(files.read(directory / CERTIFICATE_FILE, MAX_PEM_BYTES))
    keys = [_load_key(directory / name) for name in (KEY_FILE, SERVICE_ACCOUNT_FILE)]
    if certificate.public_key() != keys[0].public_key():
        raise ValueError("the certificate is of another key")
    if certificate.not_valid_after_utc < datetime.now(UTC) + LIFETIME:
        raise ValueError("the certificate expires")
    return certificate, keys[0]


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(files.read(path, MAX_PEM_BYTES), None)
    except TypeError as error:  # it is encrypted
        raise ValueError(str(error)) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is of another kind")
    return key


def _make() -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, AUTHORITY_NAME)])
    builder = (
        _builder(name, name, key, AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return builder.sign(key, hashes.SHA256()), key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, lifetime: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + lifetime)
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """As SEC 1: of such a key the API server reads the public one too (client-go/util/keyutil)."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
