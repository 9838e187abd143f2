"""The certificate of a server, from files that change while it runs.

kubelet swaps the files of a Secret by a link, and other programs write one file after the other. So both are read at
once, and what does not belong together changes nothing: the last good pair serves until there is another one. The files
are read as those of others (`base/files.py`), and OpenSSL gets them from memory: it would open whatever is there.
"""

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from gpuplane.base import files
from gpuplane.base.text import clip
from gpuplane.service.servingoptions import CertificateFiles

MAX_PEM_BYTES = 1 << 20
"""Bytes of a certificate with its chain, and of a key: what a Secret has at most."""
CERTIFICATE_BEGIN, CERTIFICATE_END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
UTC_TIME_TAG, VERSION_TAG = 0x17, 0xA0
"""Tags of DER in a certificate (RFC 5280, 4.1)."""


class ServingCertificate:
    """The last good certificate and key. `context` has them; `expires_at`: in seconds since 1970."""

    def __init__(self, paths: CertificateFiles) -> None:
        """Raises OSError, with the path."""
        self._paths = paths
        self._pair = self._read()
        self.context, self.expires_at = self._load(self._pair)

    def reload(self) -> None:
        """Use what is in the files now, if it is something else. Raises OSError where that cannot be used."""
        if (pair := self._read()) != self._pair:
            self.context, self.expires_at = self._load(pair)
            self._pair = pair

    def _read(self) -> tuple[bytes, bytes]:
        return files.read(self._paths.certificate, MAX_PEM_BYTES), files.read(self._paths.private_key, MAX_PEM_BYTES)

    def _load(self, pair: tuple[bytes, bytes]) -> tuple[ssl.SSLContext, float]:
        """Raises OSError for what is no certificate with its key."""
        try:
            return _tls_context(*pair), _expiry(pair[0])
        except ssl.SSLError as error:
            unlike = "they do not belong together"
            reason = (
                unlike if error.reason == "KEY_VALUES_MISMATCH" else f"no certificate and key in PEM: {error.reason}"
            )
        except ValueError as error:
            reason = str(error)
        raise OSError(0, clip(reason), f"{self._paths.certificate}, {self._paths.private_key}")


def _tls_context(certificate: bytes, private_key: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    with _in_memory(certificate) as certificate_path, _in_memory(private_key) as key_path:
        context.load_cert_chain(certificate_path, key_path, password=_refuse_to_ask)
    return context


def _refuse_to_ask() -> str:
    """OpenSSL would ask at the terminal."""
    raise ValueError("the key is encrypted: a server needs it without a password")


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """The path of a file that is nowhere but in our memory."""
    file = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        while content:
            content = content[os.write(file, content) :]
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)


def _expiry(pem: bytes) -> float:
    """`notAfter` of the first certificate, which is the server's own (RFC 5280, 4.1.2.5). Raises ValueError."""
    text = pem.decode("latin-1")
    if (begin := text.find(CERTIFICATE_BEGIN)) < 0:
        raise ValueError("no certificate in PEM")
    der = ssl.PEM_cert_to_DER_cert(text[begin : text.index(CERTIFICATE_END, begin) + len(CERTIFICATE_END)])
    (_, certificate), *_ = _elements(der)
    (_, signed), *_ = _elements(certificate)
    _serial, _algorithm, _issuer, validity, *_ = (content for tag, content in _elements(signed) if tag != VERSION_TAG)
    _not_before, (tag, not_after) = _elements(validity)
    form = "%y%m%d%H%M%SZ" if tag == UTC_TIME_TAG else "%Y%m%d%H%M%SZ"
    return datetime.strptime(not_after.decode("ascii"), form).replace(tzinfo=UTC).timestamp()


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(tag, content) of each element of a sequence in DER (ITU-T X.690). Raises ValueError."""
    at = 0
    while at < len(data):
        head = data[at : at + 2]
        if len(head) < 2:
            raise ValueError("a certificate is cut short")
        tag, length = head
        at += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        yield tag, data[at : at + length]
        at += length
